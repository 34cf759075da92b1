// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// certificate describes one certificate. Its key and certificate are pki/FILE.key and pki/FILE.crt.
type certificate struct {
	file         string
	commonName   string
	organization string
	dnsNames     []string
	ips          []netip.Addr
	server       bool // also for TLS servers, not only for clients
	kubeconfig   bool // also write FILE.kubeconfig for use inside the sandbox
	etcd         bool // signed by the authority of etcd instead of that of the cluster
}

// certificates lists all certificates of a cluster. One authority signs them, also those of the
// aggregation layer. Only etcd has its own authority, as with kubeadm. Servers of one kind share a
// certificate.
func (p plan) certificates() []certificate {
	names := []string{"localhost"}
	ips := []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()}
	for _, n := range p.controlPlanes() {
		names, ips = append(names, n.Name), append(ips, n.IPs...)
	}
	certs := []certificate{
		{
			file: "apiserver", commonName: "kube-apiserver", server: true,
			dnsNames: append([]string{
				"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
			}, names...),
			ips: slices.Concat(ips, p.apiServiceIPs(), p.balancerIPs()),
		},
		{file: "etcd/server", commonName: "etcd", dnsNames: names, ips: ips, server: true, etcd: true},
		{file: "etcd/peer", commonName: "etcd", dnsNames: names, ips: ips, server: true, etcd: true},
		{file: "apiserver-etcd-client", commonName: "kube-apiserver-etcd-client", etcd: true},
		{file: "apiserver-kubelet-client", commonName: "kube-apiserver-kubelet-client", organization: "system:masters"},
		{file: "front-proxy-client", commonName: "front-proxy-client"},
		{
			file: "aggregated", commonName: "aggregated", server: true,
			dnsNames: []string{
				"aggregated." + aggregatedNamespace + ".svc",
				"aggregated." + aggregatedNamespace + ".svc.cluster.local",
			},
		},
		{file: "admin", commonName: "kubernetes-admin", organization: "system:masters"},
		{file: "kube-controller-manager", commonName: "system:kube-controller-manager", kubeconfig: true},
		{file: "kube-scheduler", commonName: "system:kube-scheduler", kubeconfig: true},
		{file: "kube-proxy", commonName: "system:kube-proxy", kubeconfig: true},
	}
	for _, n := range p.Nodes {
		certs = append(certs, certificate{
			file: "kubelet-" + n.Name, commonName: "system:node:" + n.Name, organization: "system:nodes",
			dnsNames: []string{n.Name}, ips: n.IPs, server: true, kubeconfig: true,
		})
	}
	return certs
}

// writePKI writes the authorities, all certificates, the key that signs service account tokens and
// the kubeconfig files. It does nothing if a previous call has written all of them.
func (d dirs) writePKI(p plan, apiPort int) error {
	done := d.file("pki", "complete")
	if _, err := os.Stat(done); err == nil {
		return nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read certificates: %w", err)
	}
	ca, err := d.makeAuthority("ca", "checkplan-sandbox")
	if err != nil {
		return err
	}
	etcdCA, err := d.makeAuthority("etcd/ca", "checkplan-sandbox-etcd")
	if err != nil {
		return err
	}
	serviceAccountKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("create the service account key: %w", err)
	}
	if _, err := d.writeKey("service-account", serviceAccountKey); err != nil {
		return err
	}

	inside := "https://" + p.controlPlaneEndpoint()
	for _, c := range p.certificates() {
		signer := ca
		if c.etcd {
			signer = etcdCA
		}
		certPEM, keyPEM, err := d.issue(c, signer)
		if err != nil {
			return err
		}
		if c.kubeconfig {
			file := d.file("pki", c.file+".kubeconfig")
			if err := writeKubeconfig(file, inside, c.commonName, "", ca.pem, certPEM, keyPEM); err != nil {
				return err
			}
		}
		if c.file == "admin" {
			outside := fmt.Sprintf("https://127.0.0.1:%d", apiPort)
			err := writeKubeconfig(d.kubeconfig(), outside, c.commonName, userNamespace, ca.pem, certPEM, keyPEM)
			if err != nil {
				return err
			}
		}
	}
	return writeFile(done, nil, 0o644)
}

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	pem  []byte // cert
	key  crypto.Signer
}

// makeAuthority creates an authority and writes it to pki/FILE.key and pki/FILE.crt.
func (d dirs) makeAuthority(file, name string) (authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return authority{}, fmt.Errorf("create the certificate authority: %w", err)
	}
	t := template(pkix.Name{CommonName: name})
	t.IsCA, t.BasicConstraintsValid = true, true
	t.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return authority{}, fmt.Errorf("create the certificate authority: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return authority{}, fmt.Errorf("create the certificate authority: %w", err)
	}
	a := authority{cert: cert, pem: encodePEM("CERTIFICATE", der), key: key}
	if err := writeFile(d.file("pki", file+".crt"), a.pem, 0o644); err != nil {
		return authority{}, fmt.Errorf("write certificates: %w", err)
	}
	_, err = d.writeKey(file, key)
	return a, err
}

func template(subject pkix.Name) *x509.Certificate {
	now := time.Now()
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		serial = big.NewInt(now.UnixNano()) // crypto/rand does not fail on Linux
	}
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      subject,
		NotBefore:    now.Add(-time.Hour),
		NotAfter:     now.AddDate(1, 0, 0),
	}
}

func (d dirs) issue(c certificate, ca authority) (certPEM, keyPEM []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("create the key of %s: %w", c.file, err)
	}
	subject := pkix.Name{CommonName: c.commonName}
	if c.organization != "" {
		subject.Organization = []string{c.organization}
	}
	t := template(subject)
	t.KeyUsage = x509.KeyUsageDigitalSignature
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if c.server {
		t.ExtKeyUsage = append(t.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	t.DNSNames = c.dnsNames
	for _, ip := range c.ips {
		t.IPAddresses = append(t.IPAddresses, net.IP(ip.AsSlice()))
	}
	der, err := x509.CreateCertificate(rand.Reader, t, ca.cert, key.Public(), ca.key)
	if err != nil {
		return nil, nil, fmt.Errorf("create the certificate of %s: %w", c.file, err)
	}
	certPEM = encodePEM("CERTIFICATE", der)
	if err := writeFile(d.file("pki", c.file+".crt"), certPEM, 0o644); err != nil {
		return nil, nil, fmt.Errorf("write certificates: %w", err)
	}
	keyPEM, err = d.writeKey(c.file, key)
	return certPEM, keyPEM, err
}

func (d dirs) writeKey(file string, key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode the key of %s: %w", file, err)
	}
	b := encodePEM("EC PRIVATE KEY", der)
	if err := writeFile(d.file("pki", file+".key"), b, 0o600); err != nil {
		return nil, fmt.Errorf("write keys: %w", err)
	}
	return b, nil
}

func encodePEM(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

func writeKubeconfig(file, server, user, namespace string, ca, cert, key []byte) error {
	c := clientcmdapi.NewConfig()
	c.Clusters["sandbox"] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: ca}
	c.AuthInfos[user] = &clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}
	c.Contexts["sandbox"] = &clientcmdapi.Context{Cluster: "sandbox", AuthInfo: user, Namespace: namespace}
	c.CurrentContext = "sandbox"
	b, err := clientcmd.Write(*c)
	if err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(file), err)
	}
	return writeFile(file, b, 0o600)
}

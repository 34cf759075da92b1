// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/checkplan/checkplan/pkg/nodestate"
	"github.com/checkplan/checkplan/pkg/nodestate/client"
)

// authority is a CA for tests.
type authority struct {
	*testing.T
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func newAuthority(t *testing.T) authority {
	a := authority{T: t}
	a.key, a.cert = a.sign(&x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	return a
}

// sign makes a certificate. The first one of an authority is its own.
func (a authority) sign(template *x509.Certificate) (*ecdsa.PrivateKey, *x509.Certificate) {
	a.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.Fatal(err)
	}
	template.SerialNumber, template.NotAfter = big.NewInt(1), time.Now().Add(time.Hour)
	parent, signer := template, key
	if a.cert != nil {
		parent, signer = a.cert, a.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		a.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.Fatal(err)
	}
	return key, cert
}

// write writes the files cert, key and ca of a certificate with a common name into a directory. The CA is that of the
// other side.
func (a authority) write(dir, commonName string, usage x509.ExtKeyUsage, other authority) (cert, key, ca string) {
	a.Helper()
	private, public := a.sign(&x509.Certificate{Subject: pkix.Name{CommonName: commonName},
		ExtKeyUsage: []x509.ExtKeyUsage{usage}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}})
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		a.Fatal(err)
	}
	put := func(name, kind string, content []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: content}), 0o600); err != nil {
			a.Fatal(err)
		}
		return path
	}
	return put("cert", "CERTIFICATE", public.Raw), put("key", "PRIVATE KEY", der), put("ca", "CERTIFICATE", other.cert.Raw)
}

// secure starts a server with AnyNode at tls://127.0.0.1, with certificates in a directory. Its Service web has an
// endpoint on each of two nodes, and each node uses its own.
func secure(t *testing.T, dir string, own, clients authority) (target string) {
	t.Helper()
	web := service("web")
	web.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
	pods := slice("web", "10.0.0.1", "10.0.0.2")
	pods.Endpoints[0].NodeName, pods.Endpoints[1].NodeName = new(nodeName), new("worker-2")
	other := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker-2"}}
	s, err := New(Options{Node: nodeName, AnyNode: true, Client: fake.NewSimpleClientset(web, pods, node(), other),
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	var c Certificates
	c.Cert, c.Key, c.ClientCA = own.write(dir, "node-state", x509.ExtKeyUsageServerAuth, clients)
	l, err := Listen("tls://127.0.0.1:0", c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { s.Run(ctx) })
	wg.Go(func() {
		if err := s.Serve(l); err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	return "tls://" + l.Addr().String()
}

// TestCertificates: who gets which node's state over TLS.
func TestCertificates(t *testing.T) {
	servers, clients, strangers := newAuthority(t), newAuthority(t), newAuthority(t)
	target := secure(t, t.TempDir(), servers, clients)
	plain := "tcp" + strings.TrimPrefix(target, "tls")
	for _, test := range []struct {
		name, target, commonName string
		issuer, trusts           authority
		usage                    x509.ExtKeyUsage
		state, err               string
	}{
		{"no node", target, "prober", clients, servers, x509.ExtKeyUsageClientAuth, "web 10.0.0.1", ""},
		{"the server's node", target, "system:node:worker-1", clients, servers, x509.ExtKeyUsageClientAuth, "web 10.0.0.1", ""},
		{"another node", target, "system:node:worker-2", clients, servers, x509.ExtKeyUsageClientAuth, "web 10.0.0.2", ""},
		{"a node that does not exist", target, "system:node:worker-3", clients, servers, x509.ExtKeyUsageClientAuth, "",
			`node "worker-3", which the client's certificate names, does not exist`},
		{"another CA", target, "system:node:worker-1", strangers, servers, x509.ExtKeyUsageClientAuth, "", "Unavailable"},
		{"a server's certificate", target, "system:node:worker-1", clients, servers, x509.ExtKeyUsageServerAuth, "", "Unavailable"},
		{"a server that the client does not trust", target, "prober", clients, strangers, x509.ExtKeyUsageClientAuth, "", "signed by unknown authority"},
		{"no TLS", plain, "prober", clients, servers, x509.ExtKeyUsageClientAuth, "", "Unavailable"},
		{"no certificate", target, "", clients, servers, x509.ExtKeyUsageClientAuth, "", "want a certificate, its key, and the CA of the server"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := &client.EndpointsClient{Target: test.target}
			defer c.Cancel()
			if test.commonName != "" {
				f := &c.Certificates
				f.Cert, f.Key, f.ServerCA = test.issuer.write(t.TempDir(), test.commonName, test.usage, test.trusts)
			}
			items, err := c.Fetch(t.Context())
			if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) || short(items) != test.state {
				t.Errorf("state %q, error %v, want %q, %q", short(items), err, test.state, test.err)
			}
		})
	}
}

// TestNoCertificate: a program that speaks TLS 1.3, but has no certificate, is refused.
func TestNoCertificate(t *testing.T) {
	servers := newAuthority(t)
	target := secure(t, t.TempDir(), servers, newAuthority(t))
	trusted := x509.NewCertPool()
	trusted.AddCert(servers.cert)
	conn, err := tls.Dial("tcp", strings.TrimPrefix(target, "tls://"), &tls.Config{RootCAs: trusted, NextProtos: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if n, err := conn.Read(make([]byte, 1)); err == nil || !strings.Contains(err.Error(), "certificate required") {
		t.Errorf("read %d bytes, error %v, want the alert certificate required", n, err)
	}
}

// TestRotation: both sides read new certificates, of new authorities, for their next connection.
func TestRotation(t *testing.T) {
	servers, clients := newAuthority(t), newAuthority(t)
	serverDir, clientDir := t.TempDir(), t.TempDir()
	target := secure(t, serverDir, servers, clients)
	get := func(c client.Certificates) error { // over a new connection
		e := &client.EndpointsClient{Target: target, Certificates: c}
		defer e.Cancel()
		_, err := e.Fetch(t.Context())
		return err
	}
	var old, now client.Certificates
	now.Cert, now.Key, now.ServerCA = clients.write(clientDir, "prober", x509.ExtKeyUsageClientAuth, servers)
	old.Cert, old.Key, old.ServerCA = clients.write(t.TempDir(), "prober", x509.ExtKeyUsageClientAuth, servers)
	for range 2 {
		if err := get(now); err != nil {
			t.Fatal(err)
		}
		servers, clients = newAuthority(t), newAuthority(t)
		servers.write(serverDir, "node-state", x509.ExtKeyUsageServerAuth, clients)
		if err := get(now); err == nil {
			t.Error("the server has its old certificate")
		}
		clients.write(clientDir, "prober", x509.ExtKeyUsageClientAuth, servers)
	}
	if err := get(now); err != nil {
		t.Error(err)
	}
	if err := get(old); err == nil {
		t.Error("a client of the old CA is served")
	}
	if err := os.Remove(filepath.Join(serverDir, "ca")); err != nil {
		t.Fatal(err)
	}
	if err := get(now); err == nil {
		t.Error("a client is served without a CA that it could be checked with")
	}
}

// TestListenTLS: certificates that are missing or wrong are refused at the start.
func TestListenTLS(t *testing.T) {
	dir := t.TempDir()
	a := newAuthority(t)
	cert, key, ca := a.write(dir, "node-state", x509.ExtKeyUsageServerAuth, a)
	none := filepath.Join(dir, "none")
	for _, test := range []struct {
		name, address string
		c             Certificates
		err           string
	}{
		{"any address", "tls://0.0.0.0:0", Certificates{cert, key, ca}, ""},
		{"no certificates", "tls://0.0.0.0:0", Certificates{}, "want the server's certificate and key, and the clients' CA"},
		{"no CA", "tls://0.0.0.0:0", Certificates{Cert: cert, Key: key}, "want the server's certificate and key, and the clients' CA"},
		{"no file", "tls://0.0.0.0:0", Certificates{none, key, ca}, "no such file or directory"},
		{"not the key", "tls://0.0.0.0:0", Certificates{cert, ca, ca}, "certificate " + cert + " with key " + ca},
		{"CA without a certificate", "tls://0.0.0.0:0", Certificates{cert, key, key}, key + ": no certificate in it: want PEM"},
		{"no address", "tls://:12345", Certificates{cert, key, ca}, "want an IP address and a port: tls://127.0.0.1:12345"},
		{"certificates do not open plain addresses", "tcp://0.0.0.0:0", Certificates{cert, key, ca}, "not a loopback address"},
	} {
		l, err := Listen(test.address, test.c)
		if err == nil {
			l.Close()
		}
		if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
			t.Errorf("%s: error %v, want %q", test.name, err, test.err)
		}
	}
}

// TestFeeds: another node has an instance and revisions of its own, which end some time after its last client.
func TestFeeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := New(Options{Node: nodeName, AnyNode: true, Client: fake.NewSimpleClientset(), Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		early := s.enter("worker-2") // before anything was read
		for _, r := range s.resources {
			if err := r.Replace(nil, ""); err != nil {
				t.Fatal(err)
			}
		}
		if early.now.rev != 1 || s.own.now.rev != 1 || early.instance == s.own.instance {
			t.Errorf("revisions %d and %d, want 1; instances %d and %d", early.now.rev, s.own.now.rev, early.instance, s.own.instance)
		}
		late := s.enter("worker-3")
		if late.now.rev != 1 {
			t.Errorf("revision %d of a node that was asked for later, want 1", late.now.rev)
		}
		s.leave(late)
		s.leave(early)
		time.Sleep(idle - time.Second)
		again := s.enter("worker-2")
		time.Sleep(idle)
		synctest.Wait()
		if again != early || s.feeds["worker-2"] != early || s.feeds["worker-3"] != nil {
			t.Errorf("feeds %v, want worker-2, which a client came back to, and not worker-3", s.feeds)
		}
		s.change(func(c *nodestate.Cluster) { c.SetService(service("web")) })
		if early.now.rev != 2 || late.now.rev != 1 {
			t.Errorf("revisions %d and %d, want 2, and 1 of the one that has ended", early.now.rev, late.now.rev)
		}
		s.leave(again)
		time.Sleep(idle + time.Second)
		synctest.Wait()
		if len(s.feeds) != 1 || s.feeds[nodeName] != s.own {
			t.Errorf("feeds %v, want the own one", s.feeds)
		}
		f := s.enter(nodeName)
		s.leave(f)
		time.Sleep(idle + time.Second)
		synctest.Wait()
		if s.feeds[nodeName] != s.own {
			t.Error("the own feed has ended")
		}
	})
}

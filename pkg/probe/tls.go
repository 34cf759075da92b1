// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	cryptotls "crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"sync"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// tls makes connections to a Peer and returns a summary, with the delays of the TCP connects. Pairs whose measurements
// are reported one by one call connection directly.
func tls(ctx context.Context, m Measurement, s *Session) checkup.Observation {
	if m.Peer == nil {
		return unmeasured(m, checkup.StageSetup, "the target has no tls port")
	}
	return series(ctx, m, s, func(ctx context.Context, m Measurement) (sample, error) {
		r, known := connection(ctx, m, s)
		switch {
		case !known:
			return sample{}, errCutShort
		case r.Unmeasured != nil:
			return sample{}, errors.New(r.Unmeasured.Message)
		}
		// connection has already handled hold-ups.
		return sample{rtt: time.Duration(r.Delays.Connect) * time.Microsecond, kernel: true, cause: r.Failure}, nil
	})
}

// Words of a peer that does not say enough; the deadline comes behind them.
const (
	silentInHandshake = quiet("accepted the connection and then sent nothing for")
	slowInHandshake   = quiet("began the TLS handshake, but did not end it within")
	silentInResponse  = quiet("answered the TLS handshake and then sent nothing for")
	slowInResponse    = quiet("began the response, but did not end it within")
)

var (
	errClosedInHandshake = errors.New("closed by the peer in the TLS handshake")
	errNotTLS            = errors.New("the peer does not speak TLS")
	errPlainHTTP         = errors.New("the peer speaks HTTP without TLS")
)

// handshake makes a TLS handshake on a connection. It accepts any certificate: the question is whether the peer can be
// reached, not its identity (as in OpenShift's checker).
func handshake(
	ctx context.Context,
	conn net.Conn,
	p *checkup.Peer,
	certificate *cryptotls.Certificate,
) (*cryptotls.Conn, error) {
	config := &cryptotls.Config{
		InsecureSkipVerify: true,
		ServerName:         serverName(p), // not sent if it is an IP address
	}
	if p.Path != "" {
		config.NextProtos = []string{"http/1.1"}
	}
	if certificate != nil {
		// Sent for any authority that the peer requests: its alert is more informative than a missing certificate.
		config.GetClientCertificate = func(*cryptotls.CertificateRequestInfo) (*cryptotls.Certificate, error) {
			return certificate, nil
		}
	}
	listening := &listener{Conn: conn}
	secure := cryptotls.Client(listening, config)
	err := secure.HandshakeContext(ctx)
	var notTLS cryptotls.RecordHeaderError
	switch {
	case err == nil:
		return secure, nil
	case isTimeout(err) && !listening.heard:
		return nil, silentInHandshake
	case isTimeout(err):
		return nil, slowInHandshake
	case isClosed(err):
		return nil, errClosedInHandshake
	case errors.As(err, &notTLS) && string(notTLS.RecordHeader[:]) == "HTTP/":
		return nil, errPlainHTTP
	case errors.As(err, &notTLS):
		return nil, errNotTLS
	}
	return nil, err
}

// serverName returns the server name of a peer for TLS and HTTP.
func serverName(p *checkup.Peer) string {
	if p.ServerName != "" {
		return p.ServerName
	}
	return p.Host
}

// listener is a connection that records whether the peer has sent anything, and the last read error.
type listener struct {
	net.Conn
	heard bool
	err   error
}

func (l *listener) Read(b []byte) (int, error) {
	n, err := l.Conn.Read(b)
	l.heard, l.err = l.heard || n > 0, err
	return n, err
}

// certificates are the client certificates of Secrets of the type
// kubernetes.io/tls.
type certificates struct {
	// files has a directory for each Secret, with tls.crt and tls.key.
	files fs.FS

	mu   sync.Mutex // guards following
	read map[string]keyPair
}

// keyPair is the data of a Secret and the certificate parsed from it.
type keyPair struct {
	crt, key    string
	certificate *cryptotls.Certificate
}

// of returns the current certificate of a Secret, because kubelets update mounted Secrets; nil if secret is empty. A
// nil certificates has no Secrets.
func (c *certificates) of(secret string) (*cryptotls.Certificate, error) {
	if secret == "" {
		return nil, nil
	}
	if c == nil {
		return nil, fmt.Errorf("no client certificate: Secret %s is not mounted in the agent", secret)
	}
	crt, err := fs.ReadFile(c.files, secret+"/tls.crt")
	if err != nil {
		return nil, noCertificate(secret, err)
	}
	key, err := fs.ReadFile(c.files, secret+"/tls.key")
	if err != nil {
		return nil, noCertificate(secret, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if known, ok := c.read[secret]; ok && known.crt == string(crt) && known.key == string(key) {
		return known.certificate, nil
	}
	certificate, err := cryptotls.X509KeyPair(crt, key)
	if err != nil {
		return nil, noCertificate(secret, err)
	}
	if c.read == nil {
		c.read = map[string]keyPair{}
	}
	c.read[secret] = keyPair{string(crt), string(key), &certificate}
	return &certificate, nil
}

func noCertificate(secret string, err error) error {
	var path *fs.PathError
	if errors.Is(err, fs.ErrNotExist) && errors.As(err, &path) {
		return fmt.Errorf("no client certificate: the run's namespace has no Secret %s with tls.crt and tls.key", secret)
	}
	return fmt.Errorf("no client certificate: Secret %s: %w", secret, err)
}

// listenTLS listens on an address with a temporary certificate.
func listenTLS(ctx context.Context, address string) (net.Listener, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		NotBefore:    now.Add(-time.Hour),
		NotAfter:     now.Add(24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	var lc net.ListenConfig
	lc.SetMultipathTCP(false)
	l, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return cryptotls.NewListener(l, &cryptotls.Config{
		Certificates: []cryptotls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
	}), nil
}

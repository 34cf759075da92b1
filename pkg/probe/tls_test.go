// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	cryptotls "crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"math/big"
	"net"
	nethttp "net/http"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// tlsCases are peers and the expected results.
var tlsCases = []struct {
	name string
	// peer serves one connection; nil means that nothing listens.
	peer func(net.Conn)
	path string
	// secret is the client certificate's.
	secret string
	// short is the stage whose deadline is reached; empty for none.
	short checkup.Stage
	// passed are the stages that must have a delay.
	passed     []checkup.Stage
	failure    *checkup.Cause
	unmeasured *checkup.Cause
}{
	{name: "handshake", peer: secure(nil, silentPeer), passed: through(checkup.StageHandshake)},
	{name: "TLS 1.2", peer: secure(func(c *cryptotls.Config) { c.MaxVersion = cryptotls.VersionTLS12 }, silentPeer), passed: through(checkup.StageHandshake)},
	{name: "closed after the handshake", peer: secure(nil, func(net.Conn) {}), passed: through(checkup.StageHandshake)},
	{name: "expired certificate", peer: secure(func(c *cryptotls.Config) {
		c.Certificates = []cryptotls.Certificate{selfSigned(time.Now().Add(-time.Hour))}
	}, silentPeer), passed: through(checkup.StageHandshake)},
	{name: "refused", failure: noConnection(checkup.ReasonRefused, "connection refused")},
	{name: "silent", peer: silentPeer, short: checkup.StageHandshake, passed: through(checkup.StageConnect),
		failure: &checkup.Cause{
			Stage: checkup.StageHandshake, Reason: checkup.ReasonSilent, Message: "accepted the connection and then sent nothing for 300ms",
		}},
	{name: "half a record", peer: func(c net.Conn) { c.Write([]byte{22, 3, 3, 0, 100, 2}); silentPeer(c) }, short: checkup.StageHandshake, passed: through(checkup.StageConnect),
		failure: cause(checkup.StageHandshake, "began the TLS handshake, but did not end it within 300ms")},
	{name: "closed in the handshake", peer: func(c net.Conn) { c.(*net.TCPConn).CloseWrite(); silentPeer(c) }, passed: through(checkup.StageConnect),
		failure: cause(checkup.StageHandshake, "closed by the peer in the TLS handshake")},
	{name: "closed within a record", peer: func(c net.Conn) {
		c.Write([]byte{22, 3, 3, 0, 100, 2})
		c.(*net.TCPConn).CloseWrite()
		silentPeer(c)
	}, passed: through(checkup.StageConnect), failure: cause(checkup.StageHandshake, "closed by the peer in the TLS handshake")},
	{name: "reset", peer: func(c net.Conn) { io.CopyN(io.Discard, c, 1); c.(*net.TCPConn).SetLinger(0) }, passed: through(checkup.StageConnect),
		failure: cause(checkup.StageHandshake, "connection reset by peer")},
	{name: "not TLS", peer: func(c net.Conn) { fmt.Fprint(c, "SSH-2.0-OpenSSH\r\n"); silentPeer(c) }, passed: through(checkup.StageConnect),
		failure: cause(checkup.StageHandshake, "the peer does not speak TLS")},
	{name: "plain HTTP", peer: serveOne(status(200)), passed: through(checkup.StageConnect),
		failure: cause(checkup.StageHandshake, "the peer speaks HTTP without TLS")},
	{name: "too old", peer: secure(func(c *cryptotls.Config) { c.MinVersion, c.MaxVersion = cryptotls.VersionTLS10, cryptotls.VersionTLS11 }, silentPeer), passed: through(checkup.StageConnect),
		failure: cause(checkup.StageHandshake, `the peer refused with the TLS alert "protocol version not supported"`)},
	{name: "rejected by an alert", peer: secure(func(c *cryptotls.Config) {
		c.GetConfigForClient = func(*cryptotls.ClientHelloInfo) (*cryptotls.Config, error) { return nil, errors.New("no") }
	}, silentPeer), passed: through(checkup.StageConnect), failure: cause(checkup.StageHandshake, `the peer refused with the TLS alert "internal error"`)},

	{name: "client certificate", peer: secure(wantCertificate, silentPeer), secret: "etcd-client", passed: through(checkup.StageHandshake)},
	{name: "client certificate, TLS 1.2", peer: secure(wantCertificate12, silentPeer), secret: "etcd-client", passed: through(checkup.StageHandshake)},
	{name: "no client certificate, TLS 1.2", peer: secure(wantCertificate12, silentPeer), passed: through(checkup.StageConnect),
		failure: cause(checkup.StageHandshake, `the peer refused with the TLS alert "handshake failure"`)},
	// In TLS 1.3 the client completes the handshake before the server checks its certificate.
	{name: "no client certificate", peer: secure(wantCertificate, silentPeer), passed: through(checkup.StageHandshake)},
	{name: "no client certificate, with a path", peer: secure(wantCertificate, serveOne(status(200))), path: "/some/path", passed: through(checkup.StageHandshake),
		failure: cause(checkup.StageResponse, `the peer refused with the TLS alert "certificate required"`)},
	{name: "no Secret", peer: silentPeer, secret: "no-such",
		unmeasured: cause(checkup.StageSetup, "no client certificate: the run's namespace has no Secret no-such with tls.crt and tls.key")},
	{name: "Secret without a key", peer: silentPeer, secret: "no-key",
		unmeasured: cause(checkup.StageSetup, "no client certificate: the run's namespace has no Secret no-key with tls.crt and tls.key")},
	{name: "Secret of another kind", peer: silentPeer, secret: "nonsense",
		unmeasured: cause(checkup.StageSetup, "no client certificate: Secret nonsense: tls: failed to find any PEM data in certificate input")},
	{name: "key of another certificate", peer: silentPeer, secret: "mixed",
		unmeasured: cause(checkup.StageSetup, "no client certificate: Secret mixed: tls: private key does not match public key")},

	{name: "ready", peer: secure(nil, serveOne(status(200))), path: "/some/path", passed: through(checkup.StageResponse)},
	{name: "ready after early hints", peer: secure(nil, serveOne(func(w nethttp.ResponseWriter, r *nethttp.Request) {
		w.WriteHeader(nethttp.StatusEarlyHints)
		status(200)(w, r)
	})), path: "/some/path", passed: through(checkup.StageResponse)},
	{name: "unauthorized", peer: secure(nil, serveOne(status(401))), path: "/some/path", passed: through(checkup.StageHandshake),
		failure: cause(checkup.StageResponse, "HTTP status 401 Unauthorized")},
	{name: "not ready", peer: secure(nil, serveOne(status(500))), path: "/some/path", passed: through(checkup.StageHandshake),
		failure: cause(checkup.StageResponse, "HTTP status 500 Internal Server Error")},
	{name: "silent after the handshake", peer: secure(nil, silentPeer), path: "/", short: checkup.StageResponse, passed: through(checkup.StageHandshake),
		failure: cause(checkup.StageResponse, "answered the TLS handshake and then sent nothing for 300ms")},
	{name: "half a response", peer: secure(nil, func(c net.Conn) { fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-"); silentPeer(c) }), path: "/", short: checkup.StageResponse, passed: through(checkup.StageHandshake),
		failure: cause(checkup.StageResponse, "began the response, but did not end it within 300ms")},
	{name: "half a body", peer: secure(nil, func(c net.Conn) { fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"); silentPeer(c) }), path: "/", short: checkup.StageResponse, passed: through(checkup.StageHandshake),
		failure: cause(checkup.StageResponse, "began the response, but did not end it within 300ms")},
	{name: "closed before the response", peer: secure(nil, func(c net.Conn) { c.(*cryptotls.Conn).CloseWrite(); silentPeer(c) }), path: "/", passed: through(checkup.StageHandshake),
		failure: cause(checkup.StageResponse, "closed by the peer before the whole answer")},
	{name: "not HTTP", peer: secure(nil, func(c net.Conn) { fmt.Fprint(c, "SSH-2.0-OpenSSH\r\n\r\n"); silentPeer(c) }), path: "/", passed: through(checkup.StageHandshake),
		failure: cause(checkup.StageResponse, "the answer is not HTTP")},
	{name: "header without end", peer: secure(nil, func(c net.Conn) {
		fmt.Fprint(c, "HTTP/1.1 200 OK\r\nX: ")
		io.Copy(c, zeroes{})
	}), path: "/", passed: through(checkup.StageHandshake), failure: cause(checkup.StageResponse, "the answer is not HTTP")},
}

func TestTLS(t *testing.T) {
	for _, test := range tlsCases {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			bothFamilies(t, func(t *testing.T, family checkup.IPFamily) {
				m := peerAt(checkup.TLS, family, listenTCP(t, family, test.peer))
				m.Peer.Path, m.Peer.ClientCertificate = test.path, test.secret
				*deadlineOf(&m, test.short) = silence
				s := session()
				s.certificates = &certificates{files: secrets}
				got, known := connection(t.Context(), m, s)
				if !known {
					t.Error("the outcome is not known")
				}
				want := checkup.Result{Pair: m.Pair, Failure: test.failure, Unmeasured: test.unmeasured}
				if diff := diffResults(want, test.passed, got); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		})
	}
}

// through returns the stages of a peer with an IP address up to the given one.
func through(last checkup.Stage) []checkup.Stage {
	all := []checkup.Stage{checkup.StageConnect, checkup.StageHandshake, checkup.StageResponse}
	for i, s := range all {
		if s == last {
			return all[:i+1]
		}
	}
	panic(last)
}

// diffResults compares results. Of the delays it checks only that those of the passed stages are set.
func diffResults(want checkup.Result, passed []checkup.Stage, got checkup.Result) string {
	var delayed []checkup.Stage
	for _, s := range checkup.ConnectionStages {
		if got.Delays.Of(s) > 0 {
			delayed = append(delayed, s)
		}
	}
	want.Delays = got.Delays
	return cmp.Diff(passed, delayed) + cmp.Diff(want, got)
}

// deadlineOf returns the deadline of a stage.
func deadlineOf(m *Measurement, s checkup.Stage) *checkup.Duration {
	switch s {
	case checkup.StageResolve:
		return &m.Deadlines.Resolve
	case checkup.StageConnect:
		return &m.Deadlines.Connect
	case checkup.StageHandshake:
		return &m.Deadlines.Handshake
	case checkup.StageResponse:
		return &m.Deadlines.Response
	}
	return new(checkup.Duration)
}

// secure is a peer that completes a TLS handshake first.
func secure(configure func(*cryptotls.Config), then func(net.Conn)) func(net.Conn) {
	config := &cryptotls.Config{Certificates: []cryptotls.Certificate{ourCertificate}}
	if configure != nil {
		configure(config)
	}
	return func(c net.Conn) {
		conn := cryptotls.Server(c, config)
		if conn.Handshake() == nil {
			then(conn)
		} else {
			silentPeer(c) // a reset must not overtake the alert
		}
	}
}

// serveOne is a peer that serves HTTP on one connection.
func serveOne(handler nethttp.HandlerFunc) func(net.Conn) {
	return func(c net.Conn) {
		once := &oneConn{conn: c, closed: make(chan struct{})}
		server := nethttp.Server{Handler: handler, ErrorLog: log.New(io.Discard, "", 0), ConnState: func(_ net.Conn, state nethttp.ConnState) {
			if state == nethttp.StateClosed {
				close(once.closed)
			}
		}}
		server.Serve(once)
	}
}

// oneConn is a listener that accepts one connection and ends with it.
type oneConn struct {
	conn   net.Conn
	closed chan struct{}
}

func (o *oneConn) Accept() (net.Conn, error) {
	if c := o.conn; c != nil {
		o.conn = nil
		return c, nil
	}
	<-o.closed
	return nil, net.ErrClosed
}
func (o *oneConn) Close() error   { return nil }
func (o *oneConn) Addr() net.Addr { return &net.TCPAddr{} }

func wantCertificate(c *cryptotls.Config) { c.ClientAuth = cryptotls.RequireAnyClientCert }

func wantCertificate12(c *cryptotls.Config) {
	c.ClientAuth, c.MaxVersion = cryptotls.RequireAnyClientCert, cryptotls.VersionTLS12
}

var ourCertificate, otherCertificate = selfSigned(time.Now().Add(time.Hour)), selfSigned(time.Now().Add(time.Hour))

// secrets are as kubelets mount them.
var secrets = fstest.MapFS{
	"etcd-client/tls.crt": {Data: certificatePEM(ourCertificate)},
	"etcd-client/tls.key": {Data: keyPEM(ourCertificate)},
	"no-key/tls.crt":      {Data: certificatePEM(ourCertificate)},
	"nonsense/tls.crt":    {Data: []byte("nonsense")},
	"nonsense/tls.key":    {Data: []byte("nonsense")},
	"mixed/tls.crt":       {Data: certificatePEM(ourCertificate)},
	"mixed/tls.key":       {Data: keyPEM(otherCertificate)},
}

func selfSigned(until time.Time) cryptotls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: until.Add(-24 * time.Hour), NotAfter: until}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		panic(err)
	}
	return cryptotls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func certificatePEM(c cryptotls.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]})
}

func keyPEM(c cryptotls.Certificate) []byte {
	der, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		panic(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// A kubelet replaces a renewed certificate.
func TestChangedCertificatesAreReadAgain(t *testing.T) {
	files := fstest.MapFS{"a/tls.crt": secrets["etcd-client/tls.crt"], "a/tls.key": secrets["etcd-client/tls.key"]}
	c := &certificates{files: files}
	first, err := c.of("a")
	if err != nil {
		t.Fatal(err)
	}
	if again, err := c.of("a"); err != nil || again != first {
		t.Errorf("unchanged files: got another certificate (%v)", err)
	}
	files["a/tls.crt"], files["a/tls.key"] = &fstest.MapFile{Data: certificatePEM(otherCertificate)}, secrets["mixed/tls.key"]
	renewed, err := c.of("a")
	if err != nil || string(renewed.Certificate[0]) != string(otherCertificate.Certificate[0]) {
		t.Errorf("changed files: got the old certificate (%v)", err)
	}
	delete(files, "a/tls.key")
	if _, err := c.of("a"); !errors.Is(err, fs.ErrNotExist) && (err == nil || !strings.Contains(err.Error(), "no Secret a")) {
		t.Errorf("deleted file: got error %v", err)
	}
}

// Control pairs use the summary.
func TestTLSSummary(t *testing.T) {
	for _, test := range []struct {
		name string
		peer func(net.Conn)
		want checkup.Observation
	}{
		{"answered", secure(nil, silentPeer), checkup.Observation{Sent: 3, Received: 3}},
		{"refused", nil, checkup.Observation{Sent: 3, Failure: noConnection(checkup.ReasonRefused, "connection refused")}},
	} {
		t.Run(test.name, func(t *testing.T) {
			bothFamilies(t, func(t *testing.T, family checkup.IPFamily) {
				m := peerAt(checkup.TLS, family, listenTCP(t, family, test.peer))
				m.Probe.Count = 3
				want := test.want
				want.Pair = m.Pair
				if diff := diffObservations(want, tls(t.Context(), m, session())); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		})
	}
}

// SPDX-License-Identifier: Apache-2.0

package server

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Certificates are files in PEM. They are read again for each connection, so new ones need no restart.
type Certificates struct {
	// Cert and Key are the server's.
	Cert, Key string
	// ClientCA has the authorities whose clients are served.
	ClientCA string
}

// Listen listens on
//
//   - unix:///PATH, with mode 0660
//   - tcp://ADDRESS:PORT of the loopback interface
//   - tls://ADDRESS:PORT of any interface: both sides need a certificate
//
// The first two have no encryption, and whoever can connect can read the state. So other addresses are refused.
func Listen(address string, c Certificates) (net.Listener, error) {
	network, rest, _ := strings.Cut(address, "://")
	switch network {
	case "unix":
		if !filepath.IsAbs(rest) {
			return nil, fmt.Errorf("listen on %s: want an absolute path: unix:///run/checkplan/node-state.sock", address)
		}
		return listenUnix(rest)
	case "tcp", "tls":
		at, err := netip.ParseAddrPort(rest)
		switch {
		case err != nil:
			return nil, fmt.Errorf("listen on %s: want an IP address and a port: %s://127.0.0.1:12345", address, network)
		case network == "tcp" && !at.Addr().Unmap().IsLoopback():
			return nil, fmt.Errorf("listen on %s: not a loopback address: anyone on the network could read the state: "+
				"want tcp://127.0.0.1:%d, or tls://%s with certificates", address, at.Port(), rest)
		case network == "tcp":
			return net.Listen("tcp", rest)
		}
		if _, err := c.load(); err != nil {
			return nil, fmt.Errorf("listen on %s: %w", address, err)
		}
		listener, err := net.Listen("tcp", rest)
		if err != nil {
			return nil, err
		}
		return secureListener{listener, c}, nil
	}
	return nil, fmt.Errorf("listen on %q: want unix:///PATH, tcp://ADDRESS:PORT or tls://ADDRESS:PORT", address)
}

// secureListener is a listener whose connections need certificates.
type secureListener struct {
	net.Listener
	certificates Certificates
}

func (l secureListener) config(log *slog.Logger) *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		SessionTicketsDisabled: true, // a resumed session would have passed an earlier CA
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			config, err := l.certificates.load()
			if err != nil {
				log.Error("cannot serve a client with certificates", "address", l.Addr(), "error", err)
			}
			return config, err
		},
	}
}

// load reads the files.
func (c Certificates) load() (*tls.Config, error) {
	if c.Cert == "" || c.Key == "" || c.ClientCA == "" {
		return nil, errors.New("want the server's certificate and key, and the clients' CA")
	}
	own, err := tls.LoadX509KeyPair(c.Cert, c.Key)
	if err != nil {
		return nil, fmt.Errorf("certificate %s with key %s: %w", c.Cert, c.Key, err)
	}
	text, err := os.ReadFile(c.ClientCA)
	if err != nil {
		return nil, err
	}
	authorities := x509.NewCertPool()
	if !authorities.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s: no certificate in it: want PEM", c.ClientCA)
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, SessionTicketsDisabled: true, NextProtos: []string{"h2"},
		Certificates: []tls.Certificate{own}, ClientCAs: authorities, ClientAuth: tls.RequireAndVerifyClientCert}, nil
}

// listenUnix removes the socket of a dead predecessor, but not one on which somebody answers.
func listenUnix(path string) (net.Listener, error) {
	listener, err := net.Listen("unix", path)
	if errors.Is(err, syscall.EADDRINUSE) {
		if info, err := os.Lstat(path); err == nil && info.Mode().Type() != os.ModeSocket {
			return nil, fmt.Errorf("listen on unix://%s: the file exists and is no socket: remove it", path)
		}
		conn, dialed := net.Dial("unix", path)
		if dialed == nil {
			conn.Close()
		}
		if !errors.Is(dialed, syscall.ECONNREFUSED) {
			return nil, fmt.Errorf("listen on unix://%s: another server is listening: stop it first", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("listen on unix://%s: remove the socket of a dead server: %w", path, err)
		}
		listener, err = net.Listen("unix", path)
	}
	if err != nil {
		return nil, fmt.Errorf("listen on unix://%s: %w", path, err)
	}
	// Until here the mode is that of the umask, which lets nobody else write.
	if err := os.Chmod(path, 0o660); err != nil {
		listener.Close()
		return nil, err
	}
	return listener, nil
}

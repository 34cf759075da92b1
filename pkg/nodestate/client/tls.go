// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"

	"google.golang.org/grpc/credentials"
)

// Certificates are files in PEM, for a Target tls://HOST:PORT. They are read again for each connection, so new ones
// need no restart.
type Certificates struct {
	// Cert and Key are the client's. A certificate with the common name system:node:NODE is for the state of that node,
	// another one for that of the server's.
	Cert, Key string
	// ServerCA has the authorities of the server's certificate, which must be for the HOST of Target.
	ServerCA string
}

// load reads the files.
func (c Certificates) load() (*tls.Config, error) {
	if c.Cert == "" || c.Key == "" || c.ServerCA == "" {
		return nil, errors.New("want a certificate, its key, and the CA of the server")
	}
	own, err := tls.LoadX509KeyPair(c.Cert, c.Key)
	if err != nil {
		return nil, fmt.Errorf("certificate %q with key %q: %w", c.Cert, c.Key, err)
	}
	text, err := os.ReadFile(c.ServerCA)
	if err != nil {
		return nil, fmt.Errorf("CA of the server: %w", err)
	}
	authorities := x509.NewCertPool()
	if !authorities.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("CA of the server: %s: no certificate in it: want PEM", c.ServerCA)
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{own}, RootCAs: authorities}, nil
}

// transport is TLS with the certificates that the files have when a connection is made.
type transport struct {
	credentials.TransportCredentials
	files Certificates
}

func (c Certificates) transport() credentials.TransportCredentials {
	return transport{credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13}), c}
}

func (t transport) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (
	net.Conn, credentials.AuthInfo, error) {
	config, err := t.files.load()
	if err != nil {
		return nil, nil, err
	}
	return credentials.NewTLS(config).ClientHandshake(ctx, authority, conn)
}

func (t transport) Clone() credentials.TransportCredentials {
	return transport{t.TransportCredentials.Clone(), t.files}
}

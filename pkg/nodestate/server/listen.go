// SPDX-License-Identifier: Apache-2.0

package server

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Listen listens on unix:///PATH, with mode 0660, or on tcp://ADDRESS:PORT of the loopback interface. There is no
// encryption, and whoever can connect can read the state, so other addresses are refused.
func Listen(address string) (net.Listener, error) {
	network, rest, _ := strings.Cut(address, "://")
	switch network {
	case "unix":
		if !filepath.IsAbs(rest) {
			return nil, fmt.Errorf("listen on %s: want an absolute path: unix:///run/checkplan/node-state.sock", address)
		}
		return listenUnix(rest)
	case "tcp":
		at, err := netip.ParseAddrPort(rest)
		if err != nil {
			return nil, fmt.Errorf("listen on %s: want an IP address and a port: tcp://127.0.0.1:12345", address)
		}
		if !at.Addr().Unmap().IsLoopback() {
			return nil, fmt.Errorf("listen on %s: not a loopback address: anyone on the network could read the state: "+
				"want tcp://127.0.0.1:%d", address, at.Port())
		}
		return net.Listen("tcp", rest)
	}
	return nil, fmt.Errorf("listen on %q: want unix:///PATH or tcp://ADDRESS:PORT", address)
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

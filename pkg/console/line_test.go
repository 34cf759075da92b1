// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
)

// line is a serial line between a guest, which is always there, and clients, of
// which the newest has it, as KubeVirt does it. What the guest says to nobody is
// lost.
type line struct {
	// noise between and within what the guest says; nil is silence.
	noise *rand.Rand
	// echo says that what is typed comes back.
	echo bool
	// cut ends each connection after about so many bytes of the guest's; 0 is never.
	cut int
	// refuse is asked before each connection.
	refuse func(n int) error

	guest *guestEnd
	ended chan struct{} // closed by hangUp

	mu     sync.Mutex // guards following
	client net.Conn   // our end of the newest client's; nil without one
	dials  int
	left   int // bytes until the cut
}

// guestEnd is the line as the guest has it.
type guestEnd struct {
	l     *line
	typed chan []byte

	mu   sync.Mutex // guards following
	rest []byte
}

func newLine() *line {
	l := &line{ended: make(chan struct{})}
	l.guest = &guestEnd{l: l, typed: make(chan []byte, 1000)}
	return l
}

func (g *guestEnd) Read(b []byte) (int, error) {
	g.mu.Lock()
	n := copy(b, g.rest)
	g.rest = g.rest[n:]
	g.mu.Unlock()
	if n > 0 {
		return n, nil
	}
	select {
	case typed := <-g.typed:
		n = copy(b, typed)
		g.mu.Lock()
		g.rest = typed[n:]
		g.mu.Unlock()
		return n, nil
	case <-g.l.ended:
		return 0, io.EOF
	}
}

func (g *guestEnd) Write(b []byte) (int, error) {
	g.l.say(b)
	return len(b), nil
}

// say sends to the newest client, in pieces, with noise.
func (l *line) say(b []byte) {
	for rest := b; len(rest) > 0; {
		n := len(rest)
		l.mu.Lock()
		if l.noise != nil {
			n = min(n, 1+l.noise.IntN(400))
		}
		piece := rest[:n:n]
		if l.noise != nil && l.noise.IntN(20) == 0 {
			piece = append(piece, "[   12.345678] eth0: link becomes ready\r\n"...)
		}
		client := l.client
		if l.cut > 0 && client != nil {
			piece = piece[:min(len(piece), l.left)]
			l.left -= len(piece)
		}
		over := l.cut > 0 && l.left == 0
		if over {
			l.client = nil
		}
		l.mu.Unlock()
		rest = rest[n:]
		if client != nil {
			client.Write(piece) // a client that has gone loses it
			if over {
				client.Close()
			}
		}
	}
}

func (l *line) dial(context.Context) (io.ReadWriteCloser, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dials++
	if l.refuse != nil {
		if err := l.refuse(l.dials); err != nil {
			return nil, err
		}
	}
	if l.client != nil {
		l.client.Close()
	}
	ours, theirs := net.Pipe()
	l.client = ours
	if l.cut > 0 {
		l.left = l.cut
		if l.noise != nil {
			l.left = 1 + l.noise.IntN(2*l.cut)
		}
	}
	go func() {
		buf := make([]byte, 1000)
		for {
			n, err := ours.Read(buf)
			if n > 0 {
				l.guest.typed <- append([]byte(nil), buf[:n]...)
				if l.echo {
					l.say(buf[:n])
				}
			}
			if err != nil {
				ours.Close()
				return
			}
		}
	}()
	return theirs, nil
}

// hangUp ends the guest's end and that of the client.
func (l *line) hangUp() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.client != nil {
		l.client.Close()
		l.client = nil
	}
	close(l.ended)
}

var errRefused = errors.New("connection refused")

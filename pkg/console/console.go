// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Guest is one VM with its serial console. Only one method may be called at a time,
// except Close.
type Guest struct {
	// Dial connects to the console. It is called again when the connection is lost,
	// and when it fails, unless its error wraps ErrGone.
	Dial func(context.Context) (io.ReadWriteCloser, error)
	// Login of a guest that is not checkplan's own; nil for checkplan's own.
	Login *checkup.GuestLogin
	// Transcript receives all output of the console; nil discards it.
	Transcript io.Writer
	// Logf receives what people may want to know while they wait, such as a connection
	// that was lost; nil discards it.
	Logf func(format string, args ...any)

	mu     sync.Mutex // guards following
	conn   *connection
	closed bool
	said   tail

	// boot is that of the first State of checkplan's own guest; nil before Ready.
	boot *uint64
	// shell of a guest with a login; nil before Ready.
	shell *shell
	// times of dialogs with it; nil is defaultTiming.
	times *timing
}

// ErrGone is wrapped by errors of Dial after which a retry cannot succeed.
var ErrGone = errors.New("there is no such console")

const (
	// maxLosses is how many connections may be lost or refused one after the other
	// before the guest sends anything. With the waits between them that takes half a
	// minute.
	maxLosses = 12
	// firstWait and maxWait are the times to wait before a new connection: each is
	// twice the one before it.
	firstWait = 50 * time.Millisecond
	maxWait   = 5 * time.Second
	// pollEvery is how long a guest may be silent until the request is sent again, and
	// deadAfter how long until its connection is given up.
	pollEvery = 2 * time.Second
	deadAfter = 15 * time.Second
	// writeTimeout is how long writing a line to the console may take.
	writeTimeout = 10 * time.Second
)

// Ready waits until the guest can measure: until checkplan's own guest reports that it
// can, or until the other guest is logged in and has a ping. The error says at which
// step it stopped, and what the console showed last. A later call returns an error if
// checkplan's own guest has restarted since the first: it answered nothing meanwhile.
func (g *Guest) Ready(ctx context.Context) error {
	talk := g.ownReady
	if g.Login != nil {
		talk = g.loginReady
	}
	started := time.Now()
	if err := g.persist(ctx, true, talk); err != nil {
		return fmt.Errorf("%w, after %s%s", err, time.Since(started).Round(time.Second), g.LastWords())
	}
	return nil
}

// Measure makes the guest carry out an order of icmp probes, and calls report with the
// messages that an agent in a pod would write, in their order, each once. When the
// connection is lost, Measure connects again, and the measurement goes on.
//
// Errors are of the guest or its console; what the network did is in the messages.
func (g *Guest) Measure(ctx context.Context, order checkup.Order, report func(checkup.Message)) error {
	measure := g.ownMeasure
	if g.Login != nil {
		measure = g.loginMeasure
	}
	if err := measure(ctx, order, report); err != nil {
		return fmt.Errorf("%w%s", err, g.LastWords())
	}
	return nil
}

// Close closes the connection. The guest goes on.
func (g *Guest) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	if g.conn == nil {
		return nil
	}
	return g.conn.close()
}

func (g *Guest) logf(format string, args ...any) {
	if g.Logf != nil {
		g.Logf(format, args...)
	}
}

// LastWords are the last lines of the console, to be added to an error.
func (g *Guest) LastWords() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if lines := g.said.lines(); lines != "" {
		return "; the console showed last: " + lines
	}
	return "; the console showed nothing"
}

// errLost is wrapped by the errors of a connection that was lost.
var errLost = errors.New("the connection to the console was lost")

// persist calls talk with a connection, and again with a new one each time the
// connection was lost, until talk returns anything but errLost, or until too many were
// lost one after the other before the guest sent anything: talk calls heard whenever
// the guest sends something. While the guest is booting, twice as many connections may
// be lost, and any number of attempts to connect may fail.
func (g *Guest) persist(
	ctx context.Context,
	booting bool,
	talk func(ctx context.Context, c *connection, heard func()) error,
) error {
	losses, failures, wait, limit := 0, 0, firstWait, maxLosses
	if booting {
		limit *= 2
	}
	heard := func() { losses, failures, wait = 0, 0, firstWait }
	for {
		c, err := g.connect(ctx)
		dialed := err == nil
		if dialed {
			err = talk(ctx, c, heard)
		}
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			if dialed {
				return err // it says what talk waited for
			}
			return fmt.Errorf("connect to the console: %w", err)
		case dialed && !errors.Is(err, errLost):
			return err
		case !dialed && errors.Is(err, ErrGone):
			return fmt.Errorf("connect to the console: %w", err)
		case dialed:
			losses++
			g.hangUp(c)
			g.logf("%v: connecting again", err)
		default:
			failures++
		}
		switch {
		case losses >= limit && failures == 0:
			return fmt.Errorf(
				"the console was closed %d times before the guest sent anything: KubeVirt gives a console to its newest client, "+
					"so another client (such as virtctl console) may be using it; the last error: %w",
				losses,
				err,
			)
		case losses+failures >= limit && !booting, losses >= limit:
			return fmt.Errorf(
				"no console after %d lost connections and %d failed attempts to connect; the last error: %w",
				losses,
				failures,
				err,
			)
		}
		if sleep(ctx, wait) != nil {
			return fmt.Errorf("connect to the console: %w", err)
		}
		wait = min(2*wait, maxWait)
	}
}

// connect returns the open connection, or opens one.
func (g *Guest) connect(ctx context.Context) (*connection, error) {
	g.mu.Lock()
	c, closed := g.conn, g.closed
	g.mu.Unlock()
	switch {
	case closed:
		return nil, fmt.Errorf("%w: it was closed", ErrGone)
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case c != nil:
		return c, nil
	}
	rw, err := g.Dial(ctx)
	if err != nil {
		return nil, err
	}
	c = &connection{rw: rw, chunks: make(chan []byte, 64), gone: make(chan struct{})}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		rw.Close()
		return nil, fmt.Errorf("%w: it was closed", ErrGone)
	}
	c.reading.Store(true)
	g.conn = c
	go c.receive(g.note)
	return c, nil
}

// hangUp closes a connection.
func (g *Guest) hangUp(c *connection) {
	_ = c.close() // it is lost already
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.conn == c {
		g.conn = nil
	}
}

// note keeps what the console sent.
func (g *Guest) note(b []byte) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.said.add(b)
	if g.Transcript != nil {
		_, _ = g.Transcript.Write(b) // measuring goes on without a transcript
	}
}

// connection to a console.
type connection struct {
	rw io.ReadWriteCloser
	// chunks are what arrived; closed when the connection is lost, with the reason in
	// err.
	chunks chan []byte
	err    error

	once    sync.Once
	gone    chan struct{} // closed by close
	reading atomic.Bool   // false once it is lost
}

// receive reads until the connection is lost.
func (c *connection) receive(note func([]byte)) {
	defer close(c.chunks)
	defer c.reading.Store(false)
	for {
		b := make([]byte, 4096)
		n, err := c.rw.Read(b)
		if n > 0 {
			note(b[:n])
			select {
			case c.chunks <- b[:n]:
			case <-c.gone:
				c.err = io.ErrClosedPipe
				return
			}
		}
		if err != nil {
			c.err = err
			return
		}
	}
}

// lost is the error of a connection whose chunks have ended: ctx's cause if ctx is done,
// because then send may have closed the connection.
func (c *connection) lost(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return fmt.Errorf("%w: %w", errLost, c.err)
}

// send writes a line. If the console does not accept it in time, or before ctx ends,
// the connection is closed; in the latter case the error is ctx's cause.
func (c *connection) send(ctx context.Context, line []byte) error {
	writing, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	defer context.AfterFunc(writing, func() { _ = c.close() })()
	if _, err := c.rw.Write(line); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return fmt.Errorf("%w: write: %w", errLost, err)
	}
	return nil
}

// alive reports whether the connection has not been closed.
func (c *connection) alive() bool {
	select {
	case <-c.gone:
		return false
	default:
		return c.reading.Load()
	}
}

func (c *connection) close() error {
	var err error
	c.once.Do(func() {
		close(c.gone)
		err = c.rw.Close()
	})
	return err
}

// sleep waits for d, or until ctx ends, whose cause it returns.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

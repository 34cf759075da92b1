// SPDX-License-Identifier: Apache-2.0

package console

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Server is the guest's side of the protocol.
type Server struct {
	// State returns the guest's state.
	State func() State
	// Run carries out the order that it reads as JSON, writing checkup.Messages to
	// out, one line and one Write each. Errors are of the guest itself, never of the
	// network.
	Run func(ctx context.Context, order io.Reader, out io.Writer) error

	boot    uint64     // see State
	mu      sync.Mutex // guards following
	running *execution // the last order; nil before the first
	// next is the number of its first message that has not been sent.
	next    int
	replies []reply       // to be sent before messages
	news    chan struct{} // holds one token when there is something to send
}

// execution of an order.
type execution struct {
	id       string
	stop     context.CancelFunc
	messages []checkup.Message
	done     bool
	err      error
}

// Serve answers on the line rw until ctx ends, whose cause it returns, or until
// nothing can be read from it or written to it any more. It does not wait for a
// read or write that is under way when ctx ends.
func (s *Server) Serve(ctx context.Context, rw io.ReadWriter) error {
	s.news = make(chan struct{}, 1)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if s.boot == 0 { // a console that failed is served again
		s.boot = rand.Uint64() // not crypto/rand, which waits for entropy after a boot
	}
	s.reply(reply{State: s.state()})
	go func() { cancel(s.read(ctx, rw)) }()
	go func() { cancel(s.write(ctx, rw)) }()
	<-ctx.Done()
	return context.Cause(ctx)
}

// state is the guest's state, with its boot.
func (s *Server) state() *State {
	state := s.State()
	state.Boot = s.boot
	return &state
}

// read takes requests.
func (s *Server) read(ctx context.Context, r io.Reader) error {
	var lines splitter
	buf := make([]byte, 4096)
	for {
		n, err := r.Read(buf)
		if ctx.Err() != nil {
			return nil
		}
		lines.feed(buf[:n], func(line []byte) {
			var q request
			if unframe(requestMark, line, &q) {
				s.take(ctx, q)
			}
		})
		if err != nil {
			return fmt.Errorf("read from the console: %w", err)
		}
	}
}

// take does what a request asks.
func (s *Server) take(ctx context.Context, q request) {
	if len(q.Order) == 0 {
		s.reply(reply{ID: q.ID, State: s.state()})
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.running != nil && s.running.id == q.ID
	if !known && q.From > 0 {
		s.queue(reply{ID: q.ID, Status: &status{Unknown: true}})
		return
	}
	if !known {
		if s.running != nil {
			s.running.stop()
		}
		ctx, stop := context.WithCancel(ctx)
		e := &execution{id: q.ID, stop: stop}
		s.running = e
		go func() {
			defer stop()
			err := s.Run(ctx, bytes.NewReader(q.Order), messageWriter{s, e})
			s.mu.Lock()
			defer s.mu.Unlock()
			e.done, e.err = true, err
			if s.running == e {
				s.queueStatus()
			}
		}()
	}
	s.next = max(0, q.From)
	s.queueStatus()
}

// messageWriter takes the messages of an execution.
type messageWriter struct {
	s *Server
	e *execution
}

func (w messageWriter) Write(line []byte) (int, error) {
	var m checkup.Message
	if err := json.Unmarshal(line, &m); err != nil {
		return 0, fmt.Errorf("not a message: %w", err)
	}
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	w.e.messages = append(w.e.messages, m)
	w.s.wake()
	return len(line), nil
}

// maxReplies is how many replies are kept while no client is connected.
const maxReplies = 16

// reply queues a reply.
func (s *Server) reply(r reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue(r)
}

func (s *Server) queue(r reply) {
	if len(s.replies) < maxReplies {
		s.replies = append(s.replies, r)
	}
	s.wake()
}

// queueStatus queues the status of the running order, which is filled in when it is
// sent.
func (s *Server) queueStatus() {
	s.replies = slices.DeleteFunc(s.replies, func(r reply) bool { return r.Status != nil })
	s.queue(reply{ID: s.running.id, Status: &status{}})
}

func (s *Server) wake() {
	select {
	case s.news <- struct{}{}:
	default:
	}
}

// write sends replies and messages.
func (s *Server) write(ctx context.Context, w io.Writer) error {
	for {
		r, ok := s.pop()
		if ctx.Err() != nil {
			return nil // messages of an order that was stopped are not about the network
		}
		if !ok {
			select {
			case <-ctx.Done():
				return nil
			case <-s.news:
			}
			continue
		}
		line, err := frame(replyMark, r)
		if err != nil {
			return err
		}
		if n, err := w.Write(line); err != nil {
			return fmt.Errorf("write to the console: %w", err)
		} else if n < len(line) {
			return errors.New("write to the console: short write")
		}
	}
}

// pop takes the next thing to send: the states, then the messages, then the status.
func (s *Server) pop() (reply, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.running
	if at := slices.IndexFunc(s.replies, func(r reply) bool { return r.State != nil || r.Status.Unknown }); at >= 0 {
		r := s.replies[at]
		s.replies = slices.Delete(s.replies, at, at+1)
		return r, true
	}
	if e != nil && s.next < len(e.messages) {
		s.next++
		return reply{ID: e.id, Number: s.next - 1, Message: &e.messages[s.next-1]}, true
	}
	if e == nil || len(s.replies) == 0 {
		return reply{}, false
	}
	s.replies = s.replies[:0]
	r := reply{ID: e.id, Status: &status{Messages: len(e.messages), Done: e.done}}
	if e.err != nil {
		r.Status.Error = e.err.Error()
	}
	return r, true
}

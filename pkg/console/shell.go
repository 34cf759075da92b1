// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"crypto/rand"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// shell is a POSIX shell on a console.
type shell struct {
	c *connection
	// id and count make the marks of commands unique, so that what is left of an
	// earlier one is not taken for an answer to a later.
	id    string
	count int
	// step is what the shell waits for, for errors.
	step string
}

func newShell(c *connection) *shell { return &shell{c: c, id: rand.Text()[:8]} }

// timing of dialogs with a guest; tests shorten it.
type timing struct {
	// wake is how long to wait for a guest until it is woken again.
	wake time.Duration
	// quiet is how long nothing must follow a prompt for it to be one.
	quiet time.Duration
	// prompt is how long a guest that was logging in may take for its next prompt.
	prompt time.Duration
	// refusals are the times to wait before a login that was refused is tried again:
	// a guest that is still starting may not have its password yet.
	refusals []time.Duration
	// command is how long a command that ends at once may take.
	command time.Duration
	// poll is the time between two looks at pings under way.
	poll time.Duration
}

var defaultTiming = timing{
	wake: 3 * time.Second, quiet: 300 * time.Millisecond, prompt: 30 * time.Second,
	refusals: []time.Duration{10 * time.Second, 20 * time.Second}, command: 15 * time.Second, poll: time.Second,
}

// until reads until match accepts what was read, and nothing more arrives for the time
// quiet. It returns what was read, as plain text. ok is false if that did not happen in
// time.
func (s *shell) until(
	ctx context.Context,
	patience, quiet time.Duration,
	match func(string) bool,
) (text string, ok bool, err error) {
	var raw []byte
	patient := time.NewTimer(patience)
	defer patient.Stop()
	still := time.NewTimer(0)
	defer still.Stop()
	<-still.C
	for {
		select {
		case <-ctx.Done():
			return text, false, context.Cause(ctx)
		case <-patient.C:
			return text, false, nil
		case <-still.C:
			return text, true, nil
		case b, open := <-s.c.chunks:
			if !open {
				return text, false, s.c.lost(ctx)
			}
			raw = append(raw, b...)
			if n := len(raw) - maxOutput; n > 0 {
				raw = raw[n:]
			}
			text = plain(string(raw))
			still.Stop()
			if match(text) {
				if quiet == 0 {
					return text, true, nil
				}
				still.Reset(quiet)
			}
		}
	}
}

// maxOutput is how much output of a guest is kept, in bytes.
const maxOutput = 1 << 20

// send writes a line to the guest.
func (s *shell) send(ctx context.Context, line string) error {
	return s.c.send(ctx, []byte(line+"\n"))
}

// killLine is what makes a terminal forget what was typed before (stty kill), and
// interrupt what ends a command (stty intr), in terminals as they come.
const (
	killLine  = "\x15"
	interrupt = "\x03"
)

// run runs a command and returns its output and its exit code. A shell that does not
// answer in time is lost.
func (s *shell) run(ctx context.Context, patience time.Duration, command string) (output string, code int, err error) {
	s.count++
	mark := fmt.Sprintf("-%s-%d-", s.id, s.count)
	// What is typed has quotes within the marks, and the output does not: an echo
	// cannot be mistaken for it.
	begin, end := "checkplan"+mark+"begin\n", "checkplan"+mark+"end:"
	line := fmt.Sprintf("echo 'check'plan%sbegin; %s; echo 'check'plan%send:$?:", mark, command, mark)
	if err := s.send(ctx, line); err != nil {
		return "", 0, err
	}
	cut := func(text string) (output, code string, ok bool) {
		_, rest, ok := strings.Cut(text, begin)
		if !ok {
			return "", "", false
		}
		output, rest, ok = strings.Cut(rest, end)
		if !ok {
			return "", "", false
		}
		code, _, ok = strings.Cut(rest, ":")
		return output, code, ok
	}
	text, ok, err := s.until(ctx, patience, 0, func(text string) bool { _, _, ok := cut(text); return ok })
	if err != nil {
		return "", 0, err
	}
	if !ok {
		return "", 0, fmt.Errorf("%w: the guest's shell did not answer within %s", errLost, patience)
	}
	output, digits, _ := cut(text)
	code, err = strconv.Atoi(digits)
	if err != nil {
		return "", 0, fmt.Errorf("%w: the guest's shell returned the exit code %q", errLost, digits)
	}
	return output, code, nil
}

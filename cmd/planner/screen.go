// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/checkplan/checkplan/pkg/run"
)

// The rules of this interface: everything goes to standard error; lower case, no
// full stop at the end of a line that moves; on a terminal one line moves in
// place and lasting lines stand above it; elsewhere a line is printed only when
// it says something new, without times, so that logs compare.

// screen shows how far a run is.
type screen struct {
	out      io.Writer
	terminal terminal
	started  time.Time

	mu    sync.Mutex
	line  string // guards following: what the moving line says now
	drawn bool
}

func newScreen(out io.Writer, t terminal) *screen {
	return &screen{out: out, terminal: t, started: time.Now()}
}

// show sets the moving line.
func (s *screen) show(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	line := fmt.Sprintf(format, args...)
	if !s.terminal.is {
		if line != s.line {
			fmt.Fprintln(s.out, line)
		}
		s.line = line
		return
	}
	s.line, s.drawn = line, true
	text := fmt.Sprintf("%4ds  %s", int(time.Since(s.started).Seconds()), line)
	if r := []rune(text); len(r) >= s.terminal.width {
		text = string(r[:s.terminal.width-1])
	}
	fmt.Fprintf(s.out, "\r\x1b[K%s", text)
}

// say prints a line that stays.
func (s *screen) say(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wipe()
	fmt.Fprintf(s.out, format+"\n", args...)
}

// close wipes the moving line.
func (s *screen) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wipe()
}

func (s *screen) wipe() {
	if s.drawn {
		fmt.Fprint(s.out, "\r\x1b[K")
		s.drawn = false
	}
}

// progress shows where a run stands: its unfinished tasks, and what they say of
// themselves.
func (s *screen) progress(p run.Progress) {
	if p.Lost > 0 {
		s.show("the API server does not answer; still trying")
		return
	}
	var words []string
	for _, task := range p.Tasks {
		if task.Done {
			continue
		}
		word := task.Name
		if task.Reason != "Running" {
			word += " (" + task.Reason + ")"
		}
		if task.Told != "" {
			word += ": " + task.Told
		}
		words = append(words, word)
	}
	if len(words) == 0 {
		words = []string{"waiting for Tekton"}
	}
	s.show("%s", strings.Join(words, ", "))
}

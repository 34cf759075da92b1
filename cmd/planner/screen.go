// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/run"
)

// The rules of this interface:
//
//   - Everything goes to standard error.
//   - Lines begin in lower case, and the moving line ends without a full stop.
//   - On a terminal, one line changes in place, and lasting lines are above it.
//   - Elsewhere a line is printed only if it differs from the last one. It has no
//     time, because logs of two runs are compared.

// screen shows the progress of a run.
type screen struct {
	out      io.Writer
	terminal terminal
	started  time.Time

	mu    sync.Mutex // guards the fields below
	line  string     // the text of the moving line
	drawn bool
}

func newScreen(out io.Writer, t terminal) *screen {
	return &screen{out: out, terminal: t, started: time.Now()}
}

// show sets the moving line.
func (s *screen) show(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	line := checkup.NoCommand(checkup.Clean(fmt.Sprintf(format, args...)))
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
	fmt.Fprintln(s.out, checkup.NoCommand(checkup.CleanLines(fmt.Sprintf(format, args...))))
}

// close erases the moving line.
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

// progress shows the unfinished tasks of a run, and the progress that they recorded.
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
		if task.Progress != "" {
			word += ": " + task.Progress
		}
		words = append(words, word)
	}
	if len(words) == 0 {
		words = []string{"waiting for Tekton"}
		if strings.HasPrefix(p.Reason, "Resolving") {
			words[0] += "'s remote resolver (" + p.Reason + ")"
		}
	}
	s.show("%s", strings.Join(words, ", "))
}

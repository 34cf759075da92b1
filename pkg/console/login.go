// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// prompt is the input that a guest waits for.
type prompt int

const (
	noPrompt prompt = iota
	loginPrompt
	passwordPrompt
	otherPrompt // maybe a shell's
)

// promptOf is the prompt at the end of a text.
func promptOf(text string) prompt {
	line := strings.TrimSpace(text[strings.LastIndexByte(text, '\n')+1:])
	lower := strings.ToLower(line)
	switch {
	case line == "":
		return noPrompt
	case strings.HasSuffix(lower, "login:") && !strings.HasSuffix(lower, "last login:"),
		strings.HasSuffix(lower, "username:"):
		return loginPrompt
	// The word "password" is translated, its colon is not; and no shell's prompt ends
	// with a colon.
	case strings.HasSuffix(line, ":"), strings.HasSuffix(line, "："):
		return passwordPrompt
	}
	return otherPrompt
}

// isPrompt reports whether a text ends with a prompt.
func isPrompt(text string) bool { return promptOf(text) != noPrompt }

// attach gets a shell on the console: it wakes the guest, logs in if the guest asks for
// that, and prepares the shell.
func (s *shell) attach(ctx context.Context, login checkup.GuestLogin, t timing) error {
	refused := 0
	for try := 0; ; try++ {
		s.step = "waiting for a login prompt or a shell"
		wake := killLine
		if try%4 == 3 {
			wake = interrupt // a command, or half of one, is in the way
		}
		if err := s.send(ctx, wake); err != nil {
			return err
		}
		text, ok, err := s.until(ctx, t.wake, t.quiet, isPrompt)
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		asked := promptOf(text)
		if asked == loginPrompt {
			if asked, text, err = s.logIn(ctx, login, t); err != nil {
				return err
			}
		}
		switch asked {
		case loginPrompt:
			if refused == len(t.refusals) {
				return fmt.Errorf("the guest refused the login of user %q %d times: %s", login.User, refused+1, saidLast(text))
			}
			if err := sleep(ctx, t.refusals[refused]); err != nil {
				return err
			}
			refused++
		case otherPrompt:
			if ok, err := s.prepare(ctx, t); ok || err != nil {
				return err
			}
		}
	}
}

// logIn answers a login prompt, and returns the prompt that follows: a login prompt
// again, if the login was refused.
func (s *shell) logIn(ctx context.Context, login checkup.GuestLogin, t timing) (prompt, string, error) {
	s.step = fmt.Sprintf("waiting for the password prompt of user %q", login.User)
	if err := s.send(ctx, login.User); err != nil {
		return noPrompt, "", err
	}
	text, ok, err := s.until(ctx, t.prompt, t.quiet, isPrompt)
	asked := promptOf(text)
	if err != nil || !ok || asked != passwordPrompt {
		return asked, text, err
	}
	s.step = fmt.Sprintf("waiting for a shell of user %q", login.User)
	if err := s.send(ctx, login.Password); err != nil {
		return noPrompt, "", err
	}
	text, _, err = s.until(ctx, t.prompt, t.quiet, isPrompt)
	return promptOf(text), text, err
}

// prepare switches what seems to be a shell to English and to a known prompt, and
// reports whether it is a shell.
func (s *shell) prepare(ctx context.Context, t timing) (bool, error) {
	s.step = "waiting for the shell to answer"
	_, _, err := s.run(
		ctx,
		t.wake,
		`unset PROMPT_COMMAND LANGUAGE; PS1='checkplan# ' PS2= LC_ALL=C PATH="$PATH:/usr/sbin:/usr/bin:/sbin:/bin"; export LC_ALL PATH; stty -echo 2>/dev/null`,
	)
	if errors.Is(err, errLost) && s.c.alive() {
		return false, nil // it may not be one
	}
	return err == nil, err
}

// saidLast returns the last lines of a text that are not empty, on one line.
func saidLast(text string) string {
	t := tail{[]byte(text)}
	return t.lines()
}

// loginReady logs in, and looks for a ping.
func (g *Guest) loginReady(ctx context.Context, c *connection, heard func()) error {
	s, err := g.loggedIn(ctx, c)
	if err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("no shell on the guest's console: %s: %w", s.step, err)
		}
		return err
	}
	heard()
	output, code, err := s.run(ctx, g.timing().command, "command -v ping || command -v ping6")
	if err != nil {
		return err
	}
	if code != 0 {
		return fmt.Errorf("the guest has no ping: its shell finds neither ping nor ping6 %s", saidLast(output))
	}
	return nil
}

// loggedIn returns the shell of a connection.
func (g *Guest) loggedIn(ctx context.Context, c *connection) (*shell, error) {
	if g.shell != nil && g.shell.c == c {
		return g.shell, nil
	}
	s := newShell(c)
	if err := s.attach(ctx, *g.Login, g.timing()); err != nil {
		return s, err
	}
	g.shell = s
	return s, nil
}

func (g *Guest) timing() timing {
	if g.times != nil {
		return *g.times
	}
	return defaultTiming
}

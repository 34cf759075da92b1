// SPDX-License-Identifier: Apache-2.0

package write

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"strings"

	"github.com/checkplan/checkplan/pkg/dataplane"
	"github.com/checkplan/checkplan/pkg/dataplane/iptables"
	"github.com/checkplan/checkplan/pkg/dataplane/proxy"
)

// Writer keeps the rules of both families: it is a proxy.Writer.
type Writer struct {
	log      *slog.Logger
	run      func(ctx context.Context, stdin []byte, name string, args ...string) ([]byte, error)
	families []*keeper
}

// keeper keeps the rules of one family. Have is nil if they are not known.
type keeper struct {
	family  dataplane.Family
	program string // iptables or ip6tables
	have    *Rules
}

// New returns a Writer that runs iptables-restore and iptables-save, and ip6tables-..., which it looks for in PATH.
func New(log *slog.Logger) *Writer { return newWriter(log, run) }

func newWriter(log *slog.Logger,
	run func(ctx context.Context, stdin []byte, name string, args ...string) ([]byte, error)) *Writer {
	return &Writer{log, run, []*keeper{
		{family: dataplane.IPv4, program: "iptables"}, {family: dataplane.IPv6, program: "ip6tables"},
	}}
}

// maxError is how much of a program's errors is kept, in bytes.
const maxError = 1 << 10

func run(ctx context.Context, stdin []byte, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stderr = bytes.NewReader(stdin), &stderr
	out, err := cmd.Output()
	if err != nil {
		said := strings.TrimSpace(stderr.String())
		return nil, fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, said[:min(len(said), maxError)])
	}
	return out, nil
}

// Write is proxy.Writer's. A family without Services in which there are no rules of the proxy is left alone: the kernel
// may not have it. A table is written at once; nat before filter.
func (w *Writer) Write(ctx context.Context, state *proxy.State, node proxy.Node) error {
	var errs []error
	for _, k := range w.families {
		needed := len(state.Of(k.family)) > 0
		if err := w.write(ctx, k, Render(state, node, k.family), needed); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", k.family, err))
		}
	}
	return errors.Join(errs...)
}

func (w *Writer) write(ctx context.Context, k *keeper, rules *Rules, needed bool) error {
	have := k.have
	if have == nil {
		var err error
		if have, err = w.find(ctx, k); err != nil && !needed {
			return nil
		} else if err != nil {
			return err
		}
		if have == nil && !needed {
			return nil
		}
	}
	k.have = nil // until it is known what is there
	if err := w.restore(ctx, k, rules, have); err != nil {
		return err
	}
	k.have = rules
	return nil
}

func (w *Writer) find(ctx context.Context, k *keeper) (*Rules, error) {
	save, err := w.run(ctx, nil, k.program+"-save")
	if err != nil {
		return nil, fmt.Errorf("read what is there: %w", err)
	}
	return Found(save, k.family), nil
}

// lockSeconds is how long to wait for another program that is changing the rules.
const lockSeconds = "30"

func (w *Writer) restore(ctx context.Context, k *keeper, rules, have *Rules) error {
	text := rules.Restore(have)
	if len(text) == 0 {
		return nil
	}
	_, err := w.run(ctx, text, k.program+"-restore", "--noflush", "--wait", lockSeconds)
	return err
}

// Tidy is proxy.Writer's: Write leaves nothing behind.
func (w *Writer) Tidy(context.Context) (more bool, err error) { return false, nil }

// Present is proxy.Writer's: it looks for one rule of each table in a chain of others, without which no packet meets
// the rest. Each look reads the whole table.
func (w *Writer) Present(ctx context.Context) error {
	var errs []error
	for _, k := range w.families {
		if k.have == nil {
			continue
		}
		for _, name := range iptables.Tables {
			jump := k.have.table(name).Jumps[0]
			args := append([]string{"--wait", lockSeconds, "-t", name, "-C", jump.Chain}, words(jump.Rule)...)
			if _, err := w.run(ctx, nil, k.program, args...); err != nil {
				k.have = nil
				errs = append(errs, fmt.Errorf("%s: %w", k.family, err))
				break
			}
		}
	}
	return errors.Join(errs...)
}

// words splits a rule of this package as a shell does.
func words(rule string) []string {
	var all []string
	for i, part := range strings.Split(rule, `"`) {
		if i%2 == 1 {
			all = append(all, part)
		} else {
			all = append(all, strings.Fields(part)...)
		}
	}
	return all
}

// Cleanup removes the proxy's rules of both families. If the kernel cannot have any, there is nothing to remove.
func (w *Writer) Cleanup(ctx context.Context) error {
	var errs []error
	for _, k := range w.families {
		have, err := w.find(ctx, k)
		switch {
		case err == nil && have != nil:
			err = w.restore(ctx, k, nil, have)
		case err != nil && k.have == nil && proxy.NoTables(err):
			w.log.Info("no rules to remove, because the kernel cannot have any", "family", k.family, "error", err)
			continue
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", k.family, err))
		}
		k.have = nil
	}
	return errors.Join(errs...)
}

// SPDX-License-Identifier: Apache-2.0

package write

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"sigs.k8s.io/knftables"

	"github.com/checkplan/checkplan/pkg/dataplane"
	"github.com/checkplan/checkplan/pkg/dataplane/nftables"
	"github.com/checkplan/checkplan/pkg/dataplane/proxy"
)

// Table is one that a Writer keeps in both families.
type Table struct {
	Name string
	// Look is a chain that always has rules: without them, the table is gone.
	Look string
	// Render returns what it has to have. It is pure.
	Render func(*proxy.State, proxy.Node, dataplane.Family) *Rules
}

// own is the table of the mode nftables.
var own = Table{nftables.OwnName, services, Render}

// Writer keeps a Table in both families: it is a proxy.Writer.
type Writer struct {
	table  Table
	log    *slog.Logger
	now    func() time.Time
	tables []*keeper
}

// New returns the Writer of the mode nftables. It runs nft, which it looks for in PATH.
func New(log *slog.Logger) *Writer { return own.Writer(log) }

// Writer returns one that keeps the table. It runs nft, which it looks for in PATH.
func (t Table) Writer(log *slog.Logger) *Writer {
	return t.open(log, func(family knftables.Family) (knftables.Interface, error) {
		return knftables.New(family, t.Name)
	})
}

func newWriter(log *slog.Logger, open func(knftables.Family) (knftables.Interface, error)) *Writer {
	return own.open(log, open)
}

func (t Table) open(log *slog.Logger, open func(knftables.Family) (knftables.Interface, error)) *Writer {
	return &Writer{t, log, time.Now, []*keeper{
		{family: dataplane.IPv4, open: func() (knftables.Interface, error) { return open(knftables.IPv4Family) }},
		{family: dataplane.IPv6, open: func() (knftables.Interface, error) { return open(knftables.IPv6Family) }},
	}}
}

// keeper keeps the table of one family.
type keeper struct {
	family dataplane.Family
	open   func() (knftables.Interface, error)
	nft    knftables.Interface // nil: not opened yet
	have   *Rules              // nil: not known
}

// Write is proxy.Writer's. A family without Services in which there never was a table is left alone: the kernel may not
// have it.
func (w *Writer) Write(ctx context.Context, state *proxy.State, node proxy.Node) error {
	var errs []error
	for _, t := range w.tables {
		if err := w.write(ctx, t, w.table.Render(state, node, t.family), len(state.Of(t.family)) > 0); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", t.family, err))
		}
	}
	return errors.Join(errs...)
}

func (t *keeper) connect() error {
	if t.nft != nil {
		return nil
	}
	nft, err := t.open()
	if err != nil {
		return err
	}
	t.nft = nft
	return nil
}

func (w *Writer) write(ctx context.Context, t *keeper, rules *Rules, needed bool) error {
	if err := t.connect(); err != nil {
		if !needed && t.have == nil {
			return nil // nobody could have written anything
		}
		return err
	}
	have := t.have
	if have == nil {
		var err error
		if have, err = w.find(ctx, t); err != nil {
			return err
		}
		if have == nil && !needed {
			return nil
		}
	}
	t.have = nil // until it is known what is there
	none := have == nil
	var err error
	for _, step := range rules.steps(have) {
		if have, err = w.run(ctx, t, step, have); err != nil {
			break
		}
	}
	if err != nil && !none && ctx.Err() == nil {
		w.log.Warn("the table is not what it should be; writing all of it again, without clients' affinities", "family", t.family, "error", err)
		have, err = w.run(ctx, t, rules, nil)
	}
	if err != nil {
		return err
	}
	t.have = have
	return nil
}

// run runs the transaction after which the table has these rules, and returns what it has then. have is what it has
// before; nil: anything.
func (w *Writer) run(ctx context.Context, t *keeper, rules, have *Rules) (*Rules, error) {
	tx, now, newer := t.nft.NewTransaction(), w.now(), rules
	if have == nil {
		rules.Replace(tx)
	} else {
		newer = rules.Change(tx, have, now)
	}
	if tx.NumOperations() > 1 { // more than the table
		if err := t.nft.Run(ctx, tx); err != nil {
			return nil, err
		}
	}
	for name, c := range newer.Chains {
		if c.stale.Equal(now) {
			c.stale = w.now() // unused since the transaction, which may have taken longer than tidyAfter
			newer.Chains[name] = c
		}
	}
	return newer, nil
}

// find reads the names of what a predecessor left. It returns nil if there is no table.
func (w *Writer) find(ctx context.Context, t *keeper) (*Rules, error) {
	names, err := t.nft.ListAll(ctx)
	switch {
	case knftables.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("list table %s: %w", w.table.Name, err)
	case len(names["chain"]) == 0: // knftables does not always say that there is no table
		return nil, nil
	}
	return found(t.family, names["chain"], names["set"], names["map"]), nil
}

// tidyAfter is how long a kernel may believe that a chain is in use whose last user is gone: before 6.2, a short time.
const tidyAfter = time.Second

// Tidy is proxy.Writer's: it deletes stale chains.
func (w *Writer) Tidy(ctx context.Context) (more bool, err error) {
	var errs []error
	for _, t := range w.tables {
		if t.have == nil {
			continue
		}
		tx := t.nft.NewTransaction()
		newer, left := t.have.tidy(tx, w.now().Add(-tidyAfter))
		more = more || left
		if tx.NumOperations() == 0 {
			continue
		}
		if err := t.nft.Run(ctx, tx); err != nil {
			more, errs = true, append(errs, fmt.Errorf("%s: delete %d chains: %w", t.family, tx.NumOperations(), err))
			continue
		}
		t.have = newer
	}
	return more, errors.Join(errs...)
}

// Present is proxy.Writer's: it looks for one chain of each table.
func (w *Writer) Present(ctx context.Context) error {
	var errs []error
	for _, t := range w.tables {
		if t.have == nil {
			continue
		}
		rules, err := t.nft.ListRules(ctx, w.table.Look)
		if err == nil && len(rules) == 0 {
			err = errors.New("it has none")
		}
		if err != nil {
			t.have = nil
			errs = append(errs, fmt.Errorf("%s: table %s: the rules of chain %s: %w", t.family, w.table.Name, w.table.Look, err))
		}
	}
	return errors.Join(errs...)
}

// Cleanup deletes the tables of both families. If the kernel cannot have one, there is nothing to delete.
func (w *Writer) Cleanup(ctx context.Context) error {
	var errs []error
	for _, t := range w.tables {
		switch err := t.connect(); {
		case err != nil && proxy.NoTables(err):
			w.log.Info("no table to delete, because the kernel cannot have one", "family", t.family, "error", err)
			continue
		case err != nil:
			errs = append(errs, fmt.Errorf("%s: %w", t.family, err))
			continue
		}
		tx := t.nft.NewTransaction()
		tx.Add(&knftables.Table{})
		tx.Delete(&knftables.Table{})
		if err := t.nft.Run(ctx, tx); err != nil {
			errs = append(errs, fmt.Errorf("%s: delete table %s: %w", t.family, w.table.Name, err))
		}
		t.have = nil
	}
	return errors.Join(errs...)
}

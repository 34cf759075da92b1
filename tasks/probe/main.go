// SPDX-License-Identifier: Apache-2.0

// Probe measures one check of a run, as its worksheet says. It takes over the responders
// or VMs that setup started, sends the pods of a dry run to the API server, and starts the
// agents or connects to the VMs. It writes what they report to the record and to the
// pairs' objects as it arrives, because a run that is stopped must keep what was measured.
// Failed pairs are no error.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/connectivity"
	"github.com/checkplan/checkplan/pkg/fleet"
	"github.com/checkplan/checkplan/pkg/ingest"
	"github.com/checkplan/checkplan/pkg/kind"
	"github.com/checkplan/checkplan/pkg/kinds"
	"github.com/checkplan/checkplan/pkg/record"
	"github.com/checkplan/checkplan/pkg/retry"
	"github.com/checkplan/checkplan/tasks/internal/task"
)

func main() {
	if isCheckup(os.Getenv) {
		os.Exit(checkupMain())
	}
	os.Exit(task.Main(run))
}

func run(ctx context.Context, t *task.Task) error {
	var frozen record.Frozen
	if err := t.Store("").Load(ctx, record.Worksheet(t.Check), &frozen); err != nil {
		return fmt.Errorf("cannot measure without a worksheet: %w", err)
	}
	err := probe(ctx, t, t.Fleet(frozen.Worksheet.Plan), &frozen)
	return t.Explain(ctx, "probe", checkup.StageCollect, frozen.Worksheet.Plan, err)
}

func probe(ctx context.Context, t *task.Task, f *fleet.Fleet, frozen *record.Frozen) error {
	began := time.Now()
	w, roster := &frozen.Worksheet, &frozen.Roster
	store := t.Store(w.Plan)
	if err := f.TakeOver(ctx, w, roster); err != nil {
		return err
	}
	guests, measure := t.Guests(w.Plan), f.Measure
	if w.Guests != nil {
		if err := guests.TakeOver(ctx, w); err != nil {
			return err
		}
		measure = guests.Measure
	}
	writer := store.Writer(t.Check)
	first := &collected{}
	to := sinks{writer}
	book, trouble := openBook(ctx, t, w)
	if book != nil {
		to = append(to, book)
	}
	k, _ := kinds.Named(w.Kind)
	if k.Ask != nil {
		asking, done := context.WithTimeout(ctx, time.Duration(w.ProbeTimeout()))
		for _, f := range k.Ask(asking, t.Kubernetes, t.Namespace, w) {
			writer.Fact(f)
		}
		done()
	}
	if k.Again != nil {
		to = append(to, first)
	}
	if len(w.Services) > 0 {
		before := servicesNow(ctx, t, f, w, checkup.FactServicesBefore)
		writer.Fact(before)
		first.record.Facts = append(first.record.Facts, before)
	}
	turn := turnOf(ctx, t, f, w, roster)
	if turn != nil {
		to = append(to, turn)
	}
	var tables kind.Tables
	if k.Tables != nil {
		asking, done := context.WithTimeout(ctx, keepTime)
		tables = k.Tables(asking, t.Kubernetes, w)
		done()
		to = append(to, &comparer{facts: writer, compare: tables.Compare})
	}

	// Agents may report until shortly after the end of ctx. live ends when they do.
	live, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	var wg sync.WaitGroup
	if book != nil {
		wg.Go(func() { book.Run(live) })
	}
	err := watched(live, t, writer, w, func(progress func(fleet.Progress)) error {
		err := measure(ctx, w, roster, to, progress)
		if ctx.Err() != nil {
			end() // a request that hangs must not delay writing the record
		}
		return err
	})
	end()
	wg.Wait()

	if turn != nil {
		turned := turn.finish()
		writer.Fact(turned)
		first.record.Facts = append(first.record.Facts, turned)
	}
	if err == nil && ctx.Err() == nil {
		reading, done := context.WithTimeout(ctx, keepTime)
		f.Receptions(reading, w, roster, func(target int, received []checkup.Reception) {
			writer.Receptions(target, received)
			first.receptions(target, received)
		})
		done()
	}
	var second *record.Writer
	if err == nil && ctx.Err() == nil && k.Again != nil {
		second = lookAgain(ctx, t, f, writer, frozen, began, func() *checkup.Worksheet {
			return k.Again(w, roster, &first.record, frozen.Gate)
		})
	}
	if ctx.Err() == nil && k.AskAfter != nil {
		asking, done := context.WithTimeout(ctx, keepTime)
		for _, f := range k.AskAfter(asking, t.Kubernetes, w) {
			writer.Fact(f)
		}
		done()
	}
	if ctx.Err() == nil && len(w.Services) > 0 {
		writer.Fact(servicesNow(ctx, t, f, w, checkup.FactServicesAfter))
	}
	if ctx.Err() == nil && k.Tables != nil {
		asking, done := context.WithTimeout(ctx, keepTime)
		writer.Fact(tables.After(asking))
		done()
	}
	// What arrived is always written, with a timeout of its own.
	keep := keepTime
	if book != nil && ctx.Err() == nil {
		keep += book.CloseTime()
	}
	after, cancel := context.WithTimeout(context.WithoutCancel(ctx), keep)
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(keepTime, cancel) })() // the task is being stopped
	var unwritten error
	if book != nil {
		wg.Go(func() { unwritten = book.Close(after) })
	}
	lost := writer.Flush(after)
	if second != nil {
		if err := second.Flush(after); err != nil {
			t.Logf("::warning::second look: some pairs are not measured again: %v", err)
		}
	}
	if gone := f.Lost(after, w, roster); gone != nil {
		t.Logf("::warning::%v", gone)
	}
	saved := store.Save(after, record.Roster(t.Check), roster)
	t.KeepTranscripts(after, store, guests, checkup.PhaseProbe)
	wg.Wait()

	if err == nil && ctx.Err() != nil {
		err = fmt.Errorf("stopped before everything was measured: %w", context.Cause(ctx))
	}
	for _, kept := range []struct {
		what string
		err  error
	}{
		{"cannot write the record", lost},
		{"cannot write the roster", saved},
		{"objects of pairs are not up to date", errors.Join(trouble, unwritten)},
	} {
		if kept.err != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", kept.what, kept.err))
		}
	}
	return err
}

// servicesNow is the fact of what the API says of the worksheet's Services.
func servicesNow(ctx context.Context, t *task.Task, f *fleet.Fleet, w *checkup.Worksheet, unit string) checkup.Fact {
	ctx, cancel := context.WithTimeout(ctx, keepTime)
	defer cancel()
	reader := cluster.Reader{Kubernetes: t.Kubernetes, Namespace: t.Namespace}
	s, err := retry.Get(ctx, func() (*cluster.Snapshot, error) {
		var s cluster.Snapshot
		return &s, reader.ServiceObjects(ctx, &s, t.Namespace, f.Labels(w.Check, checkup.RoleService).String())
	})
	var content []byte
	if err == nil {
		ours := map[string]bool{}
		for _, service := range s.ServiceObjects {
			ours[service.Name] = true
		}
		s.EndpointSlices = slices.DeleteFunc(s.EndpointSlices, func(e discoveryv1.EndpointSlice) bool {
			return !ours[e.Labels[discoveryv1.LabelServiceName]]
		})
		content, err = json.Marshal(s)
	}
	if err != nil {
		t.Logf("::warning::cannot read the Services of the check: %v", err)
		return checkup.Fact{Unit: unit, Cause: &checkup.Cause{Stage: checkup.StageCollect, Message: err.Error()}}
	}
	return checkup.Fact{Unit: unit, Content: content}
}

// watched calls measure, and writes meanwhile, until live ends, how far it is and what was
// appended to the record.
func watched(
	live context.Context,
	t *task.Task,
	writer *record.Writer,
	w *checkup.Worksheet,
	measure func(progress func(fleet.Progress)) error,
) error {
	progress := task.NewProgressWriter(t, t.Store(w.Plan))
	progress.Also = func(ctx context.Context) {
		if err := writer.Flush(ctx); err != nil && ctx.Err() == nil {
			t.Logf("::warning::cannot write the record, will retry: %v", err)
		}
	}
	stop := progress.Start(live)
	defer stop()
	return measure(func(p fleet.Progress) {
		progress.Set(record.Progress{
			Phase: "probe", Ready: p.Started, Pods: p.Agents, Measured: p.Measured, Pairs: p.Pairs,
			Results: p.Results, Expected: p.Expected, Look: w.Look, VMs: w.Guests != nil, Tables: w.Tables != nil,
		})
	})
}

// keepTime is the longest time for writing what was measured. It and the time that agents
// take to end are together below 30 s, after which Kubernetes kills a pod.
const keepTime = 20 * time.Second

// openBook opens the objects of the worksheet's pairs. It returns nil if the plan writes
// no objects, or after an error. Pairs are measured in either case.
func openBook(ctx context.Context, t *task.Task, w *checkup.Worksheet) (*connectivity.Book, error) {
	if !w.Connections.Writes() {
		return nil, nil
	}
	book, err := connectivity.Open(ctx, connectivity.Options{
		Dynamic: t.Dynamic, Kubernetes: t.Kubernetes, Namespace: t.Namespace, RunUID: t.RunUID, Worksheet: w, Logf: t.Logf,
	})
	if err != nil {
		t.Logf("::warning::measuring without the pairs' objects: %v", err)
		return nil, err
	}
	return book, nil
}

// sinks passes everything to each of several sinks.
type sinks []ingest.Sink

func (s sinks) Observation(o checkup.Observation) {
	for _, to := range s {
		to.Observation(o)
	}
}

func (s sinks) Results(r []checkup.Result) {
	for _, to := range s {
		to.Results(r)
	}
}

func (s sinks) Source(source checkup.Source) {
	for _, to := range s {
		to.Source(source)
	}
}

func (s sinks) Table(r checkup.TableReading) {
	for _, to := range s {
		if to, ok := to.(ingest.TableSink); ok {
			to.Table(r)
		}
	}
}

// comparer records what comparing tables shows, and drops the tables. It compares one at a time: a table may take as
// much memory as a node has rules.
type comparer struct {
	facts   *record.Writer
	compare func(checkup.TableReading) checkup.Fact
	mu      sync.Mutex // guards compare
}

func (*comparer) Observation(checkup.Observation) {}

func (*comparer) Results([]checkup.Result) {}

func (*comparer) Source(checkup.Source) {}

func (c *comparer) Table(r checkup.TableReading) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.facts.Fact(c.compare(r))
}

// collected keeps what agents or VMs report. It is a sink.
type collected struct {
	mu     sync.Mutex // guards following
	record checkup.Record
}

func (c *collected) Observation(o checkup.Observation) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.record.Observations = append(c.record.Observations, o)
}

func (c *collected) Results(r []checkup.Result) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.record.Results = append(c.record.Results, r...)
}

func (c *collected) Source(s checkup.Source) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.record.Sources = append(c.record.Sources, s)
}

func (c *collected) receptions(target int, received []checkup.Reception) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.record.Counted = append(c.record.Counted, target)
	c.record.Receptions = append(c.record.Receptions, received...)
}

// SPDX-License-Identifier: Apache-2.0

package record

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// observations is the key of a check's checkup.Record of a look, kept as lines.
func observations(check string, n int) Key {
	return Key{Role: checkup.RoleRecord, Check: check, Part: look(n)}
}

// line is one line of a record. Exactly one field is set.
type line struct {
	// Try identifies the try of the probe task that wrote the record; first line of a first look.
	Try         string               `json:"try,omitempty"`
	Source      *checkup.Source      `json:"source,omitempty"`
	Observation *checkup.Observation `json:"observation,omitempty"`
	Counted     *counted             `json:"counted,omitempty"`
	Results     []checkup.Result     `json:"results,omitempty"`
	Fact        *checkup.Fact        `json:"fact,omitempty"`
}

// counted is what the responder of a target counted, read to its end.
type counted struct {
	Target     int                 `json:"target"`
	Receptions []checkup.Reception `json:"receptions,omitempty"`
}

// Writer appends to the record of one check. Its methods may be called from
// several goroutines. Nothing is in the cluster before Flush.
type Writer struct {
	store *Store
	key   Key
	try   string // of a first look: what its further looks repeat

	mu      sync.Mutex   // guards following
	pending bytes.Buffer // lines since the last Flush

	flushing sync.Mutex // guards following
	newest   []byte     // raw bytes of the newest chunk, which each Flush writes again
	chunk    int        // its number
	written  bool       // everything of newest is in the cluster
}

// Writer begins the record of a check's first look. The first Flush overwrites the record
// of an earlier try, whose further looks are not read any more.
func (s *Store) Writer(check string) *Writer {
	w := &Writer{store: s, key: observations(check, 0), try: rand.Text()}
	w.add(line{Try: w.try})
	return w
}

// BeginLook writes what a look after this first one asks, and begins its record.
func (w *Writer) BeginLook(ctx context.Context, l *checkup.Look) (*Writer, error) {
	check, n := l.Worksheet.Check, l.Worksheet.Look
	next := &Writer{store: w.store, key: observations(check, n)}
	// Before the worksheet: what an earlier try measured must not be read with this one.
	if err := next.Flush(ctx); err != nil {
		return next, err
	}
	asked := further{*l, w.try}
	asked.Record = checkup.Record{}
	return next, w.store.Save(ctx, furtherWorksheet(check, n), asked)
}

// further is a further look without its Record, and the try of its first look.
type further struct {
	checkup.Look
	Try string `json:"try"`
}

// furtherWorksheet is the key of a further value.
func furtherWorksheet(check string, n int) Key {
	return Key{Role: checkup.RoleWorksheet, Check: check, Part: look(n)}
}

// Observation appends what was measured for one pair.
func (w *Writer) Observation(o checkup.Observation) { w.add(line{Observation: &o}) }

// Source appends what became of one source. A later value of the same source replaces an
// earlier one.
func (w *Writer) Source(s checkup.Source) { w.add(line{Source: &s}) }

// Results appends measurements of pairs that are reported one by one. Each takes about
// 14 bytes of a chunk.
func (w *Writer) Results(results []checkup.Result) { w.add(line{Results: results}) }

// Fact appends what was found out about a unit without an agent. A later one about
// the same unit replaces an earlier one.
func (w *Writer) Fact(f checkup.Fact) { w.add(line{Fact: &f}) }

// Receptions appends what the responder of a target counted, also if that is nothing.
func (w *Writer) Receptions(target int, received []checkup.Reception) {
	w.add(line{Counted: &counted{target, received}})
}

func (w *Writer) add(l line) {
	b, err := json.Marshal(l)
	if err != nil {
		panic(err) // plain structs of numbers and strings always encode
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pending.Write(b)
	w.pending.WriteByte('\n')
}

// Flush writes what was appended since the last Flush: only the newest chunk, and the
// chunks after it that it grew into. Its cost does not depend on what was written
// before. After an error, the next Flush writes what this one could not.
func (w *Writer) Flush(ctx context.Context) error {
	w.flushing.Lock()
	defer w.flushing.Unlock()
	w.mu.Lock()
	n := w.pending.Len()
	w.newest = append(w.newest, w.pending.Bytes()...)
	w.pending.Reset()
	w.mu.Unlock()
	if n > 0 {
		w.written = false
	}
	if w.written {
		return nil
	}
	chunks := compress(w.newest, appendedBytes)
	if err := w.store.put(ctx, w.key, w.chunk, chunks, nil); err != nil {
		return err
	}
	w.written = true
	for _, c := range chunks[:len(chunks)-1] {
		w.newest = w.newest[c.raw:]
		w.chunk++
	}
	return nil
}

// LoadRecord reads the record of a check with the further looks of the same try: sources and counted
// targets by their index, results by pair and time, facts by unit, observations and
// receptions as they were appended. The error of a record that was never written
// satisfies apierrors.IsNotFound. After any other error, the returned record has what
// could be read; nil is nothing.
func (s *Store) LoadRecord(ctx context.Context, check string) (*checkup.Record, error) {
	r, try, err := s.loadRecord(ctx, observations(check, 0))
	if err != nil {
		return nil, err
	}
	for n := 1; n <= checkup.MaxLook; n++ {
		var l further
		err := s.Load(ctx, furtherWorksheet(check, n), &l)
		if apierrors.IsNotFound(err) || err == nil && l.Try != try {
			break
		}
		var measured *checkup.Record
		if err == nil {
			measured, _, err = s.loadRecord(ctx, observations(check, n))
		}
		if err != nil {
			return r, err
		}
		l.Record = *measured
		r.Looks = append(r.Looks, l.Look)
	}
	return r, nil
}

// loadRecord reads one look, and the try that wrote it; empty for a further look.
func (s *Store) loadRecord(ctx context.Context, k Key) (r *checkup.Record, try string, err error) {
	sources := map[int]checkup.Source{}
	facts := map[string]checkup.Fact{} // by unit
	r = &checkup.Record{}
	take := func(b []byte) error {
		var l line
		if err := json.Unmarshal(b, &l); err != nil {
			return err
		}
		switch {
		case l.Try != "":
			try = l.Try
		case l.Source != nil:
			sources[l.Source.Source] = *l.Source
		case l.Observation != nil:
			r.Observations = append(r.Observations, *l.Observation)
		case l.Counted != nil:
			r.Counted = append(r.Counted, l.Counted.Target)
			r.Receptions = append(r.Receptions, l.Counted.Receptions...)
		case l.Results != nil:
			r.Results = append(r.Results, l.Results...)
		case l.Fact != nil:
			facts[l.Fact.Unit] = *l.Fact
		}
		return nil
	}
	var rest []byte // the beginning of a line that the next chunk continues
	err = s.each(ctx, k, func(_ *corev1.ConfigMap, part []byte) error {
		part = append(rest, part...)
		end := bytes.LastIndexByte(part, '\n') + 1
		rest = part[end:]
		for b := range bytes.Lines(part[:end]) {
			if err := take(b); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil && len(rest) > 0 {
		err = fmt.Errorf("load %s: the last line is incomplete", k)
	}
	if err != nil {
		return nil, "", err
	}
	for _, source := range sources {
		r.Sources = append(r.Sources, source)
	}
	slices.SortFunc(r.Sources, func(a, b checkup.Source) int { return a.Source - b.Source })
	slices.Sort(r.Counted)
	slices.SortStableFunc(r.Results, compareResults)
	for _, f := range facts {
		r.Facts = append(r.Facts, f)
	}
	slices.SortFunc(r.Facts, func(a, b checkup.Fact) int { return cmp.Compare(a.Unit, b.Unit) })
	return r, try, nil
}

// compareResults orders results by pair, and those of one pair by time.
func compareResults(a, b checkup.Result) int {
	return cmp.Or(
		cmp.Compare(a.Source, b.Source), cmp.Compare(a.Target, b.Target), cmp.Compare(a.Family, b.Family),
		cmp.Compare(a.Transport, b.Transport), cmp.Compare(a.Size, b.Size), a.At.Compare(b.At),
	)
}

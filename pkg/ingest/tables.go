// SPDX-License-Identifier: Apache-2.0

package ingest

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// MaxTable is how many bytes of one table, compressed, are kept. One of 10,000 Services with 100,000 endpoints has
// 1.1 MiB (TestLargeLook in pkg/dataplane). A source has up to four tables until they are complete, and the probe task
// reads 64 logs at once, in 512 MiB.
const MaxTable = 2 << 20

// tables are the looks at the table of one family.
type tables struct {
	looks [checkup.TableLooks]table
	// over: all looks were complete, and were handed on. Nothing of them is kept.
	over bool
}

// table is one look as far as it was reported.
type table struct {
	parts      [][]byte
	size       int
	complete   bool
	same       bool
	unmeasured *checkup.Cause
}

// table takes a part of a table, and returns all looks at it if it was the last part that was missing. ok is false if
// there is no such table.
func (s *Source) table(p *checkup.TablePart) (reading *checkup.TableReading, ok bool) {
	of := s.tables[p.Family]
	empty := len(p.Data) == 0 && p.Unmeasured == nil && !p.Same // there could be any number of them
	if of == nil || p.Look < 0 || p.Look >= len(of.looks) || p.Part < 0 || p.Same && p.Look == 0 || empty {
		return nil, false
	}
	if of.over {
		return nil, true
	}
	if t := &of.looks[p.Look]; t.take(p) {
		s.tabled++
	}
	if slices.ContainsFunc(of.looks[:], func(t table) bool { return !t.complete }) {
		return nil, true
	}
	reading = &checkup.TableReading{Source: s.source, Family: p.Family}
	for i := range of.looks {
		if t := &of.looks[i]; t.same {
			reading.Looks[i] = reading.Looks[0]
		} else {
			reading.Looks[i] = checkup.TableLook{Data: bytes.Join(t.parts, nil), Unmeasured: t.unmeasured}
		}
	}
	*of = tables{over: true}
	return reading, true
}

// take takes a part, and reports whether it completes the table. A part that is not the next one is a repeated one, or
// follows one that the log has lost: then the table stays incomplete.
func (t *table) take(p *checkup.TablePart) bool {
	distrust := func(reason checkup.Reason, format string, args ...any) {
		t.parts, t.size = nil, 0
		t.unmeasured = &checkup.Cause{Stage: checkup.StageCollect, Reason: reason, Message: fmt.Sprintf(format, args...)}
	}
	switch {
	case p.Part < len(t.parts):
		if !bytes.Equal(p.Data, t.parts[p.Part]) {
			distrust(checkup.ReasonConflict, "the agent reported a table twice with different values")
			was := t.complete
			t.complete = true
			return !was
		}
		return false
	case t.complete || p.Part > len(t.parts):
		return false
	case p.Unmeasured != nil:
		boundCause(p.Unmeasured)
		t.unmeasured, t.complete = p.Unmeasured, true
		return true
	case p.Same:
		t.same, t.complete = true, true
		return true
	}
	if t.size += len(p.Data); t.size > MaxTable {
		distrust("", "the agent reported a table of more than %d bytes: more than any cluster has", MaxTable)
		t.complete = true
		return true
	}
	t.parts, t.complete = append(t.parts, p.Data), p.Last
	return p.Last
}

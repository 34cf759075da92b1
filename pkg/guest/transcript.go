// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"slices"
	"strings"
	"sync"

	"github.com/checkplan/checkplan/pkg/checkup"
)

const (
	// transcriptBytes is how much is kept of all consoles of a task.
	transcriptBytes = 1 << 20
	// transcriptMost is how much is kept of one, at most.
	transcriptMost = 64 << 10
)

// transcript keeps the end of what is written to it.
type transcript struct {
	vm   string
	most int

	mu  sync.Mutex // guards following
	end []byte
}

func (t *transcript) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.end = append(t.end, b...)
	if len(t.end) > 2*t.most { // rarely, not each time
		t.end = slices.Clone(t.end[len(t.end)-t.most:])
	}
	return len(b), nil
}

func (t *transcript) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.ToValidUTF8(string(t.end[max(0, len(t.end)-t.most):]), "?")
}

// transcript returns the transcript of a VM of the worksheet.
func (g *Guests) transcript(w *checkup.Worksheet, vm int) *transcript {
	g.mu.Lock()
	defer g.mu.Unlock()
	name := g.nameOf(w, vm)
	if g.transcripts == nil {
		g.transcripts = map[string]*transcript{}
	}
	if g.transcripts[name] == nil {
		g.transcripts[name] = &transcript{
			vm:   w.Sources[vm].Name(),
			most: min(transcriptMost, transcriptBytes/max(1, len(w.Sources))),
		}
	}
	return g.transcripts[name]
}

// Transcripts returns what consoles have sent since the task began, without those that
// sent nothing.
func (g *Guests) Transcripts() []checkup.Transcript {
	g.mu.Lock()
	defer g.mu.Unlock()
	var all []checkup.Transcript
	for name, t := range g.transcripts {
		if text := t.text(); text != "" {
			all = append(all, checkup.Transcript{Name: name, VM: t.vm, Text: text})
		}
	}
	slices.SortFunc(all, func(a, b checkup.Transcript) int { return strings.Compare(a.Name, b.Name) })
	return all
}

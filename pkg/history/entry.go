// SPDX-License-Identifier: Apache-2.0

package history

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/DataDog/sketches-go/ddsketch"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Sheet is the worksheet of a check, with what was measured for it.
type Sheet struct {
	Worksheet *checkup.Worksheet
	Roster    *checkup.Roster
	Record    *checkup.Record
}

// EntryOf returns what a run adds to the history of its plan. sheets are those of the checks that were set up, by the
// names of the checks. Delays are those of the first look: a further look selects pairs because they failed.
func EntryOf(r *checkup.Report, sheets map[string]Sheet) *Entry {
	e := &Entry{Plan: r.Plan, Run: Run{
		Name: r.Run, UID: r.RunUID, Started: r.Started, Finished: r.Finished, Verdict: r.Verdict, Counts: r.Counts,
	}}
	for i := range r.Checks {
		c := &r.Checks[i]
		check := Check{Name: c.Name, Verdict: c.Verdict, Counts: c.Counts}
		for _, row := range c.Delays {
			if row.Delay == nil || row.Stage != "" && row.Stage != checkup.StageConnect {
				continue
			}
			check.Delays = append(check.Delays, Delay{
				Probe: probeName(row.Transport, row.Family, row.Size), P50: row.Delay.P50, P99: row.Delay.P99,
				Sent: row.Sent, Lost: row.Sent - row.Received,
			})
		}
		for _, f := range c.Findings {
			check.Regressed = check.Regressed || f.Change != nil && f.Change.Days == 0
			e.Findings = append(e.Findings, Finding{
				Check: c.Name, Finding: f.String(), Message: f.Message, First: r.Finished, Last: r.Finished, Runs: 1,
			})
		}
		if sheet, ok := sheets[c.Name]; ok {
			if m := measuredOf(c, sheet); m != nil {
				digests := m.digests(r.Finished)
				check.Pairs, check.Possible = m.pairs(digests), m.w.Possible
				e.Digests = append(e.Digests, digests...)
				if len(check.Delays) == 0 {
					check.Delays = delaysOf(digests)
				}
			}
		}
		e.Run.Checks = append(e.Run.Checks, check)
	}
	e.Findings = mergeFindings(nil, e.Findings)
	slices.SortFunc(e.Digests, func(a, b Digest) int { return compareKeys(a.Key, b.Key) })
	return e
}

// delaysOf returns the delays of all pairs by the digests of a run: some kinds' reports have them by pair only.
func delaysOf(digests []Digest) []Delay {
	var delays []Delay
	for i := range digests {
		if d := &digests[i]; d.Group == All {
			delays = append(delays, Delay{
				Probe: d.Probe, P50: d.Quantile(0.5), P99: d.Quantile(0.99), Sent: int(d.Sent), Lost: int(d.Lost),
			})
		}
	}
	slices.SortFunc(delays, func(a, b Delay) int { return cmp.Compare(a.Probe, b.Probe) })
	return delays
}

// ProbeName is the name of family, transport and size of a pair in a history.
func ProbeName(p checkup.Pair) string { return probeName(p.Transport, p.Family, p.Size) }

func probeName(t checkup.Transport, f checkup.IPFamily, size int) string {
	return fmt.Sprintf("%s %s %dB", t, cmp.Or(string(f), "any"), size)
}

// probe is family, transport and size of a pair.
type probe struct {
	family    checkup.IPFamily
	transport checkup.Transport
	size      int
}

func probeOf(p checkup.Pair) probe { return probe{p.Family, p.Transport, p.Size} }

// cell is one probe of one pair.
type cell struct {
	verdict byte
	// listed says that the report lists the unit: it did not pass, or not in the first look.
	listed     bool
	rtts       []int64
	sent, lost int
}

// measured holds the cells of a check.
type measured struct {
	check   string
	w       *checkup.Worksheet
	probes  []probe
	indexOf map[probe]int
	// first is the index of the first pair of a source, by source; cells are by pair and probe.
	first []int
	cells []cell
}

// measuredOf returns nil if the units of the report are not the pairs of the worksheet, or are too many: a pair that
// the report does not judge must not be remembered as passed.
func measuredOf(c *checkup.CheckReport, sheet Sheet) *measured {
	w := sheet.Worksheet
	m := &measured{check: c.Name, w: w, indexOf: map[probe]int{}, first: make([]int, len(w.Assignments))}
	if c.Counts.Expected == 0 || c.Counts.Expected != w.CountPairs() || w.Again != nil ||
		len(w.Sources) == 0 || len(w.Assignments) != len(w.Sources) {
		return nil
	}
	pairs := 0
	for s, targets := range w.Assignments {
		m.first[s] = pairs
		pairs += len(targets)
	}
	for p := range w.Pairs() {
		if _, ok := m.indexOf[probeOf(p)]; !ok {
			m.indexOf[probeOf(p)] = len(m.probes)
			m.probes = append(m.probes, probeOf(p))
		}
	}
	if pairs*len(m.probes) > maxCells {
		return nil
	}
	m.cells = make([]cell, pairs*len(m.probes))
	for p := range w.Pairs() {
		m.cell(p).verdict = codePass
	}
	if !m.judged(c) {
		return nil
	}
	m.delays(sheet.Record)
	return m
}

// cell of a pair; nil if the worksheet does not expect it.
func (m *measured) cell(p checkup.Pair) *cell {
	if p.Source < 0 || p.Source >= len(m.first) {
		return nil
	}
	at, ok := slices.BinarySearch(m.w.Assignments[p.Source], p.Target)
	k, known := m.indexOf[probeOf(p)]
	if !ok || !known {
		return nil
	}
	return &m.cells[(m.first[p.Source]+at)*len(m.probes)+k]
}

// judged takes the verdicts from the report; false if its units are not all pairs of the worksheet.
func (m *measured) judged(c *checkup.CheckReport) bool {
	names := func(endpoints []checkup.Endpoint) map[string]int {
		by := make(map[string]int, len(endpoints))
		for i, e := range endpoints {
			by[e.Name()] = i
		}
		return by
	}
	sources, targets := names(m.w.Sources), names(m.w.Targets)
	for i := range c.Units {
		u := &c.Units[i]
		s, known := sources[u.Source]
		t, ok := targets[u.Target]
		if !ok || !known {
			return false
		}
		at := m.cell(checkup.Pair{Source: s, Target: t, Family: u.Family, Transport: u.Transport, Size: u.Size})
		if at == nil || at.verdict == codeNone {
			return false
		}
		at.verdict, at.listed = verdictCodes[u.Verdict], true
	}
	return true
}

// delays takes what was measured. What is unmeasured by the report is not credible, and does not count. Where one
// answer is enough, delays and losses are no measurement.
func (m *measured) delays(record *checkup.Record) {
	if record == nil {
		return
	}
	for i := range record.Observations {
		o := &record.Observations[i]
		if at := m.cell(o.Pair); at != nil && at.sent == 0 && !m.w.ConnectivityOnly(o.Pair) && o.Unmeasured == nil &&
			o.Received <= o.Sent && o.Received >= 0 {
			at.sent, at.lost, at.rtts = o.Sent, o.Sent-o.Received, o.RTTs
		}
	}
	for i := range record.Results {
		r := &record.Results[i]
		at := m.cell(r.Pair)
		if at == nil || r.Unmeasured != nil {
			continue
		}
		at.sent++
		if r.Failure != nil {
			at.lost++
		} else {
			at.rtts = append(at.rtts, r.Delays.Connect)
		}
	}
}

// PairsOf returns the results of the pairs of a check, as the history keeps them; nil if it does not keep them: then
// the units of the report are not the pairs of the worksheet, or are too many.
func PairsOf(c *checkup.CheckReport, sheet Sheet) *Pairs {
	m := measuredOf(c, sheet)
	if m == nil {
		return nil
	}
	return m.pairs(m.digests(time.Time{}))
}

// pairs encodes the cells, and the values of the groups by their digests.
func (m *measured) pairs(digests []Digest) *Pairs {
	p := &Pairs{Seed: m.w.Seed, uids: uidsOf(m.w)}
	for _, k := range m.probes {
		p.Probes = append(p.Probes, probeName(k.transport, k.family, k.size))
	}
	sources, members := inOrder(m.w.Seed, m.w.Sources)
	targets, others := inOrder(m.w.Seed, m.w.Targets)
	p.Sources, p.Targets = members, others
	positions := make([]int, len(targets))
	for at, t := range targets {
		positions[t] = at
	}
	rows := make([][]int, len(sources))
	verdicts := make([]byte, 0, len(m.cells))
	p.detail = make([]byte, 0, 3*len(m.cells))
	for at, s := range sources {
		type assigned struct{ offset, pair int }
		var row []assigned
		for i, t := range m.w.Assignments[s] {
			rows[at] = append(rows[at], positions[t])
			row = append(row, assigned{((positions[t]-at)%len(targets) + len(targets)) % len(targets), m.first[s] + i})
		}
		slices.SortFunc(row, func(a, b assigned) int { return cmp.Compare(a.offset, b.offset) })
		for _, a := range row {
			for k := range m.probes {
				c := &m.cells[a.pair*len(m.probes)+k]
				verdicts = append(verdicts, c.verdict)
				p.detail = append(p.detail, c.detail()...)
			}
		}
	}
	p.rows, p.verdicts = encodeRows(rows, len(targets)), encodeVerdicts(verdicts)
	p.groups = p.encodeGroups(m.check, digests)
	return p
}

func (c *cell) detail() []byte {
	d := []byte{0, 0, 0}
	if c.counts() && c.sent > 0 {
		d[2] = byte(1 + (100*c.lost+c.sent-1)/c.sent)
		if len(c.rtts) > 0 {
			sorted := slices.Clone(c.rtts)
			slices.Sort(sorted)
			d[0], d[1] = delayCode(sorted[(len(sorted)-1)/2]), delayCode(sorted[len(sorted)-1])
		}
	}
	return d
}

// counts reports whether the measurements of the pair with this probe are delays and losses. One that passes although
// nothing was answered must not be reached: what is right is no loss.
func (c *cell) counts() bool {
	right := c.verdict == codePass && !c.listed && c.sent > 0 && c.lost == c.sent
	return c.verdict != codeNone && c.verdict != codeUnmeasured && !right
}

// digests adds up the cells by group.
func (m *measured) digests(at time.Time) []Digest {
	type sum struct {
		sent, lost int
		sketch     *ddsketch.DDSketch
	}
	sums := map[Key]*sum{}
	add := func(k Key, c *cell) {
		to := sums[k]
		if to == nil {
			to = &sum{sketch: newSketch()}
			sums[k] = to
		}
		to.sent += c.sent
		to.lost += c.lost
		for _, us := range c.rtts {
			_ = to.sketch.Add(float64(max(us, 1))) // within the mapping's range
		}
	}
	for s, targets := range m.w.Assignments {
		from := m.w.Sources[s]
		for i, t := range targets {
			to := m.w.Targets[t]
			for k, p := range m.probes {
				c := &m.cells[(m.first[s]+i)*len(m.probes)+k]
				if !c.counts() || c.sent == 0 {
					continue
				}
				key := Key{Check: m.check, Probe: probeName(p.transport, p.family, p.size)}
				with := func(g Group, from, to string) Key {
					key := key
					key.Group, key.From, key.To = g, from, to
					return key
				}
				add(with(All, "", ""), c)
				add(with(Out, from.Name(), ""), c)
				add(with(In, "", to.Name()), c)
				if from.Zone != "" && to.Zone != "" {
					add(with(Zones, from.Zone, to.Zone), c)
				}
			}
		}
	}
	digests := make([]Digest, 0, len(sums))
	for k, s := range sums {
		digests = append(digests, Digest{
			Key: k, Last: at, Sent: float64(s.sent), Lost: float64(s.lost), Sketch: encodeSketch(s.sketch),
		})
	}
	return digests
}

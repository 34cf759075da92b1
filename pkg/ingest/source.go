// SPDX-License-Identifier: Apache-2.0

package ingest

import (
	"encoding/json"
	"hash/maphash"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

const (
	// MaxUnrequested is up to which number the unrequested pairs of a source are
	// counted. One of them is enough to distrust the source.
	MaxUnrequested = 1000
	// recent is how many of the newest results of each pair are remembered, to compare
	// them with what is reported again. A log is read again from a minute before its
	// newest result, and most pairs are measured once a second.
	recent = 128
	// MaxMessage is how many bytes of a message for people are kept.
	MaxMessage = 1 << 10
	// What a log may have at the most, in bytes: for a pair that is reported as a whole, with MaxFlows source ports; for
	// each of its delays; for a result, of which there are up to maxTries for each that was ordered; for a table, in
	// base64 and in lines; and for all the rest. Agents write a fraction of that.
	pairBytes   = 16 << 10
	delayBytes  = 32
	resultBytes = 1 << 10
	tableBytes  = 2 * MaxTable
	otherBytes  = 4 << 20
	// firstYear and lastYear limit the times of results. The clock of a node does not start before 1970. JSON can hold
	// times up to 2200 in every zone, and a time.Duration their distance from today.
	firstYear, lastYear = 1970, 2200
)

// controlNames are the names of control pairs.
var controlNames = []string{"self", "closed"}

// Sink receives what is new. Its methods are called from several goroutines.
type Sink interface {
	// Observation is called once for each pair that a source has reported as a whole.
	Observation(checkup.Observation)
	// Results is called with new results: each result once, those of one pair in the
	// order of their times.
	Results([]checkup.Result)
	// Source is called once for each source of the worksheet, when nothing more will
	// come from it.
	Source(checkup.Source)
}

// TableSink is a Sink that receives tables, too.
type TableSink interface {
	// Table is called once for each source and family of which all looks are complete.
	Table(checkup.TableReading)
}

// New is what a message added to what its source had reported before: an observation,
// results, a table, or nothing.
type New struct {
	Observation *checkup.Observation
	Results     []checkup.Result
	Table       *checkup.TableReading
}

// To hands what is new to a sink.
func (n New) To(sink Sink) {
	if n.Observation != nil {
		sink.Observation(*n.Observation)
	}
	if len(n.Results) > 0 {
		sink.Results(n.Results)
	}
	if to, ok := sink.(TableSink); ok && n.Table != nil {
		to.Table(*n.Table)
	}
}

// Source is what one source of a worksheet has reported. It is not safe for use by
// several goroutines at once.
type Source struct {
	source int
	// connections is set where pairs are reported as results.
	connections bool
	hash        maphash.Seed
	pairs       map[checkup.Pair]*pair // the expected ones
	observed    int                    // pairs that were reported as a whole
	results     int                    // new results
	newest      time.Time              // of all results
	begun       bool
	controls    []checkup.Control
	end         *checkup.AgentEnd
	conflicts   map[checkup.Pair]bool
	unrequested map[uint64]bool // hashes of pairs, whose strings may be long
	tables      map[checkup.IPFamily]*tables
	tabled      int // tables that are complete
}

// pair is what was reported of one expected pair.
type pair struct {
	count       int    // measurements that were ordered
	observed    bool   // it was reported as a whole
	observation uint64 // the hash of that
	results     int
	last        time.Time // of the newest result
	newest      []moment  // of the newest results, oldest first; at most recent
}

// moment is the time of a result and the hash of what it says.
type moment struct {
	at   time.Time
	said uint64
}

// NewSource returns what a source of the worksheet has reported before it reported
// anything.
func NewSource(w *checkup.Worksheet, source int) *Source {
	s := &Source{
		source: source, connections: w.Connections != nil, hash: maphash.MakeSeed(),
		pairs: map[checkup.Pair]*pair{}, conflicts: map[checkup.Pair]bool{}, unrequested: map[uint64]bool{},
	}
	if w.Tables != nil { // it has no pairs
		s.tables = map[checkup.IPFamily]*tables{}
		for _, f := range w.IPFamilies {
			s.tables[f] = &tables{}
		}
		return s
	}
	for p := range w.PairsOf(source) {
		s.pairs[p] = &pair{count: w.Measurements(p)}
	}
	return s
}

// MaxLog returns how many bytes of the source's log are read at once: several times what can be said of all that was
// ordered.
func (s *Source) MaxLog() int64 {
	most := int64(otherBytes) + int64(len(s.tables))*checkup.TableLooks*tableBytes
	for _, p := range s.pairs {
		each := int64(delayBytes)
		if s.connections {
			each = maxTries * resultBytes
		}
		most += pairBytes + each*int64(p.count)
	}
	return most
}

// Begun reports whether the source has reported anything of its own.
func (s *Source) Begun() bool { return s.begun }

// End is the last message of a source that has reported all that it had; nil before.
func (s *Source) End() *checkup.AgentEnd { return s.end }

// Observed is how many pairs were reported as a whole.
func (s *Source) Observed() int { return s.observed }

// Results is how many results were new.
func (s *Source) Results() int { return s.results }

// Newest is the time of the newest result, zero before the first.
func (s *Source) Newest() time.Time { return s.newest }

// Complete reports whether everything arrived that the source says it reported. It is
// false as long as the source has not reported its end.
func (s *Source) Complete() bool {
	return s.end != nil && s.observed+len(s.unrequested) >= s.end.Observations && s.results >= s.end.Results &&
		s.tabled >= s.end.Tables
}

// Report is what a record keeps of the source.
func (s *Source) Report() checkup.Source {
	return checkup.Source{
		Source: s.source, Controls: s.controls, End: s.end,
		Unrequested: len(s.unrequested), Conflicts: slices.SortedFunc(maps.Keys(s.conflicts), checkup.Pair.Compare),
	}
}

// Take takes one message of the source, and returns what of it is new. ok is false if
// the message makes no sense from a source of this worksheet. A message about
// unrequested pairs makes sense, and says something about its sender.
func (s *Source) Take(m checkup.Message) (fresh New, ok bool) {
	switch {
	case m.Start != nil:
		if m.Start.Source != s.source {
			return New{}, false
		}
		s.begun = true
	case m.Control != nil:
		return New{}, s.control(*m.Control)
	case m.Observation != nil:
		fresh.Observation = s.observation(m.Observation)
	case len(m.Results) > 0:
		fresh.Results, ok = s.takeResults(m.Results)
		return fresh, ok
	case m.Table != nil:
		fresh.Table, ok = s.table(m.Table)
		return fresh, ok
	case m.End != nil:
		if s.end == nil {
			s.end = m.End
		}
	default:
		return New{}, false
	}
	return fresh, true
}

// control takes a control pair, and reports whether there is such a pair. One that was
// reported twice and differently is wrong if either report says so.
func (s *Source) control(c checkup.Control) bool {
	if !slices.Contains(controlNames, c.Name) || !slices.Contains(checkup.IPFamilies, c.Family) {
		return false
	}
	c.Message = clip(c.Message)
	same := func(known checkup.Control) bool { return known.Family == c.Family && known.Name == c.Name }
	if i := slices.IndexFunc(s.controls, same); i < 0 {
		s.controls = append(s.controls, c)
	} else if s.controls[i].OK && !c.OK {
		s.controls[i] = c
	}
	return true
}

// observation returns what is new of a pair that is reported as a whole; nil for
// nothing.
func (s *Source) observation(o *checkup.Observation) *checkup.Observation {
	p := s.expected(o.Pair)
	if p == nil {
		return nil
	}
	p.bound(o)
	hash := digest(s.hash, *o)
	if p.observed {
		if hash != p.observation {
			s.conflicts[o.Pair] = true
		}
		return nil
	}
	p.observed, p.observation = true, hash
	s.observed++
	return o
}

// bound cuts what is more than was ordered. One more than that is kept, so that it shows.
func (p *pair) bound(o *checkup.Observation) {
	o.RTTs = o.RTTs[:min(len(o.RTTs), p.count+1)]
	o.Connects = o.Connects[:min(len(o.Connects), p.count+1)]
	o.Flows = o.Flows[:min(len(o.Flows), checkup.MaxFlows+1)]
	o.SeenAs = clip(o.SeenAs)
	o.Answerers = o.Answerers[:min(len(o.Answerers), p.count+1)]
	for i := range o.Answerers {
		o.Answerers[i].Address = clip(o.Answerers[i].Address)
	}
	o.Later = o.Later[:min(len(o.Later), checkup.IdleTries)]
	for i := range o.Later {
		o.Later[i] = clip(o.Later[i])
	}
	boundCause(o.Failure)
	boundCause(o.Unmeasured)
	for i := range o.Flows {
		boundCause(o.Flows[i].Unmeasured)
	}
}

// boundCause cuts the message of a cause. A stage or reason that nobody knows is no text that a source may choose.
func boundCause(c *checkup.Cause) {
	if c == nil {
		return
	}
	c.Message = clip(c.Message)
	if !slices.Contains(checkup.Stages, c.Stage) {
		c.Stage = checkup.StageCollect
	}
	if !slices.Contains(checkup.Reasons, c.Reason) {
		c.Reason = ""
	}
}

// clip cuts a message to MaxMessage bytes.
func clip(message string) string {
	if len(message) <= MaxMessage {
		return message
	}
	return strings.ToValidUTF8(message[:MaxMessage], "") + "..."
}

// takeResults returns those of the results that are new. Their times are in UTC: JSON with some zones can be read, but
// not written. sense is false if any of the results makes no sense.
func (s *Source) takeResults(results []checkup.Result) (fresh []checkup.Result, sense bool) {
	sense = true
	for _, r := range results {
		p := s.expected(r.Pair)
		r.At = r.At.UTC()
		boundCause(r.Failure)
		boundCause(r.Unmeasured)
		switch {
		case p == nil:
		case !s.connections || r.At.Year() < firstYear || r.At.Year() > lastYear:
			sense = false
		case !r.At.After(p.last):
			if s.contradicts(p, &r) {
				s.conflicts[r.Pair] = true
			}
		case p.results > p.count: // one more than were ordered, so that it shows
			sense = false
		default:
			p.add(moment{r.At, s.said(r)})
			p.last = r.At
			p.results++
			s.results++
			if r.At.After(s.newest) {
				s.newest = r.At
			}
			fresh = append(fresh, r)
		}
	}
	return fresh, sense
}

// add remembers a result.
func (p *pair) add(m moment) {
	if len(p.newest) == recent {
		copy(p.newest, p.newest[1:])
		p.newest = p.newest[:recent-1]
	}
	p.newest = append(p.newest, m)
}

// contradicts reports whether another result of the same time is remembered.
func (s *Source) contradicts(p *pair, r *checkup.Result) bool {
	byTime := func(m moment, at time.Time) int { return m.at.Compare(at) }
	at, found := slices.BinarySearchFunc(p.newest, r.At, byTime)
	return found && p.newest[at].said != s.said(*r)
}

// expected returns a pair of the source; nil for others, which it counts.
func (s *Source) expected(of checkup.Pair) *pair {
	p := s.pairs[of]
	if p == nil && len(s.unrequested) < MaxUnrequested {
		s.unrequested[maphash.Comparable(s.hash, of)] = true
	}
	return p
}

// said is the hash of what a result says, but for its time, which may be written in
// several ways.
func (s *Source) said(r checkup.Result) uint64 {
	r.At = time.Time{}
	return digest(s.hash, r)
}

// digest is the hash of what was reported.
func digest[T checkup.Observation | checkup.Result](seed maphash.Seed, report T) uint64 {
	b, err := json.Marshal(report)
	if err != nil {
		panic(err) // plain structs of numbers and strings always encode
	}
	return maphash.Bytes(seed, b)
}

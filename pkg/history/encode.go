// SPDX-License-Identifier: Apache-2.0

package history

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// version is in every part. A change that an older reader would misunderstand raises it.
const version = 1

const (
	// maxPart is the largest part before compression.
	maxPart = 64 << 20
	// MaxBytes is the largest history, after compression. Merge keeps a history of 5,000 nodes below it; Encode drops
	// what is beyond it: first the delays of single pairs, then the digests of nodes, then the oldest runs.
	MaxBytes = 16 << 20
	// maxMemory is about the largest memory of a history, once it is decoded. One of 600 runs of 5,000 nodes takes 18 MiB,
	// and 200 MiB if each run has a node that the run before did not have: a Member has 48 bytes, and about 750 runs keep
	// their lists of members.
	maxMemory = 256 << 20
	// digestsPerPart keeps a part of digests small enough to be written as one object or two.
	digestsPerPart = 8192
	// detailsPerPart is the number of runs whose delays are in one part.
	detailsPerPart = 16
)

// Part is a piece of an encoded history: gzip'd JSON. A part whose content did not change has the same bytes again.
type Part struct {
	Name string
	Data []byte
}

// document is the content of a part. One of the fields below Name is set.
type document struct {
	Version int       `json:"version"`
	Plan    string    `json:"plan"`
	Name    string    `json:"name"`
	State   *History  `json:"state,omitempty"`
	Runs    *runsPart `json:"runs,omitempty"`
	Details []detail  `json:"details,omitempty"`
	Groups  []detail  `json:"groups,omitempty"`
	Digests []Digest  `json:"digests,omitempty"`
	Nodes   []Node    `json:"nodes,omitempty"`
}

// runsPart has the runs of a block, and the lists of members that their pairs refer to.
type runsPart struct {
	Members []memberList `json:"members,omitempty"`
	Runs    []Run        `json:"runs"`
	// Pairs are by run and check, in their order; null for a check without pairs.
	Pairs [][]*pairsPart `json:"pairs"`
}

// memberList is a list of members in the order of the ring, or what changed since the list before it.
type memberList struct {
	Seed   uint64   `json:"seed"`
	All    []Member `json:"all,omitempty"`
	Left   []int    `json:"left,omitempty"` // positions in the list before
	Joined []Member `json:"joined,omitempty"`
	Change bool     `json:"change,omitempty"` // the list is Left and Joined, not All
}

type pairsPart struct {
	Sources  int      `json:"s"` // indexes of member lists
	Targets  int      `json:"t"`
	Probes   []string `json:"p"`
	Rows     []byte   `json:"r"`
	Verdicts []byte   `json:"v"`
}

// detail has the delays of the pairs of one check of one run, or the values of their groups.
type detail struct {
	N      int    `json:"n"`
	Check  string `json:"check"`
	Detail []byte `json:"detail"`
}

// Encode returns the parts of a history, in a fixed order, with at most MaxBytes in all. The history itself is not
// changed.
func Encode(h *History) ([]Part, error) { return encodeWithin(h, MaxBytes) }

// encodeWithin is Encode with another limit than MaxBytes.
func encodeWithin(h *History, most int) ([]Part, error) {
	small := *h
	for {
		parts, err := encode(&small)
		if err != nil {
			return nil, err
		}
		size := 0
		for _, p := range parts {
			size += len(p.Data)
		}
		if size <= most || !small.shrink() {
			return parts, nil
		}
	}
}

// shrink drops the least important of what is left; false if nothing is.
func (h *History) shrink() bool {
	h.Runs = slices.Clone(h.Runs)
	dropped := false
	for i := range h.Runs {
		for k, c := range h.Runs[i].Checks {
			if c.Pairs != nil && (c.Pairs.detail != nil || c.Pairs.groups != nil) {
				bare := *c.Pairs
				bare.detail, bare.groups, dropped = nil, nil, true
				h.Runs[i].Checks = slices.Clone(h.Runs[i].Checks)
				h.Runs[i].Checks[k].Pairs = &bare
			}
		}
	}
	if dropped {
		return true
	}
	all := len(h.Digests)
	h.Digests = slices.DeleteFunc(slices.Clone(h.Digests), func(d Digest) bool { return d.Group == Out || d.Group == In })
	if len(h.Digests) < all {
		return true
	}
	if len(h.Runs) < 2 {
		return false
	}
	h.intoDays(len(h.Runs) / 2)
	return true
}

func encode(h *History) ([]Part, error) {
	var parts []Part
	add := func(d document) error {
		d.Version, d.Plan = version, h.Plan
		raw, err := json.Marshal(d)
		if err != nil {
			return fmt.Errorf("encode part %s of the history: %w", d.Name, err)
		}
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		_, _ = w.Write(raw) // a bytes.Buffer does not fail
		_ = w.Close()
		parts = append(parts, Part{d.Name, b.Bytes()})
		return nil
	}
	problems := []error{add(document{Name: "state", State: h})}
	for runs := range chunksBy(h.Runs, func(r Run) int { return r.N / block }) {
		problems = append(problems, add(document{Name: fmt.Sprintf("runs-%d", runs[0].N/block), Runs: encodeRuns(runs)}))
	}
	var details, groups []detail
	for _, r := range h.Runs {
		for _, c := range r.Checks {
			if c.Pairs != nil && c.Pairs.detail != nil {
				details = append(details, detail{r.N, c.Name, c.Pairs.detail})
			}
			if c.Pairs != nil && c.Pairs.groups != nil {
				groups = append(groups, detail{r.N, c.Name, c.Pairs.groups})
			}
		}
	}
	block := func(d detail) int { return d.N / detailsPerPart }
	for some := range chunksBy(details, block) {
		problems = append(problems, add(document{Name: fmt.Sprintf("details-%d", block(some[0])), Details: some}))
	}
	for some := range chunksBy(groups, block) {
		problems = append(problems, add(document{Name: fmt.Sprintf("groups-%d", block(some[0])), Groups: some}))
	}
	if len(h.Nodes) > 0 {
		problems = append(problems, add(document{Name: "nodes", Nodes: h.Nodes}))
	}
	i := 0
	for some := range slices.Chunk(h.Digests, digestsPerPart) {
		problems = append(problems, add(document{Name: fmt.Sprintf("digests-%d", i), Digests: some}))
		i++
	}
	return parts, errors.Join(problems...)
}

// chunksBy yields the longest parts of a list with equal keys.
func chunksBy[T any](all []T, key func(T) int) func(func([]T) bool) {
	return func(yield func([]T) bool) {
		for from := 0; from < len(all); {
			to := from + 1
			for to < len(all) && key(all[to]) == key(all[from]) {
				to++
			}
			if !yield(all[from:to]) {
				return
			}
			from = to
		}
	}
}

func encodeRuns(runs []Run) *runsPart {
	part := &runsPart{}
	var lists [][]Member
	var seeds []uint64
	list := func(seed uint64, members []Member) int {
		for i := len(lists) - 1; i >= 0; i-- {
			if seeds[i] == seed && slices.Equal(lists[i], members) {
				return i
			}
		}
		l := memberList{Seed: seed, All: members}
		if n := len(lists); n > 0 {
			if change, ok := changeOf(seed, lists[n-1], members); ok {
				l = change
			}
		}
		part.Members = append(part.Members, l)
		lists, seeds = append(lists, members), append(seeds, seed)
		return len(lists) - 1
	}
	for _, r := range runs {
		checks, pairs := slices.Clone(r.Checks), make([]*pairsPart, len(r.Checks))
		for k := range checks {
			if p := checks[k].Pairs; p != nil {
				pairs[k] = &pairsPart{list(p.Seed, p.Sources), list(p.Seed, p.Targets), p.Probes, p.rows, p.verdicts}
				checks[k].Pairs = nil
			}
		}
		r.Checks = checks
		part.Runs, part.Pairs = append(part.Runs, r), append(part.Pairs, pairs)
	}
	return part
}

// changeOf returns a list as a change of another one; false if the list itself is smaller.
func changeOf(seed uint64, old, members []Member) (memberList, bool) {
	here, before := positions(members), positions(old)
	l := memberList{Seed: seed, Change: true}
	for i, m := range old {
		if _, ok := here[m]; !ok {
			l.Left = append(l.Left, i)
		}
	}
	for _, m := range members {
		if _, ok := before[m]; !ok {
			l.Joined = append(l.Joined, m)
		}
	}
	if len(l.Left)+len(l.Joined) > len(members)/2 {
		return l, false
	}
	again, err := l.apply(old)
	return l, err == nil && slices.Equal(again, members)
}

// apply returns the members of a list.
func (l memberList) apply(old []Member) ([]Member, error) {
	if !l.Change {
		return l.All, nil
	}
	gone := map[int]bool{}
	for _, i := range l.Left {
		gone[i] = true
	}
	if len(gone) > len(old) || len(l.Joined) > maxMembers {
		return nil, errors.New("bad list of members")
	}
	var members []Member
	for i, m := range old {
		if !gone[i] {
			members = append(members, m)
		}
	}
	members = append(members, l.Joined...)
	sortMembers(l.Seed, members)
	return members, nil
}

// maxMembers bounds a list of members.
const maxMembers = 20_000

// Decode puts the parts of a history together. It never fails: what it cannot read it leaves out, with a note in
// SetAside. If the plan's name is another one, all is left out. Newer says that another version of checkplan wrote a
// part: the history must then not be written again, because the parts that were left out would be lost.
func Decode(plan string, parts []Part, now time.Time) (h *History, newer bool) {
	h = &History{Plan: plan}
	var notes []string
	details, groups := map[string][]byte{}, map[string][]byte{}
	left := maxMemory
	for _, p := range parts {
		d, err := decodePart(p.Data, &left)
		switch {
		case err != nil:
		case d.Version != version:
			newer, err = true, fmt.Errorf("has version %d, want %d: another checkplan wrote it", d.Version, version)
		case d.Plan != plan:
			err = fmt.Errorf("is of plan %q", d.Plan)
		case d.Name != p.Name:
			err = fmt.Errorf("is part %q", d.Name)
		default:
			err = h.take(d, details, groups, &left)
		}
		if err != nil {
			notes = append(notes, fmt.Sprintf("part %s of the history is ignored: %v", p.Name, err))
		}
	}
	h.complete(details, groups)
	for _, n := range notes {
		h.Note(now, "%s", checkup.Shorten(checkup.OneLine(n), 300))
	}
	return h, newer
}

// decodePart reads a part, and subtracts its memory from left.
func decodePart(data []byte, left *int) (*document, error) {
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	raw, err := io.ReadAll(io.LimitReader(r, maxPart+1))
	if err != nil {
		return nil, err
	}
	if len(raw) > maxPart {
		return nil, fmt.Errorf("has more than %d MiB when decompressed", maxPart>>20)
	}
	d := &document{}
	return d, Unmarshal(raw, d, left)
}

// take adds the content of a part. left are the bytes of memory that are left for its lists of members.
func (h *History) take(d *document, details, groups map[string][]byte, left *int) error {
	if d.State != nil {
		if len(d.State.Days) > maxDays || len(d.State.Findings) > maxFindings || len(d.State.SetAside) > maxSetAside {
			return errors.New("has too many entries")
		}
		if slices.ContainsFunc(d.State.Days, func(d Day) bool { return len(d.Delays) > maxDayDelays }) {
			return errors.New("has too many delays of a day")
		}
		h.Days, h.Findings, h.Due, h.SetAside = d.State.Days, d.State.Findings, d.State.Due, d.State.SetAside
	}
	for _, x := range d.Details {
		details[detailKey(x.N, x.Check)] = x.Detail
	}
	for _, x := range d.Groups {
		groups[detailKey(x.N, x.Check)] = x.Detail
	}
	for i := range d.Digests {
		if err := d.Digests[i].check(); err != nil {
			return err
		}
	}
	if len(h.Digests)+len(d.Digests) > maxDigests {
		return errors.New("has too many digests")
	}
	h.Digests = append(h.Digests, d.Digests...)
	if len(h.Nodes)+len(d.Nodes) > maxMembers {
		return errors.New("has too many nodes")
	}
	h.Nodes = append(h.Nodes, d.Nodes...)
	if d.Runs != nil {
		runs, err := d.Runs.decode(left)
		if err != nil {
			return err
		}
		if len(h.Runs)+len(runs) > maxRuns+2*block {
			return errors.New("has too many runs")
		}
		h.Runs = append(h.Runs, runs...)
	}
	return nil
}

func detailKey(n int, check string) string { return fmt.Sprintf("%d %s", n, check) }

func (p *runsPart) decode(left *int) ([]Run, error) {
	lists := make([][]Member, len(p.Members))
	for i, l := range p.Members {
		var old []Member
		if i > 0 {
			old = lists[i-1]
		}
		var err error
		if lists[i], err = l.apply(old); err != nil {
			return nil, err
		}
		if l.Change { // Unmarshal has counted the others
			*left -= len(lists[i]) * int(reflect.TypeFor[Member]().Size())
		}
		if len(lists[i]) > maxMembers || *left < 0 {
			*left = max(*left, 0)
			return nil, errors.New("has too many members")
		}
	}
	if len(p.Runs) > 2*block || len(p.Pairs) != len(p.Runs) {
		return nil, errors.New("has too many runs, or other pairs than runs")
	}
	for i := range p.Runs {
		r := &p.Runs[i]
		if len(p.Pairs[i]) != len(r.Checks) || r.N < 1 || !slices.Contains(checkup.RunVerdicts, r.Verdict) {
			return nil, fmt.Errorf("run %d is not valid", r.N)
		}
		for k, part := range p.Pairs[i] {
			r.Checks[k].Pairs = nil
			if part == nil {
				continue
			}
			if part.Sources < 0 || part.Sources >= len(lists) || part.Targets < 0 || part.Targets >= len(lists) {
				return nil, fmt.Errorf("run %d refers to an unknown list of members", r.N)
			}
			pairs := &Pairs{
				Seed: p.Members[part.Sources].Seed, Sources: lists[part.Sources], Targets: lists[part.Targets],
				Probes: part.Probes, rows: part.Rows, verdicts: part.Verdicts,
			}
			if err := pairs.check(); err != nil {
				return nil, fmt.Errorf("run %d: %w", r.N, err)
			}
			r.Checks[k].Pairs = pairs
		}
	}
	return p.Runs, nil
}

// complete puts what was read into order, and gives pairs their delays, and their groups' values.
func (h *History) complete(details, groups map[string][]byte) {
	slices.SortStableFunc(h.Runs, func(a, b Run) int { return cmp.Compare(a.N, b.N) })
	h.Runs = slices.CompactFunc(h.Runs, func(a, b Run) bool { return a.N == b.N })
	slices.SortStableFunc(h.Digests, func(a, b Digest) int { return compareKeys(a.Key, b.Key) })
	h.Digests = slices.CompactFunc(h.Digests, func(a, b Digest) bool { return a.Key == b.Key })
	for i := range h.Runs {
		for _, c := range h.Runs[i].Checks {
			if c.Pairs == nil {
				continue
			}
			c.Pairs.detail = details[detailKey(h.Runs[i].N, c.Name)]
			if c.Pairs.check() != nil {
				c.Pairs.detail = nil // the delays are of other pairs
			}
			c.Pairs.groups = groups[detailKey(h.Runs[i].N, c.Name)]
			if c.Pairs.check() != nil {
				c.Pairs.groups = nil
			}
		}
	}
}

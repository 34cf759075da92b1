// SPDX-License-Identifier: Apache-2.0

package history

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Member is a source or a target of a check. A member with another zone, or on a node of another Epoch, is another one,
// and so is one that was not a member in a run between: what was measured before does not count for it.
type Member struct {
	Name string `json:"n"`
	// Node is empty if it is the Name.
	Node string `json:"o,omitempty"`
	Zone string `json:"z,omitempty"`
	// Epoch is that of the node in History.Nodes when the run ended; 0 if its UID is not known.
	Epoch int `json:"e,omitempty"`
}

func (m Member) node() string { return cmp.Or(m.Node, m.Name) }

// Pairs has the results of the (source, target) pairs of one check in one run.
//
// Sources and Targets are in the order of the ring from which pairs are sampled. In this order, nearly all sources of a
// round have the same offsets to their targets. So the record of which pairs were measured takes a few bytes, whatever
// the number of nodes. In any other order the encoding is as right, and larger.
type Pairs struct {
	Seed             uint64
	Sources, Targets []Member
	// Probes are the family, transport and size of the measurements of a pair, as "tcp IPv4 0B".
	Probes []string
	// rows: runs of sources with the same offsets: how many sources, how many offsets, the differences of the offsets.
	rows []byte
	// verdicts: runs of equal codes, one code for each pair and probe: how many, the code.
	verdicts []byte
	// detail: three bytes for each pair and probe: codes of median and longest delay, and of loss; nil once they are old.
	detail []byte
	// groups: the codes of a run of each group and probe, as in group.go; nil once they are old.
	groups []byte
	// uids are digests of the UIDs of the nodes of a run that is not in the history yet, by name.
	uids map[string]string
}

// Codes of verdicts.
const (
	codeNone = iota // the pair has no such probe
	codePass
	codeFail
	codeUndecided
	codeUnmeasured
	codes
)

var verdictCodes = map[checkup.Verdict]byte{
	checkup.Pass: codePass, checkup.Fail: codeFail, checkup.Undecided: codeUndecided, checkup.Unmeasured: codeUnmeasured,
}

// Result of one probe of one pair.
type Result struct {
	Probe   string          `json:"probe"`
	Verdict checkup.Verdict `json:"verdict"`
	// P50 and Max are delays in microseconds, rounded to 5%; 0 if unknown, because nothing was answered or because the
	// run is too old. Loss is in percent of the measurements, rounded up; -1 if unknown.
	P50  int64 `json:"p50,omitempty"`
	Max  int64 `json:"max,omitempty"`
	Loss int   `json:"loss"`
}

// maxCells bounds the pairs times probes of one check that a history holds: 2 MiB of verdicts before compression.
const maxCells = 1 << 22

// inOrder returns the indexes of the endpoints in the order of the ring, and the members in this order.
func inOrder(seed uint64, endpoints []checkup.Endpoint) (indexes []int, members []Member) {
	all := make([]Member, len(endpoints))
	for i, e := range endpoints {
		all[i] = Member{Name: e.Name(), Node: e.Node, Zone: e.Zone}
		if e.Node == all[i].Name {
			all[i].Node = ""
		}
		indexes = append(indexes, i)
	}
	hashes := hashesOf(seed, all)
	slices.SortFunc(indexes, func(a, b int) int {
		return cmp.Or(cmp.Compare(hashes[a], hashes[b]), compareMembers(all[a], all[b]))
	})
	members = make([]Member, len(all))
	for at, i := range indexes {
		members[at] = all[i]
	}
	return indexes, members
}

func hashesOf(seed uint64, members []Member) []uint64 {
	hashes := make([]uint64, len(members))
	for i, m := range members {
		hashes[i] = checkup.HashString(seed, m.node())
	}
	return hashes
}

func compareMembers(a, b Member) int {
	return cmp.Or(cmp.Compare(a.node(), b.node()), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Zone, b.Zone))
}

// sortMembers puts members into the order of the ring.
func sortMembers(seed uint64, members []Member) {
	type hashed struct {
		Member
		hash uint64
	}
	all := make([]hashed, len(members))
	for i, hash := range hashesOf(seed, members) {
		all[i] = hashed{members[i], hash}
	}
	slices.SortFunc(all, func(a, b hashed) int {
		return cmp.Or(cmp.Compare(a.hash, b.hash), compareMembers(a.Member, b.Member))
	})
	for i := range all {
		members[i] = all[i].Member
	}
}

// encodeRows writes the targets of each source, by position.
func encodeRows(targets [][]int, of int) []byte {
	var rows []byte
	offsets := make([][]int, len(targets))
	for s, row := range targets {
		offsets[s] = make([]int, len(row))
		for i, t := range row {
			offsets[s][i] = ((t-s)%of + of) % of
		}
		slices.Sort(offsets[s])
	}
	for s := 0; s < len(offsets); {
		n := 1
		for s+n < len(offsets) && slices.Equal(offsets[s], offsets[s+n]) {
			n++
		}
		rows = binary.AppendUvarint(rows, uint64(n))
		rows = binary.AppendUvarint(rows, uint64(len(offsets[s])))
		last := 0
		for _, o := range offsets[s] {
			rows = binary.AppendUvarint(rows, uint64(o-last))
			last = o
		}
		s += n
	}
	return rows
}

// each yields the positions of source and target of every pair, in the order of its results. Rows that check accepted
// never end early.
func (p *Pairs) each() iter.Seq2[int, int] {
	return func(yield func(source, target int) bool) {
		rows, source := p.rows, 0
		var offsets []int
		for len(rows) > 0 && source < len(p.Sources) {
			n, rest := number(rows)
			count, rest := number(rest)
			offsets = offsets[:0]
			at := 0
			for range count {
				var d int
				d, rest = number(rest)
				at += d
				offsets = append(offsets, at)
			}
			rows = rest
			for range n {
				for _, o := range offsets {
					if !yield(source, (source+o)%len(p.Targets)) {
						return
					}
				}
				source++
			}
		}
	}
}

// number reads a number of at most 31 bits; a bad one is 0, and ends the stream.
func number(b []byte) (int, []byte) {
	v, n := binary.Uvarint(b)
	if n <= 0 || v > math.MaxInt32 {
		return 0, nil
	}
	return int(v), b[n:]
}

// encodeVerdicts writes runs of equal codes.
func encodeVerdicts(all []byte) []byte {
	var b []byte
	for i := 0; i < len(all); {
		n := 1
		for i+n < len(all) && all[i+n] == all[i] {
			n++
		}
		b = append(binary.AppendUvarint(b, uint64(n)), all[i])
		i += n
	}
	return b
}

// verdictReader reads the codes in their order.
type verdictReader struct {
	b    []byte
	left int
	code byte
}

func (r *verdictReader) next() byte {
	for r.left == 0 {
		n, rest := number(r.b)
		if len(rest) == 0 {
			r.left, r.code, r.b = math.MaxInt32, codeUnmeasured, nil // check accepts no such verdicts
			break
		}
		r.left, r.code, r.b = n, rest[0], rest[1:]
	}
	r.left--
	return r.code
}

// worst returns the verdict of a pair: failed if one of its probes failed, measured if all of them were.
func (r *verdictReader) worst(probes int) byte {
	verdict := byte(codePass)
	for left := probes; left > 0; {
		if r.left == 0 {
			r.next()
			r.left++
		}
		n := min(left, r.left)
		r.left -= n
		left -= n
		switch {
		case r.code == codeFail:
			verdict = codeFail
		case r.code == codeUnmeasured && verdict != codeFail:
			verdict = codeUnmeasured
		}
	}
	return verdict
}

// check says what is wrong with pairs that were read.
func (p *Pairs) check() error {
	if len(p.Targets) == 0 || len(p.Sources) == 0 || len(p.Probes) == 0 {
		return errors.New("pairs without sources, targets or probes")
	}
	sources, pairs := 0, 0
	for rows := p.rows; len(rows) > 0; {
		n, rest := number(rows)
		if rest == nil {
			return errors.New("rows end early")
		}
		count, after := number(rest)
		if n == 0 || after == nil || count > len(p.Targets) {
			return errors.New("bad row")
		}
		at := 0
		for i := range count {
			if len(after) == 0 {
				return errors.New("a row ends early")
			}
			var d int
			d, after = number(after)
			if at += d; at >= len(p.Targets) || i > 0 && d == 0 {
				return errors.New("bad offset in a row")
			}
		}
		sources += n
		pairs += n * count
		if sources > len(p.Sources) || pairs > maxCells {
			return errors.New("too many rows")
		}
		rows = after
	}
	cells := pairs * len(p.Probes)
	if sources != len(p.Sources) || cells > maxCells {
		return fmt.Errorf("rows of %d sources, want %d", sources, len(p.Sources))
	}
	seen := 0
	for b := p.verdicts; len(b) > 0; {
		n, rest := number(b)
		if n == 0 || len(rest) == 0 || rest[0] >= codes {
			return errors.New("bad verdicts")
		}
		if seen += n; seen > cells {
			return errors.New("too many verdicts")
		}
		b = rest[1:]
	}
	if seen != cells {
		return fmt.Errorf("%d verdicts, want %d", seen, cells)
	}
	if p.detail != nil && len(p.detail) != 3*cells {
		return fmt.Errorf("delays have %d bytes, want %d", len(p.detail), 3*cells)
	}
	if want := perGroup * len(p.Probes) * p.countGroups(); p.groups != nil && len(p.groups) != want {
		return fmt.Errorf("values of groups have %d bytes, want %d", len(p.groups), want)
	}
	return nil
}

// results yields the results of the pairs that are wanted, in their order. They are overwritten by those of the next
// pair.
func (p *Pairs) results(wanted func(source, target *Member) bool) iter.Seq2[[2]*Member, []Result] {
	return func(yield func([2]*Member, []Result) bool) {
		verdicts, i := verdictReader{b: p.verdicts}, 0
		var results []Result
		for s, t := range p.each() {
			source, target := &p.Sources[s], &p.Targets[t]
			found := wanted(source, target)
			results = results[:0]
			for k, probe := range p.Probes {
				code := verdicts.next()
				if !found || code == codeNone {
					continue
				}
				r := Result{Probe: probe, Loss: -1}
				for v, c := range verdictCodes {
					if c == code {
						r.Verdict = v
					}
				}
				if p.detail != nil {
					d := p.detail[3*(i+k):]
					r.P50, r.Max, r.Loss = delayOf(d[0]), delayOf(d[1]), int(d[2])-1
				}
				results = append(results, r)
			}
			if found && !yield([2]*Member{source, target}, results) {
				return
			}
			i += len(p.Probes)
		}
	}
}

// is reports whether a name is that of the member or of its node.
func (m Member) is(name string) bool { return m.Name == name || m.node() == name }

// Codes of delays are logarithms: neighbours differ by 10%, so that a delay is known to 5%.
var delayStep = math.Log(1.1)

func delayCode(us int64) byte {
	if us <= 0 {
		return 1
	}
	return byte(min(1+math.Round(math.Log(float64(us))/delayStep), 255))
}

// delayOf returns the delay of a code; 0 for the code 0, which means that there is none.
func delayOf(code byte) int64 {
	if code == 0 {
		return 0
	}
	return int64(math.Round(math.Exp(float64(code-1) * delayStep)))
}

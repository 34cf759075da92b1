// SPDX-License-Identifier: Apache-2.0

package history

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/DataDog/sketches-go/ddsketch"
	"github.com/DataDog/sketches-go/ddsketch/mapping"
	"github.com/DataDog/sketches-go/ddsketch/store"
)

// Accuracy is the relative error of each quantile of a digest (Masson, Rim and Lee, DDSketch, VLDB 12, 2019).
const Accuracy = 0.05

const (
	// maxBins of a sketch: from the highest delay down by a factor of 350,000. Lower delays share a bin.
	maxBins = 128
	// forget is the number of delays from which a digest halves its counts: new delays then weigh more than old ones.
	forget = 1 << 16
	// maxDigests and keepGone bound the digests: those of groups that were not measured for so long are dropped.
	maxDigests = 60_000
	keepGone   = 30 * 24 * time.Hour
)

// Group is what a digest is about.
type Group string

const (
	All   Group = "all"   // all pairs of the check
	Out   Group = "out"   // all pairs with this source
	In    Group = "in"    // all pairs with this target
	Zones Group = "zones" // all pairs from a zone to a zone
)

// Key names a digest.
type Key struct {
	Check string `json:"c"`
	Group Group  `json:"g"`
	// From is the source or its zone, To the target or its zone; empty if the group is not by it.
	From  string `json:"f,omitempty"`
	To    string `json:"t,omitempty"`
	Probe string `json:"p"`
}

// Digest is the distribution of the delays and the losses of a group of pairs over all runs. Newer runs weigh more.
type Digest struct {
	Key
	// Last is the end of the newest run that measured the group.
	Last time.Time `json:"l"`
	// Sent measurements, and those of them that were lost.
	Sent float64 `json:"s"`
	Lost float64 `json:"x,omitempty"`
	// Sketch is a DDSketch of the delays in microseconds, as the library encodes it without its mapping.
	Sketch []byte `json:"d,omitempty"`
}

var logarithmic = func() mapping.IndexMapping {
	m, err := mapping.NewLogarithmicMapping(Accuracy)
	if err != nil {
		panic(err) // only for an accuracy that is not between 0 and 1
	}
	return m
}()

func bins() store.Store { return store.NewCollapsingLowestDenseStore(maxBins) }

func newSketch() *ddsketch.DDSketch { return ddsketch.NewDDSketch(logarithmic, bins(), bins()) }

func encodeSketch(s *ddsketch.DDSketch) []byte {
	if s.IsEmpty() {
		return nil
	}
	var b []byte
	s.Encode(&b, true)
	return b
}

// decodeSketch reads a sketch that may be anything: the library expects what it wrote itself.
func decodeSketch(b []byte) (s *ddsketch.DDSketch, err error) {
	defer func() {
		if r := recover(); r != nil {
			s, err = nil, fmt.Errorf("digest of delays: %v", r)
		}
	}()
	if len(b) > 64*maxBins {
		return nil, fmt.Errorf("digest of delays has %d bytes", len(b))
	}
	s, err = ddsketch.DecodeDDSketch(b, bins, logarithmic)
	if err != nil {
		return nil, fmt.Errorf("digest of delays: %w", err)
	}
	total, bad := 0.0, !s.GetNegativeValueStore().IsEmpty()
	s.ForEach(func(value, count float64) bool {
		bad = bad || math.IsNaN(value) || math.IsInf(value, 0) || !(count >= 0) || count > 1e12
		total += count
		return bad
	})
	if bad || s.IndexMapping != logarithmic || len(b) > 0 && !(total > 0) {
		return nil, errors.New("digest of delays has impossible counts")
	}
	return s, nil
}

// Quantile returns a quantile of the delays, in microseconds; 0 without delays.
func (d *Digest) Quantile(q float64) int64 {
	s, err := decodeSketch(d.Sketch)
	if err != nil || s.IsEmpty() {
		return 0
	}
	v, err := s.GetValueAtQuantile(q)
	if err != nil {
		return 0
	}
	return int64(math.Round(v))
}

func (d *Digest) check() error {
	if !(d.Sent >= 0) || !(d.Lost >= 0) || d.Lost > d.Sent || d.Sent > 1e12 {
		return errors.New("impossible losses")
	}
	_, err := decodeSketch(d.Sketch)
	return err
}

func compareKeys(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Check, b.Check), cmp.Compare(a.Group, b.Group), cmp.Compare(a.From, b.From),
		cmp.Compare(a.To, b.To), cmp.Compare(a.Probe, b.Probe))
}

// mergeDigests joins two sorted lists.
func mergeDigests(old, added []Digest, now time.Time) []Digest {
	all := make([]Digest, 0, len(old)+len(added))
	for len(old) > 0 || len(added) > 0 {
		switch {
		case len(added) == 0 || len(old) > 0 && compareKeys(old[0].Key, added[0].Key) < 0:
			if now.Sub(old[0].Last) < keepGone {
				all = append(all, old[0])
			}
			old = old[1:]
		case len(old) == 0 || compareKeys(old[0].Key, added[0].Key) > 0:
			all = append(all, added[0])
			added = added[1:]
		default:
			all = append(all, join(old[0], added[0]))
			old, added = old[1:], added[1:]
		}
	}
	if len(all) > maxDigests {
		// Nodes are the many, and the first to go; digests of the whole check and of zones stay.
		all = slices.DeleteFunc(all, func(d Digest) bool { return d.Group == Out || d.Group == In })
	}
	return all[:min(len(all), maxDigests)]
}

func join(a, b Digest) Digest {
	d := Digest{Key: a.Key, Last: a.Last, Sent: a.Sent + b.Sent, Lost: a.Lost + b.Lost}
	if b.Last.After(a.Last) {
		d.Last = b.Last
	}
	s, err := decodeSketch(a.Sketch)
	if err != nil {
		s = newSketch() // Decode refuses such a digest
	}
	if other, err := decodeSketch(b.Sketch); err == nil {
		_ = s.MergeWith(other) // the mappings are the same
	}
	if d.Sent > forget {
		d.Sent, d.Lost = d.Sent/2, d.Lost/2
		_ = s.Reweight(0.5) // the weight is above 0
	}
	d.Sketch = encodeSketch(s)
	return d
}

// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"math"
	"slices"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Attribute is the family, transport and size by which the pairs of one source and target
// differ.
type Attribute struct {
	Family    checkup.IPFamily
	Transport checkup.Transport
	Size      int
}

// attributesOf lists every family, transport and size of the worksheet, in its order,
// followed by those that only targets with a Peer have.
func attributesOf(w *checkup.Worksheet) []Attribute {
	var all []Attribute
	for _, f := range w.IPFamilies {
		for _, p := range w.Probes {
			for _, z := range p.Sizes {
				all = append(all, Attribute{f, p.Transport, z})
			}
		}
	}
	for _, t := range w.Targets {
		if t.Peer == nil {
			continue
		}
		if a := (Attribute{t.Peer.Family, t.Peer.Transport, 0}); !slices.Contains(all, a) {
			all = append(all, a)
		}
	}
	return all
}

// DelayRows summarises delays and losses by transport, family and size, of the
// measured pairs.
func (j *Judgement) DelayRows() []checkup.DelayRow {
	rows := make([]checkup.DelayRow, 0, len(j.Attributes))
	for _, a := range j.Attributes {
		rows = append(rows, checkup.DelayRow{Transport: a.Transport, Family: a.Family, Size: a.Size})
	}
	rtts := make([][][]int64, len(j.Attributes))
	for i := range j.Outcomes {
		o := &j.Outcomes[i]
		if o.Verdict == checkup.Unmeasured {
			continue
		}
		row := &rows[o.Attribute]
		row.Pairs++
		row.Sent += o.Sent
		row.Received += o.Received
		row.Duplicates += o.Duplicates
		row.Reordered += o.Reordered
		rtts[o.Attribute] = append(rtts[o.Attribute], o.RTTs)
	}
	for i := range rows {
		rows[i].Loss = checkup.PercentOf(rows[i].Sent-rows[i].Received, rows[i].Sent)
		rows[i].Delay = DelayOf(rtts[i])
	}
	return rows
}

// StageRows summarises the delays of each stage of pairs with Results, by transport
// and family. Sent is the number of measurements that reached the stage, Received the
// number that passed it. Every transport and family has a row for the TCP connect, and
// one for each other stage that a pair reached.
func (j *Judgement) StageRows() []checkup.DelayRow {
	var rows []checkup.DelayRow
	for k, a := range j.Attributes {
		if !slices.ContainsFunc(j.Outcomes, func(o Outcome) bool { return o.Attribute == k }) {
			continue
		}
		for _, s := range checkup.ConnectionStages {
			row := checkup.DelayRow{Transport: a.Transport, Stage: s, Family: a.Family, Size: a.Size}
			var delays [][]int64
			for i := range j.Outcomes {
				o := &j.Outcomes[i]
				if o.Attribute != k || o.Folded == nil || o.Verdict == checkup.Unmeasured {
					continue
				}
				if reached := o.Folded.passed[s] + o.Folded.Failures[s]; reached > 0 {
					row.Pairs++
					row.Sent += reached
					row.Received += o.Folded.passed[s]
					delays = append(delays, o.Folded.Stages[s])
				}
			}
			if row.Pairs == 0 && s != checkup.StageConnect {
				continue
			}
			row.Loss = checkup.PercentOf(row.Sent-row.Received, row.Sent)
			row.Delay = DelayOf(delays)
			rows = append(rows, row)
		}
	}
	return rows
}

// DelayOf returns the distribution of the delays of several pairs; nil without delays.
func DelayOf(pairs [][]int64) *checkup.Delay {
	all := slices.Concat(pairs...)
	if len(all) == 0 {
		return nil
	}
	sum, differences, n := 0.0, 0.0, 0
	for _, rtts := range pairs {
		for i, v := range rtts {
			sum += float64(v)
			if i > 0 {
				differences += math.Abs(float64(v - rtts[i-1]))
				n++
			}
		}
	}
	mean, squares := sum/float64(len(all)), 0.0
	for _, v := range all {
		squares += (float64(v) - mean) * (float64(v) - mean)
	}
	d := &checkup.Delay{Mean: int64(math.Round(mean)), StdDev: int64(math.Round(math.Sqrt(squares / float64(len(all)))))}
	if n > 0 {
		d.Jitter = int64(math.Round(differences / float64(n)))
	}
	slices.Sort(all)
	d.Min, d.Max = all[0], all[len(all)-1]
	d.P50, d.P90, d.P95, d.P99 = Quantile(all, 0.50), Quantile(all, 0.90), Quantile(all, 0.95), Quantile(all, 0.99)
	return d
}

// jitter is the mean absolute difference of consecutive delays; 0 for fewer than
// two.
func jitter(rtts []int64) int64 {
	if d := DelayOf([][]int64{rtts}); d != nil {
		return d.Jitter
	}
	return 0
}

// Quantile is the nearest-rank quantile of sorted values: the smallest value that at
// least the share q of the values do not exceed. It is always a measured value; with too
// few values it is the largest one. It is 0 without values.
func Quantile(sorted []int64, q float64) int64 {
	if len(sorted) == 0 {
		return 0
	}
	// 0.99*100 is a little more than 99 in binary.
	rank := int(math.Ceil(q*float64(len(sorted)) - 1e-9))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

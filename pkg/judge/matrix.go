// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Matrix returns the source-by-target summary; nil if it is empty. Of more than checkup.MatrixMax sources or targets, a
// row or column has several: neighbours by zone and name.
func (j *Judgement) Matrix() *checkup.Matrix {
	w := j.Worksheet
	if len(w.Sources) == 0 || len(w.Targets) == 0 {
		return nil
	}
	rows, columns := bandsOf(w.Sources), bandsOf(w.Targets)
	type cell struct{ pass, fail, undecided, unmeasured int }
	cells := make([][]cell, len(rows.names))
	for i := range cells {
		cells[i] = make([]cell, len(columns.names))
	}
	for i := range j.Outcomes {
		o := &j.Outcomes[i]
		if o.Broken {
			continue
		}
		switch c := &cells[rows.of[o.Pair.Source]][columns.of[o.Pair.Target]]; o.Verdict {
		case checkup.Pass:
			c.pass++
		case checkup.Fail:
			c.fail++
		case checkup.Undecided:
			c.undecided++
		default:
			c.unmeasured++
		}
	}
	m := &checkup.Matrix{Sources: rows.names, Targets: columns.names}
	if group := max(rows.size, columns.size); group > 1 {
		m.Group = group
	}
	for i := range cells {
		row := make([]byte, len(cells[i]))
		for k, c := range cells[i] {
			switch {
			case c.fail > 0 && c.pass+c.undecided+c.unmeasured == 0:
				row[k] = 'x'
			case c.fail > 0:
				row[k] = '/'
			case c.unmeasured > 0:
				row[k] = '?'
			case c.undecided > 0:
				row[k] = '~'
			case c.pass > 0:
				row[k] = '.'
			default:
				row[k] = ' '
			}
		}
		m.Cells = append(m.Cells, string(row))
	}
	return m
}

// bands are the rows, or the columns, of a matrix.
type bands struct {
	names []string
	of    []int // the band of each endpoint
	size  int   // of the largest band
}

// bandsOf gives each endpoint a band of its own; or, if these are too many, each zone as few bands of neighbours as
// needed. Zones beyond checkup.MatrixMax share bands.
func bandsOf(endpoints []checkup.Endpoint) bands {
	b := bands{of: make([]int, len(endpoints)), size: 1}
	if len(endpoints) <= checkup.MatrixMax {
		for i, e := range endpoints {
			b.names, b.of[i] = append(b.names, e.Name()), i
		}
		return b
	}
	order := make([]int, len(endpoints))
	zones := map[string]int{}
	for i, e := range endpoints {
		order[i] = i
		zones[e.Zone]++
	}
	slices.SortStableFunc(order, func(x, y int) int {
		a, b := endpoints[x], endpoints[y]
		return cmp.Or(cmp.Compare(a.Zone, b.Zone), cmp.Compare(a.Name(), b.Name()))
	})
	apart := len(zones) <= checkup.MatrixMax // each zone has bands of its own
	fits := func(size int) bool {
		n := (len(endpoints) + size - 1) / size
		if apart {
			n = 0
			for _, members := range zones {
				n += (members + size - 1) / size
			}
		}
		return n <= checkup.MatrixMax
	}
	size := 2
	for !fits(size) {
		size++
	}
	for len(order) > 0 {
		first := endpoints[order[0]]
		n := min(size, len(order))
		if apart {
			if other := slices.IndexFunc(order[:n], func(i int) bool { return endpoints[i].Zone != first.Zone }); other >= 0 {
				n = other
			}
		}
		for _, i := range order[:n] {
			b.of[i] = len(b.names)
		}
		name := first.Name()
		if n > 1 {
			name = fmt.Sprintf("%s to %s (%d)", name, endpoints[order[n-1]].Name(), n)
		}
		if apart && first.Zone != "" {
			name = first.Zone + ": " + name
		}
		b.names, b.size = append(b.names, name), max(b.size, n)
		order = order[n:]
	}
	return b
}

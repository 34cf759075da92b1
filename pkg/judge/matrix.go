// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"github.com/checkplan/checkplan/pkg/checkup"
)

// Matrix returns the source-by-target summary; nil if it is empty or too large.
func (j *Judgement) Matrix() *checkup.Matrix {
	w := j.Worksheet
	if len(w.Sources) == 0 || len(w.Targets) == 0 ||
		len(w.Sources) > checkup.MatrixMax || len(w.Targets) > checkup.MatrixMax {
		return nil
	}
	type cell struct{ pass, fail, undecided, unmeasured int }
	cells := make([][]cell, len(w.Sources))
	for i := range cells {
		cells[i] = make([]cell, len(w.Targets))
	}
	for i := range j.Outcomes {
		o := &j.Outcomes[i]
		if o.Broken {
			continue
		}
		switch c := &cells[o.Pair.Source][o.Pair.Target]; o.Verdict {
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
	m := &checkup.Matrix{}
	for _, e := range w.Targets {
		m.Targets = append(m.Targets, e.Name())
	}
	for i, e := range w.Sources {
		m.Sources = append(m.Sources, e.Name())
		row := make([]byte, len(w.Targets))
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

// SPDX-License-Identifier: Apache-2.0

package load

import (
	"strconv"
	"strings"

	"cuelang.org/go/cue"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/kinds"
)

// check finds the rules that a plan breaks.
func check(p *checkup.Plan) []finding {
	var found []finding
	for _, problem := range kinds.Problems(p) {
		found = append(found, finding{path: selectors(problem.Path), message: problem.Message, rule: problem.Rule})
	}
	return found
}

// selectors spells a path of pkg/checkup as CUE does.
func selectors(path []string) []cue.Selector {
	var sels []cue.Selector
	for _, elem := range path {
		if in, ok := strings.CutPrefix(elem, "["); ok {
			if i, err := strconv.Atoi(strings.TrimSuffix(in, "]")); err == nil && i >= 0 {
				sels = append(sels, cue.Index(i))
				continue
			}
		}
		sels = append(sels, cue.Str(elem))
	}
	return sels
}

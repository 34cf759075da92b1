// SPDX-License-Identifier: Apache-2.0

package report

import (
	"strings"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// counted is the count of a single verdict.
func counted(v checkup.Verdict) checkup.Counts {
	switch v {
	case checkup.Pass:
		return checkup.Counts{Expected: 1, Pass: 1}
	case checkup.Fail:
		return checkup.Counts{Expected: 1, Fail: 1}
	default:
		return checkup.Counts{Expected: 1, Unmeasured: 1}
	}
}

// alike is what messages have in common that differ in their numbers only.
func alike(message string) string {
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' || r == '.' {
			return -1
		}
		return r
	}, message)
}

// some names up to three, or says how many there are.
func some(names []string, noun string) string {
	if len(names) <= 3 {
		return strings.Join(names, ", ")
	}
	return count(len(names), noun)
}

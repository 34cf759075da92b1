// SPDX-License-Identifier: Apache-2.0

// Package report prints a checkup.Report. pkg/print takes its place.
package report

import (
	"strings"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/judge"
)

var (
	count   = judge.Count
	or      = judge.Or
	some    = judge.Some
	percent = judge.Percent
	micros  = judge.Micros
	longest = judge.Longest
)

func unitOf(c *checkup.CheckReport) string { return or(c.Noun, "pair") }

func of(c *checkup.CheckReport, v checkup.Verdict) []checkup.Unit {
	var list []checkup.Unit
	for _, u := range c.Units {
		if u.Verdict == v {
			list = append(list, u)
		}
	}
	return list
}

// kind is the cause of a finding and its subject, as alternatives name theirs.
func kind(f checkup.Finding) string { return strings.TrimSpace(string(f.Cause) + " " + f.Subject) }

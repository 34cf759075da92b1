// SPDX-License-Identifier: Apache-2.0

package print

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// The names of the results of the conclude task, and so of the PipelineRun.
const (
	ResultVerdict    = "verdict"    // a RunVerdict
	ResultSummary    = "summary"    // one line
	ResultExpected   = "expected"   // number of units: pairs, placements, ...
	ResultPass       = "pass"       // number of units: pairs, placements, ...
	ResultFail       = "fail"       // number of units: pairs, placements, ...
	ResultUndecided  = "undecided"  // number of units: pairs, placements, ...
	ResultUnmeasured = "unmeasured" // number of units: pairs, placements, ...
	ResultFindings   = "findings"   // one line each, joined by "; "; empty if there is none
	ResultReport     = "report"     // where the whole report is
)

// ResultNames lists the results in the order in which they are declared.
var ResultNames = []string{
	ResultVerdict,
	ResultSummary,
	ResultExpected,
	ResultPass,
	ResultFail,
	ResultUndecided,
	ResultUnmeasured,
	ResultFindings,
	ResultReport,
}

// resultsBudget is how many bytes the results may take. All results of a step go
// through its termination message as JSON. Tekton refuses to write more than
// 4096 bytes of it, and the kubelet cuts it to 12 KiB divided by the number of
// the pod's containers, at 6 of them to 2048 bytes, which makes Tekton drop all
// results.
const resultsBudget = 2048

// resultOverhead is what each result costs beside its value, and messageOverhead
// the message itself: its keys, quotes and a type, and the start time.
const (
	resultOverhead  = 32
	messageOverhead = 65
)

// The most that a summary and a report's place take, escaped.
const (
	summaryBudget = 480
	placeBudget   = 320
)

// Results are the Tekton results of a report: by name, what to write to the file
// of that name. where says where the whole report is. They hold in a budget of 2
// KiB, counted as Tekton encodes them; what is too long is cut, and says so. No
// value ends in a newline or holds control characters.
func Results(r *checkup.Report, where string) map[string]string {
	results := map[string]string{
		ResultVerdict:    cut(checkup.Clean(string(r.Verdict)), 32),
		ResultSummary:    cut(checkup.Clean(r.Summary), summaryBudget),
		ResultExpected:   strconv.Itoa(r.Counts.Expected),
		ResultPass:       strconv.Itoa(r.Counts.Pass),
		ResultFail:       strconv.Itoa(r.Counts.Fail),
		ResultUndecided:  strconv.Itoa(r.Counts.Undecided),
		ResultUnmeasured: strconv.Itoa(r.Counts.Unmeasured),
		ResultFindings:   "",
		ResultReport:     cut(checkup.Clean(where), placeBudget),
	}
	results[ResultFindings] = findingLines(r, resultsBudget-resultsSize(results))
	return results
}

// resultsSize is the size of a termination message with these results, at most.
func resultsSize(results map[string]string) int {
	n := messageOverhead
	for name, value := range results {
		n += resultOverhead + len(name) + escaped(value)
	}
	return n
}

// findingLines puts as many findings as fit into one line, and says how many do
// not.
func findingLines(r *checkup.Report, budget int) string {
	var lines []string
	for _, c := range r.Checks {
		for _, f := range c.Findings {
			line := fmt.Sprintf("%s: %s %s: %s", c.Name, f.Cause, f.Subject, said(f))
			// An angle bracket takes six bytes in Tekton's JSON.
			lines = append(lines, strings.TrimSpace(checkup.Clean(strings.ReplaceAll(line, " -> ", " to "))))
		}
	}
	for n := len(lines); n > 0; n-- {
		s := strings.Join(lines[:n], "; ")
		if n < len(lines) {
			s += fmt.Sprintf(" ... and %d more", len(lines)-n)
		}
		if escaped(s) <= budget {
			return s
		}
	}
	if len(lines) == 0 {
		return ""
	}
	more := ""
	if len(lines) > 1 {
		more = fmt.Sprintf(" ... and %d more", len(lines)-1)
	}
	return cut(lines[0], budget-len(more)) + more
}

// escaped is how many bytes a string takes inside JSON, as encoding/json writes
// it, which Tekton uses: "<", ">" and "&" take six.
func escaped(s string) int {
	b, err := json.Marshal(s)
	if err != nil {
		return 6 * len(s) // strings always marshal
	}
	return len(b) - 2
}

// cut shortens a string to a budget of escaped bytes, with a mark where it did,
// and not within a character.
func cut(s string, budget int) string {
	s = strings.TrimSpace(s)
	if escaped(s) <= budget {
		return s
	}
	const mark = "..."
	room, end := budget-len(mark), 0
	for i, r := range s {
		end = i
		if room -= escaped(string(r)); room < 0 {
			break
		}
	}
	return strings.TrimSpace(s[:end]) + mark
}

// SPDX-License-Identifier: Apache-2.0

package print

import (
	"encoding/xml"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// The elements of the JUnit XML that Jenkins, GitLab and most others read.
type (
	junitSuites struct {
		XMLName  xml.Name     `xml:"testsuites"`
		Name     string       `xml:"name,attr"`
		Tests    int          `xml:"tests,attr"`
		Failures int          `xml:"failures,attr"`
		Errors   int          `xml:"errors,attr"`
		Skipped  int          `xml:"skipped,attr"`
		Time     string       `xml:"time,attr,omitempty"`
		Suites   []junitSuite `xml:"testsuite"`
	}
	junitSuite struct {
		Name       string          `xml:"name,attr"`
		Tests      int             `xml:"tests,attr"`
		Failures   int             `xml:"failures,attr"`
		Errors     int             `xml:"errors,attr"`
		Skipped    int             `xml:"skipped,attr"`
		Timestamp  string          `xml:"timestamp,attr,omitempty"`
		Time       string          `xml:"time,attr,omitempty"`
		Properties []junitProperty `xml:"properties>property"`
		Cases      []junitCase     `xml:"testcase"`
		Output     string          `xml:"system-out,omitempty"`
	}
	junitProperty struct {
		Name  string `xml:"name,attr"`
		Value string `xml:"value,attr"`
	}
	junitCase struct {
		Name    string        `xml:"name,attr"`
		Class   string        `xml:"classname,attr"`
		Failure *junitMessage `xml:"failure"`
		Error   *junitMessage `xml:"error"`
		Skipped *junitMessage `xml:"skipped"`
	}
	junitMessage struct {
		Message string `xml:"message,attr"`
		Type    string `xml:"type,attr,omitempty"`
		Text    string `xml:",chardata"`
	}
)

// JUnit writes the report as JUnit XML: a test suite for each check, in it a test
// case for the verdict of the check, and one for each unit where the report lists
// them all, else one for each transport, family and size: names that stay the same
// from run to run.
//
// A case with a failed unit is a failure, or an error if the check is inconclusive because
// no failure was confirmed. One with unmeasured units is never
// passed: it is an error if the check does not pass because of them or none of
// its units was measured, and skipped if the gate admits them. One with undecided
// units is skipped.
//
// The time of each suite is that of the run, in seconds: a report has no times of single checks.
func JUnit(w io.Writer, r *checkup.Report) error {
	all := junitSuites{Name: checkup.Clean(r.Plan)}
	_, all.Time = junitTimes(r)
	for i := range r.Checks {
		suite := junitCheck(r, &r.Checks[i])
		all.Tests += suite.Tests
		all.Failures += suite.Failures
		all.Errors += suite.Errors
		all.Skipped += suite.Skipped
		all.Suites = append(all.Suites, suite)
	}
	if len(r.Checks) == 0 {
		// A document without a test would read as passed.
		suite := junitSuite{Name: checkup.Clean(r.Plan)}
		suite.Timestamp, suite.Time = junitTimes(r)
		suite.add(
			junitCase{
				Name:  "verdict",
				Class: checkup.Clean(r.Plan),
				Error: &junitMessage{Message: checkup.Clean(r.Summary), Type: string(checkup.RunInconclusive)},
			},
		)
		all.Suites, all.Tests, all.Errors = append(all.Suites, suite), suite.Tests, suite.Errors
	}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return fmt.Errorf("write report as JUnit: %w", err)
	}
	e := xml.NewEncoder(w)
	e.Indent("", "  ")
	if err := e.Encode(all); err != nil {
		return fmt.Errorf("write report as JUnit: %w", err)
	}
	_, err := io.WriteString(w, "\n")
	return err
}

// junitTimes are when the run started, and how long it took in seconds; empty if unknown.
func junitTimes(r *checkup.Report) (timestamp, seconds string) {
	if !r.Started.IsZero() {
		timestamp = r.Started.UTC().Format(time.RFC3339)
		if !r.Finished.IsZero() {
			seconds = fmt.Sprintf("%.3f", r.Finished.Sub(r.Started).Seconds())
		}
	}
	return timestamp, seconds
}

func (s *junitSuite) add(c junitCase) {
	s.Cases = append(s.Cases, c)
	s.Tests++
	switch {
	case c.Failure != nil:
		s.Failures++
	case c.Error != nil:
		s.Errors++
	case c.Skipped != nil:
		s.Skipped++
	}
}

func junitCheck(r *checkup.Report, c *checkup.CheckReport) junitSuite {
	noun := nounOf(c)
	suite := junitSuite{Name: checkup.Clean(c.Name)}
	suite.Timestamp, suite.Time = junitTimes(r)
	for _, p := range []struct {
		name string
		n    int
	}{
		{"expected", c.Counts.Expected}, {"pass", c.Counts.Pass}, {"fail", c.Counts.Fail},
		{"undecided", c.Counts.Undecided}, {"unmeasured", c.Counts.Unmeasured},
	} {
		suite.Properties = append(suite.Properties, junitProperty{p.name, fmt.Sprint(p.n)})
	}
	if found := secondLook(c); found != "" {
		suite.Properties = append(suite.Properties, junitProperty{"secondLook", checkup.Clean(found)})
	}
	class := checkup.Clean(r.Plan + "." + c.Name)

	verdict := junitCase{Name: "verdict", Class: class}
	message := &junitMessage{
		Message: checkup.Clean(fmt.Sprintf("%d of %d %ss passed, %d failed, %s%d unmeasured",
			c.Counts.Pass, c.Counts.Expected, noun, c.Counts.Fail, undecided(c.Counts.Undecided), c.Counts.Unmeasured)),
		Type: checkup.Clean(string(c.Verdict)),
	}
	if c.Cause != nil {
		message.Message = checkup.Clean("not measured: " + c.Cause.String())
	}
	var text []string
	for _, f := range c.Findings {
		text = append(text, checkup.Clean(said(f)))
	}
	message.Text = strings.Join(text, "\n")
	switch c.Verdict {
	case checkup.RunPass:
	case checkup.RunFail:
		verdict.Failure = message
	default:
		verdict.Error = message
	}
	suite.add(verdict)

	if c.Complete {
		for i := range c.Units {
			suite.add(junitUnit(c, &c.Units[i], class))
		}
		return suite
	}

	type packets struct {
		transport checkup.Transport
		family    checkup.IPFamily
		size      int
	}
	units := map[checkup.Verdict]map[packets][]*checkup.Unit{
		checkup.Fail:       {},
		checkup.Undecided:  {},
		checkup.Unmeasured: {},
	}
	for i := range c.Units {
		u := &c.Units[i]
		k := packets{u.Transport, u.Family, u.Size}
		if of := units[u.Verdict]; of != nil {
			of[k] = append(of[k], u)
		}
	}
	seen := map[packets]bool{}
	for _, row := range c.Delays {
		k := packets{row.Transport, row.Family, row.Size}
		if seen[k] { // another stage of it
			continue
		}
		seen[k] = true
		one := junitCase{Name: checkup.Clean(fmt.Sprintf("%s %s %dB", k.transport, k.family, k.size)), Class: class}
		bad, doubted, not := units[checkup.Fail][k], units[checkup.Undecided][k], units[checkup.Unmeasured][k]
		total := row.Pairs + len(not)
		message := func(v checkup.Verdict, units []*checkup.Unit, format string, args ...any) *junitMessage {
			return &junitMessage{
				Message: checkup.Clean(fmt.Sprintf(format, args...)), Type: string(v), Text: junitUnits(units, noun),
			}
		}
		switch {
		case len(bad) > 0:
			failed := message(
				checkup.Fail,
				slices.Concat(bad, doubted, not),
				"%d of %d %ss failed, %s%d unmeasured",
				len(bad),
				total,
				noun,
				undecided(len(doubted)),
				len(not),
			)
			if unconfirmed(c) {
				one.Error = failed
			} else {
				one.Failure = failed
			}
		case len(not) > 0 && c.Verdict == checkup.RunPass && row.Pairs > 0:
			one.Skipped = message(
				checkup.Unmeasured,
				not,
				"%d of %d %ss unmeasured, which the gate admits",
				len(not),
				total,
				noun,
			)
		case len(not) > 0 || row.Pairs == 0:
			one.Error = message(checkup.Unmeasured, not, "%d of %d %ss unmeasured", len(not), total, noun)
		case len(doubted) > 0:
			one.Skipped = message(checkup.Undecided, doubted, "%d of %d %ss undecided", len(doubted), total, noun)
		}
		suite.add(one)
	}
	return suite
}

// junitUnit is the case of one unit.
func junitUnit(c *checkup.CheckReport, u *checkup.Unit, class string) junitCase {
	one := junitCase{Name: checkup.Clean(u.Name), Class: class}
	message := &junitMessage{Type: checkup.Clean(string(u.Verdict)), Message: checkup.Clean(cameBack(u))}
	switch {
	case u.Verdict == checkup.Pass:
	case u.Verdict == checkup.Fail && !unconfirmed(c):
		one.Failure = message
	case u.Verdict == checkup.Undecided, c.Verdict == checkup.RunPass:
		one.Skipped = message
	default:
		one.Error = message
	}
	return one
}

// junitUnits lists the first units, a line each.
func junitUnits(units []*checkup.Unit, noun string) string {
	const most = 50
	var b strings.Builder
	for i, u := range units {
		if i == most {
			fmt.Fprintf(&b, "... and %s\n", checkup.Clean(checkup.Count(len(units)-most, "more "+noun)))
			break
		}
		fmt.Fprintf(&b, "%s\n", checkup.Clean(fmt.Sprintf("%s: %s: %s", u.Verdict, way(u), cameBack(u))))
	}
	return b.String()
}

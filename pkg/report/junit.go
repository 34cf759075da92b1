// SPDX-License-Identifier: Apache-2.0

package report

import (
	"encoding/xml"
	"fmt"
	"io"
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
// case for the verdict of the check, and one for each transport, family and size,
// or for each connection, or for each pair of VMs there and back and each family, or
// for each side of a placement, so that their names stay the same from run to run.
//
// A case with a failed pair is a failure. One with unmeasured pairs is never
// passed: it is an error if the check does not pass because of them or none of
// its pairs was measured, and skipped if the gate admits them.
func JUnit(w io.Writer, r *checkup.Report) error {
	all := junitSuites{Name: clean(r.Plan)}
	if !r.Started.IsZero() && !r.Finished.IsZero() {
		all.Time = fmt.Sprintf("%.3f", r.Finished.Sub(r.Started).Seconds())
	}
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
		suite := junitSuite{Name: clean(r.Plan)}
		suite.add(junitCase{Name: "verdict", Class: clean(r.Plan), Error: &junitMessage{Message: clean(r.Summary), Type: string(checkup.RunInconclusive)}})
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
	suite := junitSuite{Name: clean(c.Name)}
	if !r.Started.IsZero() {
		suite.Timestamp = r.Started.UTC().Format(time.RFC3339)
	}
	for _, p := range []struct {
		name string
		n    int
	}{{"expected", c.Counts.Expected}, {"pass", c.Counts.Pass}, {"fail", c.Counts.Fail}, {"unmeasured", c.Counts.Unmeasured}} {
		suite.Properties = append(suite.Properties, junitProperty{p.name, fmt.Sprint(p.n)})
	}
	class := clean(r.Plan + "." + c.Name)

	verdict := junitCase{Name: "verdict", Class: class}
	message := &junitMessage{Message: fmt.Sprintf("%d of %d %ss passed, %d failed, %d unmeasured", c.Counts.Pass, c.Counts.Expected, unitOf(c), c.Counts.Fail, c.Counts.Unmeasured), Type: clean(string(c.Verdict))}
	if c.Cause != nil {
		message.Message = clean("not measured: " + c.Cause.String())
	}
	var text []string
	for _, f := range c.Findings {
		text = append(text, clean(f.Message))
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

	// single is the case of what has one verdict.
	single := func(name string, v checkup.Verdict, cause *checkup.Cause) {
		one := junitCase{Name: clean(name), Class: class}
		said := &junitMessage{Type: clean(string(v))}
		if cause != nil {
			said.Message = clean(cause.String())
		}
		switch {
		case v == checkup.Pass:
		case v == checkup.Fail:
			one.Failure = said
		case c.Verdict == checkup.RunPass:
			one.Skipped = said
		default:
			one.Error = said
		}
		suite.add(one)
	}
	if c.Complete {
		for i := range c.Units {
			single(c.Units[i].Name, c.Units[i].Verdict, c.Units[i].Cause)
		}
		return suite
	}

	type way struct {
		transport checkup.Transport
		family    checkup.IPFamily
		size      int
	}
	key := func(p checkup.Unit) way { return way{p.Transport, p.Family, p.Size} }
	failed, unmeasured := map[way][]checkup.Unit{}, map[way][]checkup.Unit{}
	for _, p := range of(c, checkup.Fail) {
		failed[key(p)] = append(failed[key(p)], p)
	}
	for _, p := range of(c, checkup.Unmeasured) {
		unmeasured[key(p)] = append(unmeasured[key(p)], p)
	}
	for _, row := range c.Delays {
		k := way{row.Transport, row.Family, row.Size}
		one := junitCase{Name: clean(fmt.Sprintf("%s %s %dB", k.transport, k.family, k.size)), Class: class}
		bad, not := failed[k], unmeasured[k]
		total := row.Pairs + len(not)
		switch {
		case len(bad) > 0:
			one.Failure = &junitMessage{Message: fmt.Sprintf("%d of %d pairs failed, %d unmeasured", len(bad), total, len(not)), Type: string(checkup.Fail), Text: junitPairs(append(bad[:len(bad):len(bad)], not...))}
		case len(not) > 0 && c.Verdict == checkup.RunPass && row.Pairs > 0:
			one.Skipped = &junitMessage{Message: fmt.Sprintf("%d of %d pairs unmeasured, which the gate admits", len(not), total), Type: string(checkup.Unmeasured), Text: junitPairs(not)}
		case len(not) > 0 || row.Pairs == 0:
			one.Error = &junitMessage{Message: fmt.Sprintf("%d of %d pairs unmeasured", len(not), total), Type: string(checkup.Unmeasured), Text: junitPairs(not)}
		}
		suite.add(one)
	}
	return suite
}

// junitPairs lists the first pairs, a line each.
func junitPairs(pairs []checkup.Unit) string {
	const most = 50
	var b strings.Builder
	for i, p := range pairs {
		if i == most {
			fmt.Fprintf(&b, "... and %s\n", count(len(pairs)-most, "more pair"))
			break
		}
		fmt.Fprintf(&b, "%s\n", clean(fmt.Sprintf("%s: %s -> %s: %s", p.Verdict, p.Source, p.Target, p.Cause)))
	}
	return b.String()
}

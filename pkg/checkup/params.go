// SPDX-License-Identifier: Apache-2.0

package checkup

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Param is a tunable of a plan: a Pipeline param in the dashboard's form, and a
// name for `planner run --set`. Values are strings because the form has text
// inputs only.
type Param struct {
	// Name is a word for what concerns the whole plan ("gate"), or
	// "<check>.<field>" ("mesh.degree", "mesh.udp.count").
	Name string
	// Description says what it is, with unit and allowed values.
	Description string
	// Default is the plan's own value; "" is no limit for a threshold.
	Default string
	// set writes a value into the plan.
	set func(value string) error
}

// Params lists the tunables of the plan: those of the whole plan first, then
// check by check in the order of CheckNames.
func (p *Plan) Params() []Param {
	params := []Param{
		enumParam("gate", "Verdict that the run must have to succeed", &p.Gate.Require, Requirements),
		textParam("max-unmeasured", "Share of expected pairs that may stay unmeasured before a run without failures is inconclusive, from 0% to 100%", &p.Gate.MaxUnmeasured),
		enumParam("teardown", "When the pods that the run makes are removed", &p.Teardown, Teardowns),
	}
	for _, name := range p.CheckNames() {
		_, questions := p.Checks[name].set()
		for _, q := range questions {
			for _, param := range q.params() {
				param.Name = name + "." + param.Name
				params = append(params, param)
			}
		}
	}
	return params
}

// Set changes one tunable by the name that Params gives it. An error says which
// names or values there are; the plan is then as it was.
func (p *Plan) Set(name, value string) error {
	params := p.Params()
	i := slices.IndexFunc(params, func(param Param) bool { return param.Name == name })
	if i < 0 {
		names := make([]string, len(params))
		for i, param := range params {
			names[i] = param.Name
		}
		return fmt.Errorf("plan %s has no parameter %q; it has %s", p.Name, name, strings.Join(names, ", "))
	}
	if err := params[i].set(value); err != nil {
		return fmt.Errorf("parameter %s: %w", name, err)
	}
	return nil
}

// Apply sets every "name=value" in turn and then asks Problems whether the plan
// still makes sense. The error tells everything that is wrong, a line each; the
// plan is then of no use.
func (p *Plan) Apply(settings []string) error {
	var errs []error
	for _, s := range settings {
		name, value, ok := strings.Cut(s, "=")
		if !ok {
			errs = append(errs, fmt.Errorf("setting %q: want name=value", s))
		} else if err := p.Set(name, value); err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) == 0 {
		for _, problem := range p.Problems() {
			errs = append(errs, errors.New(problem.String()))
		}
	}
	return errors.Join(errs...)
}

// params lists the tunables of one check. Setting one writes through pointers
// into the check, which is why Plan.Checks' kinds are pointers.
func (m *PodMesh) params() []Param {
	params := []Param{
		intParam("degree", "How often each node is source and target of a pair, at the least; 0 measures the full mesh", &m.Sample.Degree, 0),
		boolParam("rotate", "Whether each run takes the next round of the sample, so that successive runs add up to the full mesh", &m.Sample.Rotate),
		intParam("round", "First round of the sample, counted from 0", &m.Sample.Round, 0),
		intParam("budget", "Most pairs (source, target, transport, family, size) that a run may measure", &m.Sample.Budget, 1),
	}
	for _, t := range MeshTransports {
		if _, ok := m.Probes[t]; ok {
			params = append(params, m.countParam(t))
		}
	}
	if m.Expect.Unreachable {
		return params
	}
	params = append(params, limitParam("loss.max", "Highest loss of a pair, from 0% to 100%; empty: only a pair without any answer fails", &m.Expect.Loss.Max))
	params = append(params, latencyParams(&m.Expect.Latency, "round-trip")...)
	return append(params, limitParam("jitter.max", "Highest mean difference of consecutive round-trip delays of a pair, such as 1ms; empty: no limit", &m.Expect.Jitter.Max))
}

func (m *PodMesh) countParam(t Transport) Param {
	probe := m.Probes[t]
	param := countParam(string(t)+".count", "How many times each pair is measured by "+string(t), &probe.Count)
	parse := param.set
	param.set = func(value string) error {
		if err := parse(value); err != nil {
			return err
		}
		m.Probes[t] = probe
		return nil
	}
	return param
}

// countParam is an intParam from 1 to MaxCount.
func countParam(name, description string, field *int) Param {
	param := intParam(name, description+", from 1 to "+strconv.Itoa(MaxCount), field, 1)
	parse := param.set
	param.set = func(value string) error {
		before := *field
		if err := parse(value); err != nil {
			return err
		}
		if *field > MaxCount {
			*field = before
			return fmt.Errorf("%q: want at most %d", value, MaxCount)
		}
		return nil
	}
	return param
}

// latencyParams are the limits on delay percentiles; what says of which delay.
func latencyParams(l *LatencyLimits, what string) []Param {
	var params []Param
	for _, p := range []struct {
		name  string
		limit **Duration
	}{
		{"p50", &l.P50}, {"p90", &l.P90}, {"p95", &l.P95}, {"p99", &l.P99}, {"max", &l.Max},
	} {
		params = append(params, limitParam("latency."+p.name, "Highest "+what+" delay of a pair, "+p.name+", such as 5ms; empty: no limit", p.limit))
	}
	return params
}

// MaxCount is the most measurements of one pair: every round-trip delay is kept,
// and one observation must stay a line of log.
const MaxCount = 1000

func intParam(name, description string, field *int, least int) Param {
	return Param{name, description, strconv.Itoa(*field), func(value string) error {
		v, err := strconv.Atoi(strings.TrimSpace(value))
		if err != nil || v < least {
			return fmt.Errorf("%q: want a whole number of at least %d", value, least)
		}
		*field = v
		return nil
	}}
}

func boolParam(name, description string, field *bool) Param {
	return Param{name, description + ": true or false", strconv.FormatBool(*field), func(value string) error {
		switch strings.TrimSpace(value) {
		case "true":
			*field = true
		case "false":
			*field = false
		default:
			return fmt.Errorf("%q: want true or false", value)
		}
		return nil
	}}
}

func enumParam[T ~string](name, description string, field *T, allowed []T) Param {
	words := make([]string, len(allowed))
	for i, v := range allowed {
		words[i] = cmp.Or(string(v), "empty")
	}
	list := strings.Join(words, ", ")
	return Param{name, description + ": " + list, string(*field), func(value string) error {
		v := T(strings.TrimSpace(value))
		if !slices.Contains(allowed, v) {
			return fmt.Errorf("%q: want one of %s", value, list)
		}
		*field = v
		return nil
	}}
}

// text is a value that reads itself: Percent, Duration.
type text[T any] interface {
	*T
	UnmarshalText([]byte) error
	String() string
}

// durationParam is a textParam of more than 0.
func durationParam(name, description string, field *Duration) Param {
	limit := field
	param := limitParam(name, description, &limit)
	parse := param.set
	param.set = func(value string) error {
		switch err := parse(value); {
		case err != nil:
			return err
		case limit == nil:
			return fmt.Errorf("%q: want a duration, such as 1s", value)
		}
		*field = *limit
		limit = field
		return nil
	}
	return param
}

func textParam[T any, P text[T]](name, description string, field P) Param {
	return Param{name, description, field.String(), func(value string) error {
		var v T
		if err := P(&v).UnmarshalText([]byte(strings.TrimSpace(value))); err != nil {
			return err
		}
		*field = v
		return nil
	}}
}

// limitParam is a textParam whose empty value is nil: no limit.
func limitParam[T any, P text[T]](name, description string, field *P) Param {
	value := ""
	if *field != nil {
		value = (*field).String()
	}
	return Param{name, description, value, func(value string) error {
		if strings.TrimSpace(value) == "" {
			*field = nil
			return nil
		}
		v := P(new(T))
		if err := v.UnmarshalText([]byte(strings.TrimSpace(value))); err != nil {
			return err
		}
		if d, ok := any(v).(*Duration); ok && *d <= 0 {
			return fmt.Errorf("%q: want more than 0", value)
		}
		*field = v
		return nil
	}}
}

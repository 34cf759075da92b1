// SPDX-License-Identifier: Apache-2.0

package kinds

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/kind"
)

// Decode reads a plan from JSON as checkup.Plan writes it. Unknown fields are
// ignored: a newer program may have written them.
func Decode(b []byte) (*checkup.Plan, error) { return decode(b, false) }

// DecodeStrict reads a plan as Decode does, and returns an error for unknown fields.
func DecodeStrict(b []byte) (*checkup.Plan, error) { return decode(b, true) }

func decode(b []byte, strict bool) (*checkup.Plan, error) {
	type plan checkup.Plan // without its methods
	var p struct {
		plan
		// Checks are in place of the plan's own.
		Checks map[string]map[string]json.RawMessage `json:"checks"`
	}
	if err := unmarshal(b, &p, strict); err != nil {
		return nil, err
	}
	if p.Checks != nil {
		p.plan.Checks = map[string]checkup.Check{}
	}
	for _, name := range slices.Sorted(maps.Keys(p.Checks)) {
		c, err := check(p.Checks[name], strict)
		if err != nil {
			return nil, fmt.Errorf("check %q: %w", name, err)
		}
		p.plan.Checks[name] = c
	}
	return (*checkup.Plan)(&p.plan), nil
}

// check reads one check from its fields. Of several kinds, the first of All is that
// of its Spec.
func check(fields map[string]json.RawMessage, strict bool) (checkup.Check, error) {
	var c checkup.Check
	if after, ok := fields["after"]; ok {
		if err := unmarshal(after, &c.After, strict); err != nil {
			return c, fmt.Errorf("after: %w", err)
		}
	}
	for _, k := range All {
		b, ok := fields[string(k.Name)]
		if !ok || string(b) == "null" {
			continue
		}
		if c.Spec != nil {
			c.Others = append(c.Others, k.Name)
			continue
		}
		spec := k.New()
		if err := unmarshal(b, spec, strict); err != nil {
			return c, fmt.Errorf("%s: %w", k.Name, err)
		}
		c.Spec = spec
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if _, ok := Named(checkup.Kind(name)); strict && !ok && name != "after" {
			return c, fmt.Errorf("unknown field %q", name)
		}
	}
	return c, nil
}

func unmarshal(b []byte, to any, strict bool) error {
	d := json.NewDecoder(bytes.NewReader(b))
	if strict {
		d.DisallowUnknownFields()
	}
	return d.Decode(to)
}

// Problems returns every rule that the plan breaks, in the order of the rules and,
// within one, of the names of the checks; nil if it breaks none. The plan
// must match the schema, as plans from pkg/load do, also after Set has changed them.
func Problems(p *checkup.Plan) []kind.Problem {
	var found []kind.Problem
	names := slices.Sorted(maps.Keys(p.Checks))
	rules := allRules()
	for _, rule := range RuleNames() {
		report := func(path []string, format string, args ...any) {
			found = append(found, kind.Problem{Rule: rule, Path: path, Message: fmt.Sprintf(format, args...)})
		}
		for _, r := range rules {
			if r.Name == rule && r.Plan != nil {
				r.Plan(p, report)
			}
		}
		for _, name := range names {
			spec := p.Checks[name].Spec
			if spec == nil {
				continue
			}
			under := func(path []string, format string, args ...any) {
				report(append([]string{"checks", name, string(spec.Kind())}, path...), format, args...)
			}
			k, _ := Named(spec.Kind())
			for _, r := range k.Rules {
				if r.Name == rule && r.Check != nil {
					r.Check(spec, under)
				}
			}
		}
	}
	return found
}

// allRules are those of every plan, and then those of each kind.
func allRules() []kind.Rule {
	rules := slices.Clone(planRules)
	for _, k := range All {
		rules = append(rules, k.Rules...)
	}
	return rules
}

// RuleNames are the names of all rules of Problems, each once.
func RuleNames() []string {
	var names []string
	for _, r := range allRules() {
		if !slices.Contains(names, r.Name) {
			names = append(names, r.Name)
		}
	}
	return names
}

// Apply sets each "name=value" in order and then checks the plan with Problems. A
// setting named checkup.SettingsParam holds further ones, at its place in the order. The
// error has everything that is wrong, one line each; the plan must then not be used.
func Apply(p *checkup.Plan, settings []string) error {
	var errs []error
	for _, s := range checkup.SplitSettings(settings) {
		name, value, ok := strings.Cut(s, "=")
		if !ok {
			errs = append(errs, fmt.Errorf("setting %q: want name=value", s))
		} else if err := p.Set(name, value); err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) == 0 {
		for _, problem := range Problems(p) {
			errs = append(errs, errors.New(problem.String()))
		}
	}
	return errors.Join(errs...)
}

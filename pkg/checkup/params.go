// SPDX-License-Identifier: Apache-2.0

package checkup

import (
	"cmp"
	"fmt"
	"slices"
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
	// Write parses a value and writes it into the plan. After an error the plan is as it
	// was.
	Write func(value string) error
}

// Params lists the tunables of the plan: those of the whole plan first, then
// check by check in the order of CheckNames.
func (p *Plan) Params() []Param {
	params := []Param{
		EnumParam("gate", "Verdict that the run must have to succeed", &p.Gate.Require, Requirements),
		TextParam(
			"max-unmeasured",
			"Share of expected pairs that may stay unmeasured before a run without failures is inconclusive, from 0% to 100%",
			&p.Gate.MaxUnmeasured,
		),
		EnumParam("teardown", "When the pods that the run makes are removed", &p.Teardown, Teardowns),
	}
	for _, name := range p.CheckNames() {
		spec := p.Checks[name].Spec
		if spec == nil {
			continue
		}
		for _, param := range spec.Params() {
			param.Name = name + "." + param.Name
			params = append(params, param)
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
	if err := params[i].Write(value); err != nil {
		return fmt.Errorf("parameter %s: %w", name, err)
	}
	return nil
}

// EnumParam is a tunable that is one of the allowed words, of which one may be empty.
func EnumParam[T ~string](name, description string, field *T, allowed []T) Param {
	words := make([]string, len(allowed))
	for i, v := range allowed {
		words[i] = cmp.Or(string(v), "empty")
	}
	list := strings.Join(words, ", ")
	return Param{
		Name:        name,
		Description: description + ": " + list,
		Default:     string(*field),
		Write: func(value string) error {
			v := T(strings.TrimSpace(value))
			if !slices.Contains(allowed, v) {
				return fmt.Errorf("%q: want one of %s", value, list)
			}
			*field = v
			return nil
		},
	}
}

// Textual is a value that reads itself: Percent, Duration.
type Textual[T any] interface {
	*T
	UnmarshalText([]byte) error
	String() string
}

// TextParam is a tunable that reads itself.
func TextParam[T any, P Textual[T]](name, description string, field P) Param {
	return Param{Name: name, Description: description, Default: field.String(), Write: func(value string) error {
		var v T
		if err := P(&v).UnmarshalText([]byte(strings.TrimSpace(value))); err != nil {
			return err
		}
		*field = v
		return nil
	}}
}

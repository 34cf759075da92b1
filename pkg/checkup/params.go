// SPDX-License-Identifier: Apache-2.0

package checkup

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Param is a parameter of a plan. It is a name for `planner run --set` and, unless it is rare, a Pipeline param in the
// dashboard's form. Values are strings because the form has text inputs
// only.
type Param struct {
	// Name is one word for parameters of the whole plan ("gate"), and
	// "<check>.<field>" for those of a check ("mesh.degree", "mesh.udp.count").
	Name string
	// Description says what the parameter does, with unit and allowed values.
	Description string
	// Default is the value in the plan; for a threshold, "" means no limit.
	Default string
	// Rare is true for what few people change. The dashboard's form shows a text area per param, so the Pipeline has no
	// param of its own for it: SettingsParam sets it.
	Rare bool
	// Write parses a value and writes it into the plan. On error the plan is unchanged.
	Write func(value string) error
}

// SettingsParam is the Pipeline param that sets any others, rare ones included, as "name=value" separated by white
// space. It is no parameter of a plan.
const SettingsParam = "settings"

// SplitSettings replaces a setting of SettingsParam by those that its value holds. A word without an equals sign
// belongs to the value before it ("mesh.topology=rack, switch").
func SplitSettings(settings []string) []string {
	var each []string
	for _, s := range settings {
		value, ok := strings.CutPrefix(s, SettingsParam+"=")
		if !ok {
			each = append(each, s)
			continue
		}
		for i, word := range strings.Fields(value) {
			if i > 0 && !strings.Contains(word, "=") {
				each[len(each)-1] += " " + word
				continue
			}
			each = append(each, word)
		}
	}
	return each
}

// AsRare marks params as rare.
func AsRare(params ...Param) []Param {
	for i := range params {
		params[i].Rare = true
	}
	return params
}

// Params lists the parameters of the plan: first those of the whole plan, then those of
// each check, in the order of CheckNames.
func (p *Plan) Params() []Param {
	params := []Param{EnumParam("gate", "Verdict that the run must have to succeed", &p.Gate.Require, Requirements)}
	params = append(params, AsRare(
		TextParam(
			"max-unmeasured",
			"Share of expected pairs that may stay unmeasured before a run without failures is inconclusive, from 0% to 100%",
			&p.Gate.MaxUnmeasured,
		),
		BoolParam(
			"confirm",
			"Whether a failure must be confirmed by a second look to fail the run, in checks that look again",
			&p.Gate.Confirm,
		),
	)...)
	params = append(params, EnumParam("teardown", "When the pods that the run makes are removed", &p.Teardown, Teardowns))
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

// Set changes the parameter with the given name, as Params lists it. The error lists
// the valid names or values. On error the plan is unchanged.
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

// EnumParam returns a parameter whose value is one of the allowed words. One of the
// words may be empty.
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

// BoolParam returns a parameter that is true or false.
func BoolParam(name, description string, field *bool) Param {
	return Param{
		Name:        name,
		Description: description + ": true or false",
		Default:     strconv.FormatBool(*field),
		Write: func(value string) error {
			switch strings.TrimSpace(value) {
			case "true":
				*field = true
			case "false":
				*field = false
			default:
				return fmt.Errorf("%q: want true or false", value)
			}
			return nil
		},
	}
}

// Textual is a value that parses itself: Percent, Duration.
type Textual[T any] interface {
	*T
	UnmarshalText([]byte) error
	String() string
}

// TextParam returns a parameter whose value parses itself.
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

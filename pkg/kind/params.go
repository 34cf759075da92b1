// SPDX-License-Identifier: Apache-2.0

package kind

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// CountParam is an IntParam from 1 to checkup.MaxCount.
func CountParam(name, description string, field *int) checkup.Param {
	param := IntParam(name, description+", from 1 to "+strconv.Itoa(checkup.MaxCount), field, 1)
	parse := param.Write
	param.Write = func(value string) error {
		before := *field
		if err := parse(value); err != nil {
			return err
		}
		if *field > checkup.MaxCount {
			*field = before
			return fmt.Errorf("%q: want at most %d", value, checkup.MaxCount)
		}
		return nil
	}
	return param
}

// LatencyParams are the limits on delay percentiles; what says which delay they are of, such as "round-trip". All but
// that of p99 are rare.
func LatencyParams(l *checkup.LatencyLimits, what string) []checkup.Param {
	var params []checkup.Param
	for _, p := range []struct {
		name  string
		limit **checkup.Duration
	}{
		{"p50", &l.P50}, {"p90", &l.P90}, {"p95", &l.P95}, {"p99", &l.P99}, {"max", &l.Max},
	} {
		param := LimitParam(
			"latency."+p.name,
			"Highest "+what+" delay of a pair, "+p.name+", such as 5ms; empty: no limit",
			p.limit,
		)
		param.Rare = p.name != "p99"
		params = append(params, param)
	}
	return params
}

// RegressionParams are those of a comparison with earlier runs; none if the plan wants none, which is nil.
func RegressionParams(r *checkup.Regression) []checkup.Param {
	if r == nil {
		return nil
	}
	runs := IntParam("regression.runs",
		fmt.Sprintf("Least number of earlier runs to compare with, from %d to %d: at most one of runs+1 runs without a change "+
			"has a false alarm", checkup.LeastRegressionRuns, checkup.MostRegressionRuns),
		&r.Runs, checkup.LeastRegressionRuns)
	parse := runs.Write
	runs.Write = func(value string) error {
		before := r.Runs
		if err := parse(value); err != nil {
			return err
		}
		if r.Runs > checkup.MostRegressionRuns {
			r.Runs = before
			return fmt.Errorf("%q: want at most %d", value, checkup.MostRegressionRuns)
		}
		return nil
	}
	factor := checkup.Param{
		Name: "regression.factor",
		Description: fmt.Sprintf("How many times slower than usual a delay must be to be a regression, from %g to %g",
			checkup.LeastRegressionFactor, checkup.MostRegressionFactor),
		Default: strconv.FormatFloat(r.MinFactor, 'f', -1, 64),
		Write: func(value string) error {
			v, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil || !(v >= checkup.LeastRegressionFactor && v <= checkup.MostRegressionFactor) {
				return fmt.Errorf("%q: want a number from %g to %g", value,
					checkup.LeastRegressionFactor, checkup.MostRegressionFactor)
			}
			r.MinFactor = v
			return nil
		},
	}
	return []checkup.Param{
		checkup.BoolParam("regression.fail", "Whether a regression against earlier runs fails the check", &r.Fail),
		runs, factor,
	}
}

// IntParam is a whole number of at least least.
func IntParam(name, description string, field *int, least int) checkup.Param {
	return checkup.Param{
		Name:        name,
		Description: description,
		Default:     strconv.Itoa(*field),
		Write: func(value string) error {
			v, err := strconv.Atoi(strings.TrimSpace(value))
			if err != nil || v < least {
				return fmt.Errorf("%q: want a whole number of at least %d", value, least)
			}
			*field = v
			return nil
		},
	}
}

// DurationParam is a duration of more than 0.
func DurationParam(name, description string, field *checkup.Duration) checkup.Param {
	limit := field
	param := LimitParam(name, description, &limit)
	parse := param.Write
	param.Write = func(value string) error {
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

// AllowanceParam is a duration from 0 to checkup.MaxTimeout.
func AllowanceParam(name, description string, field *checkup.Duration) checkup.Param {
	return checkup.Param{Name: name, Description: description, Default: field.String(), Write: func(value string) error {
		var d checkup.Duration
		if err := d.UnmarshalText([]byte(strings.TrimSpace(value))); err != nil {
			return err
		}
		if d < 0 || d > checkup.MaxTimeout {
			return fmt.Errorf("%q: want from 0s to %s", value, checkup.MaxTimeout)
		}
		*field = d
		return nil
	}}
}

// LimitParam is a value that reads itself, or nil for the empty text: no limit.
func LimitParam[T any, P checkup.Textual[T]](name, description string, field *P) checkup.Param {
	value := ""
	if *field != nil {
		value = (*field).String()
	}
	return checkup.Param{Name: name, Description: description, Default: value, Write: func(value string) error {
		if strings.TrimSpace(value) == "" {
			*field = nil
			return nil
		}
		v := P(new(T))
		if err := v.UnmarshalText([]byte(strings.TrimSpace(value))); err != nil {
			return err
		}
		if d, ok := any(v).(*checkup.Duration); ok && *d <= 0 {
			return fmt.Errorf("%q: want more than 0", value)
		}
		*field = v
		return nil
	}}
}

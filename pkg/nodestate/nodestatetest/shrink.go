// SPDX-License-Identifier: Apache-2.0

package nodestatetest

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// Shrink returns a case that still fails and of which nothing can be left out: neither an object, nor an element of a
// list, nor a field. It calls fails often. A case that fails cannot judge, because no API server would have it, is one
// that does not fail.
func Shrink(c Case, fails func(Case) bool) (Case, error) {
	for {
		smaller, found, err := smaller(c, fails)
		if err != nil || !found {
			return c, err
		}
		c = smaller
	}
}

// smaller leaves out the first thing that can be left out.
func smaller(c Case, fails func(Case) bool) (Case, bool, error) {
	whole, err := json.Marshal(c)
	if err != nil {
		return c, false, fmt.Errorf("encode a case: %w", err)
	}
	var tree any
	if err := json.Unmarshal(whole, &tree); err != nil {
		return c, false, fmt.Errorf("decode a case: %w", err)
	}
	for _, without := range omissions(tree) {
		data, err := json.Marshal(without)
		if err != nil {
			return c, false, fmt.Errorf("encode a case: %w", err)
		}
		var candidate Case
		if err := json.Unmarshal(data, &candidate); err != nil {
			continue // null, for example, where a value has to be
		}
		if again, err := json.Marshal(candidate); err != nil || len(again) >= len(whole) {
			continue // a field that is always written
		}
		if fails(candidate) {
			return candidate, true, nil
		}
	}
	return c, false, nil
}

// omissions are all trees with one element or field less, those with most less first.
func omissions(tree any) []any {
	var all []any
	switch t := tree.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(t)) {
			without := maps.Clone(t)
			delete(without, key)
			all = append(all, without)
		}
		for _, key := range slices.Sorted(maps.Keys(t)) {
			for _, inner := range omissions(t[key]) {
				with := maps.Clone(t)
				with[key] = inner
				all = append(all, with)
			}
		}
	case []any:
		for i := range t {
			all = append(all, slices.Delete(slices.Clone(t), i, i+1))
		}
		for i := range t {
			for _, inner := range omissions(t[i]) {
				with := slices.Clone(t)
				with[i] = inner
				all = append(all, with)
			}
		}
	}
	return all
}

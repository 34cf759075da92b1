// SPDX-License-Identifier: Apache-2.0

package checkup_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"testing"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Stages and Reasons have each constant of their types: what agents report of others is not kept.
func TestListsAreComplete(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "observation.go", nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	declared := map[string][]string{}
	for _, d := range file.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.CONST {
			continue
		}
		for _, s := range g.Specs {
			v := s.(*ast.ValueSpec)
			if of, ok := v.Type.(*ast.Ident); ok && len(v.Values) == 1 {
				if text, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value); err == nil {
					declared[of.Name] = append(declared[of.Name], text)
				}
			}
		}
	}
	for name, listed := range map[string][]string{"Stage": texts(checkup.Stages), "Reason": texts(checkup.Reasons)} {
		if want := declared[name]; len(want) == 0 || !slices.Equal(slices.Sorted(slices.Values(want)), slices.Sorted(slices.Values(listed))) {
			t.Errorf("the list of every %s is %q, the constants are %q", name, listed, want)
		}
	}
}

func texts[T ~string](list []T) []string {
	var all []string
	for _, x := range list {
		all = append(all, string(x))
	}
	return all
}

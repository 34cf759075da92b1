// SPDX-License-Identifier: Apache-2.0

package load

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/ast"
	cueliteral "cuelang.org/go/cue/literal"
	"cuelang.org/go/cue/token"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/kiagnose"
)

// kiagnoseCheck is the name of the check in a plan that a kiagnose checkup's
// ConfigMap is.
const kiagnoseCheck = "latency"

// kiagnoseKinds are the objects with which kiagnose itself runs a checkup, and those that
// people keep beside it. They have no parameters of the checkup.
var kiagnoseKinds = []string{"Job", "Namespace", "ServiceAccount", "Role", "RoleBinding",
	"ClusterRole", "ClusterRoleBinding", "NetworkAttachmentDefinition"}

// configMaps loads the documents that are ConfigMaps of kiagnose checkups, and
// returns the others. If there is such a ConfigMap, kiagnoseKinds are ignored.
func (l *loader) configMaps(abs string, docs []ast.Expr) []ast.Expr {
	ours := slices.DeleteFunc(slices.Clone(docs), func(d ast.Expr) bool { return !isCheckup(d) })
	if len(ours) == 0 {
		return docs
	}
	var others []ast.Expr
	for _, d := range docs {
		kind := literal(at(d, "kind"))
		switch {
		case slices.Contains(ours, d):
			l.configMap(abs, d)
		case slices.Contains(kiagnoseKinds, kind):
			message := fmt.Sprintf("%s %s is ignored: checkplan does not need it to run the checkup",
				kind, literal(at(d, "metadata", "name")))
			l.warn(abs, l.problem(d.Pos(), cue.Path{}, message))
		default:
			others = append(others, d)
		}
	}
	return others
}

// isCheckup reports whether a document is the ConfigMap of a kiagnose checkup.
func isCheckup(doc ast.Expr) bool {
	if literal(at(doc, "kind")) != "ConfigMap" {
		return false
	}
	return at(doc, "metadata", "labels", kiagnose.LabelCheckupType) != nil ||
		slices.ContainsFunc(fieldsOf(at(doc, "data")), func(f *ast.Field) bool {
			key := labelOf(f)
			return key == kiagnose.KeyTimeout || strings.HasPrefix(key, kiagnose.ParamPrefix)
		})
}

// configMap loads the ConfigMap of a kiagnose checkup as a plan with one check.
func (l *loader) configMap(abs string, doc ast.Expr) {
	before := len(l.problems)
	bad := func(f *ast.Field, path []string, format string, args ...any) {
		l.add(l.noted(abs, doc, f, path, fmt.Sprintf(format, args...)))
	}
	ref := &checkup.ConfigMapRef{}
	for _, id := range []struct {
		field    string
		to       *string
		validate func(string) []string
	}{
		{"name", &ref.Name, validation.IsDNS1123Subdomain},
		{"namespace", &ref.Namespace, validation.IsDNS1123Label},
	} {
		path := []string{"metadata", id.field}
		f := at(doc, path...)
		*id.to = literal(f)
		if f == nil && id.field == "name" {
			bad(nil, path, "missing: the name of the ConfigMap to which the outcome is written")
		}
		if f == nil {
			continue
		}
		for _, message := range id.validate(*id.to) {
			bad(f, path, "%q: %s", *id.to, checkup.NoExamples(message))
		}
	}
	label := []string{"metadata", "labels", kiagnose.LabelCheckupType}
	if f := at(doc, label...); f != nil && literal(f) != kiagnose.CheckupType {
		bad(f, label, "unsupported checkup type %q: want %s", literal(f), kiagnose.CheckupType)
		return // it has other parameters
	}

	data := map[string]string{}
	places := map[string]*ast.Field{}
	for _, f := range fieldsOf(at(doc, "data")) {
		key := labelOf(f)
		path := []string{"data", key}
		text, isString, ok := l.text(f.Value)
		switch {
		case places[key] != nil:
			bad(f, path, "duplicate")
		case !ok:
			bad(f, path, "want a string")
		case !isString && !strings.HasPrefix(key, kiagnose.StatusPrefix):
			message := fmt.Sprintf("Kubernetes accepts only strings: write %q", text)
			l.warn(abs, l.noted(abs, doc, f, path, message))
		}
		data[key], places[key] = text, f
	}
	check, warnings, problems := kiagnose.FromData(data)
	for _, w := range warnings {
		l.warn(abs, l.noted(abs, doc, places[w.Key], []string{"data", w.Key}, w.Message))
	}
	for _, p := range problems {
		bad(places[p.Key], []string{"data", p.Key}, "%s", p.Message)
	}
	if len(l.problems) > before {
		return
	}
	check.Kiagnose = ref
	l.data[*ref] = data
	l.generated(abs, doc, planName(ref.Name), checkup.Check{Spec: check})
}

// generated loads a plan with one check, which was made of a document.
func (l *loader) generated(abs string, doc ast.Expr, name string, check checkup.Check) {
	if !l.schema.Exists() {
		l.schema = schemaValue(l.ctx)
	}
	raw := func() cue.Value { return l.ctx.BuildExpr(doc) }
	s := &source{name: name, file: abs, def: planDef, schema: l.schema, raw: raw}
	b, err := json.Marshal(map[string]any{"checks": map[string]any{kiagnoseCheck: check}})
	if err != nil {
		l.addFound(s, []finding{{message: fmt.Sprintf("making a plan: %v", err)}})
		return
	}
	s.value = l.ctx.CompileBytes(b)
	l.plan(s)
}

// planName is the name of a plan for an object: the object's name if it is a valid
// plan name, else one with a hash.
func planName(object string) string {
	if len(object) <= checkup.MaxPlanName && !strings.Contains(object, ".") && checkup.PlanOfAccount(object) == "" {
		return object
	}
	sum := sha256.Sum256([]byte(object))
	hash := strings.ToLower(base32.StdEncoding.EncodeToString(sum[:])[:8])
	name := strings.ReplaceAll(object, ".", "-")
	return strings.Trim(name[:min(len(name), checkup.MaxPlanName-1-len(hash))], "-") + "-" + hash
}

// noted is a problem with a field of a document. Its position is that of the nearest
// enclosing field if the field is missing.
func (l *loader) noted(abs string, doc ast.Expr, f *ast.Field, path []string, message string) Problem {
	pos := doc.Pos()
	for i := 1; i < len(path); i++ {
		if around := at(doc, path[:i]...); around != nil {
			pos = around.Label.Pos()
		}
	}
	if f != nil {
		pos = f.Label.Pos()
	}
	p := l.problem(pos, cue.MakePath(selectors(path)...), message)
	if p.File == "" {
		p.File = l.rel(abs)
	}
	return p
}

func (l *loader) warn(abs string, p Problem) {
	p.Warning = true
	if p.File == "" {
		p.File = l.rel(abs)
	}
	l.warnings = append(l.warnings, p)
}

// text is a value as a ConfigMap's data would have it: a string as it is, a number
// as it is written; false if it is something else. Nothing is an empty string.
func (l *loader) text(e ast.Expr) (s string, isString, ok bool) {
	v := l.ctx.BuildExpr(e)
	switch v.IncompleteKind() {
	case cue.StringKind:
		s, err := v.String()
		return s, true, err == nil
	case cue.NullKind:
		return "", true, true
	case cue.IntKind, cue.FloatKind, cue.NumberKind, cue.BoolKind:
		return text(v), false, true
	}
	return "", false, false
}

// at is the field at a path of a document; nil if there is none.
func at(doc ast.Node, path ...string) *ast.Field {
	var found *ast.Field
	for _, name := range path {
		i := slices.IndexFunc(fieldsOf(doc), func(f *ast.Field) bool { return labelOf(f) == name })
		if i < 0 {
			return nil
		}
		found = fieldsOf(doc)[i]
		doc = found
	}
	return found
}

// fieldsOf are the fields of a struct, or of the struct in a field; none of
// anything else.
func fieldsOf(n ast.Node) []*ast.Field {
	if f, ok := n.(*ast.Field); ok && f != nil {
		n = f.Value
	}
	s, ok := n.(*ast.StructLit)
	if !ok {
		return nil
	}
	var fields []*ast.Field
	for _, e := range s.Elts {
		if f, ok := e.(*ast.Field); ok {
			fields = append(fields, f)
		}
	}
	return fields
}

// literal is the text of a field's value, if that is a plain one.
func literal(f *ast.Field) string {
	if f == nil {
		return ""
	}
	lit, ok := f.Value.(*ast.BasicLit)
	if !ok {
		return ""
	}
	if lit.Kind != token.STRING {
		return lit.Value
	}
	s, err := cueliteral.Unquote(lit.Value)
	if err != nil {
		return ""
	}
	return s
}

func labelOf(f *ast.Field) string {
	name, _, err := ast.LabelName(f.Label)
	if err != nil {
		return ""
	}
	return name
}

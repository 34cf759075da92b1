// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/diff"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/kinds"
	"github.com/checkplan/checkplan/pkg/print"
	"github.com/checkplan/checkplan/pkg/run"
	"github.com/checkplan/checkplan/pkg/tekton"
)

// previewOptions are the flags of diff.
type previewOptions struct {
	plan    string
	access  run.Access
	compile tekton.Options
	manager string
	output  string
}

// preview is what applying a plan would change, and its JSON.
type preview struct {
	Plan      string `json:"plan"`
	Namespace string `json:"namespace"`
	// Measured is what would be measured differently, in words, a line each.
	Measured []string `json:"measured"`
	// Objects that would be created or changed.
	Objects []objectPreview `json:"objects"`
}

type objectPreview struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// New says that the object does not exist.
	New bool `json:"new"`
	// Diff of the two as YAML, in the unified format.
	Diff string `json:"diff"`
}

// diffPlans prints what applying plans would change. Its error is the exit code of kubectl diff.
func (e *environment) diffPlans(ctx context.Context, args []string, o previewOptions) error {
	ctx, stop := e.interruptible(ctx)
	defer stop()
	previews, err := e.preview(ctx, args, o)
	if err != nil {
		return failed(err)
	}
	if o.output == "json" {
		err = print.Encode(e.stdout, previews)
	} else {
		for _, p := range previews {
			err = cmp.Or(err, p.print(e.stdout))
		}
	}
	if err != nil {
		return failed(err)
	}
	if slices.ContainsFunc(previews, func(p preview) bool { return len(p.Objects) > 0 }) {
		return exit{code: exitError}
	}
	return nil
}

// failed gives an error the exit code that is more than 1, the code of differences.
func failed(err error) error {
	var e exit
	if errors.As(err, &e) {
		return exit{exitUsage, e.err}
	}
	return exit{exitUsage, err}
}

func (e *environment) preview(ctx context.Context, args []string, o previewOptions) ([]preview, error) {
	var plans []*checkup.Plan
	if o.plan != "" {
		plan, _, err := e.onePlan(ctx, args, o.plan)
		if err != nil {
			return nil, err
		}
		plans = append(plans, plan)
	} else {
		read, err := e.load(ctx, args)
		if err != nil {
			return nil, err
		}
		plans = read.Plans
	}
	var all []preview
	for _, plan := range plans {
		access := o.access
		access.Namespace = cmp.Or(access.Namespace, homeOf(plan))
		c, err := run.Connect(access)
		if err != nil {
			return nil, err
		}
		options := o.compile
		options.Namespace = c.Namespace
		compiled, err := tekton.Compile(plan, options)
		if err != nil {
			return nil, err
		}
		p := preview{Plan: plan.Name, Namespace: c.Namespace, Measured: []string{}}
		if p.Objects, err = previewObjects(ctx, c, compiled.Deployed(), o.manager); err != nil {
			return nil, fmt.Errorf("plan %s: %w", plan.Name, err)
		}
		if len(p.Objects) > 0 {
			if p.Measured, err = previewMeasured(ctx, c, plan, options); err != nil {
				p.Measured = append(p.Measured, fmt.Sprintf("cannot compare what is measured: %v", err))
			}
		}
		all = append(all, p)
	}
	return all, nil
}

// previewObjects asks the API server what it would make of each object.
func previewObjects(
	ctx context.Context, c *run.Cluster, objects []runtime.Object, manager string,
) ([]objectPreview, error) {
	changed := []objectPreview{}
	for _, object := range objects {
		before, after, err := c.Preview(ctx, object, manager)
		if err != nil {
			return nil, err
		}
		var texts [2][]byte
		for i, o := range []map[string]any{before, after} {
			if o == nil {
				continue
			}
			if texts[i], err = yaml.Marshal(o); err != nil {
				return nil, err
			}
		}
		m, _ := after["metadata"].(map[string]any)
		p := objectPreview{Kind: object.GetObjectKind().GroupVersionKind().Kind, New: before == nil}
		p.Namespace, _ = m["namespace"].(string)
		p.Name, _ = m["name"].(string)
		if text := diff.Diff("cluster", texts[0], "plan", texts[1]); text != nil {
			p.Diff = checkup.CleanLines(string(text))
			changed = append(changed, p)
		}
	}
	return changed, nil
}

// previewMeasured compares what the plan that is deployed measures with what the plan would.
func previewMeasured(
	ctx context.Context, c *run.Cluster, plan *checkup.Plan, options tekton.Options,
) ([]string, error) {
	explained := func(plan *checkup.Plan) (*explanation, error) {
		reader := cluster.Reader{Kubernetes: c.Kube, Metadata: c.Metadata, Dynamic: c.Dynamic, Namespace: c.Namespace}
		snapshot, err := kinds.Survey(ctx, reader, plan)
		if err != nil {
			return nil, err
		}
		return explain(plan, snapshot, options)
	}
	after, err := explained(plan)
	if err != nil {
		return nil, err
	}
	deployed, err := c.Tekton.TektonV1().Pipelines(c.Namespace).Get(ctx, plan.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return measured(&explanation{}, after, &checkup.Plan{}, plan), nil
	}
	if err != nil {
		return nil, err
	}
	old, err := tekton.PlanOf(deployed)
	if err != nil {
		return nil, err
	}
	before, err := explained(old)
	if err != nil {
		return nil, fmt.Errorf("the plan that is deployed: %w", err)
	}
	return measured(before, after, old, plan), nil
}

// measured says in words what changes from one plan to another, on the same cluster.
func measured(before, after *explanation, old, plan *checkup.Plan) []string {
	lines := []string{}
	say := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	checks := func(x *explanation) map[string]checkExplained {
		all := map[string]checkExplained{}
		for _, c := range x.Checks {
			all[c.Check] = c
		}
		return all
	}
	had, has := checks(before), checks(after)
	for _, name := range union(had, has) {
		was, existed := had[name]
		is, exists := has[name]
		if !exists {
			say("check %s (%s): removed", name, was.Kind)
			continue
		}
		var changes []string
		number := func(noun string, a, b int) {
			switch {
			case !existed && b > 0:
				changes = append(changes, fmt.Sprintf("%s %d", noun, b))
			case existed && a != b:
				changes = append(changes, fmt.Sprintf("%s %d -> %d", noun, a, b))
			}
		}
		number("pairs", was.Pairs, is.Pairs)
		number("packets", was.Packets, is.Packets)
		number("pods", was.Agents+was.Responders, is.Agents+is.Responders)
		number("containers in existing pods", was.Inside, is.Inside)
		number("VMs", was.VMs, is.VMs)
		number("privileged pods", was.HostNetwork, is.HostNetwork)
		state := ""
		switch {
		case !existed:
			state = "new: "
		case was.Kind != is.Kind:
			state = fmt.Sprintf("was %s: ", was.Kind)
		case len(changes) == 0:
			continue
		}
		say("check %s (%s): %s%s", name, is.Kind, state, cmp.Or(strings.Join(changes, ", "), "sends no packets"))
	}
	if len(before.Checks) > 0 { // of a new plan, all parameters are new
		for _, name := range union(before.Parameters, after.Parameters) {
			was, existed := before.Parameters[name]
			is, exists := after.Parameters[name]
			if was != is && existed && exists {
				say("parameter %s: %q -> %q", name, was, is)
			}
		}
	}
	rights := func(x *explanation) map[string]bool {
		all := map[string]bool{}
		for _, a := range x.Accounts {
			for _, r := range a.Rights {
				all[a.Account+": "+r.Words()] = true
			}
		}
		return all
	}
	could, can := rights(before), rights(after)
	for _, right := range union(could, can) {
		switch {
		case !could[right]:
			say("right added: %s", right)
		case !can[right]:
			say("right removed: %s", right)
		}
	}
	changed := func(noun string, was, is any) {
		a, b := inWords(was), inWords(is)
		if a != b {
			say("%s: %s -> %s", noun, a, b)
		}
	}
	changed("schedule", old.Schedule, plan.Schedule)
	changed("limits", old.Limits, plan.Limits)
	for _, use := range after.Limits {
		if use.Used > use.Limit {
			say("limit %s: on this cluster, setup would refuse every run", use)
		}
	}
	return lines
}

// inWords is a part of a plan as JSON; "none" for nil.
func inWords(v any) string {
	text, err := json.Marshal(v)
	if err != nil || string(text) == "null" {
		return "none"
	}
	return string(text)
}

// union are the keys of both maps, sorted.
func union[V any](a, b map[string]V) []string {
	return slices.Compact(slices.Sorted(func(yield func(string) bool) {
		for _, m := range []map[string]V{a, b} {
			for key := range maps.Keys(m) {
				if !yield(key) {
					return
				}
			}
		}
	}))
}

func (p preview) print(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "plan %s in namespace %s: ", p.Plan, p.Namespace)
	created := 0
	for _, o := range p.Objects {
		if o.New {
			created++
		}
	}
	if len(p.Objects) == 0 {
		b.WriteString("no differences\n")
	} else {
		fmt.Fprintf(&b, "%s to create, %d to change\n", checkup.Count(created, "object"), len(p.Objects)-created)
	}
	for _, line := range p.Measured {
		fmt.Fprintf(&b, "  %s\n", checkup.Clean(line))
	}
	for _, o := range p.Objects {
		fmt.Fprintf(&b, "\n%s %s\n%s", o.Kind, strings.TrimPrefix(o.Namespace+"/"+o.Name, "/"), o.Diff)
	}
	_, err := io.WriteString(w, checkup.NoCommand(b.String()))
	return err
}

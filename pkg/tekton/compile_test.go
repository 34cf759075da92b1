// SPDX-License-Identifier: Apache-2.0

package tekton

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	pipelinev1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/controlplane"
	"github.com/checkplan/checkplan/pkg/kinds"
	"github.com/checkplan/checkplan/pkg/podmesh"
	"github.com/checkplan/checkplan/pkg/vmlatency"
)

// golden compares with a file in testdata, or writes it if UPDATE=1.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if os.Getenv("UPDATE") == "1" {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v (UPDATE=1 writes it)", err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (UPDATE=1 writes the new one; -want +got):\n%s", file, diff)
	}
}

func compile(t testing.TB, plan *checkup.Plan, opts Options) *Objects {
	t.Helper()
	o, err := Compile(plan, opts)
	if err != nil {
		t.Fatalf("compile plan %s: %v", plan.Name, err)
	}
	return o
}

func encodeObjects(t testing.TB, objects ...runtime.Object) []byte {
	t.Helper()
	b, err := Encode(objects...)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestGolden(t *testing.T) {
	for _, plan := range []*checkup.Plan{smallPlan(), twoChecks(), allKinds()} {
		for _, profile := range Profiles {
			t.Run(plan.Name+"-"+string(profile), func(t *testing.T) {
				opts := testOptions
				opts.Tekton = profile
				o := compile(t, plan, opts)
				golden(t, plan.Name+"-"+string(profile)+".yaml", encodeObjects(t, append(o.Applied(), o.Sample)...))
			})
		}
	}
}

var kindLine = regexp.MustCompile(`(?m)^kind: (\w+)$`)

// documents splits a YAML stream into its documents.
func documents(stream []byte) [][]byte { return bytes.Split(stream, []byte("\n---\n")) }

// decodeStrict reads YAML into the Go types. It refuses unknown and duplicate fields,
// like kubectl and the API server.
func decodeStrict(t testing.TB, stream []byte) []runtime.Object {
	t.Helper()
	var objects []runtime.Object
	for _, document := range documents(stream) {
		var kind string
		if m := kindLine.FindSubmatch(document); m != nil {
			kind = string(m[1])
		}
		into, ok := map[string]runtime.Object{
			"ServiceAccount":     &corev1.ServiceAccount{},
			"Role":               &rbacv1.Role{},
			"RoleBinding":        &rbacv1.RoleBinding{},
			"ClusterRole":        &rbacv1.ClusterRole{},
			"ClusterRoleBinding": &rbacv1.ClusterRoleBinding{},
			"Task":               &pipelinev1.Task{},
			"Pipeline":           &pipelinev1.Pipeline{},
			"PipelineRun":        &pipelinev1.PipelineRun{},
		}[kind]
		if !ok {
			t.Fatalf("unexpected kind %q", kind)
		}
		if err := yaml.UnmarshalStrict(document, into); err != nil {
			t.Fatalf("%s: strict decoding: %v", kind, err)
		}
		objects = append(objects, into)
	}
	return objects
}

// checkRoundTrip: printed objects decode strictly, are valid, and give the same bytes
// when they are printed again. Tekton adds no default to them.
func checkRoundTrip(t *testing.T, text []byte) {
	t.Helper()
	decoded := decodeStrict(t, text)
	if diff := cmp.Diff(string(text), string(encodeObjects(t, decoded...))); diff != "" {
		t.Errorf("decoding and printing again gives other bytes (-first +second):\n%s", diff)
	}
	if err := validateAll(decoded...); err != nil {
		t.Errorf("printed objects are not valid: %v", err)
	}
	if diff := cmp.Diff(string(text), string(encodeObjects(t, decoded...))); diff != "" {
		t.Errorf("Tekton's defaults are not all printed (-printed +defaulted):\n%s", diff)
	}
}

// checkLists: in lists, the printed fields are those of Go's JSON. Tekton's webhook
// writes objects with Go's JSON. A field that it adds to a map does no harm, but a
// field that it adds in a list of a custom resource is a difference in every apply.
func checkLists(t *testing.T, object runtime.Object, document []byte) {
	t.Helper()
	var walk func(path string, live, printed any)
	walk = func(path string, live, printed any) {
		switch live := live.(type) {
		case map[string]any:
			printed, _ := printed.(map[string]any)
			for key, value := range live {
				if _, ok := printed[key]; ok {
					walk(path+"."+key, value, printed[key])
				}
			}
		case []any:
			if diff := cmp.Diff(printed, live); diff != "" {
				t.Errorf("%s%s: a second kubectl apply would find a change (-printed +live):\n%s", describe(object), path, diff)
			}
		}
	}
	var live, printed map[string]any
	b, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &live); err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(document, &printed); err != nil {
		t.Fatal(err)
	}
	walk("", live, printed)
}

// variable matches everything that Tekton, Kubernetes or Flux would expand.
var variable = regexp.MustCompile(`\$[({$][^)}]*[)}]?`)

// tektonVariable matches the variables that Tekton must expand.
var tektonVariable = regexp.MustCompile(`^\$\((params\.[a-z-]+(\[\*\])?|params\["[a-zA-Z0-9.-]+"\]|context\.pipelineRun\.(name|uid)|tasks\.(setup|probe)-[a-z0-9-]+\.(status|reason)|tasks\.setup-[a-z0-9-]+\.results\.measurable|finally\.conclude\.results\.[a-z]+|steps\.step-teardown\.exitCode\.path)\)$`)

// checkCompiled checks what must be true for every plan.
func checkCompiled(t *testing.T, plan *checkup.Plan, opts Options) {
	t.Helper()
	o := compile(t, plan, opts)
	all := append(o.Applied(), o.Sample)
	text := encodeObjects(t, all...)

	if again := compile(t, plan, opts); !bytes.Equal(text, encodeObjects(t, append(again.Applied(), again.Sample)...)) {
		t.Error("a second compile gives other bytes")
	}
	checkRoundTrip(t, text)
	applied := documents(text)[:len(o.Applied())]
	for i, object := range o.Applied() {
		checkLists(t, object, applied[i])
	}
	for _, v := range variable.FindAllString(string(text), -1) {
		if !tektonVariable.MatchString(v) {
			t.Errorf("%q would be expanded", v)
		}
	}
	for _, document := range applied {
		for _, noise := range []string{"creationTimestamp", "\nstatus:", "computeResources: {}", ": null\n", "generateName"} {
			if bytes.Contains(slices.Concat(document, []byte("\n")), []byte(noise)) {
				t.Errorf("%q in the applied objects", noise)
			}
		}
	}

	// A step reads the plan that was compiled.
	planParams := 0
	for _, task := range append(o.Pipeline.Spec.Tasks, o.Pipeline.Spec.Finally...) {
		for _, param := range task.Params {
			if param.Name != paramPlan {
				continue
			}
			planParams++
			got, err := kinds.DecodeStrict([]byte(param.Value.StringVal))
			if err != nil {
				t.Fatalf("task %s: plan: %v", task.Name, err)
			}
			want, _ := json.Marshal(plan)
			if have, _ := json.Marshal(got); !bytes.Equal(want, have) {
				t.Errorf("task %s: plan:\n%s\nwant\n%s", task.Name, have, want)
			}
		}
	}
	if want := len(plan.Checks) + 1; planParams != want {
		t.Errorf("%d tasks receive the plan, want %d", planParams, want)
	}

	// The Pipeline has a param for each of the plan that is not rare, and all of them reach setup and conclude. The last
	// one names all that are rare.
	got := map[string]string{}
	for _, p := range o.Pipeline.Spec.Params {
		got[p.Name] = p.Default.StringVal
	}
	want := map[string]string{checkup.SettingsParam: ""}
	last := o.Pipeline.Spec.Params[len(o.Pipeline.Spec.Params)-1]
	for _, p := range plan.Params() {
		if !p.Rare {
			want[p.Name] = p.Default
		} else if !strings.Contains(last.Description, p.Name) {
			t.Errorf("the description of param %s does not name %s: %s", last.Name, p.Name, last.Description)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("params (-plan +pipeline):\n%s", diff)
	}
	if last.Name != checkup.SettingsParam {
		t.Errorf("the last param is %s, and could override others", last.Name)
	}
	if first := o.Pipeline.Spec.Params[0].Description; !strings.Contains(first, "choose the ServiceAccount "+plan.Name) {
		t.Errorf("the first text of the form does not name the account: %s", first)
	}

	checkNesting(t, plan, o)
}

// checkNesting: process < step < task < run, and every task has a timeout.
func checkNesting(t *testing.T, plan *checkup.Plan, o *Objects) {
	t.Helper()
	tasks := map[string]*pipelinev1.Task{}
	for _, task := range o.Tasks {
		tasks[task.Name] = task
	}
	end := map[string]time.Duration{}
	var last time.Duration
	for _, pt := range o.Pipeline.Spec.Tasks {
		var steps time.Duration
		for _, step := range tasks[pt.TaskRef.Name].Spec.Steps {
			steps += step.Timeout.Duration
		}
		for _, param := range pt.Params {
			if param.Name == paramTimeout {
				process, err := time.ParseDuration(param.Value.StringVal)
				if err != nil || process <= 0 || process >= steps {
					t.Errorf("%s: the process ends after %s (%v), the step after %s", pt.Name, process, err, steps)
				}
			}
		}
		if steps >= pt.Timeout.Duration {
			t.Errorf("%s: the steps end after %s, the task after %s", pt.Name, steps, pt.Timeout.Duration)
		}
		var start time.Duration
		for _, before := range pt.RunAfter {
			start = max(start, end[before])
		}
		end[pt.Name] = start + pt.Timeout.Duration
		last = max(last, end[pt.Name])
	}
	conclude := o.Pipeline.Spec.Finally[0]
	var steps time.Duration
	for _, step := range tasks[conclude.TaskRef.Name].Spec.Steps {
		steps += step.Timeout.Duration
	}
	if steps >= conclude.Timeout.Duration {
		t.Errorf("conclude: the steps end after %s, the task after %s", steps, conclude.Timeout.Duration)
	}
	timeouts := o.Sample.Spec.Timeouts
	if conclude.Timeout.Duration > timeouts.Finally.Duration {
		t.Errorf("conclude ends after %s, finally after %s", conclude.Timeout.Duration, timeouts.Finally.Duration)
	}
	if last+conclude.Timeout.Duration >= timeouts.Tasks.Duration {
		t.Errorf("tasks and finally may take %s, but timeouts.tasks is %s", last+conclude.Timeout.Duration, timeouts.Tasks.Duration)
	}
	if timeouts.Tasks.Duration+timeouts.Finally.Duration >= timeouts.Pipeline.Duration {
		t.Errorf("timeouts.tasks %s and finally %s do not fit into pipeline %s", timeouts.Tasks.Duration, timeouts.Finally.Duration, timeouts.Pipeline.Duration)
	}
}

func TestCompiled(t *testing.T) {
	for _, plan := range []*checkup.Plan{smallPlan(), twoChecks(), allKinds()} {
		t.Run(plan.Name, func(t *testing.T) { checkCompiled(t, plan, testOptions) })
	}
}

func TestCompiledRandomPlans(t *testing.T) {
	plans := uint64(6)
	if os.Getenv("CHECKPLAN_LONG") != "" {
		plans = 100
	}
	for seed := range plans {
		plan := randomPlan(rand.New(rand.NewPCG(seed, 1)))
		t.Run(fmt.Sprint(seed), func(t *testing.T) { checkCompiled(t, plan, testOptions) })
		if t.Failed() {
			t.FailNow()
		}
	}
}

// TestPlatformSetsUsers: nothing that is compiled names a UID or a GID. They are those of the image, or of OpenShift's
// range for the namespace, which admits no other. RBAC grants the use of hostnetwork-v2 to the account that starts
// agents on the host network, where the plan may be for OpenShift.
func TestPlatformSetsUsers(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(paths) == 0 {
		t.Fatal(paths, err)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, field := range []string{"runAsUser", "runAsGroup", "fsGroup", "supplementalGroups", "seLinuxOptions"} {
			if bytes.Contains(text, []byte(field+":")) {
				t.Errorf("%s has %s", path, field)
			}
		}
	}
	for preset, want := range map[controlplane.Preset]bool{"auto": true, "openshift": true, "kubeadm": false, "generic": false} {
		check := checkup.Check{Spec: &controlplane.Spec{Preset: preset}}
		got := slices.ContainsFunc(kinds.Rights(check), func(r checkup.Right) bool {
			return r.Phase == checkup.PhaseProbe && r.Scope == checkup.ScopeRun && r.Group == "security.openshift.io" &&
				r.Resource == "securitycontextconstraints" && slices.Equal(r.Names, []string{"hostnetwork-v2"}) && r.Verb == "use"
		})
		if got != want {
			t.Errorf("preset %s: the use of hostnetwork-v2 is granted: %v, want %v", preset, got, want)
		}
	}
}

// TestVerdictInSight: the dashboard shows the first four labels of a run, by name. The verdict is one of them, with a
// label that Argo CD adds to the Pipeline, too.
func TestVerdictInSight(t *testing.T) {
	o := compile(t, smallPlan(), testOptions)
	labels := []string{"app.kubernetes.io/instance", checkup.LabelVerdict, checkup.LabelScheduled}
	for name := range o.Pipeline.Labels { // Tekton copies them to runs
		labels = append(labels, name)
	}
	for name := range o.Sample.Labels {
		labels = append(labels, name)
	}
	slices.Sort(labels)
	if i := slices.Index(slices.Compact(labels), checkup.LabelVerdict); i > 3 {
		t.Errorf("the verdict is label %d of %q", i+1, labels)
	}
}

func TestDefaultOptions(t *testing.T) {
	got := encodeObjects(t, compile(t, smallPlan(), Options{}).Applied()...)
	want := encodeObjects(t, compile(t, smallPlan(), Options{
		Namespace: DefaultNamespace, ImageRepository: DefaultImageRepository, ImageTag: DefaultImageTag, Tekton: Tekton115,
	}).Applied()...)
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("empty options (-want +got):\n%s", diff)
	}
}

// TestNothingToMeasure: a probe task is started only if the result of its setup task
// says that something can be measured.
func TestNothingToMeasure(t *testing.T) {
	o := compile(t, allKinds(), testOptions)
	for _, task := range o.Pipeline.Spec.Tasks {
		phase, check, _ := strings.Cut(task.Name, "-")
		var want pipelinev1.WhenExpressions
		if phase == string(checkup.PhaseProbe) {
			want = pipelinev1.WhenExpressions{{Input: "$(tasks.setup-" + check + ".results.measurable)", Operator: "in", Values: []string{"true"}}}
		}
		if diff := cmp.Diff(want, task.When); diff != "" {
			t.Errorf("%s (-want +got):\n%s", task.Name, diff)
		}
	}
	for _, task := range o.Tasks {
		has := slices.ContainsFunc(task.Spec.Results, func(r pipelinev1.TaskResult) bool { return r.Name == "measurable" })
		if want := strings.HasPrefix(task.Name, "checkplan-setup"); has != want {
			t.Errorf("%s: result measurable: %v, want %v", task.Name, has, want)
		}
	}
}

func TestAfter(t *testing.T) {
	o := compile(t, twoChecks(), testOptions)
	got := map[string][]string{}
	for _, task := range o.Pipeline.Spec.Tasks {
		got[task.Name] = task.RunAfter
	}
	want := map[string][]string{"setup-wide": nil, "probe-wide": {"setup-wide"}, "setup-shop": {"probe-wide"}, "probe-shop": {"setup-shop"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("runAfter (-want +got):\n%s", diff)
	}
}

// TestWatch: the time limit of a process includes the time of its watch, and the
// timeouts of its step and task are longer. checkNesting passes, too.
func TestWatch(t *testing.T) {
	plan := allKinds()
	const watch = time.Hour
	for _, pt := range compile(t, plan, testOptions).Pipeline.Spec.Tasks {
		if pt.Name != "probe-watch" {
			continue
		}
		for _, param := range pt.Params {
			if param.Name != paramTimeout {
				continue
			}
			process, err := time.ParseDuration(param.Value.StringVal)
			if want := watch + time.Duration(plan.Checks["watch"].Spec.(*controlplane.Spec).Timeouts.Probe) + Overhead; err != nil || process != want {
				t.Errorf("the process has %s (%v), want %s", process, err, want)
			}
		}
		return
	}
	t.Error("no task watches")
}

func TestLongStepsHaveTasksOfTheirOwn(t *testing.T) {
	var names []string
	for _, task := range compile(t, twoChecks(), testOptions).Tasks {
		names = append(names, task.Name)
	}
	want := []string{"checkplan-setup", "checkplan-probe", "checkplan-probe-40m", "checkplan-conclude"}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("tasks (-want +got):\n%s", diff)
	}
}

func TestRefused(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*checkup.Plan, *Options)
		want   []string
	}{
		{"plan name", func(p *checkup.Plan, _ *Options) { p.Name = "Small_plan" },
			[]string{`plan Small_plan: name "Small_plan" is not a DNS label`}},
		{"long plan name", func(p *checkup.Plan, _ *Options) { p.Name = strings.Repeat("a", 46) },
			[]string{"name has 46 characters; at most 45 leave room"}},
		{"check name", func(p *checkup.Plan, _ *Options) { p.Checks["a.b"] = mesh() },
			[]string{`plan small: checks.a.b: name "a.b" is not a DNS label`}},
		{"long check name", func(p *checkup.Plan, _ *Options) { p.Checks[strings.Repeat("b", 21)] = mesh() },
			[]string{"name has 21 characters; at most 20 leave room"}},
		{"no check", func(p *checkup.Plan, _ *Options) { p.Checks = nil },
			[]string{"plan small: checks: no check: want at least one"}},
		{"no kind", func(p *checkup.Plan, _ *Options) { p.Checks["mesh"] = checkup.Check{} },
			[]string{"plan small: checks.mesh: no kind"}},
		{"unknown after", func(p *checkup.Plan, _ *Options) { p.Checks["mesh"] = mesh("gone") },
			[]string{`plan small: checks.mesh.after[0]: no check "gone" in this plan`}},
		{"cycle", func(p *checkup.Plan, _ *Options) { p.Checks = map[string]checkup.Check{"a": mesh("b"), "b": mesh("a")} },
			[]string{"cycle of checks: a after b after a"}},
		{"after itself", func(p *checkup.Plan, _ *Options) { p.Checks["mesh"] = mesh("mesh") },
			[]string{`check "mesh" has itself in after: remove it`}},
		{"timeouts", func(p *checkup.Plan, _ *Options) {
			p.Checks["mesh"].Spec.(*podmesh.Spec).Timeouts = checkup.Timeouts{Setup: 0, Probe: 1<<63 - 1}
		}, []string{
			"checks.mesh.podMesh.timeouts.setup: 0s is not more than 0s",
			"checks.mesh.podMesh.timeouts.probe: 2562047h47m16.854775807s is more than a day"}},
		{"namespace of targets", func(p *checkup.Plan, _ *Options) {
			p.Checks["mesh"].Spec.(*podmesh.Spec).Targets.Pods = &podmesh.PodTargets{Namespace: "a/b"}
		}, []string{`plan small: checks.mesh: namespace "a/b": a lowercase RFC 1123 label`}},
		{"namespace of components", func(p *checkup.Plan, _ *Options) {
			p.Checks["api"] = controlPlane()
			p.Checks["api"].Spec.(*controlplane.Spec).Preset = controlplane.PresetGeneric
			p.Checks["api"].Spec.(*controlplane.Spec).Pairs = []controlplane.ComponentPair{{From: "shop", To: "shop"}}
			p.Checks["api"].Spec.(*controlplane.Spec).Roles = map[string]controlplane.ComponentRole{"shop": {Pods: &controlplane.ComponentPods{
				Namespace: "a/b", Port: 80, Selector: checkup.LabelSelector{MatchLabels: map[string]string{"app": "shop"}},
			}}}
		}, []string{`plan small: checks.api: namespace "a/b": a lowercase RFC 1123 label`}},
		{"dollar sign in a default", func(p *checkup.Plan, _ *Options) { p.Gate.Require = "$(x)" },
			[]string{`plan small: parameter gate: "$(x)" has a dollar sign`}},
		{"plan beyond a process' environment", func(p *checkup.Plan, _ *Options) { p.Description = strings.Repeat("x", 128<<10) },
			[]string{"plan small: the plan has ", "bytes as JSON; at most 131066 fit what Linux passes to a task: split it"}},
		{"pipeline beyond a PipelineRun", func(p *checkup.Plan, _ *Options) {
			p.Description = strings.Repeat("x", 100<<10)
			for i := range 10 {
				p.Checks[fmt.Sprint("c", i)] = mesh()
			}
		}, []string{"its Pipeline holds it 12 times", "at most 1048576 bytes fit: split it"}},
		{"namespace", func(_ *checkup.Plan, o *Options) { o.Namespace = "a/b" },
			[]string{`namespace "a/b": a lowercase RFC 1123 label`}},
		{"image repository", func(_ *checkup.Plan, o *Options) { o.ImageRepository = "https://example.com/x:1" },
			[]string{`image repository "https://example.com/x:1": want a registry host and a path`}},
		{"image tag", func(_ *checkup.Plan, o *Options) { o.ImageTag = "v1 beta" },
			[]string{`image tag "v1 beta": want up to 128 letters`}},
		{"image tag that is no label", func(_ *checkup.Plan, o *Options) { o.ImageTag = strings.Repeat("1", 100) },
			[]string{"not valid as value of the label app.kubernetes.io/version: must be no more than 63"}},
		{"digest that is missing", func(_ *checkup.Plan, o *Options) { o.ImageDigests = map[string]string{"setup": "sha256:0"} },
			[]string{"image digests: no digest of the image probe", "image digests: no digest of the image guest"}},
		{"write in a namespace of Kubernetes", func(p *checkup.Plan, _ *Options) {
			p.Checks["vms"] = vmLatency()
			p.Checks["vms"].Spec.(*vmlatency.Spec).Kiagnose = &checkup.ConfigMapRef{Namespace: "kube-system", Name: "coredns"}
		}, []string{"checks.vms: would get the right to update configmaps coredns in namespace kube-system"}},
		{"profile", func(_ *checkup.Plan, o *Options) { o.Tekton = "1.9" },
			[]string{`tekton profile "1.9": want one of 1.12, 1.15`}},
		{"everything at once", func(p *checkup.Plan, o *Options) { p.Name, p.Checks, o.Namespace = "A", nil, "B" },
			[]string{`namespace "B"`, `plan A: name "A" is not`, "no check: want at least one"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			plan, opts := smallPlan(), testOptions
			test.change(plan, &opts)
			o, err := Compile(plan, opts)
			if err == nil || o != nil {
				t.Fatalf("got %v and error %v, want no objects and an error", o, err)
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q\ndoes not contain %q", err, want)
				}
			}
		})
	}
}

// Images are pinned by the references that ko wrote.
func TestImageDigests(t *testing.T) {
	hex := strings.Repeat("0123456789abcdef", 4)
	var refs strings.Builder
	for _, name := range taskImages {
		fmt.Fprintf(&refs, "registry.example.com:5000/team/%s@sha256:%s\n", name, hex)
	}
	fmt.Fprintf(&refs, "registry.example.com:5000/team/guest:v0.1.0@sha256:%s\n", hex) // ko's form, with --tags
	digests, err := ParseDigests([]byte(refs.String()))
	if err != nil {
		t.Fatal(err)
	}
	opts := testOptions
	opts.ImageDigests = digests
	for _, image := range append(Images(opts), GuestImage(opts)) {
		if !strings.HasSuffix(image, "@sha256:"+hex) {
			t.Errorf("image %s is not pinned", image)
		}
	}
	for text, want := range map[string]string{
		"":                               "no image references in it",
		"setup:v1":                       `line 1: want REPOSITORY/NAME@sha256:HEX, not "setup:v1"`,
		"\nr.io/setup@sha256:" + hex[1:]: "line 2: want REPOSITORY/NAME@sha256:HEX",
		"r.io/a@sha256:" + hex + "\nr.io/a:v1@sha256:" + strings.Repeat("0", 64): "line 2: a second digest of the image a",
	} {
		if _, err := ParseDigests([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", text, err, want)
		}
	}
}

// TestTektonRefuses: the user sees the errors of Tekton's validation, with the name of
// the object.
func TestTektonRefuses(t *testing.T) {
	task := compile(t, smallPlan(), testOptions).Tasks[0]
	task.Spec.Steps[0].Image = ""
	task.Spec.Steps[0].Args = append(task.Spec.Steps[0].Args, "$(params.nothing)")
	task.Annotations = map[string]string{"a": strings.Repeat("x", 300<<10)}
	task.Spec.Description = strings.Repeat("x", 1<<20)
	err := validateAll(task)
	for _, want := range []string{
		"Tekton would refuse task/checkplan-setup: ", "missing field(s): spec.steps[0].Image", `non-existent variable in "$(params.nothing)"`,
		"task/checkplan-setup: annotations are 307201 bytes long; Kubernetes allows 262144 bytes (256 KiB)",
		"task/checkplan-setup: object is ", "bytes long; a PipelineRun has room for 1048576 bytes (1 MiB): split the plan",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v\ndoes not contain %q", err, want)
		}
	}
}

func BenchmarkCompile(b *testing.B) {
	for _, checks := range []int{1, 10} {
		plan := planOf("bench", "A plan", map[string]checkup.Check{})
		for i := range checks {
			plan.Checks[fmt.Sprint("mesh-", i)] = mesh()
		}
		b.Run(fmt.Sprintf("checks=%d", checks), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				compile(b, plan, testOptions)
			}
		})
	}
}

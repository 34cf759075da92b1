// SPDX-License-Identifier: Apache-2.0

package tekton

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	pipelinev1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/checkplan/checkplan/pkg/checkup"
)

var digest = "sha256:" + strings.Repeat("0123456789abcdef", 4)

// resolvers has one of each Resolver.
var resolvers = []string{
	"bundles=registry.example.com:5000/team/catalog:v1.2.3@" + digest + ",secret=pull",
	"cluster=checkplan-tasks",
	"git=https://git.example.com/team/plans.git,revision=" + strings.Repeat("ab", 20) + ",path=net/catalog,secret=git-token",
	"hub=checkplan,version=1.2.3",
}

func resolver(t testing.TB, text string) Resolver {
	t.Helper()
	r, err := ParseResolver(text)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return r
}

// TestResolverGolden: what a plan compiles to with each resolver, of its Tasks and of its Pipeline. Tekton validates
// it, and defaults nothing.
func TestResolverGolden(t *testing.T) {
	var names []string
	for _, text := range resolvers {
		r := resolver(t, text)
		names = append(names, r.Name)
		t.Run(r.Name, func(t *testing.T) {
			if r.String() != text {
				t.Errorf("parsed and printed: %s, want %s", r, text)
			}
			opts := testOptions
			opts.Tasks, opts.Pipelines = r, r
			o := compile(t, smallPlan(), opts)
			if len(o.Tasks) > 0 {
				t.Errorf("%d Tasks, which the resolver finds elsewhere", len(o.Tasks))
			}
			text := encodeObjects(t, o.Pipeline, o.Sample)
			golden(t, "small-"+r.Name+".yaml", text)
			checkRoundTrip(t, text)
			// Nothing else differs.
			local := compile(t, smallPlan(), testOptions)
			if diff := cmp.Diff(local.Rights, o.Rights); diff != "" {
				t.Errorf("rights (-without resolver +with):\n%s", diff)
			}
			for _, p := range []*pipelinev1.Pipeline{local.Pipeline, o.Pipeline} {
				for _, tasks := range [][]pipelinev1.PipelineTask{p.Spec.Tasks, p.Spec.Finally} {
					for i := range tasks {
						tasks[i].TaskRef = nil
					}
				}
			}
			if diff := cmp.Diff(local.Pipeline, o.Pipeline); diff != "" {
				t.Errorf("Pipeline (-without resolver +with):\n%s", diff)
			}
		})
	}
	if diff := cmp.Diff(Resolvers, names); diff != "" {
		t.Errorf("resolvers without a test:\n%s", diff)
	}
}

func TestParseResolver(t *testing.T) {
	commit := strings.Repeat("ab", 20)
	for text, want := range map[string]string{ // want: part of the error; empty: none
		"":                                     `unknown resolver "": want NAME=FROM, where NAME is one of bundles, cluster, git, hub`,
		"http=https://x":                       `unknown resolver "http"`,
		"bundles":                              "want bundles=registry.example.com/checkplan/catalog:v0.1.0@sha256:HEX",
		"bundles=":                             "want bundles=registry",
		"bundles=r.io/team/x":                  "want a reference with registry, repository, and tag or digest",
		"bundles=team/x:v1":                    "want a reference with registry",
		"bundles=https://r.io/team/x:v1":       "want a reference with registry",
		"bundles=r.io/../x:v1":                 "want a reference with registry",
		"bundles=user:pass@r.io/team/x:v1":     "want a reference with registry",
		"bundles=r.io/team/x:$(params.x)":      "want a reference with registry",
		"bundles=r.io/team/x@sha256:0":         "want a reference with registry",
		"bundles=r.io/team/x:v1":               "",
		"bundles=localhost:5000/team/x:v1":     "",
		"bundles=r.io/team/x@" + digest:        "",
		"bundles=r.io/team/x:v1,secret=A b":    "secret=A b: want the name of a Secret",
		"bundles=r.io/team/x:v1,password=x":    `bundles has no parameter "password"; it has: secret`,
		"bundles=r.io/xx:v1,secret=a,secret=b": "secret is given twice",
		"cluster=":                             "want cluster=NAMESPACE",
		"cluster=Kube System":                  "want a namespace",
		"cluster=a,secret=b":                   `cluster has no parameter "secret"`,
		"git=https://x.io/a.git":               "git is missing revision=...: a commit, a tag or a branch",
		"git=,path=a":                          "git is missing revision",
		"git=https://x.io/a.git,revision=":     "revision=: want a commit, a tag or a branch",
		"git=https://x.io/a.git,revision=--upload-pack=/bin/sh": "want a commit, a tag or a branch",
		"git=https://x.io/a.git,revision=a/../b":                "want a commit, a tag or a branch",
		"git=https://x.io/a.git,revision=v1,path=../x":          "path=../x: want the directory",
		"git=https://x.io/a.git,revision=v1,path=a/../../x":     "want the directory",
		"git=https://x.io/a.git,revision=v1,path=/etc":          "path=/etc: want the directory",
		"git=https://x.io/a.git,revision=v1,path=$(x)":          "want the directory",
		"git=https://x.io/a.git,revision=$(params.r)":           "want a commit",
		"git=http://x.io/a.git,revision=v1":                     "want a URL that begins with https:// or ssh://",
		"git=file:///etc,revision=v1":                           "want a URL",
		"git=/etc,revision=v1":                                  "want a URL",
		"git=https://x.io,revision=v1":                          "want a URL",
		"git=https://x.io/a?token=b,revision=v1":                "want a URL",
		"git=https://token@x.io/a.git,revision=v1":              "has credentials: put them into a Secret",
		"git=ssh://git:secret@x.io/a.git,revision=v1":           "has credentials",
		"git=ssh://git@x.io/a.git,revision=v1":                  "",
		"git=https://x.io/a.git,revision=" + commit:             "",
		"git=https://x.io/a.git,revision=feature/x,path=.":      "",
		"hub":                         "want hub=CATALOG",
		"hub=../x":                    "want the name of a catalog",
		"hub=checkplan,version=>=0.1": "version=>=0.1: want a version",
		"hub=checkplan":               "",
	} {
		r, err := ParseResolver(text)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", text, err, want)
		}
		if err == nil && r.String() != text {
			t.Errorf("%q: parsed and printed: %s", text, r)
		}
	}
}

// A run can change under the feet of its later Tasks, unless the reference is by content or version.
func TestChangeable(t *testing.T) {
	for text, want := range map[string]string{
		"bundles=r.io/team/x:v1":                                                  "r.io/team/x:v1 is a tag, and not a digest (REF@sha256:HEX)",
		"bundles=r.io/team/x:v1@" + digest:                                        "",
		"cluster=tasks":                                                           "those of namespace tasks can be upgraded",
		"git=https://x.io/a.git,revision=main":                                    "revision main is not a commit",
		"git=https://x.io/a.git,revision=" + strings.Repeat("ab", 20):             "",
		"git=https://x.io/a.git,revision=" + strings.Repeat("ab", 32):             "",
		"git=https://x.io/a.git,revision=" + strings.Repeat("ab", 20) + ",path=a": "",
		"hub=checkplan,version=1.0":                                               "",
	} {
		if got := resolver(t, text).Changeable(); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
	if got := (Resolver{}).Changeable(); got == "" {
		t.Error("Tasks of the namespace cannot change")
	}
}

func TestHubNeedsAVersion(t *testing.T) {
	opts := testOptions
	opts.Tasks = resolver(t, "hub=checkplan")
	o := compile(t, smallPlan(), opts)
	if params := o.Pipeline.Spec.Tasks[0].TaskRef.Params; params[3].Value.StringVal != "1.2.3" {
		t.Errorf("params %v, want the version of the image tag", params)
	}
	opts.ImageTag = "main"
	if _, err := Compile(smallPlan(), opts); err == nil ||
		!strings.Contains(err.Error(), `image tag "main" is no version of a hub: add version=VERSION to hub=checkplan`) {
		t.Errorf("error %v", err)
	}
}

// A bundle of plans has each Task once and, if the Tasks are elsewhere, the Pipelines; all without a namespace.
func TestBundle(t *testing.T) {
	plans := []*checkup.Plan{twoChecks(), smallPlan()}
	tasks := []string{"task/checkplan-conclude", "task/checkplan-probe", "task/checkplan-probe-40m", "task/checkplan-setup"}
	for _, tt := range []struct {
		from string
		want []string
	}{
		{"", tasks},
		{resolvers[0], append(slices.Clone(tasks), "pipeline/small", "pipeline/two-checks")},
	} {
		opts := testOptions
		if tt.from != "" {
			opts.Tasks = resolver(t, tt.from)
		}
		objects, err := Bundle(plans, opts)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, object := range objects {
			got = append(got, describe(object))
			m, err := meta.Accessor(object)
			if err != nil {
				t.Fatal(err)
			}
			if m.GetNamespace() != "" {
				t.Errorf("%s is in namespace %s", describe(object), m.GetNamespace())
			}
			text := encodeObjects(t, object)
			if p, ok := object.(*pipelinev1.Pipeline); ok {
				if !bytes.Contains(text, []byte(digest)) {
					t.Errorf("%s does not name the bundle of its Tasks", describe(object))
				}
				again, err := DecodePipeline(text)
				if err != nil || !bytes.Equal(text, encodeObjects(t, again)) {
					t.Errorf("%s, read again: %v", p.Name, err)
				}
			} else if _, err := DecodePipeline(text); err == nil {
				t.Errorf("%s was read as a Pipeline", describe(object))
			}
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("objects (-want +got):\n%s", diff)
		}
	}
	if _, err := Bundle([]*checkup.Plan{smallPlan(), smallPlan()}, testOptions); err == nil || !strings.Contains(err.Error(), "duplicate name") {
		t.Errorf("two plans of one name: %v", err)
	}
}

// TestStartFrom: a run of a Pipeline of a bundle is the sample of the plan in the run's namespace.
func TestStartFrom(t *testing.T) {
	opts := testOptions
	opts.Tasks, opts.Pipelines = resolver(t, resolvers[0]), resolver(t, resolvers[0])
	o := compile(t, smallPlan(), opts)
	o.Pipeline.Namespace = ""
	run, err := Start(o.Pipeline, "team-a", opts.Pipelines, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	o.Sample.Namespace = "team-a"
	if diff := cmp.Diff(o.Sample, run); diff != "" {
		t.Errorf("run (-sample +started):\n%s", diff)
	}
}

// TestCatalogOfBundle: the catalog of a bundle has rights, samples and schedules, and neither Tasks nor Pipelines. That
// of another resolver has Pipelines.
func TestCatalogOfBundle(t *testing.T) {
	opts := testOptions
	opts.Tasks = resolver(t, resolvers[1])
	files, err := Catalog([]*checkup.Plan{smallPlan(), scheduled()}, opts)
	if err != nil {
		t.Fatal(err)
	}
	if files["pipeline/small/small.yaml"] == nil || !strings.Contains(string(files["README.md"]), "resolver `cluster` finds the Tasks in `checkplan-tasks`") {
		t.Errorf("README:\n%s", files["README.md"])
	}
	opts.Tasks, opts.Pipelines = resolver(t, resolvers[0]), resolver(t, resolvers[0])
	files, err = Catalog([]*checkup.Plan{smallPlan(), scheduled()}, opts)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if strings.HasPrefix(name, "task/") {
			t.Errorf("the catalog has %s", name)
		}
		if strings.HasSuffix(name, "kustomization.yaml") && bytes.Contains(text, []byte("task")) {
			t.Errorf("%s:\n%s", name, text)
		}
		if !strings.HasSuffix(name, ".yaml") || strings.Contains(name, "kustomiz") || strings.HasSuffix(name, "schedule.yaml") {
			continue
		}
		for _, object := range decodeStrict(t, text) {
			switch o := object.(type) {
			case *pipelinev1.Task, *pipelinev1.Pipeline:
				t.Errorf("%s has %s", name, describe(object))
			case *pipelinev1.PipelineRun:
				if o.Spec.PipelineRef.Resolver != "bundles" {
					t.Errorf("%s: pipelineRef %v", name, o.Spec.PipelineRef)
				}
			}
		}
	}
	if text := string(files["pipeline/scheduled/schedule.yaml"]); !strings.Contains(text, digest) {
		t.Errorf("the schedule does not name the bundle:\n%s", text)
	}
	golden(t, "catalog-bundle.txt", slices.Concat(files["README.md"], files["kustomization.yaml"], files["default/kustomization.yaml"],
		files["pipeline/scheduled/kustomization.yaml"], files["pipeline/small/samples/small.yaml"]))
}

func FuzzParseResolver(f *testing.F) {
	for _, text := range resolvers {
		f.Add(text)
	}
	f.Add("git=https://x.io/a.git,revision=main,path=.")
	f.Fuzz(func(t *testing.T, text string) {
		r, err := ParseResolver(text)
		if err != nil {
			return
		}
		again, err := ParseResolver(r.String())
		if err != nil || cmp.Diff(r.ref("task", "x", "1.0"), again.ref("task", "x", "1.0")) != "" {
			t.Errorf("%q: parsed, printed and parsed: %v, %v", text, again, err)
		}
		for _, p := range r.ref("task", "x", "1.0").Params {
			if value := p.Value.StringVal; strings.ContainsAny(value, "$\n\r\t,") || strings.Contains(value, "..") && p.Name == "pathInRepo" && dots(value) {
				t.Errorf("%q: param %s is %q", text, p.Name, value)
			}
		}
	})
}

// SPDX-License-Identifier: Apache-2.0

package kiagnose

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/kinds"
	"github.com/checkplan/checkplan/pkg/vmlatency"
)

func lines(notes []Note) string {
	var b strings.Builder
	for _, n := range notes {
		b.WriteString(n.String() + "\n")
	}
	return b.String()
}

// least are the keys that a ConfigMap must have.
func least(more ...string) map[string]string {
	data := map[string]string{
		"spec.timeout": "5m",
		"spec.param.networkAttachmentDefinitionNamespace": "ns",
		"spec.param.networkAttachmentDefinitionName":      "br10",
	}
	for i := 0; i < len(more); i += 2 {
		data[more[i]] = more[i+1]
	}
	return data
}

func limit(d time.Duration) *checkup.Duration {
	v := checkup.Duration(d)
	return &v
}

func TestFromData(t *testing.T) {
	want := func(change func(*vmlatency.Spec)) *vmlatency.Spec {
		v := &vmlatency.Spec{
			Networks:   []checkup.NetworkRef{{Namespace: "ns", Name: "br10"}},
			IPFamilies: []checkup.IPFamily{checkup.IPv4, checkup.IPv6},
			Duration:   checkup.Duration(5 * time.Second), Interval: checkup.Duration(200 * time.Millisecond),
			Guest:    checkup.Guest{Memory: "128Mi"},
			Timeouts: checkup.Timeouts{Setup: checkup.Duration(5 * time.Minute), Probe: checkup.Duration(5 * time.Minute)},
		}
		if change != nil {
			change(v)
		}
		return v
	}
	for _, tt := range []struct {
		name     string
		data     map[string]string
		want     *vmlatency.Spec
		warnings string
	}{
		{"least", least(), want(nil), ""},
		{"empty is not given", least("spec.param.sourceNode", "", "spec.param.targetNode", " ", "spec.param.sampleDurationSeconds", "", "spec.param.maxDesiredLatencyMilliseconds", ""), want(nil), ""},
		{
			"keys of others", least("note", "ask Kim", "spec.serviceAccountName", "sa", "spec.param.something", "1"), want(nil),
			"note: has no effect: it is no key of the checkup\n" +
				"spec.param.something: has no effect: it is no key of the checkup\n" +
				"spec.serviceAccountName: has no effect: the checkup brings its own service accounts\n",
		},
		{
			"one family", least("spec.param.ipFamilies", " IPv6 "),
			want(func(v *vmlatency.Spec) { v.IPFamilies = []checkup.IPFamily{checkup.IPv6} }), "",
		},
		{"0 is no limit", least("spec.param.maxDesiredLatencyMilliseconds", "0"), want(nil), ""},
		{"an earlier run's outcome", least("status.succeeded", "true", "status.result.minLatencyNanoSec", "0", "status.whatever", "x"), want(nil), ""},
		{
			"all, with space around", least("spec.param.sourceNode", " n1\n", "spec.param.targetNode", "n2", "spec.param.sampleDurationSeconds", " 201 ", "spec.param.maxDesiredLatencyMilliseconds", "50", "spec.timeout", "90s"),
			want(func(v *vmlatency.Spec) {
				v.Pairs = []checkup.NodePair{{Source: "n1", Target: "n2"}}
				v.Duration, v.Interval = checkup.Duration(201*time.Second), checkup.Duration(200*time.Millisecond)
				v.Expect.Latency.Max = limit(50 * time.Millisecond)
				v.Timeouts = checkup.Timeouts{Setup: checkup.Duration(90 * time.Second), Probe: checkup.Duration(90 * time.Second)}
			}), "",
		},
		{
			"old spellings", map[string]string{
				"spec.timeout": "5m", "spec.image": "i", "spec.clusterRoles": "a\nb\n", "spec.roles": "",
				"spec.param.network_attachment_definition_namespace": "ns", "spec.param.network_attachment_definition_name": "br10",
				"spec.param.source_node": "n1", "spec.param.target_node": "n1",
				"spec.param.sample_duration_seconds": "1", "spec.param.max_desired_latency_milliseconds": "86400000",
			},
			want(func(v *vmlatency.Spec) {
				v.Pairs = []checkup.NodePair{{Source: "n1", Target: "n1"}}
				v.Duration = checkup.Duration(time.Second)
				v.Expect.Latency.Max = limit(24 * time.Hour)
			}),
			`spec.clusterRoles: has no effect: the checkup needs rights in namespaces only, and brings its own roles
spec.image: has no effect: the checkup has images of its own
spec.param.max_desired_latency_milliseconds: is deprecated: write spec.param.maxDesiredLatencyMilliseconds
spec.param.network_attachment_definition_name: is deprecated: write spec.param.networkAttachmentDefinitionName
spec.param.network_attachment_definition_namespace: is deprecated: write spec.param.networkAttachmentDefinitionNamespace
spec.param.sample_duration_seconds: is deprecated: write spec.param.sampleDurationSeconds
spec.param.source_node: is deprecated: write spec.param.sourceNode
spec.param.target_node: is deprecated: write spec.param.targetNode
spec.roles: has no effect: the checkup brings its own roles
`,
		},
		{
			"camelCase wins", least("spec.param.network_attachment_definition_name", "A_wrong_one"), want(nil),
			"spec.param.network_attachment_definition_name: has no effect beside spec.param.networkAttachmentDefinitionName, which is its new spelling\n",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			check, warnings, problems := FromData(tt.data)
			if len(problems) > 0 {
				t.Fatalf("problems:\n%s", lines(problems))
			}
			if diff := cmp.Diff(tt.want, check); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(tt.warnings, lines(warnings)); diff != "" {
				t.Error(diff)
			}
			plan := &checkup.Plan{Name: "p", Gate: checkup.Gate{Require: checkup.RequirePass}, Retention: checkup.Retention{Reports: 1},
				Checks: map[string]checkup.Check{"latency": {Spec: check}}}
			if found := kinds.Problems(plan); len(found) > 0 {
				t.Errorf("the plan is invalid: %v", found)
			}
		})
	}
}

func TestFromDataProblems(t *testing.T) {
	for _, tt := range []struct {
		name string
		data map[string]string
		want string
	}{
		{"nothing", nil, `spec.param.networkAttachmentDefinitionName: is missing: want the name of the NetworkAttachmentDefinition
spec.param.networkAttachmentDefinitionNamespace: is missing: want the namespace of the NetworkAttachmentDefinition
spec.timeout: is missing: want a duration, such as 5m
`},
		{"one node", least("spec.param.sourceNode", "n1"), "spec.param.sourceNode: illegal source and target nodes combination: want targetNode too, or none of them, which means any two nodes\n"},
		{"other node", least("spec.param.target_node", "n1"), "spec.param.target_node: illegal source and target nodes combination: want sourceNode too, or none of them, which means any two nodes\n"},
		{"negative time", least("spec.timeout", "-5m"), `spec.timeout: "-5m": want more than 0s` + "\n"},
		{"overflowing time", least("spec.timeout", "9999999h"), `spec.timeout: "9999999h": want a duration with its unit, such as 5m` + "\n"},
		{"minutes without a unit", least("spec.timeout", "5"), `spec.timeout: "5": want a duration with its unit, such as 5m` + "\n"},
		{"no duration", least("spec.param.sampleDurationSeconds", "0"), `spec.param.sampleDurationSeconds: "0": want a whole number of seconds from 1 to 86400` + "\n"},
		{"negative duration", least("spec.param.sampleDurationSeconds", "-1"), `spec.param.sampleDurationSeconds: "-1": want a whole number of seconds from 1 to 86400` + "\n"},
		{"overflowing duration", least("spec.param.sample_duration_seconds", "9223372037"), `spec.param.sample_duration_seconds: "9223372037": want a whole number of seconds from 1 to 86400` + "\n"},
		{"half a second", least("spec.param.sampleDurationSeconds", "0.5"), `spec.param.sampleDurationSeconds: "0.5": want a whole number of seconds from 1 to 86400` + "\n"},
		{"negative limit", least("spec.param.maxDesiredLatencyMilliseconds", "-1"), `spec.param.maxDesiredLatencyMilliseconds: "-1": want a whole number of milliseconds from 0 to 86400000` + "\n"},
		{"a slash", least("spec.param.networkAttachmentDefinitionName", "ns/br10"), `spec.param.networkAttachmentDefinitionName: "ns/br10": want the name of the NetworkAttachmentDefinition: a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character` + "\n"},
		{"a family", least("spec.param.ipFamilies", "IPv4,v6"), `spec.param.ipFamilies: "IPv4,v6": want IPv4, IPv6, or both with a comma between them` + "\n"},
		{"a short timeout", least("spec.timeout", "10s"), `spec.timeout: "10s": want at least 22s, which guests need if nothing answers` + "\n"},
		{"unknown keys", least("spec.param.sourceNod", "", "spec.param.SourceNode", "", "spec.param.source_nodes", "", "spec.Timeout", "", "target_node", "", "spec.param.", "", "something.else", ""), `spec.Timeout: unknown key; did you mean spec.timeout?
spec.param.SourceNode: unknown key; did you mean spec.param.sourceNode?
spec.param.sourceNod: unknown key; did you mean spec.param.sourceNode?
spec.param.source_nodes: unknown key; did you mean spec.param.sourceNode?
target_node: unknown key; did you mean spec.param.targetNode?
`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			check, _, problems := FromData(tt.data)
			if check != nil {
				t.Errorf("want no check beside problems, got %+v", check)
			}
			if diff := cmp.Diff(tt.want, lines(problems)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestFromEnvironment(t *testing.T) {
	t.Setenv("A", "B=C")
	for name, value := range map[string]string{
		"NETWORK_ATTACHMENT_DEFINITION_NAMESPACE": "ns", "NETWORK_ATTACHMENT_DEFINITION_NAME": "br10", "SOURCE_NODE": "n1", "TARGET_NODE": "n2",
		"SAMPLE_DURATION_SECONDS": "10", "MAX_DESIRED_LATENCY_MILLISECONDS": "7",
	} {
		t.Setenv(name, value)
	}
	check, problems := FromEnvironment(os.Getenv)
	if len(problems) > 0 {
		t.Fatal(lines(problems))
	}
	want, _, _ := FromData(least("spec.param.sourceNode", "n1", "spec.param.targetNode", "n2", "spec.param.sampleDurationSeconds", "10", "spec.param.maxDesiredLatencyMilliseconds", "7"))
	want.Timeouts.Probe = checkup.Duration(2 * time.Minute)
	if diff := cmp.Diff(want, check); diff != "" {
		t.Error(diff)
	}
	// The value of a variable is never split.
	t.Setenv("NETWORK_ATTACHMENT_DEFINITION_NAME", "a=b")
	t.Setenv("NETWORK_ATTACHMENT_DEFINITION_NAMESPACE", "")
	t.Setenv("SOURCE_NODE", "")
	check, problems = FromEnvironment(os.Getenv)
	if check != nil || !strings.Contains(lines(problems), `NETWORK_ATTACHMENT_DEFINITION_NAME: "a=b": want the name`) ||
		!strings.Contains(lines(problems), "NETWORK_ATTACHMENT_DEFINITION_NAMESPACE: is missing") ||
		!strings.Contains(lines(problems), "TARGET_NODE: illegal source and target nodes combination") {
		t.Errorf("%+v, problems:\n%s", check, lines(problems))
	}
}

// Data is the inverse of FromData, or nil.
func TestData(t *testing.T) {
	for _, data := range []map[string]string{
		least("spec.param.sampleDurationSeconds", "5"),
		least("spec.param.sampleDurationSeconds", "5", "spec.param.ipFamilies", "IPv4"),
		least("spec.timeout", "1m30s", "spec.param.sourceNode", "n1", "spec.param.targetNode", "n2", "spec.param.sampleDurationSeconds", "300", "spec.param.maxDesiredLatencyMilliseconds", "50"),
	} {
		check, _, problems := FromData(data)
		if check == nil {
			t.Fatal(lines(problems))
		}
		check.Kiagnose = &checkup.ConfigMapRef{Name: "x"}
		if data["spec.timeout"] == "5m" {
			data["spec.timeout"] = "5m0s"
		}
		if diff := cmp.Diff(data, Data(check)); diff != "" {
			t.Error(diff)
		}
	}
	for name, change := range map[string]func(*vmlatency.Spec){
		"two networks": func(v *vmlatency.Spec) {
			v.Networks = append(v.Networks, checkup.NetworkRef{Namespace: "a", Name: "b"})
		},
		"no network":   func(v *vmlatency.Spec) { v.Networks = nil },
		"no namespace": func(v *vmlatency.Spec) { v.Networks[0].Namespace = "" },
		"two pairs": func(v *vmlatency.Spec) {
			v.Pairs = []checkup.NodePair{{Source: "a", Target: "b"}, {Source: "c", Target: "d"}}
		},
		"half seconds": func(v *vmlatency.Spec) { v.Duration += checkup.Duration(500 * time.Millisecond) },
		"microseconds": func(v *vmlatency.Spec) { v.Expect.Latency.Max = limit(1500 * time.Microsecond) },
		"loss":         func(v *vmlatency.Spec) { p := checkup.Percent(1); v.Expect.Loss.Max = &p },
		"timeouts":     func(v *vmlatency.Spec) { v.Timeouts.Probe++ },
	} {
		check, _, _ := FromData(least())
		change(check)
		if got := Data(check); got != nil {
			t.Errorf("%s: %v, want nil: the keys cannot express the check", name, got)
		}
	}
}

// TestInterval: an echo request at least every second, as ping sends them, for samples of up to an hour.
func TestInterval(t *testing.T) {
	for seconds, want := range map[string]time.Duration{
		"5": 200 * time.Millisecond, "300": 200 * time.Millisecond, "3599": time.Second, "3600": time.Second, "86400": 24 * time.Second,
	} {
		check, _, problems := FromData(least("spec.param.sampleDurationSeconds", seconds))
		if check == nil || time.Duration(check.Interval) != want {
			t.Errorf("%s s: %+v, %v; want an interval of %s", seconds, check, problems, want)
		}
	}
}

func FuzzFromData(f *testing.F) {
	f.Add("spec.timeout", "5m", "spec.param.sampleDurationSeconds", "5")
	f.Add("spec.param.source_node", "a", "spec.foo", "")
	f.Fuzz(func(t *testing.T, key1, value1, key2, value2 string) {
		check, warnings, problems := FromData(least(key1, value1, key2, value2))
		if (check == nil) == (len(problems) == 0) {
			t.Errorf("%+v and %v", check, problems)
		}
		for _, n := range append(warnings, problems...) {
			if n.Key != key1 && n.Key != key2 && !strings.HasPrefix(n.Key, SpecPrefix) {
				t.Errorf("%v has no key", n)
			}
		}
	})
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestNotRun(t *testing.T) {
	if _, err := readNotRun(notRunYAML); err != nil {
		t.Error(err)
	}
	bad := `[{test: "[sig-network] DNS should work", reason: because},
{test: "[sig-network] Services should work"}, {test: "[sig-network] Services should", reason: because, proxies: [jam]}]`
	want := `conformance/not-run.yaml: "[sig-network] DNS should work" is not in the focus ` + conformanceFocus.String() + `
[sig-network] Services should work: no reason
` + checkServiceProxy("jam").Error()
	if _, err := readNotRun([]byte(bad)); err == nil || err.Error() != want {
		t.Errorf("error is %v, want %s", err, want)
	}
	if _, err := readNotRun([]byte("[{tests: x}]")); err == nil {
		t.Error("a field that does not exist is no error")
	}
}

func TestJUnit(t *testing.T) {
	const report = `<?xml version="1.0" encoding="UTF-8"?>
<testsuites tests="6"><testsuite name="Kubernetes e2e suite" package="/"><properties></properties>
<testcase name="[It] [sig-network] Services should serve [Conformance]" classname="x" status="passed" time="3.1"></testcase>
<testcase name="[It] [sig-network] EndpointSlice should mirror " status="failed" time="3.1">
<failure type="failed">[FAILED] no &lt;answer&gt;&#xA;In [It] at: x.go:3</failure><system-err>log</system-err></testcase>
<testcase name="[It] [sig-network] Services should not run" status="skipped" time="0"><skipped message="skipped"></skipped></testcase>
<testcase name="[It] [sig-network] Services should need SSH" status="skipped"><skipped message="skipped - no SSH"></skipped></testcase>
<testcase name="[It] [sig-network] Services should panic" status="panicked"><error type="panicked">nil</error></testcase>
<testcase name="[It] [sig-network] DNS should provide DNS" status="skipped"><skipped message="skipped"></skipped></testcase>
<testcase name="[SynchronizedBeforeSuite]" status="passed"></testcase>
</testsuite></testsuites>`
	got, err := readJUnit([]byte(report))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]outcome{
		"[sig-network] Services should serve [Conformance]": {state: "passed"},
		"[sig-network] EndpointSlice should mirror":         {"failed", "[FAILED] no <answer>"},
		"[sig-network] Services should not run":             {state: "skipped"},
		"[sig-network] Services should need SSH":            {"skipped", "no SSH"},
		"[sig-network] Services should panic":               {"panicked", "nil"},
	}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(outcome{})); d != "" {
		t.Errorf("outcomes (-want +got):\n%s", d)
	}
	if _, err := readJUnit([]byte("<testsuites>")); err == nil {
		t.Error("half a report is no error")
	}
}

func TestReportConformance(t *testing.T) {
	passed := outcome{state: "passed"}
	list := []notRun{
		{Test: "disruptive", Reason: "breaks others"},
		{Test: "client address", Proxies: []string{ownUserspace}, Reason: "lost"},
	}
	for _, c := range []struct {
		what string
		runs []conformanceRun
		list []notRun
		want string
		err  string
	}{
		{
			what: "all as expected",
			runs: []conformanceRun{
				{"kube-proxy", map[string]outcome{"a": passed, "client address": passed, "disruptive": {state: "skipped"}}},
				{"userspace", map[string]outcome{"a": passed, "client address": {state: "skipped"}, "disruptive": {state: "skipped"}}},
			},
			list: list,
			want: `1 passed on kube-proxy, userspace:
  a
1 passed on kube-proxy:
  client address
    userspace: not run: lost
1 passed on none:
  disruptive
    kube-proxy: not run: breaks others
    userspace: not run: breaks others
`,
		},
		{
			what: "a failure, a test that skips itself, and one that a report lacks",
			runs: []conformanceRun{
				{"kube-proxy", map[string]outcome{"a": passed, "b": {"skipped", "needs two nodes"}, "c": passed}},
				{"nftables", map[string]outcome{"a": {"failed", "no answer"}, "b": passed}},
			},
			want: `2 passed on kube-proxy:
  a
    nftables: failed: no answer
  c
    nftables: not in the report
1 passed on nftables:
  b
    kube-proxy: skipped: needs two nodes
`,
			err: `a did not pass on nftables: failed: no answer
b did not pass on kube-proxy: skipped: needs two nodes
c did not pass on nftables: not in the report`,
		},
		{
			what: "a list that is wrong",
			runs: []conformanceRun{{"kube-proxy", map[string]outcome{"disruptive": passed}}},
			list: list,
			want: "1 passed on kube-proxy:\n  disruptive\n",
			err: `conformance/not-run.yaml has a test that does not exist: client address
disruptive ran on kube-proxy, although conformance/not-run.yaml has it`,
		},
	} {
		var b bytes.Buffer
		err := reportConformance(&b, c.runs, c.list)
		if d := cmp.Diff(c.want, b.String()); d != "" {
			t.Errorf("%s (-want +got):\n%s", c.what, d)
		}
		message := ""
		if err != nil {
			message = err.Error()
		}
		if d := cmp.Diff(c.err, message); d != "" {
			t.Errorf("%s: error (-want +got):\n%s", c.what, d)
		}
	}
}

// The image has what its own has at these paths, and busybox only where no package has the program.
func TestAgnhostRoot(t *testing.T) {
	root, source := t.TempDir(), t.TempDir()
	agnhost := filepath.Join(source, "bin")
	busybox := "#!/bin/sh\nprintf 'busybox\\nip\\nnc\\nnslookup\\nsh\\ntail\\n'\n"
	for path, content := range map[string]string{
		agnhost: "agnhost", filepath.Join(source, "porter/localhost.crt"): "crt", filepath.Join(source, "porter/localhost.key"): "key",
		filepath.Join(root, "usr/bin/busybox"): busybox, filepath.Join(root, "usr/bin/nslookup"): "bind's",
		filepath.Join(root, "usr/sbin/ip"): "iproute2's", filepath.Join(root, "usr/bin/nc.openbsd"): "nc",
		filepath.Join(root, "usr/bin/dash"): "dash",
	} {
		if err := writeFile(path, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := agnhostRoot(t.Context(), root, agnhost, source); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"agnhost": "agnhost", "localhost.crt": "crt", "localhost.key": "key", "usr/bin/nslookup": "bind's",
		"usr/bin/nc": "nc", "usr/bin/sh": "dash", "usr/bin/tail": busybox, "usr/bin/busybox": busybox, "usr/bin/ip": "",
	} {
		b, err := os.ReadFile(filepath.Join(root, path))
		if string(b) != want || (err != nil) != (want == "") {
			t.Errorf("%s has %q (%v), want %q", path, b, err, want)
		}
	}
}

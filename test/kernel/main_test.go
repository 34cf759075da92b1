// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"os"
	"strings"
	"testing"
)

// TestFailure: a test that did not run is a failure, too.
func TestFailure(t *testing.T) {
	for _, row := range []struct {
		name string
		r    result
		want string
	}{
		{"passed", result{output: "=== RUN TestA\n--- PASS: TestA (0.1s)\nPASS\n"}, ""},
		{"failed", result{code: 1, output: "--- FAIL: TestA"}, "exit code 1"},
		{"a part was skipped", result{output: "--- PASS: TestA (0.1s)\n    --- SKIP: TestA/ipvs (0.0s)\n    main.go:1: no\nPASS\n"}, "1 tests were skipped: --- SKIP: TestA/ipvs (0.0s)"},
		{"none matched", result{output: "testing: warning: no tests to run\nPASS\n"}, "no test ran"},
	} {
		err := row.r.failure()
		if row.want == "" && err != nil || row.want != "" && (err == nil || err.Error() != row.want) {
			t.Errorf("%s: %v, want %q", row.name, err, row.want)
		}
	}
}

// TestExtract: what the machine kept is written where it may be, and nowhere else.
func TestExtract(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.MkdirAll("pkg/testdata", 0o755); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"pkg/testdata/a.json": "", "pkg/a.json": "outside of pkg/testdata", "pkg/testdata/../../a": "outside", "/etc/passwd": "outside",
	} {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: 1}); err != nil {
			t.Fatal(err)
		}
		w.Write([]byte("x"))
		w.Close()
		err := extract(append(b.Bytes(), make([]byte, 4096)...), "pkg/testdata") // the disk is larger
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	if got, err := os.ReadFile("pkg/testdata/a.json"); err != nil || string(got) != "x" {
		t.Errorf("%q, %v", got, err)
	}
}

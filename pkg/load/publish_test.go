// SPDX-License-Identifier: Apache-2.0

package load

import (
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"cuelabs.dev/go/oci/ociregistry/ocimem"
	"cuelabs.dev/go/oci/ociregistry/ociserver"

	"github.com/checkplan/checkplan/pkg/ecosystem"
)

// TestPublish: the stock cue command publishes the module, and in a user's repository its mod tidy and vet work against
// the registry, and planner reads the same plan.
func TestPublish(t *testing.T) {
	for _, name := range []string{"git", "go"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skip(err)
		}
	}
	tool, err := exec.Command("go", "tool", "-n", "cue").Output()
	if err != nil {
		t.Fatalf("go tool -n cue: %v", err)
	}
	registry := httptest.NewServer(ociserver.New(ocimem.New(), nil))
	t.Cleanup(registry.Close)
	cache := t.TempDir()
	t.Cleanup(func() { // what CUE extracts is read-only
		_ = filepath.WalkDir(cache, func(path string, d os.DirEntry, _ error) error {
			if d != nil && d.IsDir() {
				return os.Chmod(path, 0o700)
			}
			return nil
		})
	})
	run := func(dir, name string, args ...string) (string, error) {
		cmd := exec.Command(name, args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "CUE_CACHE_DIR="+cache, "HOME="+cache, "GIT_CONFIG_GLOBAL=/dev/null",
			"CUE_REGISTRY="+strings.TrimPrefix(registry.URL, "http://")+"+insecure")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	must := func(dir, name string, args ...string) string {
		t.Helper()
		out, err := run(dir, name, args...)
		if err != nil {
			t.Fatalf("%s %s: %v\n%s", filepath.Base(name), strings.Join(args, " "), err, out)
		}
		return out
	}
	cue := strings.TrimSpace(string(tool))

	ours := t.TempDir()
	for _, name := range []string{"cue.mod", "schema"} {
		if err := os.CopyFS(filepath.Join(ours, name), os.DirFS(filepath.Join("../..", name))); err != nil {
			t.Fatal(err)
		}
	}
	must(ours, "git", "init", "--quiet")
	must(ours, "git", "add", ".")
	must(ours, "git", "-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "--quiet", "-m", "a")
	must(ours, cue, "mod", "publish", "v0.1.0")

	theirs := t.TempDir()
	const plan = "package plans\n\nimport \"github.com/checkplan/checkplan/schema\"\n\n" +
		"plan: small: schema.#Plan & {\n\tchecks: mesh: podMesh: probes: tcp: {}\n}\n"
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(theirs, "plan.cue"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(plan)
	must(theirs, cue, "mod", "init", "example.com/team@v0")
	must(theirs, cue, "mod", "tidy")
	must(theirs, cue, "vet", "-c", ".")
	file, err := os.ReadFile(filepath.Join(theirs, "cue.mod", "module.cue"))
	if err != nil || !strings.Contains(string(file), `"github.com/checkplan/checkplan@v0"`) {
		t.Fatalf("%v: mod tidy did not add the module:\n%s", err, file)
	}
	// Without the registry planner reads what cue read with it.
	t.Setenv("CUE_REGISTRY", "none")
	if read := Read(t.Context(), theirs, []string{"."}); len(read.Problems) > 0 || len(read.Plans) != 1 {
		t.Errorf("planner: %v, %d plans", read.Problems, len(read.Plans))
	}
	write(strings.Replace(plan, "tcp: {}", "tcp: {cuont: 3}", 1))
	if out, err := run(theirs, cue, "vet", "-c", "."); err == nil || !strings.Contains(out, "cuont: field not allowed") {
		t.Errorf("cue vet of a misspelt field: %v\n%s", err, out)
	}
	version := ecosystem.Version(t, "cuelang.org/go")
	const section = "CUE"
	ecosystem.Row(t, section, "`cue mod publish`", version, "the module, from a git repository, to an OCI registry in memory", "published")
	ecosystem.Row(t, section, "`cue mod tidy`, `cue vet -c`", version, "a new module with one plan, against that registry",
		"dependency added, no error; a misspelt field: `field not allowed`")
}

// TestModule: in a module with its own copy of the schema, the stock cue command reads and refuses plans without any
// registry, and so does planner.
func TestModule(t *testing.T) {
	tool, err := exec.Command("go", "tool", "-n", "cue").Output()
	if err != nil {
		t.Skipf("go tool -n cue: %v", err)
	}
	t.Setenv("CUE_REGISTRY", "none")
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		file := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range Module("plans.example@v0") {
		write(name, string(text))
	}
	vet := func() string {
		cmd := exec.Command(strings.TrimSpace(string(tool)), "vet", "-c", ".")
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if (err == nil) != (len(out) == 0) {
			t.Fatalf("cue vet: %v\n%s", err, out)
		}
		return string(out)
	}
	const plan = "package plans\n\nimport \"github.com/checkplan/checkplan/schema\"\n\n" +
		"plan: small: schema.#Plan & {\n\tchecks: mesh: podMesh: probes: tcp: {}\n}\n"
	write("plan.cue", plan)
	if out := vet(); out != "" {
		t.Errorf("cue vet: %s", out)
	}
	if read := Read(t.Context(), dir, []string{"."}); len(read.Problems) > 0 || len(read.Plans) != 1 {
		t.Errorf("planner: %v, %d plans", read.Problems, len(read.Plans))
	}
	write("plan.cue", strings.Replace(plan, "tcp: {}", "tcp: {cuont: 3}", 1))
	if out := vet(); !strings.Contains(out, "cuont: field not allowed") {
		t.Errorf("cue vet of a misspelt field: %q", out)
	}
	if read := Read(t.Context(), dir, []string{"."}); len(read.Problems) == 0 {
		t.Error("planner accepts a misspelt field")
	}
	ecosystem.Row(t, "CUE", "`cue vet -c`", ecosystem.Version(t, "cuelang.org/go"),
		"a directory of `planner init`, without a registry", "no error; a misspelt field: `field not allowed`")
}

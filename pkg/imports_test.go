// SPDX-License-Identifier: Apache-2.0

// Package pkg_test holds the import arrows of the whole module as a test.
package pkg_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/checkplan/checkplan/"

// arrows says which packages of this module each package may import. Verb
// packages meet at pkg/checkup and never import one another; where one does, the
// comment says why. A package that is not listed may not exist.
var arrows = map[string][]string{
	"schema":              {},
	"pkg":                 {},
	"pkg/checkup":         {},
	"pkg/checkup/hostile": {},                                                     // for tests
	"pkg/load":            {"schema", "pkg/checkup", "pkg/kiagnose", "pkg/kinds"}, // a kiagnose checkup's ConfigMap is a plan, too
	"pkg/probe":           {"pkg/checkup"},
	"pkg/retry":           {},
	"pkg/cluster":         {"pkg/checkup", "pkg/history", "pkg/retry"}, // reads rounds
	"pkg/scheduling":      {"pkg/checkup", "pkg/cluster"},
	"pkg/cost":            {"pkg/checkup"},
	"pkg/kind":            {"pkg/checkup", "pkg/cluster", "pkg/cost", "pkg/history"},                                                                         // earlier runs are an input of judging
	"pkg/podmesh":         {"pkg/checkup", "pkg/cluster", "pkg/cost", "pkg/history", "pkg/judge", "pkg/kind", "pkg/localise", "pkg/scheduling", "pkg/stats"}, // kinds admit nodes by the scheduler's predicates
	"pkg/controlplane":    {"pkg/checkup", "pkg/cluster", "pkg/connectivity", "pkg/judge", "pkg/kind", "pkg/localise", "pkg/retry", "pkg/scheduling"},        // asks for the rights of its objects
	"pkg/placement":       {"pkg/checkup", "pkg/cluster", "pkg/judge", "pkg/kind", "pkg/retry", "pkg/scheduling"},
	"pkg/history":         {"pkg/checkup", "pkg/stats"}, // what one run hands to the next
	"pkg/vmlatency":       {"pkg/checkup", "pkg/cluster", "pkg/history", "pkg/judge", "pkg/kind", "pkg/localise", "pkg/scheduling"},
	"pkg/servicecheck":    {"pkg/checkup", "pkg/cluster", "pkg/judge", "pkg/kind", "pkg/nodestate", "pkg/scheduling"},                               // what the kinds about Services have in common
	"pkg/services":        {"pkg/checkup", "pkg/cluster", "pkg/cost", "pkg/judge", "pkg/kind", "pkg/localise", "pkg/nodestate", "pkg/servicecheck"}, // expects what each node's state says
	"pkg/servicerules":    {"pkg/checkup", "pkg/cluster", "pkg/dataplane", "pkg/dataplane/want", "pkg/judge", "pkg/kind", "pkg/nodestate", "pkg/servicecheck"},
	"pkg/servicecanary":   {"pkg/checkup", "pkg/cluster", "pkg/cost", "pkg/judge", "pkg/kind", "pkg/localise", "pkg/nodestate", "pkg/servicecheck", "pkg/stats"}, // tests shares
	"pkg/dns":             {"pkg/checkup", "pkg/cluster", "pkg/cost", "pkg/judge", "pkg/kind", "pkg/localise", "pkg/servicecheck"},
	"pkg/kinds":           {"pkg/checkup", "pkg/cluster", "pkg/controlplane", "pkg/dns", "pkg/history", "pkg/kind", "pkg/placement", "pkg/podmesh", "pkg/servicecanary", "pkg/servicerules", "pkg/services", "pkg/vmlatency", "pkg/networkhealth"}, // the map of kinds: one more line, one more arrow
	"pkg/kinds/toy":       {"pkg/checkup", "pkg/cluster", "pkg/judge", "pkg/kind", "pkg/kinds"},                                                                                                                                                    // a kind for tests
	"pkg/judge":           {"pkg/checkup", "pkg/stats"},                                                                                                                                                                                            // limits are judged by exact statistics
	"pkg/stats":           {},
	"pkg/judge/judgetest": {"pkg/checkup"},                                          // simulates what tests of judging measure
	"pkg/localise":        {"pkg/checkup", "pkg/history", "pkg/judge", "pkg/stats"}, // explains what was judged
	"pkg/bundle":          {},                                                       // Tekton bundles in registries
	"pkg/ecosystem":       {},                                                       // for tests
	"pkg/print":           {"pkg/checkup", "pkg/history"},
	"pkg/tekton":          {"pkg/checkup", "pkg/connectivity", "pkg/kinds", "pkg/networkhealth", "pkg/scheduling"}, // asks each kind, and the objects of the plan, for their rights and definitions
	"pkg/record":          {"pkg/checkup", "pkg/history", "pkg/retry"},
	"pkg/serve":           {"pkg/checkup", "pkg/history", "pkg/print", "pkg/record"}, // pages and metrics of what is recorded
	"pkg/ingest":          {"pkg/checkup"},
	"pkg/fleet":           {"pkg/checkup", "pkg/ingest", "pkg/retry", "pkg/scheduling"}, // tolerations and the security context in Kubernetes' types
	"pkg/console":         {"pkg/checkup"},
	"pkg/guest":           {"pkg/checkup", "pkg/console", "pkg/fleet", "pkg/ingest", "pkg/retry"}, // VMs on the terms of pods: sinks, labels, how a pod's trouble reads
	"pkg/kiagnose":        {"pkg/checkup", "pkg/retry", "pkg/vmlatency"},
	"pkg/crd":             {"pkg/checkup"},
	"pkg/connectivity":    {"pkg/checkup", "pkg/crd"},
	"pkg/networkhealth":   {"pkg/checkup", "pkg/crd", "pkg/judge", "pkg/retry"}, // numbers as in reports
	"pkg/run":             {"pkg/checkup", "pkg/kinds", "pkg/record"},           // follows a run by what it records
	"pkg/initramfs":       {},

	// The sandbox's module imports these two through a link, so they import nothing of this module.
	"pkg/nodestate":               {},
	"pkg/nodestate/nodestatetest": {}, // for tests

	// Clients of the API know no Kubernetes.
	"pkg/nodestate/api":    {},
	"pkg/nodestate/client": {"pkg/nodestate/api"},
	"pkg/nodestate/server": {"pkg/nodestate", "pkg/nodestate/api"},

	// What agents read of a proxy's rules knows no Kubernetes; what the API says of it does.
	"pkg/dataplane":           {},
	"pkg/dataplane/rules":     {"pkg/dataplane"},
	"pkg/dataplane/netfilter": {"pkg/dataplane", "pkg/dataplane/rules"},
	"pkg/dataplane/nftables":  {"pkg/dataplane", "pkg/dataplane/netfilter", "pkg/dataplane/rules"},
	"pkg/dataplane/iptables":  {"pkg/dataplane", "pkg/dataplane/netfilter", "pkg/dataplane/rules"},
	"pkg/dataplane/ipvs":      {"pkg/dataplane", "pkg/dataplane/iptables", "pkg/dataplane/netfilter", "pkg/dataplane/nftables", "pkg/dataplane/rules"}, // has rules of one of the others, too
	"pkg/dataplane/detect":    {"pkg/dataplane", "pkg/dataplane/iptables", "pkg/dataplane/ipvs", "pkg/dataplane/nftables"},                             // the modes that it can read
	"pkg/dataplane/want":      {"pkg/dataplane", "pkg/nodestate"},

	// What writes such rules knows no Kubernetes, either: it has the API of a node's state.
	"pkg/dataplane/proxy":           {"pkg/dataplane", "pkg/nodestate/api"},
	"pkg/dataplane/proxy/proxytest": {"pkg/dataplane/proxy", "pkg/nodestate", "pkg/nodestate/api", "pkg/nodestate/nodestatetest", "pkg/nodestate/server"}, // for tests
	"pkg/dataplane/nftables/write":  {"pkg/dataplane", "pkg/dataplane/nftables", "pkg/dataplane/proxy"},
	"pkg/dataplane/iptables/write":  {"pkg/dataplane", "pkg/dataplane/iptables", "pkg/dataplane/proxy"},
	"pkg/dataplane/ipvs/write":      {"pkg/dataplane", "pkg/dataplane/ipvs", "pkg/dataplane/nftables/write", "pkg/dataplane/proxy"}, // what IPVS cannot do is a table of nftables
	"pkg/dataplane/userspace":       {"pkg/dataplane", "pkg/dataplane/proxy"},

	// The mains compose the verbs; what they share is in tasks/internal/task.
	"tasks/agent":               {"pkg/console", "pkg/probe", "pkg/checkup", "pkg/dataplane", "pkg/dataplane/detect"}, // reads the rules of its node
	"tasks/setup":               {"tasks/internal/task", "tasks/internal/start", "pkg/checkup", "pkg/cluster", "pkg/connectivity", "pkg/cost", "pkg/kiagnose", "pkg/kinds", "pkg/networkhealth", "pkg/record", "pkg/retry"},
	"tasks/probe":               {"tasks/internal/task", "pkg/checkup", "pkg/cluster", "pkg/connectivity", "pkg/fleet", "pkg/guest", "pkg/ingest", "pkg/kiagnose", "pkg/kind", "pkg/kinds", "pkg/judge", "pkg/print", "pkg/record", "pkg/retry", "pkg/vmlatency"},
	"tasks/teardown":            {"tasks/internal/task", "pkg/checkup", "pkg/record"},
	"tasks/report":              {"tasks/internal/task", "pkg/checkup", "pkg/connectivity", "pkg/history", "pkg/kiagnose", "pkg/kinds", "pkg/networkhealth", "pkg/print", "pkg/record", "pkg/retry"},
	"tasks/node-state":          {"pkg/nodestate", "pkg/nodestate/server"},                                                                                                                                                                    // no task, but an image as theirs
	"tasks/service-proxy":       {"pkg/dataplane", "pkg/dataplane/iptables/write", "pkg/dataplane/ipvs/write", "pkg/dataplane/nftables/write", "pkg/dataplane/proxy", "pkg/dataplane/userspace", "pkg/nodestate/api", "pkg/nodestate/client"}, // the same
	"tasks/internal/task":       {"pkg/checkup", "pkg/fleet", "pkg/guest", "pkg/history", "pkg/judge", "pkg/kinds", "pkg/record", "pkg/retry"},
	"tasks/internal/flaky":      {},              // for tests
	"tasks/internal/start":      {"pkg/checkup"}, // a mode of the image setup
	"tasks/internal/images":     {},
	"tasks/internal/guestimage": {"pkg/initramfs"},
	"test/kernel":               {"pkg/initramfs"}, // runs tests in a virtual machine
	"test/kernel/init":          {},
	"test/dataplane":            {"pkg/dataplane", "pkg/dataplane/iptables", "pkg/dataplane/ipvs", "pkg/dataplane/netfilter", "pkg/dataplane/nftables", "pkg/dataplane/want", "pkg/nodestate", "pkg/nodestate/nodestatetest"}, // for the sandbox's tests, which run kube-proxy
	"test/browser":              {},                                                                                                                                                                                           // for tests
	"test/accuracy":             {"pkg/checkup", "pkg/cluster", "pkg/podmesh", "pkg/stats"},                                                                                                                                   // simulates runs, and has the real judge judge them
	"cmd/planner":               {"pkg/checkup", "pkg/cluster", "pkg/cost", "pkg/dataplane", "pkg/dataplane/detect", "pkg/dataplane/want", "pkg/history", "pkg/nodestate", "pkg/nodestate/server", "pkg/print", "pkg/fleet", "pkg/kiagnose", "pkg/kind", "pkg/kinds", "pkg/load", "pkg/record", "pkg/run", "pkg/scheduling", "pkg/serve", "pkg/tekton", "pkg/networkhealth", "pkg/bundle"},
}

// bans says what must not be linked into a package, directly or not, and why.
var bans = []struct {
	packages []string // prefixes
	except   []string
	banned   string // prefix of import paths
	reason   string
}{
	{[]string{"pkg/", "tasks/"}, []string{"pkg/load"}, "cuelang.org/go", "pkg/load is the only reader of CUE, and no task image links it"},
	{[]string{"tasks/agent", "pkg/dataplane", "pkg/probe", "pkg/checkup", "pkg/ingest", "pkg/judge", "pkg/localise", "pkg/print", "pkg/cost", "pkg/history"}, []string{"pkg/dataplane/want", "pkg/dataplane/proxy/proxytest"}, "k8s.io/", "agents know no Kubernetes: they stay small and have nothing to ask it with"},
	{[]string{"tasks/agent", "pkg/dataplane/detect"}, nil, "os/exec", "rules are read by netlink: nodes and images need neither nft nor iptables-save"},
	{[]string{"tasks/service-proxy"}, nil, "k8s.io/", "a proxy is a client of the node's state and of nothing else"},
	{[]string{"tasks/agent"}, nil, "google.golang.org/grpc", "agents stay small"},
	{[]string{"pkg/", "tasks/"}, []string{"pkg/tekton", "pkg/run"}, "github.com/tektoncd/", "Tekton's structs appear in pkg/tekton and pkg/run only"},
	{[]string{"pkg/checkup"}, nil, "golang.org/x/", "the nouns need the standard library only"},
	{[]string{"pkg/checkup"}, nil, "github.com/", "the nouns need the standard library only"},
}

// only lists packages whose imports outside the standard library and this module are limited, directly to these
// modules.
var only = []struct {
	packages []string
	modules  []string
	reason   string
}{
	{[]string{"pkg/nodestate/client", "pkg/nodestate/api"}, []string{"google.golang.org/grpc", "google.golang.org/protobuf"},
		"a proxy links the client, and the KEP wants minimal dependencies"},
	{[]string{"pkg/dataplane/proxy", "pkg/dataplane/nftables/write", "pkg/dataplane/iptables/write", "pkg/dataplane/ipvs/write", "pkg/dataplane/userspace"},
		[]string{"github.com/vishvananda/netlink", "golang.org/x/net/bpf", "golang.org/x/net/netutil", "golang.org/x/sys/unix", "sigs.k8s.io/knftables"},
		"a proxy needs the API of a node's state and the kernel"},
}

type listed struct {
	ImportPath, Dir                    string
	Imports, TestImports, XTestImports []string
	Deps                               []string
	GoFiles, TestGoFiles, XTestGoFiles []string
}

// list asks go for these fields of each package of this module.
func list(t *testing.T, fields string) map[string]listed {
	out, err := exec.Command("go", "list", "-json=ImportPath,"+fields, "../...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	packages := map[string]listed{}
	decoder := json.NewDecoder(bytes.NewReader(out))
	for {
		var p listed
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return packages
		} else if err != nil {
			t.Fatal(err)
		}
		packages[strings.TrimPrefix(p.ImportPath, module)] = p
	}
}

func TestImportArrows(t *testing.T) {
	packages := list(t, "Imports,Deps")
	for name, p := range packages {
		allowed, ok := arrows[name]
		if !ok {
			t.Errorf("package %s has no arrows: list it here, with what it may import", name)
			continue
		}
		for _, imported := range p.Imports {
			if to, ours := strings.CutPrefix(imported, module); ours && !slices.Contains(allowed, to) {
				t.Errorf("%s imports %s: there is no such arrow", name, to)
			}
		}
		for _, to := range allowed {
			if !slices.Contains(p.Imports, module+to) {
				t.Errorf("%s does not import %s: remove the arrow", name, to)
			}
		}
		for _, o := range only {
			for _, imported := range p.Imports {
				first, _, _ := strings.Cut(imported, "/")
				if slices.Contains(o.packages, name) && strings.Contains(first, ".") && !hasPrefix(imported, append(o.modules, module)) {
					t.Errorf("%s imports %s: %s", name, imported, o.reason)
				}
			}
		}
		for _, ban := range bans {
			if !hasPrefix(name, ban.packages) || hasPrefix(name, ban.except) {
				continue
			}
			for _, dep := range p.Deps {
				if strings.HasPrefix(dep, ban.banned) && !strings.HasPrefix(dep, module) {
					t.Errorf("%s links %s: %s", name, dep, ban.reason)
					break
				}
			}
		}
	}
	for name, allowed := range arrows {
		for _, to := range allowed {
			if _, ok := arrows[to]; !ok {
				t.Errorf("arrow from %s to %s, which is no package", name, to)
			}
		}
		if _, ok := packages[name]; !ok && name != "pkg" {
			t.Errorf("arrows for %s, which is no package", name)
		}
	}
}

// TestPure: neither a package of the Makefile's PURE nor what it and its tests import from this module starts a goroutine,
// or is called back from one, so the race detector has nothing to find there.
func TestPure(t *testing.T) {
	packages := list(t, "Dir,Imports,TestImports,XTestImports,GoFiles,TestGoFiles,XTestGoFiles")
	for _, pure := range makeWords(t, "PURE") {
		p, ok := packages[pure]
		if !ok {
			t.Errorf("the Makefile's PURE lists %s, which is no package", pure)
			continue
		}
		checked := map[string]bool{}
		var check func(name string, files, imports []string)
		check = func(name string, files, imports []string) {
			for _, file := range files {
				for _, found := range concurrent(t, filepath.Join(packages[name].Dir, file)) {
					t.Errorf("%s is not pure: %s", pure, found)
				}
			}
			for _, imported := range imports {
				if to, ours := strings.CutPrefix(imported, module); ours && !checked[to] {
					checked[to] = true
					check(to, packages[to].GoFiles, packages[to].Imports)
				}
			}
		}
		check(pure, slices.Concat(p.GoFiles, p.TestGoFiles, p.XTestGoFiles), slices.Concat(p.Imports, p.TestImports, p.XTestImports))
	}
}

// TestWithoutRace: make test runs, without the race detector, the files that are no part of a build with it.
func TestWithoutRace(t *testing.T) {
	constraint := regexp.MustCompile(`(?m)^//go:build .*!race`)
	var found []string
	for name, p := range list(t, "Dir,TestGoFiles,XTestGoFiles") {
		for _, file := range slices.Concat(p.TestGoFiles, p.XTestGoFiles) {
			text, err := os.ReadFile(filepath.Join(p.Dir, file))
			if err != nil {
				t.Fatal(err)
			}
			if constraint.Match(text) {
				found = append(found, filepath.ToSlash(filepath.Join(name, file)))
			}
		}
	}
	slices.Sort(found)
	if want := makeWords(t, "WITHOUT_RACE"); !slices.Equal(found, want) {
		t.Errorf("built without the race detector only: %q; the Makefile's WITHOUT_RACE: %q", found, want)
	}
}

// TestModuleVersions: what several builds of this project need is compiled once. The name of a compiled package has the
// version of its module that go.mod requires, also if another one replaces it.
func TestModuleVersions(t *testing.T) {
	type versioned struct{ Path, Version string }
	wanted := map[string]string{}
	const sandbox = "test/e2e/sandbox/"
	for _, file := range []string{"go.mod", sandbox + "go.mod", sandbox + "addons/conformance.mod", sandbox + "addons/multus.mod"} {
		out, err := exec.Command("go", "mod", "edit", "-json", "../"+file).Output()
		if err != nil {
			t.Fatalf("go mod edit: %v", err)
		}
		var parsed struct {
			Require []versioned
			Replace []struct{ Old, New versioned }
		}
		if err := json.Unmarshal(out, &parsed); err != nil {
			t.Fatal(err)
		}
		replaced := map[string]string{}
		for _, r := range parsed.Replace {
			replaced[r.Old.Path] = r.New.Version
		}
		for _, m := range parsed.Require {
			version := m.Version
			if r := replaced[m.Path]; r != "" && r != version {
				version += " => " + r
			}
			if m.Path == "k8s.io/kubelet" && strings.HasSuffix(file, "multus.mod") {
				continue // an older one, which that file explains
			}
			if want, ok := wanted[m.Path]; !ok {
				wanted[m.Path] = version
			} else if version != want {
				t.Errorf("%s requires %s %s, another go.mod %s: want the same", file, m.Path, version, want)
			}
		}
	}
}

// TestGoFlags: the sandbox, which is another module, builds with the Makefile's flags. With other flags, what both
// modules need would be compiled twice.
func TestGoFlags(t *testing.T) {
	want := fmt.Sprintf("const goFlags = %q", strings.Join(makeWords(t, "GOFLAGS"), " "))
	for _, file := range []string{"build.go", "kubeproxy/programs_test.go"} {
		text, err := os.ReadFile(filepath.Join("../test/e2e/sandbox", file))
		if err != nil {
			t.Fatal(err)
		}
		if got := regexp.MustCompile(`(?m)^const goFlags = .*$`).FindString(string(text)); got != want {
			t.Errorf("%s: %s, want %s", file, got, want)
		}
	}
}

// makeWords are the words of a variable of the Makefile.
func makeWords(t *testing.T, variable string) []string {
	t.Helper()
	makefile, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^(?:export )?` + variable + ` *:= ((?:.*\\\n)*.*)$`).FindSubmatch(makefile)
	if line == nil {
		t.Fatalf("the Makefile has no line %s :=", variable)
	}
	return strings.Fields(strings.ReplaceAll(string(line[1]), "\\", ""))
}

// concurrent lists what in a file starts goroutines, or gives functions to packages that do.
func concurrent(t *testing.T, file string) []string {
	var found []string
	set := token.NewFileSet()
	parsed, err := parser.ParseFile(set, file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(parsed, func(n ast.Node) bool {
		what := ""
		switch n := n.(type) {
		case *ast.GoStmt:
			what = "go statement"
		case *ast.SelectorExpr:
			if slices.Contains([]string{"Go", "Parallel", "RunParallel", "AfterFunc"}, n.Sel.Name) {
				what = "." + n.Sel.Name
			}
		case *ast.ImportSpec:
			if imported := strings.Trim(n.Path.Value, `"`); hasPrefix(imported, []string{"net/http/httptest", "k8s.io/client-go/informers", "k8s.io/client-go/tools/cache"}) {
				what = "import of " + imported
			}
		}
		if what != "" {
			found = append(found, set.Position(n.Pos()).String()+": "+what)
		}
		return true
	})
	return found
}

func hasPrefix(name string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}

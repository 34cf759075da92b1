// SPDX-License-Identifier: Apache-2.0

package kubeproxy

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	k8sruntime "k8s.io/apimachinery/pkg/runtime"
)

// TestCapturedVersions: kube-proxy of other versions writes rules for the first node of the cluster of TestCaptured, each
// as a whole program that gets the cluster from an API server. With UPDATE=1, the rules are kept for the main module's
// tests, which compare them with what is wanted: an older version does not know all that a Service can have.
//
// It builds these versions, which takes minutes: only with CHECKPLAN_LONG or UPDATE.
func TestCapturedVersions(t *testing.T) {
	if os.Getenv("CHECKPLAN_LONG") == "" && os.Getenv("UPDATE") == "" {
		t.Skip("builds kube-proxy of other versions: set CHECKPLAN_LONG=1, or UPDATE=1 to keep the rules")
	}
	whole, nodes := capturedCluster(t)
	whole.Node, whole.NodeName = nodes[0], nodes[0].Name
	var objects []k8sruntime.Object
	for _, n := range nodes {
		objects = append(objects, n)
	}
	for i := range whole.Services {
		objects = append(objects, &whole.Services[i])
	}
	for i := range whole.Slices {
		objects = append(objects, &whole.Slices[i])
	}
	for _, version := range []string{"v1.31.0", "v1.33.13", "v1.36.3"} {
		for _, mode := range []string{"nftables", "iptables"} {
			t.Run(version+" "+mode, func(t *testing.T) {
				p := newPrograms(t)
				if err := os.Symlink(buildVersion(t, version), filepath.Join(p.dir, "kube-proxy")); err != nil {
					t.Fatal(err)
				}
				s := newSide(t, p.kubeProxyOf(whole.NodeName, strings.Join(podCIDRs[:], ","), mode), objects)
				for _, address := range whole.Node.Status.Addresses { // mode nftables serves node ports at addresses that the node has
					s.call(func() {
						if err := command("ip", "address", "add", address.Address, "dev", "lo"); err != nil {
							t.Error(err)
						}
					})
				}
				s.run(t)
				var other asked
				s.call(func() { other = ask(t, mode) })
				for f := range families {
					a := s.settled(t, func() answer { return other(whole, f, "") })
					t.Logf("%s: %d frontends wanted, differences: %v", families[f], len(a.Frontends), a)
					if a.Error != "" || len(a.Unknown) > 0 || len(a.Dump) == 0 && os.Getenv("UPDATE") != "" {
						t.Fatal(a)
					}
					minor := version[:strings.LastIndex(version, ".")]
					name := map[string]string{"nftables": "nftables", "iptables": "iptables-nft"}[mode]
					keep(t, fmt.Sprintf("%s-%s-%s-%s.json", name, minor, whole.NodeName, families[f]), a.Dump)
				}
				s.stop(t)
			})
		}
	}
}

// settled asks until an answer has not changed for 5 s: the program has written its rules.
func (s *side) settled(t *testing.T, ask func() answer) answer {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	last, same := "", 0
	for {
		a := ask()
		now := a.String()
		if now != last || a.Error != "" {
			last, same = now, 0
		} else if same++; same == 5 {
			return a
		}
		if time.Now().After(deadline) {
			t.Fatalf("no rules that stay for 2 min: %v\n%s", a, s.logged())
		}
		select {
		case err := <-s.ended:
			t.Fatalf("kube-proxy ended: %v\n%s", err, s.logged())
		case <-time.After(time.Second):
		}
	}
}

var staging = regexp.MustCompile(`(?m)^(\s*k8s.io/\S+) => \./staging/\S+$`)

// buildVersion returns a kube-proxy that it builds once for a machine, in a module whose versions are those of Kubernetes'
// own: that module's replacements are directories that its archive does not have.
func buildVersion(t *testing.T, version string) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(cache, "checkplan-sandbox", "kube-proxy-"+version)
	program := filepath.Join(dir, "kube-proxy")
	if _, err := os.Stat(program); err == nil {
		return program
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	run := func(words ...string) []byte {
		c := exec.Command("go", words...)
		c.Dir = dir
		c.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS="+goFlags+" -mod=mod", "GOWORK=off")
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v\n%s", c.Args, err, out)
		}
		return out
	}
	var module struct{ Dir string }
	if err := json.Unmarshal(run("mod", "download", "-json", "k8s.io/kubernetes@"+version), &module); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(filepath.Join(module.Dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if name == "go.mod" {
			text = []byte(strings.Replace(string(text), "module k8s.io/kubernetes", "module kubeproxy", 1))
			text = staging.ReplaceAll(text, []byte("$1 => $1 v0"+strings.TrimPrefix(version, "v1")))
			text = fmt.Appendf(text, "\nrequire k8s.io/kubernetes %s\n", version)
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	run("build", "-o", program+".new", "k8s.io/kubernetes/cmd/kube-proxy")
	if err := os.Rename(program+".new", program); err != nil {
		t.Fatal(err)
	}
	return program
}

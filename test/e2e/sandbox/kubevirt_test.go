// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// fakeKubeVirt writes the files that kubevirtObjects reads from the build.
func fakeKubeVirt(t *testing.T, c *cluster) {
	t.Helper()
	dir := c.build().addonDir("kubevirt")
	files := map[string]string{
		"emulated": "true\n",
		"manifests/kubevirt-priority-class.yaml": "apiVersion: scheduling.k8s.io/v1\n" +
			"kind: PriorityClass\nmetadata: {name: kubevirt-cluster-critical}\n",
		"manifests/kv-resource.yaml": "apiVersion: apiextensions.k8s.io/v1\n" +
			"kind: CustomResourceDefinition\nmetadata: {name: kubevirts.kubevirt.io}\n",
		"manifests/rbac-operator.authorization.k8s.yaml.in": "---\napiVersion: v1\nkind: ServiceAccount\n" +
			"metadata: {name: kubevirt-operator, namespace: {{.Namespace}}}\n",
	}
	for name, content := range files {
		if err := writeFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestKubeVirtManifests(t *testing.T) {
	p, err := newPlan(1, 1, 1, "ipv4")
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{state: state{plan: p, BinDir: build{dir: t.TempDir()}.bin()}}
	if _, err := kubevirtObjects(c); err == nil {
		t.Error("no error without a build")
	}
	fakeKubeVirt(t, c)
	got, err := kubevirtObjects(c)
	if err != nil {
		t.Fatal(err)
	}
	var objects []map[string]any
	for _, o := range inOrder(got) {
		objects = append(objects, o.Object)
	}
	golden(t, "kubevirt.yaml", toYAML(t, objects))
}

func TestDeployed(t *testing.T) {
	for _, tt := range []struct{ name, status, want string }{
		{"new", `{}`, `KubeVirt is "", not available: `},
		{"deploying",
			`{"phase": "Deploying", "conditions": [{"type": "Available", "status": "False", "message": "not yet"}]}`,
			`KubeVirt is "Deploying", not available: not yet`},
		{"deployed, not available",
			`{"phase": "Deployed", "conditions": [{"type": "Available", "status": "False", "message": "gone"}]}`,
			`KubeVirt is "Deployed", not available: gone`},
		{"ready",
			`{"phase": "Deployed", "conditions": [` +
				`{"type": "Degraded", "status": "False"}, {"type": "Available", "status": "True"}]}`,
			""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			object := `{"apiVersion": "kubevirt.io/v1", "kind": "KubeVirt", "metadata": {"name": "kubevirt"}, "status": `
			kv, err := decode([]byte(object + tt.status + `}`))
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			if err := deployed(kv[0]); err != nil {
				got = err.Error()
			}
			if got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
	if err := deployed(&unstructured.Unstructured{Object: map[string]any{"status": "odd"}}); err == nil {
		t.Error("no error for a status that is not an object")
	}
}

// A layer keeps owner, mode and capabilities, in the kernel's format.
func TestFileLayer(t *testing.T) {
	layer, err := fileLayer([]file{
		{path: "usr/bin/virt-launcher-monitor", mode: 0o755, content: []byte("binary"), capability: 10},
		{path: "disk/guest.iso", mode: 0o444, owner: 107, content: []byte("disk")},
	})
	if err != nil {
		t.Fatal(err)
	}
	r, err := layer.Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	type entry struct {
		Name, Content, Capability string
		Mode                      int64
		Uid, Gid                  int
	}
	var got []entry
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, entry{
			h.Name, string(content), h.PAXRecords["SCHILY.xattr.security.capability"], h.Mode, h.Uid, h.Gid,
		})
	}
	want := []entry{
		// The value that `setcap cap_net_bind_service=ep` writes.
		{
			"usr/bin/virt-launcher-monitor", "binary",
			"\x01\x00\x00\x02\x00\x04\x00\x00" + strings.Repeat("\x00", 12), 0o755, 0, 0,
		},
		{"disk/guest.iso", "disk", "", 0o444, 107, 107},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

// How guests interpret network data of cloud-init.
func TestNetworkData(t *testing.T) {
	for _, tt := range []struct{ name, data, want string }{
		{"one interface by MAC", `
version: 2
ethernets:
  lat: # a comment: of words
    match:
      macaddress: "02:00:00:00:00:0A"
    addresses: [192.0.2.5/24, 'fd00:10::5/64']
`, "02:00:00:00:00:0a lat - - - 192.0.2.5/24 fd00:10::5/64\n"},
		{"under network, addresses first, in lines of their own", `
network:
  version: 2
  ethernets:
    eth7:
      addresses:
      - 192.0.2.5/24
      - fd00:10::/127
      match: {macaddress: 02:00:00:00:00:01}
      mtu: 1400
      set-name: eth7
`, "02:00:00:00:00:01 eth7 eth7 1400 - 192.0.2.5/24 fd00:10::/127\n"},
		{"JSON",
			`{"version":2,"ethernets":{"a":{"match":{"macaddress":"02:00:00:00:00:01"},"addresses":["192.0.2.5/24"]}}}`,
			"02:00:00:00:00:01 a - - - 192.0.2.5/24\n"},
		{"routes and name servers are not addresses", `
version: 2
ethernets:
  eth0:
    dhcp4: true
    nameservers: {addresses: [198.51.100.1]}
  eth1:
    dhcp4: false
    addresses: [192.0.2.5/24]
    gateway4: 192.0.2.1
    routes:
    - to: 203.0.113.0/24
      via: 192.0.2.2
`, "- eth0 - - dhcp\n- eth1 - - - 192.0.2.5/24 default=192.0.2.1 203.0.113.0/24=192.0.2.2\n"},
		{"none", "version: 2\n", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cmd := exec.Command("sh", "guest/bin/network-data")
			cmd.Stdin, cmd.Stderr = strings.NewReader(tt.data), os.Stderr
			got, err := cmd.Output()
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.want, string(got)); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
		})
	}
}

// A build is identified by what it depends on. otherAddons returns only builds with another key.
func TestOtherAddons(t *testing.T) {
	b := build{dir: t.TempDir()}
	old := filepath.Join(b.dir, "addons", "kubevirt-0123456789abcdef")
	for _, dir := range []string{old, b.addonDir("kubevirt"), b.addonDir("multus")} {
		if err := writeFile(filepath.Join(dir, "complete"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if d := cmp.Diff([]string{old}, b.otherAddons("kubevirt")); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if !b.hasAddon("kubevirt") || b.hasAddon("aggregated") {
		t.Error("hasAddon is wrong: want kubevirt built, aggregated not built")
	}
}

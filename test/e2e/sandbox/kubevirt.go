// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// kubevirtVersion is the version of the modules kubevirt.io/kubevirt, api and client-go.
const kubevirtVersion = "v1.7.0"

const kubevirtNamespace = "kubevirt"

//go:embed manifests/kubevirt.yaml
var kubevirtManifest string

// guestFiles are the files in the root of guests that are not from Debian.
//
//go:embed guest
var guestFiles embed.FS

// kubevirtSource is the source of the build; a part of its key.
//
//go:embed kubevirtbuild.go guest.go guest
var kubevirtSource embed.FS

// kubevirtAddon is KubeVirt, installed by its operator, and images of guests.
func kubevirtAddon() addon {
	return addon{
		deployments: [][2]string{{kubevirtNamespace, "virt-operator"}},
		inotify:     8, // of virt-handler
		needs:       kubevirtNeeds,
		key:         kubevirtKey,
		build:       buildKubeVirt,
		images: func(dir string, n nodePlan) []string {
			if n.ControlPlane {
				return []string{filepath.Join(dir, "control-plane-images.tar")}
			}
			return []string{filepath.Join(dir, "worker-images.tar"), filepath.Join(dir, "guest-images.tar")}
		},
		prepare: prepareKubeVirt,
		objects: kubevirtObjects,
		ready:   kubevirtReady,
	}
}

// kubevirtNeeds lists what the machine lacks to build KubeVirt.
func kubevirtNeeds() []lack {
	if runtime.GOARCH != "amd64" {
		return []lack{{what: "an amd64 processor, for KubeVirt and its guests"}}
	}
	var missing []lack
	for _, n := range [][2]string{
		{"gcc", "gcc"}, {"pkg-config", "pkg-config"}, {"tar", "tar"}, {"apt-get", "apt"}, {"dpkg-deb", "dpkg"},
	} {
		if _, err := lookPath(n[0]); err != nil {
			missing = append(missing, lack{"the command " + n[0], n[1]})
		}
	}
	for _, n := range [][2]string{
		{"/usr/include/libvirt/libvirt.h", "libvirt-dev"}, {"/usr/include/stdio.h", "libc6-dev"},
	} {
		if _, err := os.Stat(n[0]); err != nil {
			missing = append(missing, lack{n[0], n[1]})
		}
	}
	return missing
}

// kubevirtKey is what the build of KubeVirt depends on: its embedded source and the machine's
// kernel.
var kubevirtKey = sync.OnceValue(func() string {
	var b strings.Builder
	fmt.Fprintln(&b, kubevirtVersion, hasDummyLinks())
	release, _ := os.ReadFile("/proc/sys/kernel/osrelease") // the build tests /dev/kvm on this kernel
	_, err := os.Stat("/dev/kvm")
	fmt.Fprintln(&b, strings.TrimSpace(string(release)), err == nil)
	if err := writeFiles(&b, kubevirtSource); err != nil {
		panic(err) // embedded files are always readable
	}
	return b.String()
})

// hasDummyLinks reports whether the kernel has links of type dummy. virt-handler uses one to keep
// the address of a pod whose interface belongs to a guest.
func hasDummyLinks() bool {
	cmd := exec.Command("unshare", "--net", "ip", "link", "add", "type", "dummy")
	cmd.Env = []string{"PATH=" + searchPath}
	return cmd.Run() == nil
}

// emulated reports whether guests run without /dev/kvm, as tested by the build.
func emulated(dir string) (bool, error) {
	b, err := os.ReadFile(filepath.Join(dir, "emulated"))
	if err != nil {
		return false, fmt.Errorf("read whether guests can use /dev/kvm: %w", err)
	}
	return strconv.ParseBool(strings.TrimSpace(string(b)))
}

// prepareKubeVirt creates the devices for guests on workers, if the build found that /dev/kvm
// works.
func prepareKubeVirt(ctx context.Context, c *cluster, dir string) error {
	if slow, err := emulated(dir); err != nil || slow {
		return err
	}
	for _, n := range c.Nodes {
		if n.ControlPlane {
			continue
		}
		for device, minor := range map[string]string{"/dev/kvm": "232", "/dev/vhost-net": "238"} { // major 10
			if _, err := os.Stat(device); err != nil {
				continue
			}
			script := fmt.Sprintf("test -e %[1]s || mknod -m 0666 %[1]s c 10 %[2]s", device, minor)
			if out, err := c.inNode(ctx, n.Name, "sh", "-c", script).CombinedOutput(); err != nil {
				return fmt.Errorf("create %s on node %s: %w: %s", device, n.Name, err, strings.TrimSpace(string(out)))
			}
		}
	}
	return nil
}

// kubevirtObjects returns the generated manifests of KubeVirt's module, virt-operator and the
// KubeVirt object.
func kubevirtObjects(c *cluster) ([]*unstructured.Unstructured, error) {
	dir := c.build().addonDir("kubevirt")
	slow, err := emulated(dir)
	if err != nil {
		return nil, err
	}
	var objects []*unstructured.Unstructured
	for _, name := range kubevirtManifests() {
		b, err := os.ReadFile(filepath.Join(dir, "manifests", name))
		if err != nil {
			return nil, fmt.Errorf("read KubeVirt's manifests: %w", err)
		}
		found, err := decode([]byte(strings.ReplaceAll(string(b), "{{.Namespace}}", kubevirtNamespace)))
		if err != nil {
			return nil, fmt.Errorf("%s of KubeVirt: %w", name, err)
		}
		objects = append(objects, found...)
	}
	own, err := kubevirtOwnObjects(c.Nodes[0].Name, slow)
	if err != nil {
		return nil, err
	}
	return append(objects, own...), nil
}

// kubevirtManifests lists the files of manifests/generated to install, in order.
func kubevirtManifests() []string {
	return []string{"kubevirt-priority-class.yaml", "kv-resource.yaml", "rbac-operator.authorization.k8s.yaml.in"}
}

// kubevirtOwnObjects returns the objects of manifests/kubevirt.yaml.
func kubevirtOwnObjects(controlPlane string, emulated bool) ([]*unstructured.Unstructured, error) {
	objects, err := decode([]byte(strings.NewReplacer(
		"image: IMAGE", "image: "+image("virt-operator"),
		"value: IMAGE", "value: "+image("virt-operator"),
		"value: VERSION", "value: "+kubevirtVersion,
		"hostname: CONTROL_PLANE", "hostname: "+controlPlane,
		"useEmulation: EMULATION", "useEmulation: "+strconv.FormatBool(emulated),
	).Replace(kubevirtManifest)))
	if err != nil {
		return nil, fmt.Errorf("manifests/kubevirt.yaml: %w", err)
	}
	return objects, onControlPlane(objects)
}

// kubevirtReady returns nil if KubeVirt is deployed and available and every worker can run guests.
// It also returns nil if a fault stops a kubelet, because a worker then cannot become ready.
func kubevirtReady(ctx context.Context, c *cluster, api *client) error {
	for _, n := range c.Nodes {
		if stopped, err := c.stoppedByFault(n.Name, "kubelet"); err != nil || stopped {
			return err
		}
	}
	kubevirts := schema.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: "kubevirts"}
	kv, err := api.dynamic.Resource(kubevirts).Namespace(kubevirtNamespace).Get(ctx, "kubevirt", metav1.GetOptions{})
	if err != nil {
		return err
	}
	if err := deployed(kv); err != nil {
		return errors.Join(err, api.podsReady(ctx, kubevirtNamespace))
	}
	schedulable := metav1.ListOptions{LabelSelector: "kubevirt.io/schedulable=true"}
	nodes, err := api.typed.CoreV1().Nodes().List(ctx, schedulable)
	if err != nil {
		return err
	}
	var errs []error
	for _, n := range c.Nodes {
		takes := func(o corev1.Node) bool { return o.Name == n.Name }
		if !n.ControlPlane && !slices.ContainsFunc(nodes.Items, takes) {
			errs = append(errs, fmt.Errorf("node %s cannot run guests: it has no label kubevirt.io/schedulable=true", n.Name))
		}
	}
	return errors.Join(errs...)
}

// build returns the build of this cluster.
func (c *cluster) build() build { return build{dir: filepath.Dir(c.BinDir)} }

// deployed returns nil if a KubeVirt is deployed and available, otherwise its phase and message.
func deployed(kv *unstructured.Unstructured) error {
	phase, _, _ := unstructured.NestedString(kv.Object, "status", "phase")          // empty if missing
	conditions, _, _ := unstructured.NestedSlice(kv.Object, "status", "conditions") // nil if missing
	available, message := false, ""
	for _, c := range conditions {
		condition, _ := c.(map[string]any)
		if condition["type"] == "Available" {
			available = condition["status"] == "True"
			message = fmt.Sprint(condition["message"])
		}
	}
	if phase == "Deployed" && available {
		return nil
	}
	return fmt.Errorf("KubeVirt is %q, not available: %s", phase, message)
}

// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package main

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestSandbox brings a real cluster of one worker up beside any other, breaks
// it, repairs it and takes it down. Takes root, a build (`sandbox build`), and
// about a minute.
func TestSandbox(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "sandbox")
	if out, err := exec.Command("go", "build", "-o", bin, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	// t.TempDir is too long a path for a Unix socket below it.
	state, err := os.MkdirTemp("/var/tmp", "sandbox")
	if err != nil {
		t.Fatal(err)
	}
	d := dirs{state: state}
	try := func(args ...string) (stdout, stderr string, err error) {
		t.Helper()
		var o, e bytes.Buffer
		cmd := exec.Command(bin, append([]string{"--state=" + state}, args...)...)
		cmd.Stdout, cmd.Stderr = &o, &e
		start := time.Now()
		err = cmd.Run()
		t.Logf("sandbox %s (%s): %v", strings.Join(args, " "), time.Since(start).Round(time.Millisecond), err)
		return o.String(), e.String(), err
	}
	must := func(args ...string) (stdout, stderr string) {
		t.Helper()
		stdout, stderr, err := try(args...)
		if err != nil {
			t.Fatalf("sandbox %s: %v\n%s%s", strings.Join(args, " "), err, stdout, stderr)
		}
		return stdout, stderr
	}
	kill := func(node, component string) {
		t.Helper()
		pid, err := d.find(node, component)
		if err != nil || pid == 0 {
			t.Fatalf("%s of %s has pid %d, error %v", component, node, pid, err)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	before := hostLook(t, state)
	t.Cleanup(func() {
		must("down")
		if err := d.leftovers(); err != nil {
			t.Error(err)
		}
		if after := hostLook(t, state); after != before {
			t.Errorf("the host was\n%s\nand is now\n%s", before, after)
		}
	})

	must("up", "--nodes=1")
	must("status")
	if _, stderr := must("up"); !strings.Contains(stderr, "sandbox up already") {
		t.Errorf("a second up does not say that there is nothing to do:\n%s", stderr)
	}
	if _, _, err := try("up", "--nodes=2"); err == nil {
		t.Error("up with another number of nodes does not fail")
	}
	taskRun(t, must)

	for _, c := range [][2]string{
		{"worker-1", "kubelet"}, {"worker-1", "init"}, {"control-plane", "api-proxy"}, {"control-plane", "kube-apiserver"},
	} {
		kill(c[0], c[1])
	}
	if _, _, err := try("status"); err == nil {
		t.Error("status does not fail although half of it was killed")
	}
	must("up")
	must("status")

	must("fault", "add", "stop", "kubelet", "--node", "worker-1")
	must("fault", "add", "delete-service-rules", "--node", "worker-1")
	must("up")
	if stdout, _, err := try("status"); err == nil || !strings.Contains(stdout, "kubelet,kube-proxy") {
		t.Errorf("up repairs what a fault has stopped; status, error %v:\n%s", err, stdout)
	}
	must("fault", "add", "drop", "--from", "worker-1", "--to", "control-plane")
	stdout, _ := must("fault", "list")
	if got := strings.Count(stdout, "active"); got != 3 {
		t.Errorf("%d faults are active, want 3:\n%s", got, stdout)
	}
	must("fault", "clear")
	if stdout, _ := must("fault", "list"); stdout != "" {
		t.Errorf("after clear there are faults:\n%s", stdout)
	}
	must("up") // waits for the kubelet
	must("status")

	// The last down has the worst case: a delay's process outside of the nodes,
	// the control plane gone, the state file lost.
	must("fault", "add", "delay", "--by", "30ms")
	kill("control-plane", "init")
	if err := os.Remove(d.file("state.json")); err != nil {
		t.Fatal(err)
	}
}

// taskRun runs a Tekton task in the users' namespace, which is restricted.
func taskRun(t *testing.T, must func(...string) (string, string)) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "taskrun.yaml")
	err := os.WriteFile(file, []byte(`
apiVersion: tekton.dev/v1
kind: TaskRun
metadata: {name: nop}
spec:
  taskSpec:
    steps:
    - name: nop
      image: `+image("nop")+`
      command: [/ko-app/nop]
      securityContext:
        allowPrivilegeEscalation: false
        runAsNonRoot: true
        capabilities: {drop: [ALL]}
        seccompProfile: {type: RuntimeDefault}
`), 0o644)
	if err != nil {
		t.Fatal(err)
	}
	must("kubectl", "create", "-f", file)
	must("kubectl", "wait", "taskrun/nop", "--for=condition=Succeeded", "--timeout=60s")
}

// hostLook is what the sandbox must not change of the host: its settings, and
// that no link or mount bears one of the sandbox's names. Others may be at work
// on the same host, so it is not everything.
func hostLook(t *testing.T, state string) string {
	t.Helper()
	var b strings.Builder
	for _, setting := range []string{
		"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops",
		"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding", "net/netfilter/nf_conntrack_max",
	} {
		value, err := os.ReadFile("/proc/sys/" + setting)
		if err != nil {
			value = []byte("not there\n") // not every kernel has all of them
		}
		b.WriteString(setting + " " + string(value))
	}
	links, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if slices.Contains([]string{"br0", "control-plane", "worker-1"}, l.Name) {
			b.WriteString("link " + l.Name + "\n")
		}
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, state) {
			b.WriteString("mount " + line)
		}
	}
	return b.String()
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"k8s.io/client-go/tools/clientcmd"
)

// The versions in the code, which name images and set what binaries report, are the versions in
// go.mod.
func TestVersions(t *testing.T) {
	gomod, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	for module, version := range map[string]string{
		"k8s.io/kubernetes":            kubernetesVersion,
		"github.com/tektoncd/pipeline": tektonVersion,
		"github.com/coredns/coredns":   corednsVersion,
		"go.etcd.io/etcd/server/v3":    etcdVersion,
	} {
		if !strings.Contains(string(gomod), "\t"+module+" "+version) {
			t.Errorf("go.mod does not require %s %s", module, version)
		}
	}
	conformance, err := os.ReadFile("addons/conformance.mod")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(conformance), "\tk8s.io/kubernetes "+kubernetesVersion+" ") {
		t.Errorf("addons/conformance.mod does not require k8s.io/kubernetes %s", kubernetesVersion)
	}
	want := " -X k8s.io/component-base/version.gitVersion=v1.35.6" +
		" -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=35 "
	if !strings.Contains(linkFlags(), want) {
		t.Errorf("link flags %q lack %q", linkFlags(), want)
	}
}

func TestImageOfABinary(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "entrypoint"), []byte("the binary"), 0o755); err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(dir, "images.tar")
	if err := writeImages(archive, dir, "entrypoint"); err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag("sandbox.invalid/entrypoint:" + tektonVersion)
	if err != nil {
		t.Fatal(err)
	}
	img, err := tarball.ImageFromPath(archive, &tag)
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.Config.User != "65532" {
		t.Errorf("user is %q, want 65532", config.Config.User)
	}
	if d := cmp.Diff([]string{"/ko-app/entrypoint"}, config.Config.Entrypoint); d != "" {
		t.Errorf("entrypoint (-want +got):\n%s", d)
	}
	layers, err := img.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%d layers, error %v; want one layer", len(layers), err)
	}
	content, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for tr := tar.NewReader(content); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		files[h.Name] = string(b)
	}
	want := map[string]string{"ko-app/": "", "tmp/": "", "ko-app/entrypoint": "the binary"}
	if d := cmp.Diff(want, files); d != "" {
		t.Errorf("files (-want +got):\n%s", d)
	}
}

// Every certificate is signed by the right authority and valid for its use. A second call changes
// nothing.
func TestCertificates(t *testing.T) {
	p, err := newPlan(2, 2, 2, "dual")
	if err != nil {
		t.Fatal(err)
	}
	d := dirs{state: t.TempDir()}
	if err := d.writePKI(p, 16443); err != nil {
		t.Fatal(err)
	}
	caPEM, err := os.ReadFile(d.file("pki", "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	etcdPEM, err := os.ReadFile(d.file("pki", "etcd", "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	roots, etcdRoots := x509.NewCertPool(), x509.NewCertPool()
	roots.AppendCertsFromPEM(caPEM)
	etcdRoots.AppendCertsFromPEM(etcdPEM)
	for _, c := range p.certificates() {
		pair, err := tls.LoadX509KeyPair(d.file("pki", c.file+".crt"), d.file("pki", c.file+".key"))
		if err != nil {
			t.Errorf("%s: %v", c.file, err)
			continue
		}
		usage := x509.ExtKeyUsageClientAuth
		if c.server {
			usage = x509.ExtKeyUsageServerAuth
		}
		options := x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{usage}}
		if c.etcd {
			options.Roots = etcdRoots
		}
		if _, err := pair.Leaf.Verify(options); err != nil {
			t.Errorf("%s: %v", c.file, err)
		}
		for _, ip := range c.ips {
			if err := pair.Leaf.VerifyHostname(ip.String()); err != nil {
				t.Errorf("%s: %v", c.file, err)
			}
		}
	}
	apiServer, err := tls.LoadX509KeyPair(d.file("pki", "apiserver.crt"), d.file("pki", "apiserver.key"))
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{
		"127.0.0.1", "198.18.0.10", "198.18.0.111", "198.18.0.2", "198.19.0.1", "2001:2:0:f000::1", "kubernetes.default.svc",
	} {
		if err := apiServer.Leaf.VerifyHostname(host); err != nil {
			t.Errorf("the API server's certificate: %v", err)
		}
	}

	config, err := clientcmd.LoadFromFile(d.kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	current := config.Contexts[config.CurrentContext]
	if got, want := config.Clusters[current.Cluster].Server, "https://127.0.0.1:16443"; got != want {
		t.Errorf("the kubeconfig's server is %s, want %s", got, want)
	}
	if current.Namespace != userNamespace {
		t.Errorf("the kubeconfig's namespace is %q, want %q", current.Namespace, userNamespace)
	}

	if err := d.writePKI(p, 16443); err != nil {
		t.Fatal(err)
	}
	again, err := os.ReadFile(d.file("pki", "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(caPEM, again) {
		t.Error("a second call created another authority")
	}
}

func TestStateIsReadAsWritten(t *testing.T) {
	d := dirs{state: filepath.Join(t.TempDir(), "not-there-yet")}
	if _, err := d.readState(); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "sandbox up") {
		t.Errorf("error without a sandbox: %v, want os.ErrNotExist with `sandbox up`", err)
	}
	p, err := newPlan(1, 1, 1, "dual")
	if err != nil {
		t.Fatal(err)
	}
	want := state{
		plan: p, ServiceProxy: kubeProxyIPTables, With: []string{"aggregated"}, BinDir: "/bin", APIPort: 1,
		Processes: map[string]firstProcess{"worker-1": {7, "/proc/7/ns/net"}},
	}
	if err := d.writeState(want); err != nil {
		t.Fatal(err)
	}
	got, err := d.readState()
	if err != nil {
		t.Fatal(err)
	}
	byString := cmp.Options{
		cmp.AllowUnexported(state{}),
		cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
		cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
	}
	if d := cmp.Diff(want, got, byString); d != "" {
		t.Errorf("state (-written +read):\n%s", d)
	}
}

// A process belongs to the sandbox if it has its mark. It is a component only if it also runs the
// component's binary: children inherit the mark.
func TestProcessesAreFoundByTheirMark(t *testing.T) {
	dir := t.TempDir()
	d, other := dirs{state: dir}, dirs{state: dir + "x"}
	for _, binary := range []string{"kubelet", "helper"} {
		runMarked(t, binary, d.mark("worker-1", "kubelet"))
	}
	marked, err := d.marked()
	if err != nil || len(marked) != 2 {
		t.Errorf("marked returned %v, error %v; want two processes", marked, err)
	}
	components, err := d.components()
	if err != nil || len(components) != 1 || components[0].Component != "kubelet" || components[0].Node != "worker-1" {
		t.Errorf("components returned %v, error %v; want the kubelet of worker-1", components, err)
	}
	if strangers, err := other.marked(); err != nil || len(strangers) != 0 {
		t.Errorf("another sandbox finds %v, error %v; want none", strangers, err)
	}
	if err := d.stop("worker-1", "kubelet"); err != nil {
		t.Error(err)
	}
	if left, err := d.components(); err != nil || len(left) != 0 {
		t.Errorf("components after stop: %v, error %v; want none", left, err)
	}
}

// runMarked runs a binary of this name with a sandbox's mark, until the test ends.
func runMarked(t *testing.T, binary, mark string) {
	t.Helper()
	cmd := sleeper(t, filepath.Join(t.TempDir(), binary))
	cmd.Env = append(os.Environ(), "CHECKPLAN_TEST_SLEEP=1", markVariable+"="+mark)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() })
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	if _, err := stdout.Read(make([]byte, 1)); err != nil { // it runs
		t.Fatal(err)
	}
}

// A kube-proxy that has read its node and not received the node's zone has to start again. What an earlier one logged
// does not count.
func TestKnowsZone(t *testing.T) {
	const (
		earlier = "I1124 03:04:52.925354      39 config.go:528] \"Calling handler.OnTopologyChange\"\n"
		synced  = "I1124 03:04:52.925425      39 config.go:316] \"Calling handler.OnNodeSynced()\"\n"
	)
	c := cluster{dirs: dirs{state: t.TempDir()}}
	if knows, err := c.knowsZone(t.Context(), "worker-1", 0); !knows || err != nil {
		t.Errorf("kube-proxy is stopped: %v, error %v, want that nothing starts again", knows, err)
	}
	runMarked(t, "kube-proxy", c.mark("worker-1", "kube-proxy"))
	for _, tt := range []struct {
		name, log string
		want      bool
	}{
		{"zone after the node", earlier + synced + earlier, true},
		{"zone before the node", earlier + earlier + synced, true},
		{"no zone", earlier + synced, false},
	} {
		if err := writeFile(c.log("worker-1", "kube-proxy"), []byte(tt.log), 0o644); err != nil {
			t.Fatal(err)
		}
		if knows, err := c.knowsZone(t.Context(), "worker-1", int64(len(earlier))); knows != tt.want || err != nil {
			t.Errorf("%s: %v, error %v, want %v", tt.name, knows, err, tt.want)
		}
	}
}

func TestKeepStartsAgain(t *testing.T) {
	for _, tt := range []struct {
		name string
		argv []string
		want string
	}{
		{"an exit code", []string{"/bin/sh", "-c", "echo ran; exit 3"}, "ran\n--- sh ended (exit status 3) at "},
		{"success", []string{"/bin/sh", "-c", "echo ran"}, "ran\n--- sh ended (exit status 0) at "},
		{"no such binary", []string{"/none/kubelet"}, "--- kubelet ended (fork/exec /none/kubelet: no such file or directory) at "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			log, out := io.Pipe()
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				keep(ctx, tt.argv, time.Millisecond, out)
				_ = out.Close()
			}()
			var got strings.Builder
			lines := bufio.NewScanner(log)
			for strings.Count(got.String(), tt.want) < 3 && lines.Scan() {
				got.WriteString(lines.Text() + "\n")
			}
			if strings.Count(got.String(), tt.want) < 3 {
				t.Errorf("the log is %q, want %q three times", &got, tt.want)
			}
			cancel()
			_, _ = io.Copy(io.Discard, log) // keep may be writing
			<-ended
		})
	}
}

func TestUsageErrors(t *testing.T) {
	state := t.TempDir()
	for _, tt := range []struct {
		name string
		args []string
		code int
		want string
	}{
		{"unknown verb", []string{"jump"}, 2, `unknown command "jump" for "sandbox"`},
		{"unknown flag", []string{"up", "--jump"}, 2, "unknown flag: --jump"},
		{"bad plan", []string{"up", "--nodes=0", "--service-proxy=ipvs", "--with=jam"}, 2, "--nodes is 0: must be from 1 to 100\n" +
			"--service-proxy \"ipvs\": must be one of kube-proxy, kube-proxy:iptables, nftables, iptables, userspace\n--with \"jam\": must be one of aggregated"},
		{"no sandbox", []string{"--state=" + state, "status"}, 1, "no sandbox in " + state + ": run `sandbox up` first"},
		{"bad directory", []string{"--state=/", "status"}, 2, `--state is "/"`},
		{"no log", []string{"--state=" + state, "logs", "kubelet"}, 2, `no log of "kubelet"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			if code := run(t.Context(), tt.args, &stdout, &stderr); code != tt.code {
				t.Errorf("exit code %d, want %d", code, tt.code)
			}
			if !strings.Contains(stderr.String(), tt.want) {
				t.Errorf("stderr is %q, want it to contain %q", stderr.String(), tt.want)
			}
			if stdout.Len() > 0 {
				t.Errorf("stdout is %q, want nothing", stdout.String())
			}
		})
	}
}

func TestDownRefusesADirectoryThatIsNotASandbox(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root for `sandbox down`")
	}
	dir := t.TempDir()
	precious := filepath.Join(dir, "precious")
	if err := os.WriteFile(precious, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	if code := run(t.Context(), []string{"--state=" + dir, "down"}, io.Discard, &stderr); code != 2 {
		t.Errorf("exit code %d, want 2; stderr: %s", code, &stderr)
	}
	if _, err := os.Stat(precious); err != nil {
		t.Error(err)
	}
}

func TestComponentFaults(t *testing.T) {
	p, err := newPlan(2, 1, 1, "ipv4")
	if err != nil {
		t.Fatal(err)
	}
	const components = "must be one of kubelet, kube-proxy, etcd, kube-apiserver"
	for _, tt := range []struct {
		args string
		id   string
		want string // the fault's String, or the error
	}{
		{"stop kubelet --node worker-1", "kubelet/worker-1", "stop kubelet --node worker-1"},
		{"stop kube-proxy --node=control-plane", "kube-proxy/control-plane", "stop kube-proxy --node control-plane"},
		{"stop etcd --node control-plane-2", "etcd/control-plane-2", "stop etcd --node control-plane-2"},
		{"restart kube-apiserver --node control-plane-2 --for 3s", "kube-apiserver/control-plane-2",
			"stop kube-apiserver --node control-plane-2"},
		{"silence etcd --node control-plane", "silence/etcd/control-plane", "silence etcd --node control-plane"},
		{"silence a/b --node control-plane", "silence/a/b/control-plane", "silence a/b --node control-plane"},
		{"silence a/b", "silence/a/b", "silence a/b"},
		{"delete-service-rules --node worker-1", "kube-proxy/worker-1", "delete-service-rules --node worker-1"},
		{"delete-service-rules --node worker-1 --service 10.96.0.10:53", "service-rule/10.96.0.10:53/worker-1", "delete-service-rules --service 10.96.0.10:53 --node worker-1"},
		{"delete-service-rules --node worker-1 --endpoint [fd00::1]:53", "service-rule/[fd00::1]:53/worker-1", "delete-service-rules --endpoint [fd00::1]:53 --node worker-1"},
		{"delete-service-rules --node worker-1 --endpoint [fd00::1]:53 --service 10.96.0.10:53", "", "want one of --service and --endpoint"},
		{"add-service-rule --node worker-1 --service 10.96.0.10:53 --address 10.9.9.9:53", "service-rule/10.9.9.9:53/worker-1",
			"add-service-rule --service 10.96.0.10:53 --address 10.9.9.9:53 --node worker-1"},
		{"add-service-rule --node worker-1 --service 10.96.0.10:53", "", "want --service IP:PORT and --address IP:PORT"},
		{"add-service-rule --node worker-1 --service 10.96.0.10:53 --address [fd00::1]:53", "",
			"--address [fd00::1]:53 and --service 10.96.0.10:53: must be of one IP family"},
		{"delete-service-rules --node worker-1 --service 10.96.0.10", "", `--service "10.96.0.10": must be IP:PORT, such as 10.96.0.10:53 or [fd00:96::a]:53`},
		{"stop jam --node worker-9", "",
			`stop "jam": ` + components + "\n" + `--node "worker-9": must be one of control-plane, control-plane-2, worker-1`},
		{"stop --node worker-1", "", `stop "": ` + components},
		{"stop kube-apiserver --node worker-1", "", `--node "worker-1": must be one of control-plane, control-plane-2`},
		{"stop kubelet --node worker-1 now", "", `unexpected argument "now"`},
		{"stop kubelet --node worker-1 --for 3s", "", "flag provided but not defined: -for"},
		{"restart kubelet --node worker-1 --for -3s", "", "--for -3s: must not be negative"},
		{"silence kubelet --node worker-1", "",
			`silence "kubelet": must be one of etcd, kube-apiserver, or NAMESPACE/POD` + "\n" +
				`--node "worker-1": must be one of control-plane, control-plane-2`},
		{"silence a/b/c", "", `silence "a/b/c": must be one of etcd, kube-apiserver, or NAMESPACE/POD`},
		{"silence a/*", "", `silence "a/*": must be one of etcd, kube-apiserver, or NAMESPACE/POD`},
		{"silence etcd", "", `--node "": must be one of control-plane, control-plane-2`},
		{"delete-service-rules --all", "", "flag provided but not defined: -all"},
	} {
		t.Run(tt.args, func(t *testing.T) {
			args := strings.Fields(tt.args)
			if !isComponentFault(args) {
				t.Fatal("isComponentFault returned false, want true")
			}
			f, restart, err := parseComponentFault(state{plan: p, ServiceProxy: kubeProxyNFTables}, args)
			got, id := f.String(), f.id()
			if err != nil {
				got, id = err.Error(), ""
			}
			if got != tt.want || id != tt.id {
				t.Errorf("got %q %s\nwant %q %s", id, got, tt.id, tt.want)
			}
			if want := strings.HasPrefix(tt.args, "restart") && err == nil; (restart != nil) != want {
				t.Errorf("is a restart: %t, want %t", restart != nil, want)
			}
		})
	}

	// Without kube-proxy, there is something else to stop.
	f, _, err := parseComponentFault(state{plan: p, ServiceProxy: ownNFTables}, []string{"delete-service-rules", "--node", "worker-1"})
	if err != nil || f.id() != "service-proxy/worker-1" {
		t.Errorf("fault %s, error %v; want service-proxy/worker-1", f.id(), err)
	}
	_, _, err = parseComponentFault(state{plan: p, ServiceProxy: ownNFTables}, []string{"stop", "kube-proxy", "--node", "worker-1"})
	if want := "must be one of kubelet, node-state, service-proxy, etcd, kube-apiserver"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %s", err, want)
	}

	d := dirs{state: t.TempDir()}
	want := []componentFault{{Node: "worker-1", Stopped: "kube-proxy", ServiceRules: true}}
	if err := d.writeComponentFaults(want); err != nil {
		t.Fatal(err)
	}
	got, err := d.componentFaults()
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("faults (-written +read), error %v:\n%s", err, diff)
	}
	for comp, want := range map[string]bool{"kube-proxy": true, "kubelet": false} {
		if got, err := d.stoppedByFault("worker-1", comp); err != nil || got != want {
			t.Errorf("%s stopped by a fault: %t, error %v; want %t", comp, got, err, want)
		}
	}
}

func TestEverythingMissingIsNamedAtOnce(t *testing.T) {
	err := lacking([]lack{
		{"the command ctr", "containerd"}, {"root", ""},
		{"the command containerd", "containerd"}, {"the command nft", "nftables"},
	})
	want := "this machine lacks what the sandbox needs:\n" +
		"  - the command ctr (Debian package containerd)\n" +
		"  - root\n" +
		"  - the command containerd (Debian package containerd)\n" +
		"  - the command nft (Debian package nftables)\n" +
		"run `sandbox preflight --install` (Debian or Ubuntu) to install: containerd nftables"
	if err == nil || err.Error() != want {
		t.Errorf("got %v\nwant %s", err, want)
	}
	if err := lacking(nil); err != nil {
		t.Errorf("error with nothing missing: %v", err)
	}
}

func TestInotifyInstancesAreCounted(t *testing.T) {
	p, err := newPlan(2, 3, 1, "ipv4")
	if err != nil {
		t.Fatal(err)
	}
	if got := inotifyLack(p, []string{"aggregated"}, 63, 128); got != nil {
		t.Errorf("with exactly enough instances: %v, want nil", got)
	}
	if got := inotifyLack(p, []string{"kubevirt"}, 63, 128); got == nil {
		t.Error("virt-handlers are not counted")
	}
	got := inotifyLack(p, nil, 64, 128)
	want := []lack{{what: "inotify instances: 64 are in use and the sandbox needs 65, but the limit is 128: " +
		"take another sandbox down, or raise sysctl fs.inotify.max_user_instances"}}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(lack{})); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package main

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// trial is a sandbox for one test, taken down at its end. The test fails if anything of the sandbox
// is left, or if the host has changed.
type trial struct {
	dirs
	bin string
}

func newTrial(t *testing.T) trial {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "sandbox")
	if out, err := exec.Command("go", "build", "-o", bin, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	// A Unix socket below t.TempDir would have a path that is too long.
	state, err := os.MkdirTemp("/var/tmp", "sandbox")
	if err != nil {
		t.Fatal(err)
	}
	s := trial{dirs{state: state}, bin}
	before := hostLook(t, state)
	t.Cleanup(func() {
		s.must(t, "down")
		if err := s.leftovers(); err != nil {
			t.Error(err)
		}
		if after := hostLook(t, state); after != before {
			t.Errorf("the host was\n%s\nand is now\n%s", before, after)
		}
	})
	return s
}

// try runs the command on the sandbox.
func (s trial) try(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var o, e bytes.Buffer
	cmd := exec.Command(s.bin, append([]string{"--state=" + s.state}, args...)...)
	cmd.Stdout, cmd.Stderr = &o, &e
	start := time.Now()
	err = cmd.Run()
	t.Logf("sandbox %s (%s): %v", strings.Join(args, " "), time.Since(start).Round(time.Millisecond), err)
	return o.String(), e.String(), err
}

func (s trial) must(t *testing.T, args ...string) (stdout, stderr string) {
	t.Helper()
	stdout, stderr, err := s.try(t, args...)
	if err != nil {
		t.Fatalf("sandbox %s: %v\n%s%s", strings.Join(args, " "), err, stdout, stderr)
	}
	return stdout, stderr
}

func (s trial) kill(t *testing.T, node, component string) {
	t.Helper()
	pid, err := s.find(node, component)
	if err != nil || pid == 0 {
		t.Fatalf("%s of %s has pid %d, error %v", component, node, pid, err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// TestSandbox brings up a real cluster with one worker, breaks it, repairs it and takes it down.
// Other sandboxes may run. It needs root, a build (`sandbox build`), and about a minute.
func TestSandbox(t *testing.T) {
	s := newTrial(t)
	try := func(args ...string) (stdout, stderr string, err error) { t.Helper(); return s.try(t, args...) }
	must := func(args ...string) (stdout, stderr string) { t.Helper(); return s.must(t, args...) }

	must("up", "--nodes=1")
	must("status")
	if _, stderr := must("up"); !strings.Contains(stderr, "sandbox up already") {
		t.Errorf("second up: want \"sandbox up already\" in stderr:\n%s", stderr)
	}
	if _, _, err := try("up", "--nodes=2"); err == nil {
		t.Error("up with another number of nodes succeeded, want an error")
	}
	taskRun(t, must)

	for _, name := range []string{"kube-scheduler", "kube-controller-manager"} {
		s.kill(t, "control-plane", name) // it starts again by itself
		err := poll(t.Context(), time.Minute, func() error {
			_, _, err := try("status")
			return err
		})
		if err != nil {
			t.Errorf("after %s was killed: %v", name, err)
		}
	}

	for _, c := range [][2]string{
		{"worker-1", "kubelet"}, {"worker-1", "init"},
		{"control-plane", balancerName}, {"control-plane", "etcd"}, {"control-plane", "kube-apiserver"},
	} {
		s.kill(t, c[0], c[1])
	}
	if _, _, err := try("status"); err == nil {
		t.Error("status succeeded after components were killed, want an error")
	}
	must("up")
	must("status")

	// Another service proxy of the running cluster: only its rules are there, and they work.
	pid := func() string {
		t.Helper()
		pid, err := s.find("worker-1", "init")
		if err != nil {
			t.Fatal(err)
		}
		return netNS(pid)
	}
	rules := func(command ...string) string {
		t.Helper()
		out, err := exec.Command("nsenter", append([]string{"--net=" + pid(), "--"}, command...)...).Output()
		if err != nil {
			t.Fatalf("%v: %v", command, err)
		}
		return string(out)
	}
	must("up", "--service-proxy="+kubeProxyIPTables)
	err := poll(t.Context(), 20*time.Second, func() error {
		if nft, ipt := rules("nft", "list", "tables"), rules("iptables-save"); strings.Contains(nft, "kube-proxy") || !strings.Contains(ipt, "-j KUBE-SVC-") {
			return fmt.Errorf("want rules of iptables only:\n%s%s", nft, ipt)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	must("fault", "add", "delete-service-rules", "--node", "worker-1")
	if ipt := rules("iptables-save"); strings.Contains(ipt, "KUBE-SERVICES") {
		t.Errorf("rules are left:\n%s", ipt)
	}
	must("fault", "clear")
	must("up", "--service-proxy="+kubeProxyNFTables)
	if ipt := rules("iptables-save"); strings.Contains(ipt, "KUBE-SERVICES") {
		t.Errorf("rules are left:\n%s", ipt)
	}

	must("fault", "add", "stop", "kubelet", "--node", "worker-1")
	must("fault", "add", "delete-service-rules", "--node", "worker-1")
	must("up")
	if stdout, _, err := try("status"); err == nil || !strings.Contains(stdout, "kubelet,kube-proxy") {
		t.Errorf("up must not start what a fault has stopped; status, error %v:\n%s", err, stdout)
	}
	must("fault", "add", "drop", "--from", "worker-1", "--to", "control-plane")
	stdout, _ := must("fault", "list")
	if got := strings.Count(stdout, "active"); got != 3 {
		t.Errorf("%d faults are active, want 3:\n%s", got, stdout)
	}
	must("fault", "clear")
	if stdout, _ := must("fault", "list"); stdout != "" {
		t.Errorf("faults after clear, want none:\n%s", stdout)
	}
	must("up") // waits for the kubelet
	must("status")

	// The worst case for down: a delay's process outside the nodes, no control plane, no state
	// file.
	must("fault", "add", "delay", "--by", "30ms")
	s.kill(t, "control-plane", "init")
	if err := os.Remove(s.file("state.json")); err != nil {
		t.Fatal(err)
	}
}

// TestControlPlanes brings up two control planes, like those of kubeadm, and an aggregated API
// server. It breaks each connection between them that a fault can break. It needs root, a build,
// and about two minutes.
func TestControlPlanes(t *testing.T) {
	s := newTrial(t)
	must := func(args ...string) (stdout, stderr string) { t.Helper(); return s.must(t, args...) }
	kubectl := func(args ...string) string {
		t.Helper()
		stdout, _ := must(append([]string{"kubectl"}, args...)...)
		return strings.TrimSpace(stdout)
	}
	want := func(what, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s:\n%s\nwant\n%s", what, got, want)
		}
	}
	must("up", "--control-planes=2", "--nodes=1", "--with=aggregated")
	must("status")
	if _, stderr := must("up"); !strings.Contains(stderr, "sandbox up already") {
		t.Errorf("second up: want \"sandbox up already\" in stderr:\n%s", stderr)
	}

	// What other programs discover.
	for component, annotation := range map[string]string{
		"etcd":           `kubeadm\.kubernetes\.io/etcd\.advertise-client-urls`,
		"kube-apiserver": `kubeadm\.kubernetes\.io/kube-apiserver\.advertise-address\.endpoint`,
	} {
		got := kubectl("get", "pods", "-n=kube-system", "-l=tier=control-plane,component="+component, "-o",
			`jsonpath={range .items[*]}{.metadata.name} {.status.podIP} {.metadata.annotations.`+annotation+"}{\"\\n\"}{end}")
		want("static pods of "+component, got, map[string]string{
			"etcd": "etcd-control-plane 198.18.0.10 https://198.18.0.10:2379\n" +
				"etcd-control-plane-2 198.18.0.111 https://198.18.0.111:2379",
			"kube-apiserver": "kube-apiserver-control-plane 198.18.0.10 198.18.0.10:6443\n" +
				"kube-apiserver-control-plane-2 198.18.0.111 198.18.0.111:6443",
		}[component])
	}
	want("endpoints of default/kubernetes",
		kubectl("get", "endpointslice", "kubernetes", "-n=default", "-o", "jsonpath={.endpoints[*].addresses[*]}"),
		"198.18.0.10 198.18.0.111")
	got := kubectl("get", "configmap", "kubeadm-config", "-n=kube-system", "-o", "jsonpath={.data.ClusterConfiguration}")
	if !strings.Contains(got, "controlPlaneEndpoint: 198.18.0.2:6443\n") {
		t.Errorf("kubeadm-config is\n%s", got)
	}
	nodes := strings.Fields(kubectl("get", "pods", "-n="+aggregatedNamespace, "-l=app=aggregated",
		"-o", "jsonpath={.items[*].spec.nodeName}"))
	slices.Sort(nodes)
	want("nodes of the aggregated API server", strings.Join(nodes, " "), "control-plane control-plane-2")
	got = kubectl("get", "replicas.sandbox.checkplan.dev", "-o", "name")
	if !strings.HasPrefix(got, "replica.sandbox.checkplan.dev/aggregated-") {
		t.Errorf("the aggregated API server answers %q", got)
	}

	// Each connection between components, and the faults that close exactly these.
	service := kubectl("get", "service", "aggregated", "-n="+aggregatedNamespace, "-o", "jsonpath={.spec.clusterIP}")
	address := map[string]string{"balancer": "198.18.0.2:6443", "service": service + ":443"}
	pod := map[string]string{}
	for _, node := range nodes {
		pod[node] = kubectl("get", "pods", "-n="+aggregatedNamespace, "--field-selector=spec.nodeName="+node,
			"-o", "jsonpath={.items[0].status.podIP}")
		address["aggregated on "+node] = pod[node] + ":8443"
	}
	for node, ip := range map[string]string{"control-plane": "198.18.0.10", "control-plane-2": "198.18.0.111"} {
		address["etcd on "+node], address["API server on "+node] = ip+":2379", ip+":6443"
	}
	st, err := s.readState()
	if err != nil {
		t.Fatal(err)
	}
	namespaces := map[string]string{}
	for _, node := range nodes {
		namespaces[node] = st.Processes[node].NetNS
		c := cluster{dirs: s.dirs, state: st}
		pids, err := c.processesOf(componentFault{Silent: aggregatedNamespace + "/aggregated", Node: node})
		if err != nil || len(pids) != 1 {
			t.Fatalf("processes of the aggregated API server on %s are %v, error %v", node, pids, err)
		}
		namespaces["pod of "+node] = netNS(pids[0])
	}
	closed := func() string {
		t.Helper()
		var mu sync.Mutex
		var found []string // guarded by mu
		var wg sync.WaitGroup
		for from, netns := range namespaces {
			for to, address := range address {
				wg.Go(func() {
					err := s.handshake(netns, address)
					if err != nil { // once more: all of them at once may be too slow on a busy machine
						err = s.handshake(netns, address)
					}
					if err != nil {
						mu.Lock()
						defer mu.Unlock()
						found = append(found, from+" -> "+to)
					}
				})
			}
		}
		wg.Wait()
		slices.Sort(found)
		return strings.Join(found, "\n")
	}
	want("closed connections before any fault", closed(), "")
	for _, tt := range []struct{ fault, closes string }{
		{"drop --from control-plane-2 --to control-plane --src hosts --dst hosts --protocol tcp --dport 2379",
			"control-plane-2 -> etcd on control-plane"},
		{"drop --from control-plane --to control-plane-2 --src hosts --protocol tcp --dport 8443",
			"control-plane -> aggregated on control-plane-2"},
		{"drop --from control-plane-2 --to control-plane --dst hosts --protocol tcp --dport 6443",
			"pod of control-plane-2 -> API server on control-plane"},
		{"drop --from control-plane-2 --to api-balancer --src any --dst hosts",
			"control-plane-2 -> balancer\npod of control-plane-2 -> balancer"},
		{"silence kube-apiserver --node control-plane-2", "control-plane -> API server on control-plane-2\n" +
			"control-plane-2 -> API server on control-plane-2\npod of control-plane -> API server on control-plane-2\n" +
			"pod of control-plane-2 -> API server on control-plane-2"},
	} {
		t.Run(tt.fault, func(t *testing.T) {
			id, _ := must(append([]string{"fault", "add"}, strings.Fields(tt.fault)...)...)
			if strings.HasPrefix(tt.fault, "silence") {
				err := poll(t.Context(), 20*time.Second, func() error {
					log, err := os.ReadFile(s.log("control-plane", balancerName))
					// Compare the last lines: a busy balancer may have logged this after the
					// previous fault, and not yet that the server is ready again.
					const backend = "198.18.0.111:6443 is "
					notReady := strings.LastIndex(string(log), backend+"not ready")
					if err == nil && notReady < strings.LastIndex(string(log), backend+"ready") {
						err = errors.New("the balancer does not report that 198.18.0.111:6443 is not ready")
					}
					return err
				})
				if err != nil {
					t.Fatal(err)
				}
			}
			// The Service selects one of the endpoints at random.
			got := slices.DeleteFunc(strings.Split(closed(), "\n"), func(way string) bool {
				return way == "control-plane -> service" && strings.Contains(tt.closes, "-> aggregated")
			})
			want("closed connections", strings.Join(got, "\n"), tt.closes)
			must("fault", "clear", strings.TrimSpace(id))
			want("closed connections after clear", closed(), "")
		})
	}
	must("fault", "add", "delete-service-rules", "--node", "control-plane-2")
	want("closed connections without service rules", closed(),
		"control-plane-2 -> service\npod of control-plane-2 -> service")
	must("fault", "clear", "kube-proxy/control-plane-2")

	// If an API server is stopped, the rest of the cluster works, and the commands print when it
	// was down and up.
	start := time.Now()
	_, stderr := must("fault", "add", "stop", "kube-apiserver", "--node", "control-plane-2")
	down := timeAfter(t, stderr, "down since ")
	if down.Before(start) || down.After(time.Now()) {
		t.Errorf("down since %s, stopped between %s and now", down, start)
	}
	if got := closed(); strings.Count(got, "-> API server on control-plane-2") != len(namespaces) {
		t.Errorf("with an API server stopped, the closed connections are\n%s", got)
	}
	kubectl("get", "nodes")
	_, stderr = must("fault", "clear", "kube-apiserver/control-plane-2")
	if up := timeAfter(t, stderr, "up since "); !up.After(down) {
		t.Errorf("up since %s, down since %s", up, down)
	}
	must("fault", "add", "restart", "kube-apiserver", "--node", "control-plane", "--for", "0s")
	must("up") // waits until every static pod is ready
	must("status")
	want("closed connections at the end", closed(), "")
}

// TestNetworks adds the additional networks to a running cluster. A pod on one node reaches a pod
// on another through them and through the pod network, while a fault breaks one or the other. It
// needs root, a build, and about a minute.
func TestNetworks(t *testing.T) {
	s := newTrial(t)
	must := func(args ...string) (stdout, stderr string) { t.Helper(); return s.must(t, args...) }
	must("up", "--worker-names=node01,node02")
	file := filepath.Join(t.TempDir(), "pods.yaml")
	pod := func(name, node, networks string) string {
		return fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {name: %s, namespace: default, "+
			"annotations: {k8s.v1.cni.cncf.io/networks: %s}}, spec: {nodeName: %s, terminationGracePeriodSeconds: 0, "+
			"containers: [{name: pause, image: %s}]}}\n---\n", name, networks, node, image("pause"))
	}
	create := func(pods ...string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(strings.Join(pods, "")), 0o644); err != nil {
			t.Fatal(err)
		}
		must("kubectl", "create", "-f", file)
	}
	create(pod("before", "node01", "br10"))
	must("kubectl", "wait", "-n=default", "pod/before", "--for=condition=Ready", "--timeout=60s")
	must("up", "--with=multus")
	if _, stderr := must("up"); !strings.Contains(stderr, "sandbox up already") {
		t.Errorf("second up: want \"sandbox up already\" in stderr:\n%s", stderr)
	}
	// Multus must also remove a pod that it did not set up.
	must("kubectl", "delete", "-n=default", "pod/before", "--timeout=60s")

	got, _ := must("kubectl", "get", "nodes", "-o",
		`jsonpath={range .items[*]}{.metadata.name} {.status.allocatable.bridge\.network\.kubevirt\.io/br10} `+
			`{.status.allocatable.bridge\.network\.kubevirt\.io/br20}{"\n"}{end}`)
	if want := "control-plane 1k 1k\nnode01 1k 1k\nnode02 1k \n"; got != want {
		t.Errorf("allocatable bridges br10 and br20:\n%swant\n%s", got, want)
	}

	create(pod("one", "node01", "br10"), pod("two", "node02", "br10"),
		pod("no-link", "node01", "missing-master"), pod("no-json", "node01", "broken"))
	must("kubectl", "wait", "-n=default", "pod/one", "pod/two", "--for=condition=Ready", "--timeout=60s")
	for name, want := range map[string]string{"no-link": "Link not found", "no-json": "failed to unmarshal Spec.Config"} {
		if err := poll(t.Context(), 30*time.Second, func() error {
			got, _ := must("kubectl", "get", "events", "-n=default",
				"--field-selector=reason=FailedCreatePodSandBox,involvedObject.name="+name, "-o=jsonpath={.items[*].message}")
			if !strings.Contains(got, want) {
				return fmt.Errorf("the events of pod %s are %q, want %q", name, got, want)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	}

	st, err := s.readState()
	if err != nil {
		t.Fatal(err)
	}
	c := cluster{dirs: s.dirs, state: st}
	netns := func(pod, node string) string {
		t.Helper()
		var pids []int
		err := poll(t.Context(), 30*time.Second, func() (err error) {
			pids, err = c.processesOf(componentFault{Silent: "default/" + pod, Node: node})
			if err == nil && len(pids) != 1 {
				err = fmt.Errorf("processes of pod %s are %v", pod, pids)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return netNS(pids[0])
	}
	one, two := netns("one", "node01"), netns("two", "node02")
	// ways checks through which links pod one reaches pod two. It retries the links that must work.
	ways := func(what string, net1, eth0 bool) {
		t.Helper()
		for link, want := range map[string]bool{"net1": net1, "eth0": eth0} {
			limit := 10 * time.Second
			if !want {
				limit = 0
			}
			err := poll(t.Context(), limit, func() error {
				_, err := echo(one, two, link)
				return err
			})
			if (err == nil) != want {
				t.Errorf("%s: reached through %s: %v, want %t", what, link, err, want)
			}
		}
	}
	ways("before any fault", true, true)
	for _, tt := range []struct {
		fault      string
		net1, eth0 bool
	}{
		{"drop --network br10", false, true},
		{"drop --node node01 --direction ingress --network br10", false, true},
		{"drop --from node02 --to node01 --network br10", false, true},
		{"loss --percent 100 --node node02 --network br10", false, true},
		{"drop --node control-plane --network br10", true, true},
		{"drop --node node01 --network br20", true, true},
		{"drop --from node01 --to node02", true, false},
		{"drop --node node02 --src any --dst any", true, false},
	} {
		id, _ := must(append([]string{"fault", "add"}, strings.Fields(tt.fault)...)...)
		ways(tt.fault, tt.net1, tt.eth0)
		must("fault", "clear", strings.TrimSpace(id))
		ways(tt.fault+", cleared", true, true)
	}
	must("fault", "add", "delay", "--by", "400ms", "--network", "br10")
	if took, err := echo(one, two, "net1"); err != nil || took < 800*time.Millisecond {
		t.Errorf("with a delay of 400ms each way an answer took %v, %v", took, err)
	}
	must("fault", "clear")

	// Nodes and networks work again after a repair.
	s.kill(t, l2Fabric("br10"), "init")
	s.kill(t, "node01", "init")
	must("up")
	one = netns("one", "node01")
	ways("after repair", true, true)
	must("fault", "add", "delay", "--by", "400ms", "--network", "br10") // down must stop its process
}

// echo sends a datagram from one network namespace to a link in another, and returns how long the
// answer took. net1 has no configured address, so echo uses its link-local address.
func echo(from, to, link string) (took time.Duration, err error) {
	var addr netip.Addr
	var server, client net.PacketConn
	err = inNetNS(to, func() error {
		l, err := net.InterfaceByName(link)
		if err != nil {
			return err
		}
		addrs, err := l.Addrs()
		for _, a := range addrs {
			if ip := netip.MustParsePrefix(a.String()).Addr(); ip.Is4() || link == "net1" {
				addr = ip
			}
		}
		if err != nil || !addr.IsValid() {
			return fmt.Errorf("%s has the addresses %v, %v", link, addrs, err)
		}
		if addr.IsLinkLocalUnicast() {
			server, err = net.ListenPacket("udp", netip.AddrPortFrom(addr.WithZone(strconv.Itoa(l.Index)), 0).String())
		} else {
			server, err = net.ListenPacket("udp", netip.AddrPortFrom(addr, 0).String())
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	defer server.Close()
	go func() {
		b := make([]byte, 100)
		for {
			n, peer, err := server.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = server.WriteTo(b[:n], peer) // an unsent answer counts as lost
		}
	}()
	err = inNetNS(from, func() error {
		l, err := net.InterfaceByName(link)
		if err != nil {
			return err
		}
		if addr.IsLinkLocalUnicast() {
			addr = addr.WithZone(strconv.Itoa(l.Index)) // a name would be resolved in another namespace
		}
		client, err = net.ListenPacket("udp", ":0")
		return err
	})
	if err != nil {
		return 0, err
	}
	defer client.Close()
	start := time.Now()
	if err := client.SetDeadline(start.Add(2 * time.Second)); err != nil {
		return 0, err
	}
	peer := net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, server.LocalAddr().(*net.UDPAddr).AddrPort().Port()))
	if _, err := client.WriteTo([]byte("echo"), peer); err != nil {
		return 0, err
	}
	_, _, err = client.ReadFrom(make([]byte, 100))
	return time.Since(start), err
}

// inNetNS calls do in a network namespace. Its sockets stay there.
func inNetNS(netns string, do func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlock: the thread stays in the namespace
		if err := enterNetNS(netns); err != nil {
			done <- err
			return
		}
		done <- do()
	}()
	return <-done
}

// timeAfter parses the time that follows words in a text.
func timeAfter(t *testing.T, text, words string) time.Time {
	t.Helper()
	_, after, _ := strings.Cut(text, words)
	at, err := time.Parse(time.RFC3339Nano, strings.TrimRight(strings.Fields(after + " -")[0], ","))
	if err != nil {
		t.Fatalf("no time after %q in %q: %v", words, text, err)
	}
	return at
}

// handshake makes a TLS handshake from a network namespace, with the certificate of an API server
// as a client of etcd.
func (s trial) handshake(netns, address string) error {
	certificate, err := tls.LoadX509KeyPair(
		s.file("pki", "apiserver-etcd-client.crt"), s.file("pki", "apiserver-etcd-client.key"))
	if err != nil {
		return err
	}
	return inNetNS(netns, func() error {
		conn, err := net.DialTimeout("tcp", address, 2*time.Second)
		if err != nil {
			return err
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(5 * time.Second)) // does not fail for TCP
		// Another test checks the server certificates.
		config := &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{certificate}}
		return tls.Client(conn, config).Handshake()
	})
}

// taskRun runs a Tekton task in the namespace for users, which is restricted.
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

// hostLook returns what the sandbox must not change on the host: some settings, and the links and
// mounts with names of the sandbox. Other programs may run on the host, so it is not complete.
func hostLook(t *testing.T, state string) string {
	t.Helper()
	var b strings.Builder
	for _, setting := range []string{
		"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops",
		"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding", "net/netfilter/nf_conntrack_max",
	} {
		value, err := os.ReadFile("/proc/sys/" + setting)
		if err != nil {
			value = []byte("missing\n") // some kernels lack some settings
		}
		b.WriteString(setting + " " + string(value))
	}
	links, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		names := []string{"br0", "br10", "br20", "control-plane", "control-plane-2", "worker-1", "node01"}
		if slices.Contains(names, l.Name) {
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

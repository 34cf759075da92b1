// SPDX-License-Identifier: Apache-2.0

package kubeproxy

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	discoveryv1 "k8s.io/api/discovery/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"

	"github.com/checkplan/checkplan/test/e2e/sandbox/internal/nodestate/nodestatetest"
)

// BenchmarkProxiesAgainstKubeProxy compares whole programs: this project's node-state and service-proxy with kube-proxy
// 1.35.6 in the same mode, in turns. Each side has a network and an API server of its own, which hold the same cluster:
// 1,000 Services, 10,000 endpoints, 50 nodes, IPv4. Each number is our value divided by kube-proxy's.
//
//   - start: from the start of the programs until their rules are in the kernel, over none
//   - change: the median time from the moment at which the API server has a changed slice, of which one endpoint was
//     replaced, until the kernel reports a rule with the new address
//   - day: CPU time of the programs and of what they run, for the changes of a day of nodestatetest.Fleet and the idle
//     time of a day; events is without the idle time. Of the day, the first busySeconds with a change are played.
func BenchmarkProxiesAgainstKubeProxy(b *testing.B) {
	programs := build(b)
	for _, mode := range []string{"nftables", "iptables"} {
		b.Run(mode, func(b *testing.B) {
			for b.Loop() {
				fleet := nodestatetest.NewFleet(1_000, 10_000, 50)
				ours, theirs := newFleetSide(b, programs.ours(mode), fleet), newFleetSide(b, programs.kubeProxy(mode), fleet)
				sides := []*side{ours, theirs}
				var starts [2]time.Duration
				for i, s := range sides {
					starts[i] = s.start(b)
				}
				b.ReportMetric(starts[0].Seconds()/starts[1].Seconds(), "start-ratio")

				var changes [2][]time.Duration
				for n := range 40 {
					for i, s := range sides {
						changes[i] = append(changes[i], s.replace(b, n))
						time.Sleep(quiet)
					}
				}
				median := func(i int) float64 { slices.Sort(changes[i]); return changes[i][len(changes[i])/2].Seconds() }
				b.ReportMetric(median(0)/median(1), "change-ratio")

				seconds := day()
				var events, idle [2]time.Duration
				for i, s := range sides {
					before := s.cpu(b)
					for _, objects := range seconds[:busySeconds] {
						s.api.set(objects...)
						time.Sleep(quiet)
					}
					events[i] = (s.cpu(b) - before) * time.Duration(len(seconds)) / busySeconds
				}
				time.Sleep(5 * time.Second) // what is left to do after the changes is done
				for i, s := range sides {
					idle[i] = -s.cpu(b)
				}
				time.Sleep(time.Minute)
				for i, s := range sides {
					idle[i] = (idle[i] + s.cpu(b)) * 24 * 60
				}
				b.ReportMetric(events[0].Seconds()/events[1].Seconds(), "events-cpu-ratio")
				b.ReportMetric((events[0]+idle[0]).Seconds()/(events[1]+idle[1]).Seconds(), "day-cpu-ratio")
				b.Logf("%s: start %v, change %.1f ms and %.1f ms, CPU for %d seconds with changes %v, for idle ones %v (ours, kube-proxy's)",
					mode, starts, 1000*median(0), 1000*median(1), len(seconds), events, idle)
				for _, s := range sides {
					s.stop(b)
				}
			}
			b.ReportMetric(0, "ns/op") // of both together: it means nothing
		})
	}
}

// BenchmarkStartAgainstKubeProxy is the start of BenchmarkProxiesAgainstKubeProxy in the mode nftables for clusters of
// several sizes. With CHECKPLAN_LONG=1, the largest has 10,000 Services and 100,000 endpoints.
func BenchmarkStartAgainstKubeProxy(b *testing.B) {
	programs := build(b)
	sizes := []int{1_000, 3_000}
	if os.Getenv("CHECKPLAN_LONG") != "" {
		sizes = append(sizes, 10_000)
	}
	for _, size := range sizes {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			for b.Loop() {
				fleet := nodestatetest.NewFleet(size, 10*size, 50)
				var starts [2]time.Duration
				for i, p := range []program{programs.ours("nftables"), programs.kubeProxy("nftables")} {
					s := newFleetSide(b, p, fleet)
					starts[i] = s.start(b)
					s.stop(b)
				}
				b.ReportMetric(starts[0].Seconds()/starts[1].Seconds(), "start-ratio")
				b.Logf("%d Services: %v (ours, kube-proxy's)", size, starts)
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

const (
	// busySeconds of a day are played.
	busySeconds = 150
	// quiet is the time between two changes. It stands for a second of the day: the shortest time between two syncs is
	// minSync instead of 1 s.
	quiet   = 250 * time.Millisecond
	minSync = 10 * time.Millisecond
	// podCIDR has the endpoints of the node.
	podCIDR = "10.0.0.0/16"
)

// day returns what happens in each second of a day of the fleet in which the cluster changes, as a proxy of its first
// node gets it.
func day() (seconds [][]k8sruntime.Object) {
	fleet := nodestatetest.NewFleet(1_000, 10_000, 50)
	last := -1
	for e := range fleet.Day() {
		var object k8sruntime.Object
		switch {
		case e.Slice != nil:
			object = e.Slice
		case e.Service != nil:
			object = e.Service
		case e.Node.Name == fleet.Nodes[0].Name:
			object = e.Node
		default: // of another node, which neither side watches
			continue
		}
		if e.Second != last {
			seconds, last = append(seconds, nil), e.Second
		}
		seconds[len(seconds)-1] = append(seconds[len(seconds)-1], object)
	}
	return seconds
}

// programs are built ones, in a directory that ends with the benchmark.
type programs struct{ dir string }

// goFlags are those of the Makefile and of the sandbox: with the same flags builds share the cache.
const goFlags = "-trimpath -buildvcs=false -gcflags=all=-dwarf=false"

// build builds the programs.
func build(b *testing.B) programs {
	b.Helper()
	p := newPrograms(b)
	for _, of := range []struct {
		dir      string
		packages []string
	}{{"..", []string{"k8s.io/kubernetes/cmd/kube-proxy"}}, {"../../../..", []string{"./tasks/node-state", "./tasks/service-proxy"}}} {
		c := exec.Command("go", append([]string{"build", "-o", p.dir + "/"}, of.packages...)...)
		c.Dir, c.Env = of.dir, append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS="+goFlags)
		if out, err := c.CombinedOutput(); err != nil {
			b.Fatalf("%v: %v\n%s", c.Args, err, out)
		}
	}
	return p
}

// newPrograms returns a directory for programs, in which iptables is iptables-nft, whatever the machine's default is: the
// kernel does not report changes that iptables-legacy makes.
func newPrograms(b testing.TB) programs {
	b.Helper()
	for _, name := range []string{"nft", "iptables-nft-restore", "ip"} {
		if _, err := exec.LookPath(name); err != nil || os.Geteuid() != 0 {
			b.Skipf("needs nft, iptables and ip, and root: %v", err)
		}
	}
	p := programs{b.TempDir()}
	for _, name := range []string{"iptables", "ip6tables"} {
		for _, suffix := range []string{"", "-save", "-restore"} {
			path, err := exec.LookPath(name + "-nft" + suffix)
			if err == nil {
				err = os.Symlink(path, filepath.Join(p.dir, name+suffix))
			}
			if err != nil {
				b.Fatal(err)
			}
		}
	}
	return p
}

// program is one side's: the commands that it starts. They get a directory of their own, and the name of a kubeconfig in
// it.
type program struct {
	programs
	commands func(dir, kubeconfig string) [][]string
}

func (p programs) ours(mode string) program {
	return program{p, func(dir, kubeconfig string) [][]string {
		socket := "unix://" + filepath.Join(dir, "s")
		return [][]string{
			{"node-state", "--node-name=node-0000", "--kubeconfig=" + kubeconfig, "--listen=" + socket, "--min-sync-period=" + minSync.String()},
			{"service-proxy", "--mode=" + mode, "--target=" + socket, "--pod-cidr=" + podCIDR, "--error-delay=100ms"},
		}
	}}
}

func (p programs) kubeProxy(mode string) program { return p.kubeProxyOf("node-0000", podCIDR, mode) }

func (p programs) kubeProxyOf(node, podCIDR, mode string) program {
	return program{p, func(dir, kubeconfig string) [][]string {
		config := filepath.Join(dir, "config.yaml")
		text := fmt.Sprintf(`apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: %[1]s
clientConnection:
  kubeconfig: %[2]s
hostnameOverride: %[5]s
clusterCIDR: %[3]s
detectLocalMode: ClusterCIDR
%[1]s:
  minSyncPeriod: %[4]s
conntrack:
  maxPerCore: 0
  min: 0
`, mode, kubeconfig, podCIDR, minSync, node)
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			panic(err)
		}
		return [][]string{{"kube-proxy", "--config=" + config}}
	}}
}

// side is a program in a network of its own.
type side struct {
	program program
	fleet   *nodestatetest.Fleet // of a benchmark
	api     *apiServer
	dir     string
	in      chan func() // runs in the network
	server  *http.Server
	running []*exec.Cmd
	ended   chan error
	over    chan struct{} // closed by stop
	// awaited is what the next rule has to have.
	awaited atomic.Pointer[awaited]
}

type awaited struct {
	address [4]byte
	met     chan time.Time
}

// newFleetSide returns a side that has not started yet, with the objects of a fleet.
func newFleetSide(b *testing.B, p program, fleet *nodestatetest.Fleet) *side {
	b.Helper()
	var objects []k8sruntime.Object
	for _, n := range fleet.Nodes {
		objects = append(objects, n)
	}
	for i := range fleet.Services {
		objects = append(objects, fleet.Services[i], fleet.Slices[i])
	}
	s := newSide(b, p, objects)
	s.fleet = fleet
	return s
}

func newSide(b testing.TB, p program, objects []k8sruntime.Object) *side {
	b.Helper()
	dir, err := os.MkdirTemp("", "proxy") // short enough for a socket
	if err != nil {
		b.Fatal(err)
	}
	s := &side{program: p, api: newAPIServer(b), dir: dir, in: make(chan func()),
		ended: make(chan error, 2), over: make(chan struct{})}
	b.Cleanup(func() { s.stop(b); os.RemoveAll(dir) })
	ready := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		ready <- unix.Unshare(unix.CLONE_NEWNET)
		for call := range s.in {
			call()
		}
	}()
	if err := <-ready; err != nil {
		b.Skipf("no network namespace: %v", err)
	}
	var listener net.Listener
	var socket int
	s.call(func() {
		err = errors.Join(command("ip", "link", "set", "lo", "up"), command("ip", "address", "add", "192.168.0.1/32", "dev", "lo"))
		if err == nil {
			listener, err = net.Listen("tcp", "127.0.0.1:0")
		}
		if err == nil {
			socket, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
		}
	})
	if err == nil {
		err = unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 1<<30)
	}
	if err == nil {
		err = unix.SetsockoptTimeval(socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1})
	}
	if err == nil {
		err = unix.Bind(socket, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1 << (unix.NFNLGRP_NFTABLES - 1)})
	}
	if err != nil {
		b.Fatal(err)
	}
	go s.listen(socket)
	s.server = &http.Server{Handler: s.api}
	go s.server.Serve(listener)
	kubeconfig := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "x",
"clusters": [{"name": "x", "cluster": {"server": "http://%s"}}], "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
"users": [{"name": "x", "user": {}}]}`, listener.Addr())
	if err := os.WriteFile(s.kubeconfig(), []byte(kubeconfig), 0o600); err != nil {
		b.Fatal(err)
	}
	s.api.set(objects...)
	return s
}

func (s *side) kubeconfig() string { return filepath.Join(s.dir, "kubeconfig") }

// call calls a function in the network.
func (s *side) call(f func()) {
	done := make(chan struct{})
	s.in <- func() { defer close(done); f() }
	<-done
}

// listen reads what the kernel reports about rules, until the side is stopped.
func (s *side) listen(socket int) {
	defer unix.Close(socket)
	buffer := make([]byte, 1<<20)
	for {
		select {
		case <-s.over:
			return
		default:
		}
		n, _, err := unix.Recvfrom(socket, buffer, 0)
		if err != nil { // nothing for a second, or more than the socket holds
			continue
		}
		if a := s.awaited.Load(); a != nil && bytes.Contains(buffer[:n], a.address[:]) {
			s.awaited.Store(nil)
			a.met <- time.Now()
		}
	}
}

// start starts the programs and returns how long it took until they have written their rules.
func (s *side) start(b *testing.B) time.Duration {
	b.Helper()
	address, slice := s.replaced(250 * 250)
	s.api.set(slice)
	return s.until(b, address, 20*time.Minute, func() { s.run(b) })
}

// run starts the programs.
func (s *side) run(b testing.TB) {
	b.Helper()
	for _, words := range s.program.commands(s.dir, s.kubeconfig()) {
		c := exec.Command(filepath.Join(s.program.dir, words[0]), words[1:]...)
		log, err := os.Create(filepath.Join(s.dir, words[0]+".log"))
		if err != nil {
			b.Fatal(err)
		}
		c.Stdout, c.Stderr = log, log
		c.Env = append(os.Environ(), "PATH="+s.program.dir+":"+os.Getenv("PATH"))
		s.call(func() { err = c.Start() })
		log.Close() // the process has it
		if err != nil {
			b.Fatal(err)
		}
		s.running = append(s.running, c)
		go func() { s.ended <- c.Wait() }()
	}
}

// replaced returns a slice of a plain Service, another one for each number, of which one endpoint is another one.
func (s *side) replaced(n int) (netip.Addr, *discoveryv1.EndpointSlice) {
	i := 5 + n*10%len(s.fleet.Services)
	slice := s.fleet.Slices[i].DeepCopy()
	address := netip.AddrFrom4([4]byte{172, 16, byte(n / 250), byte(n%250 + 1)})
	slice.Endpoints[0].Addresses = []string{address.String()}
	return address, slice
}

// replace changes a slice and returns how long it took until the kernel had the rule.
func (s *side) replace(b *testing.B, n int) time.Duration {
	b.Helper()
	address, slice := s.replaced(n)
	return s.until(b, address, time.Minute, func() { s.api.set(slice) })
}

// until returns how long after do the kernel reports a rule with an address.
func (s *side) until(b *testing.B, address netip.Addr, within time.Duration, do func()) time.Duration {
	b.Helper()
	a := &awaited{address.As4(), make(chan time.Time, 1)}
	s.awaited.Store(a)
	begin := time.Now()
	do()
	select {
	case at := <-a.met:
		return at.Sub(begin)
	case err := <-s.ended:
		b.Fatalf("a program ended: %v\n%s", err, s.logged())
	case <-time.After(within):
		b.Fatalf("after %s, there is no rule with %s\n%s", within, address, s.logged())
	}
	return 0
}

// logged is the end of what the programs logged.
func (s *side) logged() string {
	var all string
	names, _ := filepath.Glob(filepath.Join(s.dir, "*.log"))
	for _, name := range names {
		text, _ := os.ReadFile(name)
		all += fmt.Sprintf("%s:\n%s\n", name, text[max(0, len(text)-4_000):])
	}
	return all
}

// cpu is the CPU time of the programs, and of those that they ran and that have ended.
func (s *side) cpu(b *testing.B) (total time.Duration) {
	b.Helper()
	for _, c := range s.running {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.Process.Pid))
		if err != nil {
			b.Fatal(err)
		}
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:])) // the first is field 3
		for _, text := range fields[14-3 : 18-3] {                                // utime, stime, cutime, cstime
			ticks, err := strconv.Atoi(text)
			if err != nil {
				b.Fatal(err)
			}
			total += time.Duration(ticks) * time.Second / 100 // USER_HZ
		}
	}
	return total
}

// stop ends the programs, and the network with them.
func (s *side) stop(b testing.TB) {
	b.Helper()
	if s.server == nil {
		return
	}
	for _, c := range s.running {
		if err := c.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
			b.Error(err)
		}
	}
	for range s.running {
		select {
		case <-s.ended:
		case <-time.After(10 * time.Second):
			for _, c := range s.running {
				_ = c.Process.Kill() // it may have ended
			}
		}
	}
	s.server.Close()
	s.server, s.running = nil, nil
	close(s.over)
	close(s.in)
}

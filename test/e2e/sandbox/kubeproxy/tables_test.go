// SPDX-License-Identifier: Apache-2.0

package kubeproxy

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/node/util/sysctl"
	sysctltest "k8s.io/component-helpers/node/util/sysctl/testing"
	"k8s.io/kubernetes/pkg/proxy"
	"k8s.io/kubernetes/pkg/proxy/iptables"
	"k8s.io/kubernetes/pkg/proxy/ipvs"
	"k8s.io/kubernetes/pkg/proxy/ipvs/ipset"
	utilipvs "k8s.io/kubernetes/pkg/proxy/ipvs/util"
	"k8s.io/kubernetes/pkg/proxy/nftables"
	proxyutil "k8s.io/kubernetes/pkg/proxy/util"
	utiliptables "k8s.io/kubernetes/pkg/util/iptables"
	iptablestest "k8s.io/kubernetes/pkg/util/iptables/testing"
	"sigs.k8s.io/yaml"

	"github.com/checkplan/checkplan/test/e2e/sandbox/internal/nodestate/nodestatetest"
)

// written is a way in which kube-proxy's rules come to a kernel, or to a fake of it.
type written struct {
	name, mode string
	// write has kube-proxy write the rules of one family. What it returns is what iptables-save prints; empty: the other
	// program reads the kernel.
	write       func(c nodestatetest.Case, f int) (string, error)
	kernel      bool
	cases, long uint64
	// one: TestCaptured is for the first node only, because a virtual machine is slow.
	one   bool
	least map[string]int // frontends by origin and action
}

// TestTables: pkg/dataplane of the main module finds no difference between a cluster and the rules that kube-proxy
// writes for it: into kernels, in networks of the test's own, and into a fake. Another program reads and compares them.
func TestTables(t *testing.T) {
	few := map[string]int{"outside forward": 5, "outside reject": 5, "pod forward": 5, "node forward": 5}
	many := map[string]int{"outside forward": 500, "outside reject": 500, "outside drop": 50, "pod forward": 500, "pod drop": 30,
		"node forward": 500, "node reject": 500, "node drop": 30, "node pass": 50}
	for _, w := range []written{
		{name: "nftables", mode: "nftables", write: writeNFTables, kernel: true, cases: 40, long: 5_000, least: few},
		{name: "iptables-nft", mode: "iptables", write: real("nft", false), kernel: true, cases: 30, long: 1_000, least: few},
		{name: "iptables-legacy", mode: "iptables-legacy", write: real("legacy", false), kernel: true, cases: 30, long: 1_000, least: few},
		{name: "iptables-save of iptables-nft", mode: "iptables", write: real("nft", true), kernel: true, cases: 5, long: 500},
		{name: "iptables-save of iptables-legacy", mode: "iptables", write: real("legacy", true), kernel: true, cases: 5, long: 500},
		{name: "a fake of iptables", mode: "iptables", write: writeFake, cases: 1_000, long: 20_000, least: many},
		{name: "ipvs", mode: "ipvs", write: writeIPVS("nft"), kernel: true, cases: 16, long: 300},
		{name: "ipvs with iptables-legacy", mode: "ipvs", write: writeIPVS("legacy"), kernel: true, cases: 2, long: 50},
	} {
		t.Run(w.name, w.test)
	}
}

func (w written) test(t *testing.T) {
	if w.kernel {
		if testing.Short() {
			t.Skip("hundreds of transactions into kernels: without -short, in make e2e-sandbox")
		}
		w.needs(t)
	}
	runtime.LockOSThread() // for good: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil && os.Geteuid() == 0 {
		t.Skipf("no network namespace: %v", err)
	}
	other := ask(t, w.mode)
	compare := func(c nodestatetest.Case, f int) answer {
		save, err := w.write(c, f)
		if err != nil {
			return answer{Error: err.Error()}
		}
		return other(c, f, save)
	}
	cases := w.cases
	if os.Getenv("CHECKPLAN_LONG") != "" {
		cases = w.long
	}
	compared := map[string]int{}
	for seed := range cases {
		c := nodestatetest.Generate(seed)
		simplify(&c)
		if ambiguous(c) {
			continue
		}
		for f := range families {
			a := compare(c, f)
			for what, n := range a.Frontends {
				compared[what] += n
			}
			if a.fine() {
				continue
			}
			small, shrinking := nodestatetest.Shrink(c, func(c nodestatetest.Case) bool {
				return possible(c) && len(c.Services) == 1 && !compare(c, f).fine()
			})
			text, encoding := yaml.Marshal(small)
			last := compare(small, f)
			save, _ := w.write(small, f)
			rules, _ := exec.Command("nft", "list", "ruleset").CombinedOutput()
			t.Fatalf("seed %d %s: %v\n\nThe smallest case (shrink: %v, encode: %v):\n%s\n%s%s\n%v",
				seed, families[f], a, shrinking, encoding, text, save, rules, last)
		}
	}
	t.Logf("%d cases, frontends: %v", cases, compared)
	for what, least := range w.least {
		if compared[what] < least {
			t.Errorf("%d frontends with %s, want %d or more", compared[what], what, least)
		}
	}
}

// needs skips a test that cannot run on this machine. kube-proxy in mode ipvs runs on another kernel.
func (w written) needs(t *testing.T) {
	if w.mode == "ipvs" && os.Getenv("CHECKPLAN_GUEST") == "" {
		t.Skip("runs in a virtual machine, on a kernel that has IPVS: make e2e-ipvs")
	}
	if _, err := exec.LookPath("nft"); err != nil || os.Geteuid() != 0 {
		t.Skipf("kube-proxy needs nft, and root: %v", err)
	}
}

// answer is what test/dataplane of the main module writes.
type answer struct {
	Error       string
	Differences []json.RawMessage
	Unknown     []string
	Frontends   map[string]int
	Dump        json.RawMessage
}

func (a answer) fine() bool { return a.Error == "" && len(a.Differences) == 0 && len(a.Unknown) == 0 }

func (a answer) String() string {
	text := a.Error
	for _, d := range a.Differences {
		text += "\n" + string(d)
	}
	return fmt.Sprint(text, a.Unknown)
}

// asked compares the rules of one family, the kernel's or those that iptables-save printed, with a cluster.
type asked func(c nodestatetest.Case, f int, save string) answer

// ask starts test/dataplane of the main module in this network.
func ask(t *testing.T, mode string) asked {
	program := "dataplane" // in the virtual machine of test/kernel, which has no compiler
	if os.Getenv("CHECKPLAN_GUEST") == "" {
		program = filepath.Join(t.TempDir(), "dataplane")
		build := exec.Command("go", "build", "-o", program, "./test/dataplane")
		build.Dir = "../../../.."
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("go build ./test/dataplane: %v\n%s", err, out)
		}
	}
	command := exec.Command(program)
	command.Stderr = os.Stderr
	in, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		if err := command.Wait(); err != nil {
			t.Error(err)
		}
	})
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 64<<20)
	return func(c nodestatetest.Case, f int, save string) answer {
		mode, legacy := strings.CutSuffix(mode, "-legacy")
		question, err := json.Marshal(map[string]any{"case": c, "family": families[f], "mode": mode, "save": save, "legacy": legacy,
			"dump": os.Getenv("UPDATE") != ""})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := in.Write(append(question, '\n')); err != nil {
			t.Fatal(err)
		}
		if !lines.Scan() {
			t.Fatalf("test/dataplane ended: %v", lines.Err())
		}
		var a answer
		if err := json.Unmarshal(lines.Bytes(), &a); err != nil {
			t.Fatal(err)
		}
		return a
	}
}

func writeNFTables(c nodestatetest.Case, f int) (string, error) {
	family := []string{"ip", "ip6"}[f]
	if err := command("nft", fmt.Sprintf("add table %[1]s kube-proxy; delete table %[1]s kube-proxy", family)); err != nil {
		return "", err
	}
	o := newOracle(c)
	p, err := nftables.NewProxier(context.Background(), families[f], time.Hour, 0, false, 14,
		proxyutil.NewDetectLocalByCIDR(podCIDRs[f]), c.NodeName, o.nodeIPs[f], nil, nil, nil, false)
	if err != nil {
		return "", err
	}
	feed(p, o, c)
	return "", nil
}

func writeFake(c nodestatetest.Case, f int) (string, error) {
	fake := iptablestest.NewFake()
	if f == 1 {
		fake = iptablestest.NewIPv6Fake()
	}
	if err := writeIPTables(c, f, fake); err != nil {
		return "", err
	}
	var text bytes.Buffer
	err := fake.SaveInto("", &text)
	// The fake leaves out the quotes of what EnsureRule was given.
	return unquoted.ReplaceAllString(text.String(), `--comment "$1" -j`), err
}

var unquoted = regexp.MustCompile(`--comment (kubernetes [^"\n]*) -j`)

// real returns a writer for a backend of iptables.
func real(backend string, save bool) func(nodestatetest.Case, int) (string, error) {
	return func(c nodestatetest.Case, f int) (string, error) {
		end, err := useIPTables(backend, f)
		if err != nil {
			return "", err
		}
		defer end()
		name, protocol := ipts(f)
		if err := writeIPTables(c, f, utiliptables.New(protocol)); err != nil || !save {
			return "", err
		}
		text, err := exec.Command(name + "-save").Output()
		return string(text), err
	}
}

func ipts(f int) (string, utiliptables.Protocol) {
	if f == 1 {
		return "ip6tables", utiliptables.ProtocolIPv6
	}
	return "iptables", utiliptables.ProtocolIPv4
}

// useIPTables makes a backend the one that kube-proxy calls, by the name iptables, and removes its rules of families.
func useIPTables(backend string, families ...int) (end func(), err error) {
	dir, err := os.MkdirTemp("", "iptables")
	if err != nil {
		return nil, err
	}
	path := os.Getenv("PATH")
	end = func() {
		os.Setenv("PATH", path)
		os.RemoveAll(dir)
	}
	for _, name := range []string{"iptables", "ip6tables"} {
		for _, suffix := range []string{"", "-save", "-restore"} {
			path, err := exec.LookPath(name + "-" + backend + suffix)
			if err == nil {
				err = os.Symlink(path, filepath.Join(dir, name+suffix))
			}
			if err != nil {
				end()
				return nil, err
			}
		}
	}
	os.Setenv("PATH", dir+":"+path)
	for _, f := range families {
		name, _ := ipts(f)
		if err := input("*nat\nCOMMIT\n*filter\nCOMMIT\n", name+"-restore"); err != nil { // removes chains and rules
			end()
			return nil, err
		}
	}
	return end, nil
}

// nodeAddresses are those of the node besides that of its Node: node ports need one, and two can differ.
var nodeAddresses = [2][]string{{"198.18.255.1/32", "198.18.255.2/32"}, {"fd00:ffff::1/128", "fd00:ffff::2/128"}}

// writeIPVS returns a writer for kube-proxy in mode ipvs, with its other rules in a backend of iptables.
func writeIPVS(backend string) func(nodestatetest.Case, int) (string, error) {
	return func(c nodestatetest.Case, f int) (string, error) {
		end, err := useIPTables(backend, 0, 1) // rules of both name ipsets
		if err != nil {
			return "", err
		}
		defer end()
		server := utilipvs.New()
		if server == nil {
			return "", errors.New("the kernel has no IPVS")
		}
		if err := errors.Join(server.Flush(), command("ipset", "destroy")); err != nil {
			return "", err
		}
		_ = input("link delete kube-ipvs0\nlink delete node0\n", "ip", "-force", "-batch", "-") // if they exist
		o := newOracle(c)
		addresses := nodeAddresses[f]
		if ip := o.nodeIPs[f]; ip != nil && !ip.IsLoopback() {
			addresses = append([]string{fmt.Sprintf("%s/%d", ip, []int{32, 128}[f])}, addresses...)
		}
		device := "link add node0 type dummy\n"
		for _, address := range addresses {
			device += "address add " + address + " dev node0\n"
		}
		if err := input(device, "ip", "-batch", "-"); err != nil {
			return "", err
		}
		_, protocol := ipts(f)
		sets := &ipsets{Interface: ipset.New()}
		tables := restoring{utiliptables.New(protocol), sets}
		p, err := ipvs.NewProxier(context.Background(), families[f], tables, server, sets, sysctl.New(),
			time.Hour, time.Hour, nil, false, 0, 0, 0, false, 14, proxyutil.NewDetectLocalByCIDR(podCIDRs[f]), c.NodeName,
			o.nodeIPs[f], nil, nil, "rr", nil, false)
		if err != nil {
			return "", err
		}
		feed(p, o, c)
		return "", sets.err
	}
}

// ipsets has one command make all sets and entries, instead of one for each: a virtual machine takes a minute for those.
type ipsets struct {
	ipset.Interface
	lines strings.Builder
	err   error
}

func (s *ipsets) CreateSet(set *ipset.IPSet, _ bool) error {
	// What the real one fills in by itself: its function is not exported.
	words := fmt.Sprintf("family %s hashsize 1024 maxelem 65536", set.HashFamily)
	if set.SetType == ipset.BitmapPort {
		set.PortRange = ipset.DefaultPortRange // by which entries are checked
		words = "range " + set.PortRange
	}
	fmt.Fprintf(&s.lines, "create %s %s %s\n", set.Name, set.SetType, words)
	return nil
}

// ListEntries returns those of new sets.
func (s *ipsets) ListEntries(string) ([]string, error) { return nil, nil }

func (s *ipsets) AddEntry(entry string, set *ipset.IPSet, _ bool) error {
	fmt.Fprintf(&s.lines, "add %s %s\n", set.Name, entry)
	return nil
}

// restoring makes the sets before the rules that name them.
type restoring struct {
	utiliptables.Interface
	sets *ipsets
}

func (r restoring) RestoreAll(data []byte, flush utiliptables.FlushFlag, counters utiliptables.RestoreCountersFlag) error {
	r.sets.err = input(r.sets.lines.String(), "ipset", "restore")
	err := r.Interface.RestoreAll(data, flush, counters)
	r.sets.err = errors.Join(r.sets.err, err) // kube-proxy only logs it
	return err
}

func writeIPTables(c nodestatetest.Case, f int, ipt utiliptables.Interface) error {
	o := newOracle(c)
	p, err := iptables.NewProxier(context.Background(), families[f], ipt, sysctltest.NewFake(), time.Hour, time.Hour, false, false, 14,
		proxyutil.NewDetectLocalByCIDR(podCIDRs[f]), c.NodeName, o.nodeIPs[f], nil, nil, nil, false)
	if err != nil {
		return err
	}
	feed(p, o, c)
	return nil
}

func command(name string, args ...string) error { return input("", name, args...) }

func input(text, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %v: %w: %s", name, args, err, out)
	}
	return nil
}

// feed sends a proxy the objects of the cluster. It writes its rules before feed returns.
func feed(p proxy.Provider, o *oracle, c nodestatetest.Case) {
	p.OnTopologyChange(o.zone)
	for _, s := range o.objects {
		p.OnServiceAdd(s)
	}
	for i := range c.Slices {
		if watched.Matches(labels.Set(c.Slices[i].Labels)) {
			p.OnEndpointSliceAdd(&c.Slices[i])
		}
	}
	p.OnServiceSynced()
	p.OnEndpointSlicesSynced()
}

// captures is where the main module's tests have a cluster, and rules of kube-proxy for it.
const captures = "../../../../pkg/dataplane/want/testdata/"

// capturedCluster is the cluster of the main module's tests, and its nodes.
func capturedCluster(t *testing.T) (whole nodestatetest.Case, nodes []*corev1.Node) {
	t.Helper()
	text, err := os.ReadFile(captures + "cluster.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var list struct{ Items []json.RawMessage }
	if err := yaml.Unmarshal(text, &list); err != nil {
		t.Fatal(err)
	}
	for _, item := range list.Items {
		var kind struct{ Kind string }
		var node corev1.Node
		var service corev1.Service
		var slice discoveryv1.EndpointSlice
		if err := json.Unmarshal(item, &kind); err != nil {
			t.Fatal(err)
		}
		object := map[string]any{"Node": &node, "Service": &service, "EndpointSlice": &slice}[kind.Kind]
		if err := json.Unmarshal(item, object); err != nil {
			t.Fatal(err)
		}
		switch kind.Kind {
		case "Node":
			nodes = append(nodes, &node)
		case "Service":
			whole.Services = append(whole.Services, service)
		case "EndpointSlice":
			whole.Slices = append(whole.Slices, slice)
		}
	}
	return whole, nodes
}

// keep writes captured rules to a file of the main module's tests if UPDATE is set.
func keep(t *testing.T, name string, data []byte) {
	t.Helper()
	if os.Getenv("UPDATE") == "" {
		return
	}
	var packed bytes.Buffer
	zip, _ := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	zip.Write(data)
	zip.Close()
	if err := os.WriteFile(captures+name+".gz", packed.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestCaptured: kube-proxy's rules of a cluster of the main module's tests have no difference on any node. UPDATE=1
// keeps them there, as they were read.
func TestCaptured(t *testing.T) {
	whole, nodes := capturedCluster(t)
	for _, w := range []written{
		{name: "nftables", mode: "nftables", write: writeNFTables},
		{name: "iptables-nft", mode: "iptables", write: real("nft", false)},
		{name: "iptables-legacy", mode: "iptables-legacy", write: real("legacy", false)},
		{name: "iptables-save", mode: "iptables", write: real("legacy", true)},
		{name: "ipvs", mode: "ipvs", write: writeIPVS("nft")},
		{name: "ipvs-legacy", mode: "ipvs", write: writeIPVS("legacy"), one: true},
	} {
		t.Run(w.name, func(t *testing.T) {
			w.needs(t)
			runtime.LockOSThread()
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				t.Skipf("no network namespace: %v", err)
			}
			other := ask(t, w.mode)
			if w.one {
				nodes = nodes[:1]
			}
			for _, node := range nodes {
				for f := range families {
					c := whole
					c.Node, c.NodeName = node, node.Name
					save, err := w.write(c, f)
					if err != nil {
						t.Fatal(err)
					}
					a := other(c, f, save)
					if !a.fine() {
						t.Errorf("%s %s: %v", node.Name, families[f], a)
					}
					data, suffix := []byte(save), ".txt"
					if save == "" {
						data, suffix = a.Dump, ".json"
					}
					keep(t, fmt.Sprintf("%s-%s-%s%s", w.name, node.Name, families[f], suffix), data)
				}
			}
		})
	}
}

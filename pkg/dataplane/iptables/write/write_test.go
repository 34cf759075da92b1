// SPDX-License-Identifier: Apache-2.0

package write

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/checkplan/checkplan/pkg/dataplane"
	"github.com/checkplan/checkplan/pkg/dataplane/iptables"
	"github.com/checkplan/checkplan/pkg/dataplane/proxy"
	"github.com/checkplan/checkplan/pkg/dataplane/proxy/proxytest"
	"github.com/checkplan/checkplan/pkg/dataplane/want"
	"github.com/checkplan/checkplan/pkg/nodestate/api"
)

// kernel is a fake of iptables: it does what iptables-restore --noflush does with the lines of this package, and
// refuses what the real one would.
type kernel struct {
	family dataplane.Family
	tables map[string]map[string][]string
	calls  []string
	fail   func(call string) error
	killed error // returned by the next restore, although it did its work
}

func newKernel(family dataplane.Family) *kernel {
	k := &kernel{family: family, tables: map[string]map[string][]string{}}
	for _, table := range iptables.Tables {
		k.tables[table] = map[string][]string{}
	}
	for _, chain := range []string{"PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"} {
		k.tables["nat"][chain] = nil
	}
	for _, chain := range []string{"INPUT", "FORWARD", "OUTPUT"} {
		k.tables["filter"][chain] = nil
	}
	return k
}

func (k *kernel) run(_ context.Context, stdin []byte, name string, args ...string) ([]byte, error) {
	call := strings.TrimSpace(name + " " + strings.Join(args, " "))
	k.calls = append(k.calls, call)
	if k.fail != nil {
		if err := k.fail(call); err != nil {
			return nil, err
		}
	}
	_, what, _ := strings.Cut(name, "-")
	switch what {
	case "save":
		return []byte(k.save()), nil
	case "restore":
		for table := range strings.SplitAfterSeq(string(stdin), "COMMIT\n") {
			if table == "" {
				continue
			}
			if err := k.restore(table); err != nil {
				return nil, err
			}
		}
		err := k.killed
		k.killed = nil
		return nil, err
	}
	// --wait 30 -t TABLE -C CHAIN RULE
	rule := strings.Join(args[6:], " ")
	for _, have := range k.tables[args[3]][args[5]] {
		if strings.Join(words(have), " ") == rule {
			return nil, nil
		}
	}
	return nil, errors.New("no such rule: " + rule)
}

func (k *kernel) save() string {
	var text strings.Builder
	for _, table := range iptables.Tables {
		fmt.Fprintf(&text, "*%s\n", table)
		for _, chain := range slices.Sorted(maps.Keys(k.tables[table])) {
			fmt.Fprintf(&text, ":%s - [0:0]\n", chain)
		}
		for _, chain := range slices.Sorted(maps.Keys(k.tables[table])) {
			for _, rule := range k.tables[table][chain] {
				fmt.Fprintf(&text, "-A %s %s\n", chain, rule)
			}
		}
		fmt.Fprintln(&text, "COMMIT")
	}
	return text.String()
}

var targetOf = regexp.MustCompile(`-j (` + iptables.OwnPrefix + `\S*)`)

var quoted = regexp.MustCompile(`"[^"]*"`)

// restore changes one table, or leaves it as it is.
func (k *kernel) restore(text string) error {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	table := strings.TrimPrefix(lines[0], "*")
	chains := map[string][]string{}
	for name, list := range k.tables[table] {
		chains[name] = slices.Clone(list)
	}
	if len(chains) == 0 || lines[len(lines)-1] != "COMMIT" {
		return fmt.Errorf("table %q", table)
	}
	for _, line := range lines[1 : len(lines)-1] {
		verb, rest, _ := strings.Cut(line, " ")
		name, rule, _ := strings.Cut(rest, " ")
		list, known := chains[name]
		switch {
		case strings.HasPrefix(line, ":"):
			chain := strings.TrimPrefix(verb, ":")
			if !strings.HasPrefix(chain, iptables.OwnPrefix) || rest != "- [0:0]" || len(chain) > 28 {
				return errors.New(line)
			}
			chains[chain] = nil
			continue
		case !known:
			return fmt.Errorf("no chain: %s", line)
		case verb == "-A" && strings.HasPrefix(name, iptables.OwnPrefix):
			chains[name] = append(list, rule)
		case verb == "-I":
			chains[name] = slices.Insert(list, 0, rule)
		case verb == "-D" && slices.Contains(list, rule):
			i := slices.Index(list, rule)
			chains[name] = slices.Delete(list, i, i+1)
		case verb == "-X" && rule == "" && len(list) == 0:
			delete(chains, name)
		default:
			return errors.New(line)
		}
	}
	for _, list := range chains {
		for _, rule := range list {
			if m := targetOf.FindStringSubmatch(quoted.ReplaceAllString(rule, "")); m != nil {
				if _, ok := chains[m[1]]; !ok {
					return fmt.Errorf("a rule leads to a chain that does not exist: %s", rule)
				}
			}
			if m := regexp.MustCompile(`--comment "([^"]*)"`).FindStringSubmatch(rule); m != nil && len(m[1]) > 255 {
				return fmt.Errorf("a comment of %d bytes", len(m[1]))
			}
		}
	}
	k.tables[table] = chains
	return nil
}

// fakes is a Writer whose kernels are fakes.
func fakes() (*Writer, map[dataplane.Family]*kernel) {
	all := map[dataplane.Family]*kernel{dataplane.IPv4: newKernel(dataplane.IPv4), dataplane.IPv6: newKernel(dataplane.IPv6)}
	return newWriter(slog.New(slog.DiscardHandler), func(ctx context.Context, stdin []byte, name string, args ...string) ([]byte, error) {
		family := dataplane.IPv4
		if strings.HasPrefix(name, "ip6") {
			family = dataplane.IPv6
		}
		return all[family].run(ctx, stdin, name, args...)
	}), all
}

func write(t *testing.T, w *Writer, items ...*api.ServiceEndpoints) {
	t.Helper()
	if err := w.Write(t.Context(), proxy.Check(items), proxytest.Node()); err != nil {
		t.Fatal(err)
	}
}

// TestRoundTrip: what is written is read as what pkg/dataplane/want expects, in each state of random clusters and in
// both families. After each change, the rules are the same as if they had been written at once.
func TestRoundTrip(t *testing.T) {
	seeds := uint64(300)
	if os.Getenv("CHECKPLAN_LONG") != "" {
		seeds = 20_000
	}
	compared, actions := 0, map[string]int{}
	for seed := range seeds {
		w, all := fakes()
		for i, step := range proxytest.Steps(seed) {
			write(t, w, step.Items...)
			fresh, anew := fakes()
			write(t, fresh, step.Items...)
			for _, family := range proxy.Families {
				save := all[family].save()
				wanted := want.Table(step.State, family, dataplane.IPTables)
				have, ok := iptables.ParseSave(save, family)
				if !ok {
					if len(wanted.Frontends) > 0 {
						t.Fatalf("seed %d, step %d, %s: no rules", seed, i, family)
					}
					continue
				}
				if len(wanted.Frontends) > 0 {
					if diff := cmp.Diff(anew[family].save(), save); diff != "" {
						t.Fatalf("seed %d, step %d, %s: after a change (-at once +have)\n%s", seed, i, family, diff)
					}
				}
				if differences := dataplane.Compare(wanted, have); len(differences) > 0 || len(have.Unknown) > 0 {
					t.Fatalf("seed %d, step %d, %s: %+v %q\n%s", seed, i, family, differences, have.Unknown, save)
				}
				compared++
				for _, f := range wanted.Frontends {
					actions[fmt.Sprint(f.From, " ", f.Action)]++
				}
			}
		}
	}
	t.Logf("%d tables, frontends: %v", compared, actions)
	for _, what := range []string{"outside forward", "outside reject", "outside drop", "pod forward", "pod drop", "node forward", "node pass"} {
		if actions[what] < 20 {
			t.Errorf("%d frontends with %s, want 20 or more", actions[what], what)
		}
	}
}

// service is a Service of IPv4 with one port; changes make others of it.
func service(name string, change ...func(*api.ServiceEndpoints)) *api.ServiceEndpoints {
	s := &api.ServiceEndpoints{Namespace: "shop", Name: name, Families: []*api.Family{{
		Family: api.IPFamily_IPv4, ClusterIP: "10.96.0.1", Ports: []*api.Port{{
			Name: "http", Protocol: api.Protocol_TCP, Port: 80, Internal: api.Action_FORWARD,
			Endpoints: []*api.Endpoint{{Address: "10.244.1.4", Port: 8080, Local: true, Internal: true}, {Address: "10.244.2.5", Port: 8080, Internal: true}},
		}},
	}}}
	for _, c := range change {
		c(s)
	}
	return s
}

// TestGolden: what iptables-restore reads for a Service with everything.
func TestGolden(t *testing.T) {
	everything := service("web", func(s *api.ServiceEndpoints) {
		s.AffinitySeconds, s.ExternalTrafficToLocal, s.HealthCheckNodePort = 600, true, 32000
		f := s.Families[0]
		f.ExternalIPs, f.LoadBalancerIPs = []string{"203.0.113.1"}, []string{"203.0.113.2"}
		f.LoadBalancerSources, f.NodePortPrefixes = []string{"198.51.100.0/24", "192.0.2.7/32"}, []string{"192.0.2.0/24"}
		p := f.Ports[0]
		p.NodePort, p.External, p.Inside = 30080, api.Action_FORWARD, api.Action_FORWARD
		p.Endpoints[0].External, p.Endpoints[0].Inside, p.Endpoints[1].Inside = true, true, true
	})
	empty := service("empty", func(s *api.ServiceEndpoints) {
		s.Families[0].ClusterIP = "10.96.0.2"
		s.Families[0].Ports[0].Internal, s.Families[0].Ports[0].Endpoints = api.Action_REJECT, nil
	})
	state := proxy.Check([]*api.ServiceEndpoints{everything, empty})
	have := string(Render(state, proxytest.Node(), dataplane.IPv4).Restore(nil))
	const golden = "testdata/everything.txt"
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(golden, []byte(have), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), have); diff != "" {
		t.Errorf("%s (-want +got)\n%s", golden, diff)
	}
}

// TestRestore: what one change of a state is for iptables-restore: the chains that change, and no others.
func TestRestore(t *testing.T) {
	render := func(items ...*api.ServiceEndpoints) *Rules {
		return Render(proxy.Check(items), proxytest.Node(), dataplane.IPv4)
	}
	before := render(service("web"))
	if text := render(service("web")).Restore(before); len(text) > 0 {
		t.Errorf("the same state: %s", text)
	}
	one := render(service("web", func(s *api.ServiceEndpoints) { s.Families[0].Ports[0].Endpoints = s.Families[0].Ports[0].Endpoints[:1] }))
	want := `*nat
:CPLAN-SVC-* - [0:0]
:CPLAN-SEP-* - [0:0]
-A CPLAN-SVC-* ! -s 10.244.1.0/24 -d 10.96.0.1/32 -p tcp -m comment --comment "shop/web:http cluster IP" -m tcp --dport 80 -j CPLAN-MARK-MASQ
-A CPLAN-SVC-* -m comment --comment "shop/web:http -> 10.244.1.4:8080" -j CPLAN-SEP-*
-X CPLAN-SEP-*
COMMIT
`
	have := regexp.MustCompile(`-(SVC|SEP)-[A-Z2-7]{16}`).ReplaceAllString(string(one.Restore(before)), "-$1-*")
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("one endpoint ended (-want +got)\n%s", diff)
	}
}

// TestPredecessor: what a dead predecessor left is replaced; rules of others stay where they are.
func TestPredecessor(t *testing.T) {
	first, all := fakes()
	k := all[dataplane.IPv4]
	k.tables["nat"]["KUBE-SERVICES"] = []string{"-j ACCEPT"}
	k.tables["nat"]["PREROUTING"] = []string{"-j KUBE-SERVICES"}
	k.tables["filter"]["INPUT"] = []string{`-m comment --comment "-j CPLAN-SERVICES, said somebody" -j ACCEPT`}
	before := k.save()
	write(t, first, service("old"), service("web", func(s *api.ServiceEndpoints) { s.Families[0].ClusterIP = "10.96.0.9" }))
	k.tables["nat"]["CPLAN-LEFT"] = []string{"-j DROP"}
	k.tables["nat"]["OUTPUT"] = append(k.tables["nat"]["OUTPUT"], "-j CPLAN-LEFT")
	second, _ := fakes()
	second.run = first.run
	write(t, second, service("web"))

	third, anew := fakes()
	clean := anew[dataplane.IPv4]
	clean.tables["nat"]["KUBE-SERVICES"] = []string{"-j ACCEPT"}
	clean.tables["nat"]["PREROUTING"] = []string{"-j KUBE-SERVICES"}
	clean.tables["filter"]["INPUT"] = []string{`-m comment --comment "-j CPLAN-SERVICES, said somebody" -j ACCEPT`}
	write(t, third, service("web"))
	if diff := cmp.Diff(clean.save(), k.save()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	for range 2 {
		if err := second.Cleanup(t.Context()); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(before, k.save()); diff != "" {
			t.Errorf("after --cleanup (-want +got)\n%s", diff)
		}
	}
}

// TestPresent: rules that somebody removed are noticed, and written again.
func TestPresent(t *testing.T) {
	for _, removed := range []string{"nat", "filter"} {
		t.Run(removed, func(t *testing.T) {
			w, all := fakes()
			k := all[dataplane.IPv4]
			write(t, w, service("web"))
			before := k.save()
			if err := w.Present(t.Context()); err != nil {
				t.Errorf("after a write: %v", err)
			}
			k.tables[removed] = newKernel(dataplane.IPv4).tables[removed]
			if err := w.Present(t.Context()); err == nil {
				t.Error("without rules, there is no error")
			}
			write(t, w, service("web"))
			if diff := cmp.Diff(before, k.save()); diff != "" {
				t.Errorf("(-before +after)\n%s", diff)
			}
		})
	}
}

// TestFailure: after an error, the next attempt begins with what is there. A family of which the kernel has nothing is
// not missed until a Service needs it.
func TestFailure(t *testing.T) {
	w, all := fakes()
	all[dataplane.IPv6].fail = func(string) error { return errors.New("the kernel has no IPv6") }
	k := all[dataplane.IPv4]
	k.fail = func(call string) error {
		if strings.Contains(call, "restore") {
			return errors.New("resource temporarily unavailable")
		}
		return nil
	}
	state := proxy.Check([]*api.ServiceEndpoints{service("web")})
	if err := w.Write(t.Context(), state, proxytest.Node()); err == nil || !strings.Contains(err.Error(), "IPv4: resource temporarily unavailable") {
		t.Errorf("error %v", err)
	}
	k.fail = nil
	write(t, w, service("web"))
	if _, ok := iptables.ParseSave(k.save(), dataplane.IPv4); !ok {
		t.Error("no rules")
	}
	six := service("six", func(s *api.ServiceEndpoints) {
		s.Families[0].Family, s.Families[0].ClusterIP = api.IPFamily_IPv6, "fd00:96::1"
		s.Families[0].Ports[0].Internal, s.Families[0].Ports[0].Endpoints = api.Action_REJECT, nil
	})
	if err := w.Write(t.Context(), proxy.Check([]*api.ServiceEndpoints{six}), proxytest.Node()); err == nil || !strings.Contains(err.Error(), "IPv6: ") {
		t.Errorf("error %v", err)
	}
}

// TestCleanupWithoutTables: a kernel without nftables has no rules of iptables on top of them. Any other error is one,
// and so is this one if this Writer wrote rules.
func TestCleanupWithoutTables(t *testing.T) {
	for _, row := range []struct {
		text       string
		wrote, err bool
	}{
		{"iptables-save v1.8.9 (nf_tables): Could not fetch rule set generation id: Invalid argument", false, false},
		{"iptables-save: Failed to initialize nft: Protocol not supported", false, false},
		{"iptables-save: Failed to initialize nft: Protocol not supported", true, true},
		{"iptables-save v1.8.9 (nf_tables): Could not fetch rule set generation id: Permission denied (you must be root)", false, true},
	} {
		w, all := fakes()
		if row.wrote {
			write(t, w, service("web"))
		}
		for _, k := range all {
			k.fail = func(string) error { return errors.New(row.text) }
		}
		if err := w.Cleanup(t.Context()); (err != nil) != row.err {
			t.Errorf("%+v: error %v", row, err)
		}
	}
}

// TestKilled: after an attempt whose end is not known, the next one begins with what is there.
func TestKilled(t *testing.T) {
	w, all := fakes()
	k := all[dataplane.IPv4]
	write(t, w, service("web"))
	k.killed = errors.New("signal: killed")
	if err := w.Write(t.Context(), proxy.Check([]*api.ServiceEndpoints{service("api")}), proxytest.Node()); err == nil {
		t.Error("no error")
	}
	write(t, w, service("web"))
	fresh, anew := fakes()
	write(t, fresh, service("web"))
	if diff := cmp.Diff(anew[dataplane.IPv4].save(), k.save()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// line is what each line for iptables-restore has to be: nothing in it ends a string, a line or a command early.
var line = regexp.MustCompile(`^(\*(nat|filter)|COMMIT|:CPLAN-[A-Z2-7-]+ - \[0:0\]|-I (PREROUTING|INPUT|FORWARD|OUTPUT|POSTROUTING) .* -j CPLAN-[A-Z-]+|` +
	`-A CPLAN-[A-Z2-7-]+ [A-Za-z0-9!,./: -]*(-m comment --comment "[A-Za-z0-9 :/>.'\[\]_-]*" )?[A-Za-z0-9!,./:\[\] -]*)$`)

// FuzzRender: whatever a message has, each line for iptables-restore is one of our own.
func FuzzRender(f *testing.F) {
	for i, text := range proxytest.Strings {
		f.Add(text, "web", "http", "10.96.0.1", "203.0.113.1", "192.0.2.0/24", "10.244.1.4", int32(80), int32(600), uint16(0x455))
		f.Add("shop", text, "http", "10.96.0.1", "203.0.113.1", "192.0.2.0/24", "10.244.1.4", int32(80), int32(0), uint16(0x755))
		f.Add("shop", "web", text, "10.96.0.1", "203.0.113.1", text, "10.244.1.4", int32(80), int32(-1), uint16(0x46a))
		f.Add("shop", "web", "http", text, "203.0.113.1", "192.0.2.0/24", "10.244.1.4", int32(65535), int32(0), uint16(0x455))
		f.Add("shop", "web", "http", "10.96.0.1", text, "192.0.2.0/24", text, int32(i), int32(0), uint16(0x455))
	}
	f.Fuzz(func(t *testing.T, namespace, name, port, clusterIP, other, source, endpoint string, number, seconds int32, kinds uint16) {
		hostile := proxytest.Hostile(namespace, name, port, clusterIP, other, source, endpoint, number, seconds, kinds)
		state := proxy.Check([]*api.ServiceEndpoints{hostile, service("web"), hostile})
		for _, family := range proxy.Families {
			text := Render(state, proxytest.Node(), family).Restore(nil)
			for l := range strings.Lines(string(text)) {
				if !line.MatchString(strings.TrimSuffix(l, "\n")) {
					t.Errorf("line %q", l)
				}
			}
			k := newKernel(family)
			if _, err := k.run(t.Context(), text, "iptables-restore"); err != nil {
				t.Errorf("%v\n%s", err, text)
			}
		}
	})
}

// FuzzFound: whatever iptables-save prints, what is found is the proxy's only.
func FuzzFound(f *testing.F) {
	f.Add("*nat\n:CPLAN-SERVICES - [0:0]\n-A PREROUTING -m comment --comment \"x\" -j CPLAN-SERVICES\nCOMMIT\n")
	f.Add("*raw\n:CPLAN-X - [0:0]\n*filter\n-A INPUT -j CPLAN-X -x\n-A KUBE -j CPLAN-X\n")
	f.Fuzz(func(t *testing.T, save string) {
		for l := range strings.Lines(string((*Rules)(nil).Restore(Found([]byte(save), dataplane.IPv4)))) {
			if !regexp.MustCompile(`^(\*(nat|filter)|COMMIT|:CPLAN-[A-Za-z0-9-]+ - \[0:0\]|-X CPLAN-[A-Za-z0-9-]+|-D (PREROUTING|INPUT|FORWARD|OUTPUT|POSTROUTING) .*-j CPLAN-[A-Za-z0-9-]+)$`).MatchString(strings.TrimRight(l, "\n")) {
				t.Errorf("line %q of %q", l, save)
			}
		}
	})
}

// BenchmarkRender is what a node of a cluster with 10,000 Services and 100,000 endpoints computes: all rules, the text
// of all of them, and the text when nothing changed.
func BenchmarkRender(b *testing.B) {
	state, node := proxy.Check(proxytest.Large(10_000, 100_000)), proxytest.Node()
	b.Run("render", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			Render(state, node, dataplane.IPv4)
		}
	})
	rules := Render(state, node, dataplane.IPv4)
	b.Run("restore", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			b.SetBytes(int64(len(rules.Restore(nil))))
		}
	})
	again := Render(state, node, dataplane.IPv4)
	b.Run("change", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if n := len(again.Restore(rules)); n > 0 {
				b.Fatalf("%d bytes", n)
			}
		}
	})
}

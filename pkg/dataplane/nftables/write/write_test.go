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
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/knftables"

	"github.com/checkplan/checkplan/pkg/dataplane"
	"github.com/checkplan/checkplan/pkg/dataplane/nftables"
	"github.com/checkplan/checkplan/pkg/dataplane/proxy"
	"github.com/checkplan/checkplan/pkg/dataplane/proxy/proxytest"
	"github.com/checkplan/checkplan/pkg/dataplane/want"
	"github.com/checkplan/checkplan/pkg/nodestate/api"
)

// seeds is the number of random clusters of a test.
func seeds() uint64 {
	if os.Getenv("CHECKPLAN_LONG") != "" {
		return 20_000
	}
	return 300
}

// later lets so much time pass that stale chains can be deleted.
func (w *Writer) later() {
	now := w.now().Add(tidyAfter)
	w.now = func() time.Time { return now }
}

// fakes is a Writer whose tables are fakes.
func fakes() (*Writer, map[dataplane.Family]*knftables.Fake) {
	all := map[dataplane.Family]*knftables.Fake{
		dataplane.IPv4: knftables.NewFake(knftables.IPv4Family, nftables.OwnName),
		dataplane.IPv6: knftables.NewFake(knftables.IPv6Family, nftables.OwnName),
	}
	return newWriter(slog.New(slog.DiscardHandler), func(f knftables.Family) (knftables.Interface, error) {
		if f == knftables.IPv4Family {
			return all[dataplane.IPv4], nil
		}
		return all[dataplane.IPv6], nil
	}), all
}

// TestRoundTrip: what is written is read as what pkg/dataplane/want expects, in each state of random clusters and in
// both families. After each change, the table is the same as if it had been written at once.
func TestRoundTrip(t *testing.T) {
	compared, actions := 0, map[string]int{}
	for seed := range seeds() {
		w, all := fakes()
		for i, step := range proxytest.Steps(seed) {
			if err := w.Write(t.Context(), proxy.Check(step.Items), proxytest.Node()); err != nil {
				t.Fatalf("seed %d, step %d: %v", seed, i, err)
			}
			w.later()
			if more, err := w.Tidy(t.Context()); more || err != nil {
				t.Fatalf("seed %d, step %d: tidy: %v %v", seed, i, more, err)
			}
			fresh, anew := fakes()
			if err := fresh.Write(t.Context(), proxy.Check(step.Items), proxytest.Node()); err != nil {
				t.Fatal(err)
			}
			for _, family := range proxy.Families {
				wanted := want.Table(step.State, family, dataplane.NFTables)
				if all[family].Table == nil {
					if len(wanted.Frontends) > 0 {
						t.Fatalf("seed %d, step %d, %s: no table", seed, i, family)
					}
					continue
				}
				if anew[family].Table != nil {
					if diff := cmp.Diff(contents(anew[family]), contents(all[family])); diff != "" {
						t.Fatalf("seed %d, step %d, %s: after a change (-at once +have)\n%s", seed, i, family, diff)
					}
				}
				have := tableOf(t, all[family], family)
				if differences := dataplane.Compare(wanted, have); len(differences) > 0 || len(have.Unknown) > 0 {
					t.Fatalf("seed %d, step %d, %s: %+v %q\n%s", seed, i, family, differences, have.Unknown, all[family].Dump())
				}
				compared++
				for _, f := range wanted.Frontends {
					actions[fmt.Sprint(f.From, " ", f.Action)]++
				}
			}
		}
	}
	t.Logf("%d tables, frontends: %v", compared, actions)
	for _, what := range []string{"outside forward", "outside reject", "outside drop", "pod forward", "pod drop", "node forward", "node reject"} {
		if actions[what] < 20 {
			t.Errorf("%d frontends with %s, want 20 or more", actions[what], what)
		}
	}
}

// contents is what a fake has, in an order that says nothing about how it came there.
func contents(f *knftables.Fake) []string {
	var lines []string
	for line := range strings.Lines(f.Dump()) {
		if strings.HasPrefix(line, "add element ") {
			lines = append(lines, line)
		}
	}
	slices.Sort(lines)
	var rest []string
	for line := range strings.Lines(f.Dump()) {
		if !strings.HasPrefix(line, "add element ") {
			rest = append(rest, line)
		}
	}
	return append(rest, lines...)
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

// TestGolden: the whole table of a Service with everything, as a person reads it.
func TestGolden(t *testing.T) {
	w, all := fakes()
	everything := service("web", func(s *api.ServiceEndpoints) {
		s.AffinitySeconds, s.ExternalTrafficToLocal = 600, true
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
	if err := w.Write(t.Context(), proxy.Check([]*api.ServiceEndpoints{everything, empty}), proxytest.Node()); err != nil {
		t.Fatal(err)
	}
	have := strings.Join(contents(all[dataplane.IPv4]), "")
	const golden = "testdata/everything.nft"
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
	if all[dataplane.IPv6].Table != nil {
		t.Error("a table of IPv6, in which nothing is served")
	}
}

// recorder notes the transactions that a fake runs, and can refuse them.
type recorder struct {
	*knftables.Fake
	transactions []string
	fail         func(text string) error
	killed       error // returned by the next Run, although it did its work
}

func (r *recorder) Run(ctx context.Context, tx *knftables.Transaction) error {
	r.transactions = append(r.transactions, tx.String())
	if r.fail != nil {
		if err := r.fail(tx.String()); err != nil {
			return err
		}
	}
	if err := r.Fake.Run(ctx, tx); err != nil {
		return err
	}
	err := r.killed
	r.killed = nil
	return err
}

func recording() (*Writer, *recorder) {
	r := &recorder{Fake: knftables.NewFake(knftables.IPv4Family, nftables.OwnName)}
	return newWriter(slog.New(slog.DiscardHandler), func(f knftables.Family) (knftables.Interface, error) {
		if f == knftables.IPv6Family {
			return nil, errors.New("the kernel has no IPv6")
		}
		return r, nil
	}), r
}

func write(t *testing.T, w *Writer, items ...*api.ServiceEndpoints) {
	t.Helper()
	if err := w.Write(t.Context(), proxy.Check(items), proxytest.Node()); err != nil {
		t.Fatal(err)
	}
}

// last is the last transaction, without the line of the table.
func (r *recorder) last() []string {
	lines := strings.Split(strings.TrimSpace(r.transactions[len(r.transactions)-1]), "\n")
	return lines[1:]
}

// TestTransactions: each state is one transaction, which has only what changes. Chains that are gone are deleted later.
func TestTransactions(t *testing.T) {
	w, r := recording()
	write(t, w, service("web"))
	if len(r.transactions) != 1 || !strings.HasPrefix(r.transactions[0], "add table") || !strings.Contains(r.transactions[0], "delete table") {
		t.Fatalf("the first write: %q", r.transactions)
	}
	write(t, w, service("web"))
	if len(r.transactions) != 1 {
		t.Errorf("the same state again: %q", r.last())
	}
	write(t, w, service("web", func(s *api.ServiceEndpoints) { s.Families[0].Ports[0].Endpoints[1].Address = "10.244.3.6" }))
	var words []string
	for _, line := range r.last() {
		fields := strings.Fields(line)
		words = append(words, fields[0]+" "+fields[1]+" "+regexp.MustCompile(`-[A-Z2-7]{8}-`).ReplaceAllString(fields[4], "-*-"))
	}
	if diff := cmp.Diff([]string{
		"add chain endpoint-*-shop/web/tcp/http__10.244.3.6/8080",
		"flush chain service-*-shop/web/tcp/http",
		"add rule service-*-shop/web/tcp/http",
		"add rule service-*-shop/web/tcp/http",
		"add rule endpoint-*-shop/web/tcp/http__10.244.3.6/8080",
		"add rule endpoint-*-shop/web/tcp/http__10.244.3.6/8080",
		"flush chain endpoint-*-shop/web/tcp/http__10.244.2.5/8080",
	}, words); diff != "" {
		t.Errorf("one endpoint changed (-want +got)\n%s", diff)
	}
	if more, err := w.Tidy(t.Context()); !more || err != nil || len(r.transactions) != 2 {
		t.Errorf("at once, Tidy returned %v, %v after %d transactions: the kernel may not know yet", more, err, len(r.transactions))
	}
	w.later()
	if more, err := w.Tidy(t.Context()); more || err != nil || len(r.transactions) != 3 ||
		!strings.HasPrefix(r.transactions[2], "delete chain ip checkplan-proxy endpoint-") {
		t.Errorf("later, Tidy returned %v, %v: %q", more, err, r.transactions[2:])
	}
	if more, err := w.Tidy(t.Context()); more || err != nil || len(r.transactions) != 3 {
		t.Errorf("with nothing to do, Tidy returned %v, %v: %q", more, err, r.transactions[3:])
	}
}

// TestReturningEndpoint: an endpoint that comes back before its chain was deleted has its rules again.
func TestReturningEndpoint(t *testing.T) {
	w, r := recording()
	write(t, w, service("web"))
	before := r.Dump()
	write(t, w, service("web", func(s *api.ServiceEndpoints) { s.Families[0].Ports[0].Endpoints = s.Families[0].Ports[0].Endpoints[:1] }))
	write(t, w, service("web"))
	if diff := cmp.Diff(before, r.Dump()); diff != "" {
		t.Errorf("(-before +after)\n%s", diff)
	}
	w.later()
	if _, err := w.Tidy(t.Context()); err != nil || len(r.transactions) != 3 {
		t.Errorf("Tidy: %v, %q", err, r.transactions[3:])
	}
}

// TestPredecessor: what a dead predecessor left is replaced in one transaction, except for clients' affinities.
func TestPredecessor(t *testing.T) {
	sticky := func(s *api.ServiceEndpoints) { s.AffinitySeconds = 600 }
	first, r := recording()
	write(t, first, service("web", sticky), service("old", func(s *api.ServiceEndpoints) { s.Families[0].ClusterIP = "10.96.0.9" }))
	var sets []string
	for name := range r.Table.Sets {
		if strings.HasPrefix(name, "affinity-") {
			sets = append(sets, name)
		}
	}
	slices.Sort(sets)
	tx := r.NewTransaction()
	tx.Add(&knftables.Element{Set: sets[0], Key: []string{"198.51.100.1"}})
	tx.Add(&knftables.Chain{Name: "left-over"})
	tx.Add(&knftables.Rule{Chain: "left-over", Rule: "drop"})
	tx.Add(&knftables.Map{Name: "left-over", Type: "ipv4_addr : verdict"})
	if err := r.Run(t.Context(), tx); err != nil {
		t.Fatal(err)
	}
	second, _ := fakes()
	second.tables[0].open = func() (knftables.Interface, error) { return r, nil }
	n := len(r.transactions)
	write(t, second, service("web", sticky))
	if len(r.transactions) != n+1 || strings.Contains(r.transactions[n], "delete table") {
		t.Errorf("transactions: %q", r.transactions[n:])
	}
	second.later()
	if more, err := second.Tidy(t.Context()); more || err != nil {
		t.Error(more, err)
	}
	third, all := fakes()
	write(t, third, service("web", sticky))
	if diff := cmp.Diff(slices.Concat(contents(all[dataplane.IPv4]),
		[]string{"add element ip checkplan-proxy " + sets[0] + " { 198.51.100.1 }\n"}), contents(r.Fake), sortLines); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

var sortLines = cmp.Transformer("sort", func(lines []string) []string {
	lines = slices.Clone(lines)
	slices.Sort(lines)
	return lines
})

// TestRefused: if the kernel refuses a change, because somebody else changed the table, all of it is written again.
func TestRefused(t *testing.T) {
	w, r := recording()
	write(t, w, service("web"))
	r.fail = func(text string) error {
		if strings.Contains(text, "delete table") {
			return nil
		}
		return errors.New("no such file or directory")
	}
	write(t, w, service("api"))
	if len(r.transactions) != 3 || !strings.Contains(r.transactions[2], "delete table") {
		t.Fatalf("transactions: %q", r.transactions)
	}
	fresh, anew := fakes()
	write(t, fresh, service("api"))
	if diff := cmp.Diff(contents(anew[dataplane.IPv4]), contents(r.Fake)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	// If that is refused, too, it is an error, and the next attempt begins with what is there.
	r.fail = func(string) error { return errors.New("no memory") }
	if err := w.Write(t.Context(), proxy.Check([]*api.ServiceEndpoints{service("web")}), proxytest.Node()); err == nil || !strings.Contains(err.Error(), "no memory") {
		t.Errorf("error %v", err)
	}
	r.fail = nil
	write(t, w, service("web"))
	if r.Table.Maps[serviceIPs].Elements == nil || strings.Contains(r.Dump(), "goto service-api") {
		t.Errorf("after an error:\n%s", r.Dump())
	}
}

// TestKilled: after an attempt whose end is not known, the next one begins with what is there.
func TestKilled(t *testing.T) {
	w, r := recording()
	write(t, w, service("web"))
	r.killed = errors.New("signal: killed")
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // as at the end of the program: no second attempt
	if err := w.Write(ctx, proxy.Check([]*api.ServiceEndpoints{service("api")}), proxytest.Node()); err == nil {
		t.Error("no error")
	}
	n := len(r.transactions)
	write(t, w, service("web"))
	w.later()
	if more, err := w.Tidy(t.Context()); more || err != nil {
		t.Error(more, err)
	}
	for _, text := range r.transactions[n:] {
		if strings.Contains(text, "delete table") {
			t.Errorf("affinities are lost: %s", text)
		}
	}
	fresh, anew := fakes()
	write(t, fresh, service("web"))
	if diff := cmp.Diff(contents(anew[dataplane.IPv4]), contents(r.Fake)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestPresent: rules that somebody removed are noticed, and written again.
func TestPresent(t *testing.T) {
	w, r := recording()
	if err := w.Present(t.Context()); err != nil {
		t.Errorf("before the first write: %v", err)
	}
	write(t, w, service("web"))
	before := r.Dump()
	if err := w.Present(t.Context()); err != nil {
		t.Errorf("after a write: %v", err)
	}
	tx := r.NewTransaction()
	tx.Flush(&knftables.Chain{Name: services}) // nft flush table does so; the fake then has no chain
	if err := r.Run(t.Context(), tx); err != nil {
		t.Fatal(err)
	}
	if err := w.Present(t.Context()); err == nil || strings.Contains(err.Error(), "%!") {
		t.Errorf("after a flush: %v", err)
	}
	write(t, w, service("web"))
	tx = r.NewTransaction()
	tx.Delete(&knftables.Table{})
	if err := r.Run(t.Context(), tx); err != nil {
		t.Fatal(err)
	}
	if err := w.Present(t.Context()); err == nil {
		t.Error("without a table, there is no error")
	}
	write(t, w, service("web"))
	if diff := cmp.Diff(before, r.Dump()); diff != "" {
		t.Errorf("(-before +after)\n%s", diff)
	}
}

// TestCleanup: it removes the table, and does not mind if there is none.
func TestCleanup(t *testing.T) {
	w, all := fakes()
	write(t, w, service("web"))
	for range 2 {
		if err := w.Cleanup(t.Context()); err != nil {
			t.Fatal(err)
		}
		if all[dataplane.IPv4].Table != nil || all[dataplane.IPv6].Table != nil {
			t.Error("a table is left")
		}
	}
}

// TestCleanupWithoutTables: a kernel that cannot have a table has none to delete. Any other error is one.
func TestCleanupWithoutTables(t *testing.T) {
	for text, want := range map[string]bool{ // what the end of nft's output says: is it an error of Cleanup?
		"Unable to initialize Netlink socket: Protocol not supported":             false,
		"Error: Could not process rule: Operation not supported":                  false,
		"Error: Could not process rule: Address family not supported by protocol": false,
		"netlink: Error: cache initialization failed: Operation not permitted":    true,
		"Error: Could not process rule: No space left on device":                  true,
	} {
		w := newWriter(slog.New(slog.DiscardHandler), func(knftables.Family) (knftables.Interface, error) {
			return nil, fmt.Errorf("could not run nftables command: %s", text)
		})
		if err := w.Cleanup(t.Context()); (err != nil) != want {
			t.Errorf("%s: error %v", text, err)
		}
	}
}

// line is what each line of a transaction has to be: nothing in it ends a string, a line or a command early.
var line = regexp.MustCompile(`^(add|flush|delete) (table|chain|rule|set|map|element) ip6? checkplan-proxy[A-Za-z0-9 .,:/@_={}!;*-]*( comment "[A-Za-z0-9 :/>.'_-]*" ?;? ?}?[A-Za-z0-9 .:/}-]*| \{ comment "[A-Za-z0-9 '-]*" ; \})?$`)

// FuzzRender: whatever a message has, the transaction has only lines of its own, and nft can apply it.
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
			fake := knftables.NewFake(map[dataplane.Family]knftables.Family{dataplane.IPv4: knftables.IPv4Family, dataplane.IPv6: knftables.IPv6Family}[family], nftables.OwnName)
			tx := fake.NewTransaction()
			Render(state, proxytest.Node(), family).Replace(tx)
			for text := range strings.Lines(tx.String()) {
				if !line.MatchString(strings.TrimSuffix(text, "\n")) {
					t.Errorf("line %q", text)
				}
			}
			if err := fake.Run(t.Context(), tx); err != nil {
				t.Errorf("%v\n%s", err, tx)
			}
			tableOf(t, fake, family)
		}
	})
}

// TestNames: names that differ are different, also if they are cut; all can be names of nft.
func TestNames(t *testing.T) {
	long := strings.Repeat("a", 63)
	seen := map[string]string{}
	for _, name := range []string{"shop/web/tcp/http", "shop/web/udp/http", "sho/pweb/tcp/http", long + "/" + long + "/sctp/" + long + "__fd00.244.1111.2222.3333.4444.5555.6666/60001",
		long + "/" + long + "/sctp/" + long + "__fd00.244.1111.2222.3333.4444.5555.6666/60002"} {
		short := Hashed(name)
		if len("affinity-"+short) > knftables.NameLengthMax || !regexp.MustCompile(`^[A-Z2-7]{8}-[A-Za-z0-9/._-]+$`).MatchString(short) {
			t.Errorf("%s: %d bytes", short, len(short))
		}
		if other, ok := seen[short]; ok {
			t.Errorf("%s is the name of %s and of %s", short, name, other)
		}
		seen[short] = name
	}
}

// BenchmarkRender is what a node of a cluster with 10,000 Services and 100,000 endpoints computes: all rules, and the
// transaction when one endpoint changed.
func BenchmarkRender(b *testing.B) {
	items := proxytest.Large(10_000, 100_000)
	b.Run("check", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			proxy.Check(items)
		}
	})
	state, node := proxy.Check(items), proxytest.Node()
	b.Run("render", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			Render(state, node, dataplane.IPv4)
		}
	})
	rules := Render(state, node, dataplane.IPv4)
	fake := knftables.NewFake(knftables.IPv4Family, nftables.OwnName)
	b.Run("replace", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			rules.Replace(fake.NewTransaction())
		}
	})
	b.Run("change", func(b *testing.B) {
		b.ReportAllocs()
		older := &Rules{Family: rules.Family, Comment: rules.Comment, Chains: maps.Clone(rules.Chains), Sets: rules.Sets}
		for name := range older.Chains {
			if strings.HasPrefix(name, "endpoint-") {
				delete(older.Chains, name)
				break
			}
		}
		for b.Loop() {
			tx := fake.NewTransaction()
			rules.Change(tx, older, time.Time{})
			if tx.NumOperations() > 5 {
				b.Fatalf("%d operations", tx.NumOperations())
			}
		}
	})
}

// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// addAndDie is the argument that makes the test binary add a fault and kill itself.
const addAndDie = "add-and-die"

// TestMain lets the test binary also run as a holder of packets, and as a process that adds a fault
// and is killed.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case HoldVerb:
			ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
			defer stop()
			if err := Hold(ctx, os.Args[2:], os.Stdin, os.Stdout); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			os.Exit(0)
		case addAndDie:
			var nodes []Node
			err := json.Unmarshal([]byte(os.Args[3]), &nodes)
			f, err2 := Parse(os.Args[4:])
			_, err3 := Add(context.Background(), os.Args[2], nodes, f)
			fmt.Fprintln(os.Stderr, errors.Join(err, err2, err3))
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
		}
	}
	os.Exit(m.Run())
}

// Each fault affects exactly the packets that it must. After Clear nothing of it is left.
func TestRealPackets(t *testing.T) {
	onEach(t, func(t *testing.T, b *testbed) {
		if b.network != nil {
			testRealPackets(t, b, networkFaults)
		} else {
			testRealPackets(t, b, faults)
		}
	})
}

func testRealPackets(t *testing.T, b *testbed, faults []spec) {
	tr := b.openTraffic(t)
	packets := b.matrix()
	tr.exchange(t, packets, nil) // no loss before the first fault
	vias := func(f Fault) []bool {
		if f.Kind == Delay && f.Network == "" && hasNetem(t.Context()) {
			return []bool{false, true}
		}
		return []bool{false}
	}
	if len(vias(Fault{Kind: Delay})) == 1 {
		t.Log("netem, prio or tc is missing: testing delay with queues only")
	}
	for _, c := range faults {
		f := mustParse(t, c.args)
		for _, netem := range vias(f) {
			t.Run(fmt.Sprintf("%s,netem=%t", c.name, netem), func(t *testing.T) {
				nodes := append([]Node(nil), b.places()...)
				if f.Kind == Delay && !netem {
					for i := range nodes {
						nodes[i].Uplink = ""
					}
				}
				dir := filepath.Join(t.TempDir(), "faults")
				id, err := Add(t.Context(), dir, nodes, f)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { // also after a failure
					if _, err := Clear(context.Background(), dir, b.places()); err != nil {
						t.Error(err)
					}
				})
				records, err := List(dir)
				if err != nil || len(records) != 1 || records[0].Fault != f ||
					records[0].Status != Active || (records[0].Via == Netem) != netem {
					t.Fatalf("List returned %+v, %v; want the active fault %s", records, err, f)
				}

				lost := func() int { return b.counted(t, id) }
				if f.Kind == Delay {
					lost = nil
				}
				o := tr.exchange(t, packets, lost)
				touched := 0
				for i, p := range packets {
					at, arrived := o.arrived[i]
					touches := c.touches(p)
					if touches {
						touched++
					}
					switch {
					case f.Kind != Delay && arrived == touches:
						t.Errorf("%+v: arrived=%t, want %t", p, arrived, !touches)
					case f.Kind == Delay && touches && at.Sub(o.sent[i]) < f.Delay:
						t.Errorf("%+v: arrived after %v, want a delay of %v or more", p, at.Sub(o.sent[i]), f.Delay)
					}
				}
				// For delay this shows that the fault affected no other packet.
				if n := b.counted(t, id); n != touched {
					t.Errorf("the rules counted %d packets, want %d", n, touched)
				}

				cleared, err := Clear(t.Context(), dir, b.places(), id)
				if err != nil || len(cleared) != 1 || cleared[0].ID != id {
					t.Errorf("Clear returned %v, %v; want fault %s", cleared, err, id)
				}
				if cleared, err := Clear(t.Context(), dir, b.places(), id); err != nil || len(cleared) != 0 {
					t.Errorf("the second Clear returned %v, %v; want no fault", cleared, err)
				}
				b.assertClean(t, dir)
				if h := records[0].Holder; h != nil && h.alive() {
					t.Errorf("process %d still holds packets", h.PID)
				}
				tr.exchange(t, packets, nil) // no loss after Clear
			})
		}
	}
}

// Faults of nodes' own traffic prevent exactly the connections that they must. After Clear nothing
// of them is left.
func TestConnections(t *testing.T) {
	b := newTestbed(t)
	b.listen(t)
	all := b.connections()
	b.connect(t, all, func(connection) bool { return false }) // all succeed before the first fault
	for _, c := range hostFaults {
		t.Run(c.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "faults")
			id, err := Add(t.Context(), dir, b.places(), mustParse(t, c.args))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { // also after a failure
				if _, err := Clear(context.Background(), dir, b.places()); err != nil {
					t.Error(err)
				}
			})
			b.connect(t, all, c.touches)
			if b.counted(t, id) == 0 {
				t.Error("the rules counted no packet")
			}
			if _, err := Clear(t.Context(), dir, b.places(), id); err != nil {
				t.Error(err)
			}
			b.assertClean(t, dir)
		})
	}
	b.connect(t, all, func(connection) bool { return false }) // all succeed after Clear
}

// A UDP flow that the endpoint answers stays with it when the service proxy sends new flows to another one, and removes
// the entries of connection tracking. New flows go where the proxy sends them. After Clear all do.
func TestStale(t *testing.T) {
	for _, family := range []Family{IPv4, IPv6} {
		t.Run(string(family), func(t *testing.T) {
			b := newTestbed(t)
			node := b.netNS("w1", true)
			for _, name := range []string{"w2", "w3"} {
				b.answer(t, name, family)
			}
			// What a service proxy does.
			send := func(to string) {
				ip := map[Family]string{IPv4: "ip", IPv6: "ip6"}[family]
				nft(t, node, fmt.Sprintf("add table %[1]s proxy; delete table %[1]s proxy; table %[1]s proxy { chain services { "+
					"type nat hook prerouting priority -100; %[1]s daddr %[2]s udp dport 53 dnat to %[3]s; }; }",
					ip, staleService[family], netip.AddrPortFrom(b.addr(to, false, family), 5001)))
				forgetFlows(t, node)
			}
			send("w2")
			dir := t.TempDir()
			if _, err := Add(t.Context(), dir, b.places(), mustParse(t, staleOf(family))); err != nil {
				t.Fatal(err)
			}
			ask := func(when string, port uint16, want string) {
				t.Helper()
				for range 3 {
					if got := b.ask(t, "w1", family, port); got != want {
						t.Errorf("%s, from port %d: %q answers, want %s", when, port, got, want)
					}
				}
			}
			ask("before", 6001, "w2")
			send("w3")
			ask("with the fault", 6001, "w2")
			ask("with the fault", 6002, "w3")
			if _, err := Clear(t.Context(), dir, b.places()); err != nil {
				t.Fatal(err)
			}
			forgetFlows(t, node)
			ask("after Clear", 6001, "w3")
			b.assertClean(t, dir)
		})
	}
}

// burst is n packets of 100 bytes from one node to another, alternating between IPv4 and IPv6.
func burst(n int, from, to string) []sent {
	var packets []sent
	for i := range n {
		p := sent{from: from, to: to, family: IPv4, protocol: UDP, sport: 6001, dport: 5001, bytes: 100}
		if i%2 == 1 {
			p.family = IPv6
		}
		packets = append(packets, p)
	}
	return packets
}

// 20% of 4000 packets is 800. The limit is seven times the standard deviation of 25: a correct
// implementation fails once in 10^11 runs.
func TestLossRate(t *testing.T) {
	onEach(t, func(t *testing.T, b *testbed) {
		tr := b.openTraffic(t)
		dir := t.TempDir()
		id, err := Add(t.Context(), dir, b.places(), b.parse(t, "loss --percent 20 --from w1 --to w2"))
		if err != nil {
			t.Fatal(err)
		}
		packets := burst(4000, "w1", "w2")
		o := tr.exchange(t, packets, func() int { return b.counted(t, id) })
		if lost := len(packets) - len(o.arrived); lost < 800-175 || lost > 800+175 {
			t.Errorf("%d of %d packets were lost, want about 800", lost, len(packets))
		}
		tr.exchange(t, burst(500, "w2", "w1"), nil) // the other direction loses none
		if _, err := Clear(t.Context(), dir, b.places()); err != nil {
			t.Fatal(err)
		}
		b.assertClean(t, dir)
	})
}

// A fault with --for ends by itself: it is still in the list, but affects no packet.
func TestFor(t *testing.T) {
	onEach(t, func(t *testing.T, b *testbed) {
		tr := b.openTraffic(t)
		packets := burst(100, "w1", "w2")
		for lasts, lost := range map[string]int{"1h": len(packets), "1ms": 0} {
			dir := t.TempDir()
			id, err := Add(t.Context(), dir, b.places(), b.parse(t, "drop --for "+lasts))
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Millisecond)
			o := tr.exchange(t, packets, func() int { return b.counted(t, id) })
			if n := len(packets) - len(o.arrived); n != lost {
				t.Errorf("--for %s: %d of %d packets were lost, want %d", lasts, n, len(packets), lost)
			}
			if records, err := List(dir); err != nil || len(records) != 1 || records[0].Status != Active {
				t.Errorf("List returned %+v, %v; want the active fault", records, err)
			}
			if _, err := Clear(t.Context(), dir, b.places()); err != nil {
				t.Fatal(err)
			}
			b.assertClean(t, dir)
		}
	})
}

// A fault of flows affects a flow wholly or not at all, in both directions, on whichever node it acts. It affects about
// as many as it must: of 600 flows, an eighth is 75. The limit is seven times the standard deviation of 8: a correct
// implementation fails once in 10^11 runs. It never affects ICMP.
func TestFlows(t *testing.T) {
	onEach(t, func(t *testing.T, b *testbed) {
		tr := b.openTraffic(t)
		type flow struct {
			family Family
			port   uint16
		}
		var packets []sent
		var of []flow
		add := func(f flow, from, to string, protocol Protocol, sport, dport uint16) {
			packets = append(packets, sent{from: from, to: to, family: f.family, protocol: protocol, sport: sport, dport: dport, bytes: 100})
			of = append(of, f)
		}
		for _, family := range []Family{IPv4, IPv6} {
			for port := range uint16(300) {
				f := flow{family, 10000 + port}
				for range 2 {
					add(f, "w1", "w2", TCP, f.port, 5001)
					add(f, "w2", "w1", TCP, 5001, f.port)
				}
			}
			add(flow{family, 0}, "w1", "w2", ICMP, 0, 0)
			add(flow{family, 0}, "w2", "w1", ICMP, 0, 0)
		}
		var first map[flow]bool
		for _, args := range []string{"drop --flows 1/8", "drop --flows 1/8 --node w2", "drop --flows 1/8 --protocol tcp --node w1"} {
			dir := t.TempDir()
			id, err := Add(t.Context(), dir, b.places(), b.parse(t, args))
			if err != nil {
				t.Fatal(err)
			}
			o := tr.exchange(t, packets, func() int { return b.counted(t, id) })
			lost, dead := map[flow]int{}, map[flow]bool{}
			for i := range packets {
				if _, ok := o.arrived[i]; !ok {
					lost[of[i]]++
				}
			}
			for f, n := range lost {
				if n != 4 || f.port == 0 {
					t.Errorf("%s: %d of 4 packets of %+v were lost, want all or none", args, n, f)
				}
				dead[f] = true
			}
			if n := len(dead); n < 75-57 || n > 75+57 {
				t.Errorf("%s: %d of 600 flows were affected, want about 75", args, n)
			}
			if first == nil {
				first = dead
			}
			if diff := cmp.Diff(first, dead); diff != "" {
				t.Errorf("%s: affected flows (-everywhere +here):\n%s", args, diff)
			}
			if _, err := Clear(t.Context(), dir, b.places()); err != nil {
				t.Fatal(err)
			}
			b.assertClean(t, dir)
		}
	})
}

// A delay loses no packet, keeps their order and delays each of thousands of packets. Two delays of
// one packet add up.
func TestDelayHoldsMany(t *testing.T) {
	onEach(t, func(t *testing.T, b *testbed) {
		tr := b.openTraffic(t)
		dir := t.TempDir()
		for _, args := range []string{"delay --by 80ms --from w1 --to w2", "delay --by 70ms --node w2"} {
			if _, err := Add(t.Context(), dir, b.places(), b.parse(t, args)); err != nil {
				t.Fatal(err)
			}
		}
		packets := burst(20000, "w1", "w2")
		start := time.Now()
		o := tr.exchange(t, packets, nil)
		t.Logf("%d packets in %v", len(packets), time.Since(start).Round(time.Millisecond))
		last := map[Family]int{}
		for _, i := range o.order {
			p := packets[i]
			if d := o.arrived[i].Sub(o.sent[i]); d < 150*time.Millisecond {
				t.Fatalf("packet %d arrived after %v, want 150ms or more", i, d)
			}
			if i < last[p.family] { // one socket per family
				t.Fatalf("packet %d arrived after packet %d", i, last[p.family])
			}
			last[p.family] = i
		}
		if _, err := Clear(t.Context(), dir, b.places()); err != nil {
			t.Fatal(err)
		}
		b.assertClean(t, dir)
	})
}

// A drop of all frames also drops address resolution. All other faults let it pass.
func TestNetworkResolution(t *testing.T) {
	b := newNetworkTestbed(t)
	tr := b.openTraffic(t)
	packets := b.matrix()
	for _, c := range []struct {
		args string
		cut  map[Family]bool
	}{
		{"drop", map[Family]bool{IPv4: true, IPv6: true}},
		{"drop --family ipv4", map[Family]bool{IPv4: true}},
		{"drop --family ipv6", map[Family]bool{IPv6: true}},
		{"drop --protocol icmp", nil},
		{"loss --percent 100", nil},
		{"mtu --max-bytes 68", nil},
		{"delay --by 50ms", nil},
	} {
		t.Run(c.args, func(t *testing.T) {
			dir := t.TempDir()
			if _, err := Add(t.Context(), dir, b.places(), b.parse(t, c.args)); err != nil {
				t.Fatal(err)
			}
			for _, f := range []Family{IPv4, IPv6} {
				if got := b.resolves(t, f); got == c.cut[f] {
					t.Errorf("%s: the neighbor's address was resolved: %t, want %t", f, got, !c.cut[f])
				}
			}
			if _, err := Clear(t.Context(), dir, b.places()); err != nil {
				t.Fatal(err)
			}
			b.assertClean(t, dir)
			tr.exchange(t, packets, nil) // no loss after Clear
		})
	}
}

// A TCP connection transfers its bytes unchanged through a delay. Its round trip takes at least the
// delays of both directions.
func TestDelayTCP(t *testing.T) {
	onEach(t, func(t *testing.T, b *testbed) {
		dir := t.TempDir()
		_, err := Add(t.Context(), dir, b.places(), b.parse(t, "delay --by 20ms --protocol tcp --dport 7001"))
		if err != nil {
			t.Fatal(err)
		}
		_, err = Add(t.Context(), dir, b.places(), b.parse(t, "delay --by 10ms --protocol tcp --sport 7001"))
		if err != nil {
			t.Fatal(err)
		}
		data := make([]byte, 4<<20)
		r := rand.NewChaCha8([32]byte{})
		_, _ = r.Read(data)
		for _, f := range []Family{IPv4, IPv6} {
			t.Run(string(f), func(t *testing.T) {
				var l net.Listener
				addr := netip.AddrPortFrom(b.pods[1].addr(f), 7001).String()
				if err := inNetNS(b.pods[1].netns, func() (err error) {
					l, err = net.Listen("tcp", addr)
					return err
				}); err != nil {
					t.Fatal(err)
				}
				defer l.Close()
				sums := make(chan [32]byte, 1)
				go func() {
					defer close(sums)
					c, err := l.Accept()
					if err != nil {
						return
					}
					defer c.Close()
					h := sha256.New()
					if _, err := io.Copy(h, c); err == nil {
						sums <- [32]byte(h.Sum(nil))
					}
				}()
				var c net.Conn
				start := time.Now()
				if err := inNetNS(b.pods[0].netns, func() (err error) {
					c, err = net.DialTimeout("tcp", addr, settled)
					return err
				}); err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				if rtt := time.Since(start); rtt < 30*time.Millisecond {
					t.Errorf("connect took %v, want 30ms or more", rtt)
				}
				if _, err := c.Write(data); err != nil {
					t.Fatal(err)
				}
				c.Close()
				if sum, ok := <-sums; !ok || sum != sha256.Sum256(data) {
					t.Error("the server received other bytes than the client sent")
				}
			})
		}
		if _, err := Clear(t.Context(), dir, b.places()); err != nil {
			t.Fatal(err)
		}
		b.assertClean(t, dir)
	})
}

// ping confirms: a cut ordered pair loses every answer, and a delay is part of every round trip.
func TestPing(t *testing.T) {
	if _, err := exec.LookPath("ping"); err != nil {
		t.Skip("needs ping: apt-get install iputils-ping")
	}
	b := newTestbed(t)
	for _, p := range b.pods {
		sysctl(t, p.netns, "net/ipv4/icmp_echo_ignore_all", "0")
		sysctl(t, p.netns, "net/ipv6/icmp/echo_ignore_all", "0")
	}
	ping := func(from, to int, f Family) (string, error) {
		var out string
		err := inNetNS(b.pods[from].netns, func() (err error) {
			out, err = command(t.Context(), "", "ping", "-n", "-c", "2", "-i", "0.2", "-W", "1", b.pods[to].addr(f).String())
			return err
		})
		return out, err
	}
	dir := t.TempDir()
	for _, f := range []Family{IPv4, IPv6} {
		if out, err := ping(0, 1, f); err != nil {
			t.Fatalf("no answer before the fault: %v\n%s", err, out)
		}
	}
	id, err := Add(t.Context(), dir, b.places(), mustParse(t, "drop --from w2 --to w1 --family ipv6"))
	if err != nil {
		t.Fatal(err)
	}
	if out, err := ping(0, 1, IPv6); err == nil {
		t.Errorf("ping succeeded through a cut pair:\n%s", out)
	}
	if out, err := ping(0, 1, IPv4); err != nil {
		t.Errorf("no answer in the other family: %v\n%s", err, out)
	}
	if _, err := Clear(t.Context(), dir, b.places(), id); err != nil {
		t.Fatal(err)
	}
	if _, err := Add(t.Context(), dir, b.places(), mustParse(t, "delay --by 25ms")); err != nil {
		t.Fatal(err)
	}
	for _, f := range []Family{IPv4, IPv6} {
		out, err := ping(0, 1, f)
		if err != nil {
			t.Fatalf("no answer: %v\n%s", err, out)
		}
		_, stats, _ := strings.Cut(out, "min/avg/max/mdev = ")
		var least float64
		if _, err := fmt.Sscanf(stats, "%f/", &least); err != nil || least < 50 {
			t.Errorf("the shortest round trip is %v ms (%v), want 50 or more:\n%s", least, err, out)
		}
	}
	if _, err := Clear(t.Context(), dir, b.places()); err != nil {
		t.Fatal(err)
	}
	b.assertClean(t, dir)
}

// A fault of pods does not affect node addresses: with all packets between pods dropped, nodes
// reach each other, and pods reach their own node.
func TestNodesAreNotTouched(t *testing.T) {
	if _, err := exec.LookPath("ping"); err != nil {
		t.Skip("needs ping: apt-get install iputils-ping")
	}
	b := newTestbed(t)
	for _, p := range b.pods {
		sysctl(t, p.netns, "net/ipv4/icmp_echo_ignore_all", "0")
		sysctl(t, p.netns, "net/ipv6/icmp/echo_ignore_all", "0")
	}
	dir := t.TempDir()
	if _, err := Add(t.Context(), dir, b.places(), mustParse(t, "drop")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, netns, to string }{
		{"node to node", b.nodes[0].NetNS, "198.18.0.12"},
		{"node to node, IPv6", b.nodes[0].NetNS, "fd00:198:18::12"},
		{"pod to its node", b.pods[0].netns, "198.18.0.11"},
		{"node to a pod of another", b.nodes[0].NetNS, b.pods[1].v4.String()},
	} {
		if err := inNetNS(c.netns, func() error {
			_, err := command(t.Context(), "", "ping", "-n", "-c", "1", "-W", "5", c.to)
			return err
		}); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if _, err := Clear(t.Context(), dir, b.places()); err != nil {
		t.Fatal(err)
	}
}

// If one node rejects a fault, no node keeps it.
func TestAddIsAllOrNothing(t *testing.T) {
	b := newTestbed(t)
	file := filepath.Join(t.TempDir(), "no-namespace")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, uplink := range []string{"", "eth0"} {
		for _, netns := range []string{file, file + ".missing"} {
			for _, args := range []string{"drop", "delay --by 30ms"} {
				dir := t.TempDir()
				nodes := append([]Node(nil), b.nodes...)
				for i := range nodes {
					nodes[i].Uplink = uplink
				}
				nodes[2].NetNS = netns
				id, err := Add(t.Context(), dir, nodes, mustParse(t, args))
				if err == nil || id != "" {
					t.Errorf("Add of %s with a missing node returned %q, %v; want an error", args, id, err)
				}
				b.assertClean(t, dir)
			}
		}
	}
	// The same holds if the caller cancels.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, args := range []string{"drop", "delay --by 30ms"} {
		dir := t.TempDir()
		if _, err := Add(ctx, dir, b.places(), mustParse(t, args)); !errors.Is(err, context.Canceled) {
			t.Errorf("Add of %s with a cancelled context: %v", args, err)
		}
		b.assertClean(t, dir)
	}
}

// If the process that added faults is killed, another process can list and clear them. The delay
// works in between.
func TestAddSurvivesKill(t *testing.T) {
	b := newTestbed(t)
	tr := b.openTraffic(t)
	dir := t.TempDir()
	nodes, err := json.Marshal(b.nodes)
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range []string{"drop --node w3", "delay --by 40ms --from w1 --to w2"} {
		cmd := exec.Command("/proc/self/exe", append([]string{addAndDie, dir, string(nodes)}, strings.Fields(args)...)...)
		if out, err := cmd.CombinedOutput(); cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != unix.SIGKILL {
			t.Fatalf("the process that adds the fault was not killed: %v\n%s", err, out)
		}
	}
	records, err := List(dir)
	if err != nil || len(records) != 2 || records[0].Status != Active || records[1].Status != Active {
		t.Fatalf("List returned %+v, %v; want two active faults", records, err)
	}
	packets := burst(2, "w1", "w2")
	o := tr.exchange(t, packets, nil)
	for i := range packets {
		if d := o.arrived[i].Sub(o.sent[i]); d < 40*time.Millisecond {
			t.Errorf("a packet arrived after %v, want 40ms or more", d)
		}
	}
	// Pretend that the second process was killed earlier.
	records[1].Complete = false
	if err := records[1].write(dir); err != nil {
		t.Fatal(err)
	}
	if again, err := List(dir); err != nil || again[1].Status != Incomplete {
		t.Errorf("List returned %+v, %v; want an incomplete fault", again, err)
	}
	if cleared, err := Clear(t.Context(), dir, b.places()); err != nil || len(cleared) != 2 {
		t.Errorf("Clear returned %v, %v; want both faults", cleared, err)
	}
	b.assertClean(t, dir)
	tr.exchange(t, b.matrix(), nil)
}

// If the process that holds packets is killed, packets pass, List reports it and Clear succeeds.
func TestHolderIsKilled(t *testing.T) {
	onEach(t, func(t *testing.T, b *testbed) {
		tr := b.openTraffic(t)
		dir := t.TempDir()
		nodes := append([]Node(nil), b.places()...)
		for i := range nodes {
			nodes[i].Uplink = ""
		}
		if _, err := Add(t.Context(), dir, nodes, b.parse(t, "delay --by 1m")); err != nil {
			t.Fatal(err)
		}
		records, err := List(dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Kill(records[0].Holder.PID, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if _, err := unix.Wait4(records[0].Holder.PID, nil, 0, nil); err != nil {
			t.Fatal(err)
		}
		if records, err := List(dir); err != nil || records[0].Status != HolderGone {
			t.Errorf("List returned %+v, %v; want holder gone", records, err)
		}
		tr.exchange(t, b.matrix(), nil)
		if _, err := Clear(t.Context(), dir, b.places()); err != nil {
			t.Fatal(err)
		}
		b.assertClean(t, dir)
	})
}

// Clear releases the packets that a delay holds, also those of which the process that holds them has not read the notice.
func TestClearReleases(t *testing.T) {
	onEach(t, func(t *testing.T, b *testbed) {
		tr := b.openTraffic(t)
		nodes := append([]Node(nil), b.places()...)
		for i := range nodes {
			nodes[i].Uplink = ""
		}
		for _, notices := range []string{"read", "unread"} {
			t.Run(notices, func(t *testing.T) {
				dir := t.TempDir()
				id, err := Add(t.Context(), dir, nodes, b.parse(t, "delay --by 1m"))
				if err != nil {
					t.Fatal(err)
				}
				records, err := List(dir)
				if err != nil {
					t.Fatal(err)
				}
				holder := records[0].Holder.PID
				if notices == "unread" {
					if err := unix.Kill(holder, unix.SIGSTOP); err != nil {
						t.Fatal(err)
					}
					go continueOnTerm(t.Context(), holder)
				}
				packets := b.matrix()
				done := make(chan error, 1)
				var counted atomic.Int64
				t.Cleanup(func() {
					if t.Failed() {
						t.Logf("the rules counted %d of %d packets; Clear has returned: %t", counted.Load(), len(packets), len(done) > 0)
					}
				})
				go func() {
					for counted.Load() < int64(len(packets)) { // if this never ends, exchange fails the test
						if t.Context().Err() != nil {
							break
						}
						counted.Store(int64(b.counted(t, id)))
					}
					_, err := Clear(context.Background(), dir, b.places())
					done <- err
				}()
				tr.exchange(t, packets, nil)
				if err := <-done; err != nil {
					t.Error(err)
				}
				b.assertClean(t, dir)
			})
		}
	})
}

// continueOnTerm lets a stopped process continue when SIGTERM was sent to it, or when ctx ends.
func continueOnTerm(ctx context.Context, pid int) {
	for pending := uint64(0); pending&(1<<(unix.SIGTERM-1)) == 0 && ctx.Err() == nil; time.Sleep(time.Millisecond) {
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)) // of a process that is gone: nothing
		_, mask, _ := strings.Cut(string(status), "\nShdPnd:\t")
		_, _ = fmt.Sscanf(mask, "%x", &pending)
	}
	_ = unix.Kill(pid, unix.SIGCONT) // if the process is gone, Clear has ended it
}

// A process that holds packets exits if its record is removed, if its record names another process,
// if a node is gone, or if it was not recorded.
func TestHolderEndsByItself(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, dir string, r Record, closeNS func()){
		"record removed": func(t *testing.T, dir string, r Record, _ func()) {
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
		},
		"record of another": func(t *testing.T, dir string, r Record, _ func()) {
			r.Holder = &Process{PID: 1}
			if err := r.write(dir); err != nil {
				t.Fatal(err)
			}
		},
		"node gone": func(t *testing.T, dir string, r Record, closeNS func()) { closeNS() },
	} {
		t.Run(name, func(t *testing.T) {
			b := newTestbed(t)
			dir := filepath.Join(t.TempDir(), "faults")
			nodes := append([]Node(nil), b.nodes...)
			for i := range nodes {
				nodes[i].Uplink = ""
			}
			netns, closeNS := openNewNetNS(t)
			defer closeNS()
			nodes[2].NetNS = netns
			if _, err := Add(t.Context(), dir, nodes, mustParse(t, "delay --by 30ms")); err != nil {
				t.Fatal(err)
			}
			records, err := List(dir)
			if err != nil {
				t.Fatal(err)
			}
			end(t, dir, records[0], closeNS)
			var status unix.WaitStatus
			if _, err := unix.Wait4(records[0].Holder.PID, &status, 0, nil); err != nil || status.ExitStatus() != 0 {
				t.Errorf("the process exited with %v, %v; want status 0", status, err)
			}
			if _, err := Clear(t.Context(), dir, b.places()); err != nil {
				t.Error(err)
			}
			b.assertClean(t, dir)
		})
	}
	t.Run("not recorded", func(t *testing.T) {
		b := newTestbed(t)
		dir := t.TempDir()
		r := Record{ID: "1", Fault: mustParse(t, "delay --by 30ms"), Places: []Place{{Node: "w1", NetNS: b.nodes[0].NetNS}}}
		if err := r.write(dir); err != nil {
			t.Fatal(err)
		}
		var stdout strings.Builder
		err := Hold(t.Context(), []string{dir, "1"}, strings.NewReader(""), &stdout)
		if !errors.Is(err, io.EOF) || stdout.String() != readyWord {
			t.Errorf("Hold without confirmation returned %v and wrote %q", err, stdout.String())
		}
	})
}

// Clear ignores nodes that are gone, and nodes that were created again in another namespace.
func TestClearToleratesNodesThatAreGone(t *testing.T) {
	b := newTestbed(t)
	dir := t.TempDir()
	netns, closeNS := openNewNetNS(t)
	defer closeNS()
	nodes := append([]Node(nil), b.nodes...)
	nodes[2].NetNS = netns
	for i := range nodes {
		nodes[i].Uplink = ""
	}
	for _, args := range []string{"drop", "delay --by 30ms"} {
		if _, err := Add(t.Context(), dir, nodes, mustParse(t, args)); err != nil {
			t.Fatal(err)
		}
	}
	closeNS()
	records, err := List(dir)
	if err != nil || records[0].Status != NodeGone || records[1].Status != NodeGone {
		t.Errorf("List returned %+v, %v; want two faults with a node gone", records, err)
	}
	if cleared, err := Clear(t.Context(), dir, b.places(), "1", "2", "3"); err != nil || len(cleared) != 2 {
		t.Errorf("Clear returned %v, %v; want two faults", cleared, err)
	}
	b.assertClean(t, dir)
}

// Clear of all faults also removes tables without a record.
func TestClearSweeps(t *testing.T) {
	onEach(t, func(t *testing.T, b *testbed) {
		dir := filepath.Join(t.TempDir(), "none")
		sets, err := compile("9", b.places(), b.parse(t, "drop"), "")
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range sets {
			if err := load(t.Context(), s.Node.NetNS, s.Text); err != nil {
				t.Fatal(err)
			}
		}
		if cleared, err := Clear(t.Context(), dir, b.places()); err != nil || len(cleared) != 0 {
			t.Errorf("Clear returned %v, %v; want no record and no error", cleared, err)
		}
		b.assertClean(t, dir)
	})
}

// Concurrent calls of Add return different IDs.
func TestAddsAtOnce(t *testing.T) {
	b := newTestbed(t)
	dir := t.TempDir()
	ids := make(chan string)
	const n = 6
	for range n {
		go func() {
			id, err := Add(context.Background(), dir, b.places(), Fault{Kind: Drop, Node: "w1"})
			if err != nil {
				id = err.Error()
			}
			ids <- id
		}()
	}
	got := map[string]bool{}
	for range n {
		got[<-ids] = true
	}
	for i := range n {
		if !got[fmt.Sprint(i+1)] {
			t.Errorf("no call returned ID %d: %v", i+1, got)
		}
	}
	if cleared, err := Clear(t.Context(), dir, b.places()); err != nil || len(cleared) != n {
		t.Errorf("Clear returned %v, %v; want all faults", cleared, err)
	}
	b.assertClean(t, dir)
}

// stop does not end a process that has the PID of a dead holder.
func TestStopSparesStrangers(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Skip(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	_, start, err := procStat(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := (Process{PID: cmd.Process.Pid, Start: start - 1}).stop(); err != nil {
		t.Error(err)
	}
	mine := Process{PID: cmd.Process.Pid, Start: start}
	if !mine.alive() {
		t.Fatal("stop ended a process with another start time")
	}
	if err := mine.stop(); err != nil || mine.alive() {
		t.Errorf("stop: %v, alive=%t", err, mine.alive())
	}
}

// A program that does not know HoldVerb does not start itself without end.
func TestHolderInHolder(t *testing.T) {
	t.Setenv(inHolder, "1")
	r := Record{ID: "1", Fault: mustParse(t, "delay --by 30ms")}
	err := startHolder(t.Context(), t.TempDir(), &r)
	if err == nil || !strings.Contains(err.Error(), "must call fault.Hold") {
		t.Errorf("startHolder in a holder: %v", err)
	}
}

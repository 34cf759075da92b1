// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/checkplan/checkplan/pkg/checkup"
)

func TestReadOrderReportsEveryProblem(t *testing.T) {
	const bad = `{
  "source": -1, "deadline": "0s",
  "limits": {"packetsPerSecond": 0, "concurrency": 0, "startJitter": "-1s"},
  "ipFamilies": ["IPv5"],
  "probes": [
    {"transport": "sctp", "sizes": [], "count": 0, "interval": "-1s", "timeout": "0s", "path": "x"},
    {"transport": "udp", "sizes": [31, 32, 65508], "count": 1001, "interval": "0s", "timeout": "1s"},
    {"transport": "icmp", "sizes": [-1, 65508], "count": 1000, "interval": "0s", "timeout": "1s"},
    {"transport": "tcp", "sizes": [0, 16777217], "count": 1, "interval": "0s", "timeout": "1s"}
  ],
  "targets": [
    {"target": -1, "addresses": {"IPv4": "::1"}, "ports": {"tcp": 0}},
    {"target": 1, "addresses": {"IPv6": "fe80::1%eth0"}, "ports": {}},
    {"target": 2, "addresses": {"IPv4": "example.com", "IPv5": "10.0.0.1"}, "ports": {}}
  ]
}`
	_, err := ReadOrder(strings.NewReader(bad))
	if err == nil {
		t.Fatal("no error")
	}
	// Maps have no order: compare the lines as a set.
	got := strings.Split(err.Error(), "\n")
	want := strings.Split(strings.TrimSpace(`
the order is not valid:
source: is negative
deadline: must be more than 0
limits.packetsPerSecond: must be at least 1
limits.concurrency: must be at least 1
limits.startJitter: is negative
ipFamilies: "IPv5" is unknown
probes[0].transport: "sctp" is unknown
probes[0].count: must be from 1 to 1000
probes[0].interval: is negative
probes[0].timeout: must be more than 0
probes[0].path: must start with /
probes[0].sizes: is empty
probes[1].count: must be from 1 to 1000
probes[1].sizes: 31 is not from 32 to 65507
probes[1].sizes: 65508 is not from 32 to 65507
probes[2].sizes: -1 is not from 0 to 65507
probes[2].sizes: 65508 is not from 0 to 65507
probes[3].sizes: 16777217 is not from 0 to 16777216
targets[0].target: is negative
targets[0].addresses: "::1" is not an address of IPv4
targets[0].ports: tcp: 0 is not from 1 to 65535
targets[1].addresses: "fe80::1%eth0" is not an address of IPv6
targets[2].addresses: "example.com" is not an address of IPv4
targets[2].addresses: family "IPv5" is unknown
targets[2].addresses: "10.0.0.1" is not an address of IPv5
`), "\n")
	if diff := cmp.Diff(want, got, cmpopts.SortSlices(strings.Compare)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestReadOrderReportsEveryProblemOfPeers(t *testing.T) {
	long := strings.Repeat("a", 64)
	const rest = `"source": 1, "deadline": "1m", "limits": {"packetsPerSecond": 1, "concurrency": 1, "startJitter": "0s"}`
	const deadlines = `"connections": {"deadlines": {"resolve": "5s", "connect": "5s", "handshake": "5s", "response": "5s"}}`
	most := strconv.Itoa(checkup.MaxWatch)
	both := `"probes": [{"transport": "tls", "sizes": [0], "count": ` + most + `, "interval": "1s", "timeout": "1s"}, {"transport": "tcp", "sizes": [0], "count": 1, "interval": "1s", "timeout": "1s"}]`
	questions := `"probes": [{"transport": "dns-udp", "sizes": [0], "count": 3, "interval": "1s", "timeout": "1s"}, {"transport": "dns-tcp", "sizes": [0], "count": 3, "interval": "1s", "timeout": "1s"}]`
	for _, test := range []struct {
		name, order string
		want        []string
	}{
		{"right", both + `, ` + deadlines + `, "targets": [
  {"target": 0, "peer": {"host": "10.0.0.1", "port": 443, "family": "IPv4", "transport": "tls", "serverName": "kubernetes.default.svc", "path": "/readyz?verbose", "clientCertificate": "etcd-client"}},
  {"target": 1, "peer": {"host": "fd00::1", "port": 65535, "family": "IPv6", "transport": "tcp", "backends": [0]}},
  {"target": 2, "peer": {"host": "api.example.com.", "port": 1, "family": "IPv6", "transport": "tls", "serverName": "10.0.0.1"}},
  {"target": 3, "peer": {"host": "node_1", "port": 1, "transport": "tcp"}}]`, nil},
		{"deadlines", both + `, "connections": {"deadlines": {"resolve": "-5s", "connect": "0s"}}`, []string{
			"connections.deadlines.resolve: must be more than 0",
			"connections.deadlines.connect: must be more than 0",
			"connections.deadlines.handshake: must be more than 0",
			"connections.deadlines.response: must be more than 0"}},
		{"probes", `"probes": [{"transport": "udp", "sizes": [64], "count": 1, "interval": "1s", "timeout": "1s"}, {"transport": "tls", "sizes": [1], "count": ` + strconv.Itoa(checkup.MaxWatch+1) + `, "interval": "1s", "timeout": "1s"}, {"transport": "tls", "sizes": [0], "count": 1, "interval": "1s", "timeout": "1s"}], ` + deadlines, []string{
			"probes[0].transport: connections cannot be made by udp",
			"probes[1].count: must be from 1 to " + most,
			"probes[1].sizes: 1 is not from 0 to 0",
			`probes[2].transport: "tls": duplicate`}},
		{"no connections", both + `, "targets": [{"target": 0, "peer": {"host": "10.0.0.1", "port": 443, "family": "IPv4", "transport": "tls"}}]`, []string{
			"probes[0].transport: tls needs connections, and targets with a peer",
			"probes[0].count: must be from 1 to 1000",
			"targets[0].peer: needs connections, unless it is an IP address by tcp, or a question"}},
		{"no peer", both + `, ` + deadlines + `, "targets": [{"target": 0, "addresses": {"IPv4": "10.0.0.1"}, "ports": {"tcp": 1}}]`, []string{
			"targets[0].peer: missing: connections need one"}},
		{"no probe", `"probes": [], ` + deadlines + `, "targets": [{"target": 0, "peer": {"host": "10.0.0.1", "port": 443, "family": "IPv4", "transport": "tls"}}]`, []string{
			`targets[0].peer.transport: "tls" has no probe`}},
		{"peers", both + `, ` + deadlines + `, "targets": [
  {"target": 0, "peer": {"host": "10.0.0.1", "port": 0, "transport": "icmp"}},
  {"target": 1, "peer": {"host": "fe80::1%eth0", "port": 65536, "family": "IPv6", "transport": "tls"}},
  {"target": 2, "peer": {"host": "", "port": 1, "family": "IPv5", "transport": "tls"}},
  {"target": 3, "peer": {"host": "a b", "port": 1, "transport": "tls", "serverName": "a/b", "path": "readyz", "clientCertificate": "../../etc"}},
  {"target": 4, "peer": {"host": "` + long + `", "port": 1, "transport": "tls", "path": "/a b\u0000"}},
  {"target": 5, "peer": {"host": "a..b", "port": 1, "transport": "tcp", "path": "/", "clientCertificate": "c", "serverName": "s"}}]`, []string{
			`targets[0].peer.host: "10.0.0.1" is not an address of ""`,
			"targets[0].peer.port: 0 is not from 1 to 65535",
			`targets[0].peer.transport: "icmp": must be tls or tcp`,
			`targets[0].peer.transport: "icmp" has no probe`,
			`targets[1].peer.host: "fe80::1%eth0" is not an address of "IPv6"`,
			"targets[1].peer.port: 65536 is not from 1 to 65535",
			`targets[2].peer.host: "" is neither an IP address nor a DNS name`,
			`targets[2].peer.family: "IPv5" is unknown`,
			`targets[3].peer.host: "a b" is neither an IP address nor a DNS name`,
			`targets[3].peer.serverName: "a/b" is neither a DNS name nor an IP address`,
			`targets[3].peer.path: "readyz" is not the path of a URL`,
			`targets[3].peer.clientCertificate: "../../etc" is not the name of a Secret`,
			`targets[4].peer.host: "` + long + `" is neither an IP address nor a DNS name`,
			`targets[4].peer.path: "/a b\x00" is not the path of a URL`,
			`targets[5].peer.host: "a..b" is neither an IP address nor a DNS name`,
			`targets[5].peer.transport: "tcp" does not use serverName, path and clientCertificate`}},
		{"right questions", questions + `, "again": [{"s": 1, "t": 1, "f": "", "p": "dns-udp", "z": 0, "n": 5}], "targets": [
  {"target": 0, "peer": {"host": "10.0.0.1", "port": 53, "family": "IPv4", "transport": "dns-tcp", "question": {"name": "_http._tcp.web.shop.svc.cluster.local.", "type": "SRV", "answer": "Records", "records": ["80 x."]}}},
  {"target": 1, "peer": {"host": "", "port": 53, "transport": "dns-udp", "question": {"resolver": true, "name": "web.shop", "type": "A", "answer": "NoData"}}}]`, nil},
		{"questions", questions + `, "again": [{"s": 1, "t": 1, "f": "", "p": "tcp", "z": 0, "n": 5}], "targets": [
  {"target": 0, "peer": {"host": "10.0.0.1", "port": 0, "family": "IPv6", "transport": "tcp", "question": {"name": "a b", "type": "MX", "answer": "Yes", "records": ["80 x."]}}},
  {"target": 1, "peer": {"host": "x", "port": 53, "transport": "dns-udp", "question": {"resolver": true, "name": "web", "type": "A", "answer": "Records"}}}]`, []string{
			`again[0].f: "" is unknown`,
			`again[0].p: "tcp" has no probe`,
			`targets[0].peer.host: "10.0.0.1" is not an address of "IPv6"`,
			`targets[0].peer.question.name: "a b" must end with a dot`,
			`targets[0].peer.port: 0 is not from 1 to 65535`,
			`targets[0].peer.transport: "tcp": must be dns-udp or dns-tcp`,
			`targets[0].peer.transport: "tcp" has no probe`,
			`targets[0].peer.question.name: "a b" is not a DNS name`,
			`targets[0].peer.question.type: "MX" is unknown`,
			`targets[0].peer.question.answer: "Yes" is unknown`,
			`targets[0].peer.question.records: 1 do not fit the answer "Yes"`,
			`targets[1].peer.host: "x": resolv.conf names the servers`,
			`targets[1].peer.question.records: 0 do not fit the answer "Records"`}},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := ReadOrder(strings.NewReader("{" + rest + ", " + test.order + "}"))
			var got []string
			if err != nil {
				got = strings.Split(err.Error(), "\n")[1:]
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
}

func TestReadOrderRejectsInvalidJSON(t *testing.T) {
	for name, test := range map[string]struct{ in, want string }{
		"empty":         {"", "cannot read the order: EOF"},
		"cut off":       {`{"source": 1`, "cannot read the order: unexpected EOF"},
		"unknown field": {`{"sauce": 1}`, `cannot read the order: json: unknown field "sauce"`},
		"two":           {`{} {}`, "cannot read the order: trailing data"},
		"bad duration":  {`{"deadline": "1 minute"}`, `cannot read the order: duration "1 minute": want a number and a unit, such as 5ms or 1m30s`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ReadOrder(strings.NewReader(test.in))
			if err == nil || err.Error() != test.want {
				t.Errorf("error %q, want %q", err, test.want)
			}
		})
	}
}

func TestMeasurementsOfPeers(t *testing.T) {
	order := peerOrder(checkup.Peer{Host: "10.0.0.1", Port: 6443, Family: checkup.IPv4, Transport: checkup.TLS},
		checkup.Peer{Host: "api.example.com", Port: 443, Transport: checkup.TCP})
	ms, impossible := measurements(order)
	want := []Measurement{
		{Pair: checkup.Pair{Source: 5, Family: checkup.IPv4, Transport: checkup.TLS}, Probe: order.Probes[0].Probe,
			Peer: order.Targets[0].Peer, Deadlines: order.Connections.Deadlines},
		{Pair: checkup.Pair{Source: 5, Target: 1, Transport: checkup.TCP}, Probe: order.Probes[1].Probe,
			Peer: order.Targets[1].Peer, Deadlines: order.Connections.Deadlines},
	}
	if diff := cmp.Diff(want, ms, cmpopts.EquateComparable(netip.AddrPort{})); diff != "" || len(impossible) > 0 {
		t.Errorf("%v (-want +got):\n%s", impossible, diff)
	}
}

func TestMeasurementsOfOrder(t *testing.T) {
	tcp := checkup.TransportProbe{Transport: checkup.TCP, Probe: checkup.Probe{Sizes: []int{0, 9}, Count: 1}}
	icmp := checkup.TransportProbe{Transport: checkup.ICMP, Probe: checkup.Probe{Sizes: []int{5}, Count: 2}}
	ms, impossible := measurements(checkup.Order{
		Source: 7,
		Probes: []checkup.TransportProbe{tcp, icmp},
		Targets: []checkup.OrderTarget{
			{Target: 3, Addresses: map[checkup.IPFamily]string{checkup.IPv6: "fd00::3", checkup.IPv4: "10.0.0.3"}, Ports: map[checkup.Transport]int{checkup.TCP: 80}},
			{Target: 4, Addresses: map[checkup.IPFamily]string{checkup.IPv4: "10.0.0.4"}},
		},
	})
	pair := func(target int, family checkup.IPFamily, transport checkup.Transport, size int) checkup.Pair {
		return checkup.Pair{Source: 7, Target: target, Family: family, Transport: transport, Size: size}
	}
	noPort := cause(checkup.StageSetup, "the target has no tcp port")
	wantMeasurements := []Measurement{
		{Pair: pair(3, checkup.IPv4, checkup.TCP, 0), Address: netip.MustParseAddrPort("10.0.0.3:80"), Probe: tcp.Probe},
		{Pair: pair(3, checkup.IPv4, checkup.TCP, 9), Address: netip.MustParseAddrPort("10.0.0.3:80"), Probe: tcp.Probe},
		{Pair: pair(3, checkup.IPv4, checkup.ICMP, 5), Address: netip.MustParseAddrPort("10.0.0.3:0"), Probe: icmp.Probe},
		{Pair: pair(3, checkup.IPv6, checkup.TCP, 0), Address: netip.MustParseAddrPort("[fd00::3]:80"), Probe: tcp.Probe},
		{Pair: pair(3, checkup.IPv6, checkup.TCP, 9), Address: netip.MustParseAddrPort("[fd00::3]:80"), Probe: tcp.Probe},
		{Pair: pair(3, checkup.IPv6, checkup.ICMP, 5), Address: netip.MustParseAddrPort("[fd00::3]:0"), Probe: icmp.Probe},
		{Pair: pair(4, checkup.IPv4, checkup.ICMP, 5), Address: netip.MustParseAddrPort("10.0.0.4:0"), Probe: icmp.Probe},
	}
	wantImpossible := []checkup.Observation{
		{Pair: pair(4, checkup.IPv4, checkup.TCP, 0), Unmeasured: noPort},
		{Pair: pair(4, checkup.IPv4, checkup.TCP, 9), Unmeasured: noPort},
	}
	if diff := cmp.Diff(wantMeasurements, ms, cmpopts.EquateComparable(netip.AddrPort{})); diff != "" {
		t.Errorf("measurements (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(wantImpossible, impossible); diff != "" {
		t.Errorf("impossible (-want +got):\n%s", diff)
	}
}

// TestMeasurementsAgain: an order of a further look lists its pairs. Each has its own count and ports; what it does not
// list is not measured.
func TestMeasurementsAgain(t *testing.T) {
	udp := checkup.TransportProbe{Transport: checkup.UDP, Probe: checkup.Probe{Sizes: []int{64, 1400}, Count: 20, Timeout: patience}}
	pair := func(target int, family checkup.IPFamily, size int) checkup.Pair {
		return checkup.Pair{Source: 7, Target: target, Family: family, Transport: checkup.UDP, Size: size}
	}
	order := checkup.Order{
		Source: 7, Look: 1, Deadline: checkup.Duration(time.Minute), Limits: checkup.Limits{PacketsPerSecond: 1, Concurrency: 1},
		Probes: []checkup.TransportProbe{udp},
		Targets: []checkup.OrderTarget{
			{Target: 3, Addresses: map[checkup.IPFamily]string{checkup.IPv4: "10.0.0.3"}, Ports: map[checkup.Transport]int{checkup.UDP: 7007}},
			{Target: 4, Addresses: map[checkup.IPFamily]string{checkup.IPv4: "10.0.0.4"}},
		},
		Again: []checkup.Again{
			{Pair: pair(3, checkup.IPv4, 64), Count: 100, Stops: checkup.Stops{{After: 20, Lost: 6}, {After: 40, Lost: 8}}},
			{Pair: pair(3, checkup.IPv4, 1400), Count: 20, Ports: []int{40001, 40002}},
			{Pair: pair(3, checkup.IPv6, 64), Count: 20}, // it has no such address
			{Pair: pair(4, checkup.IPv4, 64), Count: 20},
			{Pair: pair(5, checkup.IPv4, 64), Count: 20}, // it is not ready
		},
	}
	b, err := json.Marshal(order)
	if err != nil {
		t.Fatal(err)
	}
	if order, err = ReadOrder(bytes.NewReader(b)); err != nil {
		t.Fatal(err)
	}
	ms, impossible := measurements(order)
	often, seldom := udp.Probe, udp.Probe
	often.Count = 100
	address := netip.MustParseAddrPort("10.0.0.3:7007")
	want := []Measurement{
		{Pair: pair(3, checkup.IPv4, 64), Address: address, Probe: often, Stops: checkup.Stops{{After: 20, Lost: 6}, {After: 40, Lost: 8}}},
		{Pair: pair(3, checkup.IPv4, 1400), Address: address, Probe: seldom, Ports: []int{40001, 40002}},
	}
	if diff := cmp.Diff(want, ms, cmpopts.EquateComparable(netip.AddrPort{})); diff != "" {
		t.Errorf("measurements (-want +got):\n%s", diff)
	}
	wantImpossible := []checkup.Observation{
		{Pair: pair(4, checkup.IPv4, 64), Unmeasured: cause(checkup.StageSetup, "the target has no udp port")},
	}
	if diff := cmp.Diff(wantImpossible, impossible); diff != "" {
		t.Errorf("impossible (-want +got):\n%s", diff)
	}

	order.Look = 256
	order.Again = []checkup.Again{
		{Pair: checkup.Pair{Source: 6, Family: "IPv5", Transport: checkup.TLS, Size: 1}, Count: 0, Ports: []int{0}},
		{Pair: pair(3, checkup.IPv4, 31), Count: 1001, Ports: []int{65536}},
		{Pair: pair(3, checkup.IPv4, 64), Count: 20, Stops: checkup.Stops{{After: 5, Lost: 6}, {After: 5, Lost: 0}, {After: 20, Lost: 1}}},
	}
	if b, err = json.Marshal(order); err != nil {
		t.Fatal(err)
	}
	_, err = ReadOrder(bytes.NewReader(b))
	if err == nil {
		t.Fatal("a bad order has no error")
	}
	if diff := cmp.Diff(strings.Split(strings.TrimSpace(`
the order is not valid:
look: must be from 0 to 255
again[0].s: is not 7, the source
again[0].f: "IPv5" is unknown
again[0].p: "tls" has no probe
again[0].z: 1 is not from 0 to 0
again[0].n: must be from 1 to 1000
again[0].ports: 0 is not from 1 to 65535
again[1].z: 31 is not from 32 to 65507
again[1].n: must be from 1 to 1000
again[1].ports: 65536 is not from 1 to 65535
again[2].stops: 6 of 5 lost is impossible
again[2].stops: 5 is not from 6 to 19
again[2].stops: 0 of 5 lost is impossible
again[2].stops: 20 is not from 6 to 19
`), "\n"), strings.Split(err.Error(), "\n")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func FuzzReadOrder(f *testing.F) {
	good, err := json.Marshal(checkup.Order{
		Source: 1, Seed: 1 << 63, Deadline: checkup.Duration(time.Minute),
		Limits:     checkup.Limits{PacketsPerSecond: 100, Concurrency: 8},
		Probes:     []checkup.TransportProbe{{Transport: checkup.UDP, Probe: checkup.Probe{Sizes: []int{64}, Count: 20, Timeout: patience}}},
		Targets:    []checkup.OrderTarget{{Target: 1, Addresses: map[checkup.IPFamily]string{checkup.IPv6: "::ffff:10.0.0.1", checkup.IPv4: "10.0.0.1"}, Ports: map[checkup.Transport]int{checkup.UDP: 7007}}},
		IPFamilies: checkup.IPFamilies,
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(bytes.ReplaceAll(good, []byte("::ffff:10.0.0.1"), []byte("::1")))
	f.Add([]byte(`{"targets":[{"addresses":null}],"probes":[null]}`))
	order := peerOrder(checkup.Peer{Host: "10.0.0.1", Port: 6443, Family: checkup.IPv4, Transport: checkup.TLS, Path: "/readyz", ClientCertificate: "c", ServerName: "kubernetes"},
		checkup.Peer{Host: "fd00::1", Port: 1, Family: checkup.IPv6, Transport: checkup.TCP}, checkup.Peer{Host: "api.example.com", Port: 443, Transport: checkup.TLS})
	peers, err := json.Marshal(order)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(peers)
	f.Add(bytes.ReplaceAll(peers, []byte("tcp"), []byte("tls")))
	f.Add([]byte(`{"connections":null,"targets":[{"peer":{}}],"probes":[{"transport":"tls"}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		o, err := ReadOrder(bytes.NewReader(b))
		if err != nil {
			return
		}
		ms, impossible := measurements(o)
		for _, m := range ms {
			if m.Peer != nil {
				if m.Peer.Transport != m.Pair.Transport || m.Pair.Size != 0 || m.Deadlines.Sum() <= 0 || m.Probe.Count < 1 || o.Connections == nil {
					t.Errorf("a valid order gives %+v", m)
				}
				if _, err := newRequest(t.Context(), urlOf(m.Peer)); err != nil {
					t.Errorf("a valid order gives an invalid URL: %v", err)
				}
				continue
			}
			if !m.Address.Addr().IsValid() || familyOf(m.Address.Addr()) != m.Pair.Family || Funcs[m.Pair.Transport] == nil {
				t.Errorf("a valid order gives %+v", m)
			}
		}
		for _, o := range impossible {
			if o.Unmeasured == nil {
				t.Errorf("impossible, but not unmeasured: %+v", o)
			}
		}
	})
}

func TestReadOrderOfVM(t *testing.T) {
	const order = `{"deadline": "1m", "limits": {"packetsPerSecond": 1, "concurrency": 1, "startJitter": "0s"}, "ipFamilies": ["IPv4", "IPv6"], `
	for own, want := range map[string]string{
		`"own": {"IPv4": "10.0.0.1", "IPv6": "fd00::1"}, "unused": {"IPv4": "10.0.0.6", "IPv6": "fd00::6"}`:    "",
		`"own": {"IPv4": "10.0.0.1", "IPv6": "fd00::1"}, "unused": {"IPv4": "10.0.0.6"}`:                       `unused: "" is not an address of IPv6`,
		`"unused": {"IPv4": "10.0.0.6", "IPv6": "fd00::6"}, "own": {"IPv4": "10.0.0.1/29", "IPv6": "fd00::1"}`: `own: "10.0.0.1/29" is not an address of IPv4`,
	} {
		_, err := ReadOrder(strings.NewReader(order + own + "}"))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", own, err, want)
		}
	}
}

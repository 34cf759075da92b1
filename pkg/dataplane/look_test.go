// SPDX-License-Identifier: Apache-2.0

package dataplane_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/checkplan/checkplan/pkg/dataplane"
	"github.com/checkplan/checkplan/pkg/dataplane/netfilter"
	"github.com/checkplan/checkplan/pkg/dataplane/nftables"
)

func written(t testing.TB, l dataplane.Look) string {
	t.Helper()
	var b strings.Builder
	if err := l.Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// captured is the table of a file of pkg/dataplane/want/testdata.
func captured(t testing.TB, file string) dataplane.Look {
	t.Helper()
	packed, err := os.ReadFile(filepath.Join("want", "testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	zip, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(zip)
	if err != nil {
		t.Fatal(err)
	}
	var d netfilter.Dump
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	table, _ := nftables.Parse(&d)
	return dataplane.Look{Proxy: dataplane.Proxy{Mode: table.Mode}, Table: &table}
}

// TestLook: what is written is read again: real rules, rules that were not understood, and no rules.
func TestLook(t *testing.T) {
	for _, row := range []struct {
		name string
		look dataplane.Look
	}{
		{"IPv4", captured(t, "nftables-node-a-IPv4.json.gz")},
		{"IPv6", captured(t, "nftables-node-b-IPv6.json.gz")},
		{"nothing", dataplane.Look{Proxy: dataplane.Proxy{None: true, Reason: "no rules"}}},
		{"another proxy", dataplane.Look{Proxy: dataplane.Proxy{Others: []string{"Cilium"}, Reason: "seen: Cilium"}}},
		{"not understood", dataplane.Look{Proxy: dataplane.Proxy{Mode: dataplane.IPTables, Legacy: true}, Table: &dataplane.Table{
			Mode: dataplane.IPTables, Family: dataplane.IPv4, Incomplete: true, Unknown: []string{"-A KUBE-SERVICES -m quota"},
		}}},
	} {
		t.Run(row.name, func(t *testing.T) {
			family := dataplane.IPv4
			if row.look.Table != nil {
				family = row.look.Table.Family
				row.look.Table.NodePortAddresses = nil // not read: they are not compared
			}
			got, err := dataplane.ReadLook(strings.NewReader(written(t, row.look)), family)
			if err != nil {
				t.Fatal(err)
			}
			equal := cmp.Comparer(func(a, b netip.Addr) bool { return a == b })
			ports := cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })
			prefixes := cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })
			if diff := cmp.Diff(row.look, got, equal, ports, prefixes, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// TestReadLookRefuses: what an agent may send that is no look.
func TestReadLookRefuses(t *testing.T) {
	head := `{"proxy":{"mode":"nftables"},"table":{"mode":"nftables","family":"IPv4","frontends":null}}` + "\n"
	frontend := func(fields string) string {
		return head + `{"address":"10.96.0.1","protocol":"TCP","port":80,"from":"pod","action":"reject"` + fields + "}\n"
	}
	long := strings.Repeat("x", 300)
	for _, row := range []struct{ name, text, want string }{
		{"nothing", "", "it is empty"},
		{"no JSON", "hello\n", "invalid character"},
		{"a table without a mode", `{"proxy":{},"table":{"mode":"nftables"}}`, "a table without a mode"},
		{"a mode without a table", `{"proxy":{"mode":"nftables"}}`, "a mode without a table"},
		{"a mode that cannot be read", strings.ReplaceAll(head, "nftables", "userspace"), `a table of mode "userspace"`},
		{"rules although there are none", strings.Replace(head, `{"mode"`, `{"none":true,"mode"`, 1), `a table of mode "nftables"`},
		{"another family", strings.ReplaceAll(head, "IPv4", "IPv6"), `family "IPv6", not nftables and IPv4`},
		{"frontends in the first line", strings.ReplaceAll(head, "null", "[{}]"), "frontends in the first line"},
		{"frontends without a table", `{"proxy":{"none":true}}` + "\n{}\n", "frontends without a table"},
		{"an origin", head + `{"from":"moon","action":"drop"}`, `origin "moon"`},
		{"an action", head + `{"from":"pod","action":"eat"}`, `action "eat"`},
		{"an action elsewhere", frontend(`,"elsewhere":"eat"`), `action elsewhere "eat"`},
		{"a protocol", strings.Replace(frontend(""), "TCP", "ICMP", 1), `protocol "ICMP"`},
		{"a masquerade", frontend(`,"masquerade":"x"`), `masquerade "x"`},
		{"a long name", frontend(`,"service":"` + long + `"`), "too long"},
		{"a zone", strings.Replace(frontend(""), "10.96.0.1", "fe80::1%x", 1), "zone"},
		{"a zone of an endpoint", frontend(`,"endpoints":[{"address":"[fe80::1%x]:80"}]`), "zone"},
		{"endpoints that are not sorted", frontend(`,"endpoints":[{"address":"10.0.0.2:80"},{"address":"10.0.0.1:80"}]`), "not sorted"},
		{"a long line", head + `"` + strings.Repeat("x", 5<<20), "token too long"},
	} {
		t.Run(row.name, func(t *testing.T) {
			if _, err := dataplane.ReadLook(strings.NewReader(row.text), dataplane.IPv4); err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("error %v, want %q", err, row.want)
			}
		})
	}
	if _, err := dataplane.ReadLook(strings.NewReader(frontend("")), dataplane.IPv4); err != nil {
		t.Errorf("the frontend that all of these change is refused: %v", err)
	}
}

// FuzzReadLook: what is read can be compared, written and read again.
func FuzzReadLook(f *testing.F) {
	f.Add(written(f, captured(f, "nftables-node-a-IPv4.json.gz")))
	f.Add(`{"proxy":{"others":["Cilium"],"reason":"seen: Cilium"}}`)
	f.Fuzz(func(t *testing.T, text string) {
		l, err := dataplane.ReadLook(strings.NewReader(text), dataplane.IPv4)
		if err != nil || l.Table == nil {
			return
		}
		for _, d := range dataplane.Compare(*l.Table, *l.Table) {
			if len(d.Have) > 64<<10 {
				t.Errorf("a difference of %d bytes", len(d.Have))
			}
		}
		again, err := dataplane.ReadLook(strings.NewReader(written(t, l)), dataplane.IPv4)
		if err != nil || len(again.Table.Frontends) != len(l.Table.Frontends) {
			t.Errorf("not read again: %v", err)
		}
	})
}

// TestLargeLook: a table of 10,000 Services with 100,000 endpoints is within the limits, and small if it is compressed:
// pkg/ingest keeps 2 MiB.
func TestLargeLook(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	table := dataplane.Table{Mode: dataplane.NFTables, Family: dataplane.IPv6, PodsBy: "fd00:244:1::/64"}
	address := func(prefix byte) netip.Addr {
		a := [16]byte{0xfd, 0, 0, prefix}
		for i := 4; i < len(a); i += 6 {
			a[i], a[i+1] = byte(random.Uint32()), byte(random.Uint32())
		}
		return netip.AddrFrom16(a)
	}
	for i := range 10_000 {
		key := dataplane.Key{Address: address(0x96), Protocol: "TCP", Port: 80}
		service := fmt.Sprintf("namespace-%d/service-%x", i%100, random.Uint32())
		var endpoints []dataplane.Endpoint
		for range 10 {
			endpoints = append(endpoints, dataplane.Endpoint{Address: netip.AddrPortFrom(address(0x44), 8080), Hairpin: true})
		}
		slices.SortFunc(endpoints, func(a, b dataplane.Endpoint) int { return a.Address.Compare(b.Address) })
		for _, origin := range dataplane.Origins {
			table.Frontends = append(table.Frontends, dataplane.Frontend{
				Key: key, From: origin, Service: service, PortName: "http", Action: dataplane.Forward, Endpoints: endpoints,
			})
		}
	}
	var compressed bytes.Buffer
	zip := gzip.NewWriter(&compressed)
	if err := (dataplane.Look{Proxy: dataplane.Proxy{Mode: table.Mode}, Table: &table}).Write(zip); err != nil {
		t.Fatal(err)
	}
	zip.Close()
	t.Logf("%d bytes", compressed.Len())
	if compressed.Len() > 2<<20 {
		t.Errorf("%d bytes, want at most 2 MiB", compressed.Len())
	}
	text, err := gzip.NewReader(&compressed)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := dataplane.ReadLook(text, dataplane.IPv6); err != nil || len(got.Table.Frontends) != 30_000 {
		t.Error(err)
	}
}

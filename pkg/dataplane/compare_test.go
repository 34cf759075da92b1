// SPDX-License-Identifier: Apache-2.0

package dataplane_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/checkplan/checkplan/pkg/dataplane"
)

func endpoints(list ...string) []dataplane.Endpoint {
	var all []dataplane.Endpoint
	for _, text := range list {
		all = append(all, dataplane.Endpoint{Address: netip.MustParseAddrPort(text), Hairpin: true})
	}
	return all
}

func prefixes(list ...string) []netip.Prefix {
	var all []netip.Prefix
	for _, text := range list {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

// of is a table with the same frontend from all origins, changed by edits.
func of(edits ...func(*dataplane.Frontend)) dataplane.Table {
	t := dataplane.Table{Family: dataplane.IPv4, PodsBy: "10.244.1.0/24"}
	for _, origin := range dataplane.Origins {
		f := dataplane.Frontend{
			Key: dataplane.Key{Address: netip.MustParseAddr("10.96.0.1"), Protocol: "TCP", Port: 80}, From: origin,
			Service: "ns/web", PortName: "http", Action: dataplane.Forward, Endpoints: endpoints("10.0.0.1:80", "10.0.0.2:80"),
		}
		for _, edit := range edits {
			edit(&f)
		}
		t.Frontends = append(t.Frontends, f)
	}
	return t
}

func show(differences []dataplane.Difference) string {
	var lines []string
	for _, d := range differences {
		line := fmt.Sprintf("%s %s", d.Kind, d.Service)
		if d.Endpoint.IsValid() {
			line += " " + d.Endpoint.String()
		}
		if d.Want+d.Have != "" {
			line += fmt.Sprintf(" want=%q have=%q", d.Want, d.Have)
		}
		if d.Whole {
			line += " whole"
		}
		for _, p := range d.At {
			line += fmt.Sprintf(" %s%v", p.Key, p.From)
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

func TestCompare(t *testing.T) {
	const at = " 10.96.0.1:80/TCP[outside pod node]"
	gone := dataplane.Table{Family: dataplane.IPv4}
	unread := dataplane.Table{Family: dataplane.IPv4, Incomplete: true, Unknown: []string{"a rule"}}
	noPods := of(func(f *dataplane.Frontend) {
		if f.From != dataplane.Node {
			f.Action, f.Endpoints = dataplane.Drop, nil
		}
	})
	noPods.PodsBy = ""
	two := of()
	two.Frontends = append(two.Frontends, of(func(f *dataplane.Frontend) {
		f.Service, f.Endpoints = "ns/other", endpoints("10.0.0.9:80")
	}).Frontends...)
	for _, row := range []struct {
		name       string
		want, have dataplane.Table
		differs    string
	}{
		{"equal", of(), of(), ""},
		{"no rules at all", of(), gone, `missing ns/web want="forward" have="" whole` + at},
		{"a Service that the API does not have", gone, of(), `extra ns/web want="" have="forward" whole` + at},
		{"rules that lead nowhere", of(), of(func(f *dataplane.Frontend) { f.Action, f.Endpoints = dataplane.Pass, nil }), `missing ns/web want="forward" have="" whole` + at},
		{"which the API does not have, either", gone, of(func(f *dataplane.Frontend) { f.Action, f.Endpoints = dataplane.Pass, nil }), ""},
		{"nothing wanted, nothing there", of(func(f *dataplane.Frontend) { f.Action, f.Endpoints = dataplane.Pass, nil }), gone, ""},
		{"an endpoint less", of(), of(func(f *dataplane.Frontend) { f.Endpoints = f.Endpoints[:1] }), `endpointMissing ns/web 10.0.0.2:80` + at},
		{"from one origin only", of(), of(func(f *dataplane.Frontend) {
			if f.From == dataplane.Pod {
				f.Endpoints = f.Endpoints[:1]
			}
		}), `endpointMissing ns/web 10.0.0.2:80 10.96.0.1:80/TCP[pod]`},
		{"an endpoint more", of(), of(func(f *dataplane.Frontend) { f.Endpoints = endpoints("10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80") }), `endpointExtra ns/web 10.0.0.3:80` + at},
		{"another port", of(), of(func(f *dataplane.Frontend) { f.Endpoints = endpoints("10.0.0.1:80", "10.0.0.2:81") }), `endpointPort ns/web 10.0.0.2:80 want="80" have="81"` + at},
		{"two things at once", of(), of(func(f *dataplane.Frontend) {
			f.Endpoints, f.AffinitySeconds = endpoints("10.0.0.2:80", "10.0.0.3:80"), 10
		}),
			`affinity ns/web want="none" have="10 s"` + at + "\nendpointExtra ns/web 10.0.0.3:80" + at + "\nendpointMissing ns/web 10.0.0.1:80" + at},
		{"dropped", of(), of(func(f *dataplane.Frontend) { f.Action, f.Endpoints = dataplane.Drop, nil }), `action ns/web want="forward" have="drop"` + at},
		{"another Service", of(), of(func(f *dataplane.Frontend) { f.Service = "ns/other" }), `service ns/web want="ns/web" have="ns/other"` + at},
		{"rules without a name", of(), of(func(f *dataplane.Frontend) { f.Service = "" }), ""},
		{"some connections are lost", of(), of(func(f *dataplane.Frontend) { f.Lost = true }), `lost ns/web` + at},
		{"because an endpoint is", of(), of(func(f *dataplane.Frontend) { f.Lost, f.Endpoints = true, f.Endpoints[:1] }), `endpointMissing ns/web 10.0.0.2:80` + at},
		{"affinity of some", of(func(f *dataplane.Frontend) { f.AffinitySeconds = 600 }), of(func(f *dataplane.Frontend) { f.AffinitySeconds = dataplane.MixedAffinity }),
			`affinity ns/web want="600 s" have="not for all endpoints alike"` + at},
		{"more sources", of(func(f *dataplane.Frontend) { f.Sources = prefixes("192.0.2.0/24") }), of(), `sources ns/web want="192.0.2.0/24" have="all sources"` + at},
		{"others are refused", of(func(f *dataplane.Frontend) { f.Sources = prefixes("192.0.2.0/24") }),
			of(func(f *dataplane.Frontend) { f.Sources, f.Elsewhere = prefixes("192.0.2.0/24"), dataplane.Reject }),
			`sources ns/web want="drop elsewhere" have="reject elsewhere"` + at},
		{"masquerading that a flag decides", of(), of(func(f *dataplane.Frontend) { f.Masquerade = dataplane.Rewritten }), ""},
		{"masquerading that the policy forbids", of(func(f *dataplane.Frontend) { f.Masquerade = dataplane.Preserved }),
			of(func(f *dataplane.Frontend) { f.Masquerade = dataplane.Rewritten }), `masquerade ns/web want="preserved" have="rewritten"` + at},
		{"an endpoint cannot reach itself", of(), of(func(f *dataplane.Frontend) {
			f.Endpoints = slices.Clone(f.Endpoints)
			f.Endpoints[1].Hairpin = false
		}), `hairpin ns/web 10.0.0.2:80` + at},
		{"a rule that was not understood", of(), of(func(f *dataplane.Frontend) { f.Unknown, f.Endpoints = []string{"a rule"}, nil }), `unmeasured ns/web want="" have="a rule"` + at},
		{"also of what is not wanted", gone, of(func(f *dataplane.Frontend) { f.Unknown = []string{"a rule"} }), `unmeasured ns/web want="" have="a rule"` + at},
		{"among those that distinguish frontends", of(), unread, `unmeasured ns/web want="" have="a rule"` + at},
		{"pods are as if from outside, if the proxy does not know them", of(func(f *dataplane.Frontend) {
			if f.From == dataplane.Outside {
				f.Action, f.Endpoints = dataplane.Drop, nil
			}
		}), noPods, ""},
		{"two Services with one address: the one", two, of(), ""},
		{"or the other", two, of(func(f *dataplane.Frontend) { f.Service, f.Endpoints = "ns/other", endpoints("10.0.0.9:80") }), ""},
		{"or the other, with a difference", two, of(func(f *dataplane.Frontend) { f.Service, f.Endpoints = "ns/other", endpoints("10.0.0.8:80") }),
			"endpointExtra ns/other 10.0.0.8:80" + at + "\nendpointMissing ns/other 10.0.0.9:80" + at},
	} {
		t.Run(row.name, func(t *testing.T) {
			if diff := cmp.Diff(row.differs, show(dataplane.Compare(row.want, row.have))); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// BenchmarkUnnamed is the comparison of many rules that no Service has and that do not say of which Service they are:
// they are one Difference with many places. A hostile agent may report as many.
func BenchmarkUnnamed(b *testing.B) {
	have := dataplane.Table{Family: dataplane.IPv4}
	const frontends = 100_000
	for i := range frontends {
		have.Frontends = append(have.Frontends, dataplane.Frontend{
			Key: dataplane.Key{
				Address: netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), Protocol: "TCP", Port: 80,
			},
			From: dataplane.Outside, Action: dataplane.Forward, Endpoints: endpoints("10.0.0.1:80"),
		})
	}
	for b.Loop() {
		both := dataplane.Both(dataplane.Compare(dataplane.Table{}, have), dataplane.Compare(dataplane.Table{}, have))
		if len(both) != 1 || len(both[0].At) != frontends {
			b.Fatalf("%d differences", len(both))
		}
	}
}

func TestBoth(t *testing.T) {
	less := of(func(f *dataplane.Frontend) { f.Endpoints = f.Endpoints[:1] })
	pods := of(func(f *dataplane.Frontend) {
		if f.From == dataplane.Pod {
			f.Endpoints = f.Endpoints[:1]
		}
	})
	other := of(func(f *dataplane.Frontend) { f.Endpoints = f.Endpoints[1:] })
	for _, row := range []struct {
		name          string
		first, second dataplane.Table
		both          string
	}{
		{"the same twice", less, less, "endpointMissing ns/web 10.0.0.2:80 10.96.0.1:80/TCP[outside pod node]"},
		{"mended", less, of(), ""},
		{"new", of(), less, ""},
		{"another endpoint", less, other, ""},
		{"from some origins only", less, pods, "endpointMissing ns/web 10.0.0.2:80 10.96.0.1:80/TCP[pod]"},
	} {
		t.Run(row.name, func(t *testing.T) {
			got := show(dataplane.Both(dataplane.Compare(of(), row.first), dataplane.Compare(of(), row.second)))
			if got != row.both {
				t.Errorf("got %s, want %s", got, row.both)
			}
		})
	}
}

func TestPrefixes(t *testing.T) {
	for _, row := range []struct{ from, want []netip.Prefix }{
		{nil, nil},
		{prefixes("192.0.2.0/24"), prefixes("192.0.2.0/24")},
		{prefixes("192.0.3.0/24", "192.0.2.0/24"), prefixes("192.0.2.0/23")},
		{prefixes("192.0.1.0/24", "192.0.2.0/24"), prefixes("192.0.1.0/24", "192.0.2.0/24")},
		{prefixes("192.0.2.0/25", "192.0.2.0/24", "192.0.2.7/32"), prefixes("192.0.2.0/24")},
		{prefixes("192.0.2.0/32", "192.0.2.1/32", "192.0.2.2/32", "192.0.2.3/32", "192.0.2.4/32"), prefixes("192.0.2.0/30", "192.0.2.4/32")},
		{prefixes("2001:db8::/33", "2001:db8:8000::/33"), prefixes("2001:db8::/32")},
		{prefixes("0.0.0.0/1", "128.0.0.0/1"), nil},
		{prefixes("0.0.0.0/0", "10.0.0.0/8"), nil},
	} {
		if got := dataplane.Prefixes(slices.Clone(row.from)); !slices.Equal(got, row.want) {
			t.Errorf("Prefixes(%v) = %v, want %v", row.from, got, row.want)
		}
	}
	for _, row := range []struct {
		first, last string
		want        []netip.Prefix
	}{
		{"192.0.2.0", "192.0.2.255", prefixes("192.0.2.0/24")},
		{"192.0.2.1", "192.0.2.4", prefixes("192.0.2.1/32", "192.0.2.2/31", "192.0.2.4/32")},
		{"0.0.0.0", "255.255.255.255", prefixes("0.0.0.0/0")},
		{"255.255.255.255", "255.255.255.255", prefixes("255.255.255.255/32")},
		{"192.0.2.2", "192.0.2.1", nil},
		{"2001:db8::", "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff", prefixes("2001:db8::/32")},
	} {
		if got := dataplane.Range(netip.MustParseAddr(row.first), netip.MustParseAddr(row.last)); !slices.Equal(got, row.want) {
			t.Errorf("Range(%s, %s) = %v, want %v", row.first, row.last, got, row.want)
		}
	}
}

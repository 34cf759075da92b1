// SPDX-License-Identifier: Apache-2.0

package kinds

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// FuzzJudge: every kind judges any record of any worksheet without a panic, and what was not measured is no pass: each
// expected unit is counted once.
func FuzzJudge(f *testing.F) {
	paths, err := filepath.Glob("testdata/judge/*.json")
	if err != nil || len(paths) == 0 {
		f.Fatal("no seeds", err)
	}
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var record checkup.Record
		if json.Unmarshal(b, &record) != nil {
			return
		}
		for _, k := range All {
			w, roster := sheet(k.Name)
			r := k.Judge(w, roster, &record, checkup.Gate{Require: checkup.RequirePass, Confirm: true})
			c := r.Counts
			if sum := c.Pass + c.Fail + c.Undecided + c.Unmeasured; sum != c.Expected {
				t.Fatalf("%s: %d of %d units are counted", k.Name, sum, c.Expected)
			}
			if len(record.Observations)+len(record.Results)+len(record.Facts)+len(record.Looks) == 0 && c.Pass > 0 {
				t.Fatalf("%s: %d units passed without a measurement", k.Name, c.Pass)
			}
		}
	})
}

// sheet is a worksheet of a kind with two sources and two targets.
func sheet(kind checkup.Kind) (*checkup.Worksheet, *checkup.Roster) {
	second := checkup.Duration(1e9)
	w := &checkup.Worksheet{
		Plan: "p", Check: "c", Kind: kind, Rounds: 1, Degree: 1, Possible: 2,
		Sources: []checkup.Endpoint{{Node: "n0"}, {Node: "n1"}}, Targets: []checkup.Endpoint{{Node: "n0"}, {Node: "n1"}},
		Assignments: [][]int{{1}, {0}}, IPFamilies: []checkup.IPFamily{checkup.IPv4},
		Probes: []checkup.TransportProbe{{
			Transport: checkup.TCP, Probe: checkup.Probe{Sizes: []int{0}, Count: 3, Interval: second, Timeout: second},
		}},
	}
	roster := &checkup.Roster{Targets: []checkup.RosterEntry{
		{Pod: "ns/a", Node: "n0", Addresses: map[checkup.IPFamily]string{checkup.IPv4: "10.0.0.1"}},
		{Pod: "ns/b", Node: "n1", Addresses: map[checkup.IPFamily]string{checkup.IPv4: "10.0.0.2"}},
	}}
	switch kind {
	case "controlPlane":
		w.Connections = &checkup.ConnectionSheet{}
	case "services":
		for i := range w.Targets {
			w.Targets[i].Peer = &checkup.Peer{Host: "10.96.0.1", Port: 80 + i, Family: checkup.IPv4, Transport: checkup.TCP}
		}
		w.Details = []byte(`{"targets":[{"service":"a/b"},{"service":"a/c"}],"expected":["r","w"],"closed":"Exact"}`)
	case "serviceRules":
		w.Tables, w.Targets, w.Assignments, w.Probes = &checkup.TableSheet{Interval: second}, nil, nil, nil
		w.Details = []byte(`{"namespaces":[""],"services":[{"name":"a/b","families":["IPv4"]}],"addresses":[[],[]]}`)
	case "serviceCanary":
		w.Services = []checkup.ServiceFixture{{Name: "cluster-ip"}}
		w.Targets[0].Label, w.Targets[1].Label, w.Targets[1].OfService = "endpoint", "service", "cluster-ip"
		w.Details = []byte(`{"closed":"Exact","share":"Even"}`)
	case "dns":
		for i := range w.Targets {
			w.Targets[i].Label = string(rune('a' + i))
			w.Targets[i].Peer = &checkup.Peer{
				Host: "10.96.0.1", Port: 53, Family: checkup.IPv4, Transport: checkup.DNSUDP,
				Question: &checkup.Question{Name: "a.b.svc.cluster.local.", Type: "A", Answer: checkup.AnswerNoData},
			}
		}
		w.Probes[0].Transport = checkup.DNSUDP
		w.Details = []byte(`{"dnsService":"a/b","targets":[{"server":"10.96.0.1","question":"A a/b","service":"a/b"},{"server":"resolver","question":"A x"}]}`)
	case "vmLatency":
		for i := range w.Sources {
			w.Sources[i].VM = &checkup.VM{Target: i == 1}
		}
		w.Targets = w.Sources
		w.Guests = &checkup.GuestSheet{Duration: 5 * second}
		w.Probes[0].Transport = checkup.ICMP
	case "placement":
		w = &checkup.Worksheet{Plan: "p", Check: "c", Kind: kind, Units: []string{"source", "target"}}
	}
	return w, roster
}

// SPDX-License-Identifier: Apache-2.0

package checkup

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var second0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// at returns a result n seconds after second0: '.' passed, 'x' failed, '?' unmeasured.
func at(n int, what rune) Result {
	r := Result{At: second0.Add(time.Duration(n) * time.Second)}
	switch what {
	case 'x':
		r.Failure = &Cause{Stage: StageConnect, Message: fmt.Sprint(n)}
	case '?':
		r.Unmeasured = &Cause{Stage: StageSelf}
	}
	return r
}

func series(s string) []Result {
	var results []Result
	for i, what := range s {
		if what != ' ' {
			results = append(results, at(i, what))
		}
	}
	return results
}

func TestOutages(t *testing.T) {
	type outage struct{ start, end, last, failures int }
	for _, test := range []struct {
		results string
		want    []outage // end -1: the outage has no end
	}{
		{"", nil},
		{"...", nil},
		{"???", nil},
		{"x", []outage{{0, -1, 0, 1}}},
		{"..xxx..", []outage{{2, 5, 4, 3}}},
		{"x.x.x", []outage{{0, 1, 0, 1}, {2, 3, 2, 1}, {4, -1, 4, 1}}},
		{".x??x?.", []outage{{1, 6, 4, 2}}}, // unmeasured results neither end nor lengthen an outage
		{".x   .", []outage{{1, 5, 1, 1}}},
	} {
		var got []outage
		for _, o := range Outages(series(test.results)) {
			s := func(at time.Time) int { return int(at.Sub(second0) / time.Second) }
			end := -1
			if !o.End.IsZero() {
				end = s(o.End)
			}
			got = append(got, outage{s(o.Start), end, s(o.Last), o.Failures})
			if o.Cause.Message != fmt.Sprint(s(o.Start)) {
				t.Errorf("%q: got the cause of result %s", test.results, o.Cause.Message)
			}
		}
		if diff := cmp.Diff(test.want, got, cmp.AllowUnexported(outage{})); diff != "" {
			t.Errorf("%q (-want +got):\n%s", test.results, diff)
		}
	}
}

// TestOutagesOfAnyOrder: results in any order give the same outages. The outages do
// not overlap, and contain every failure.
func TestOutagesOfAnyOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		var b strings.Builder
		for range r.IntN(40) {
			b.WriteByte(".x? "[r.IntN(4)])
		}
		results := series(b.String())
		want := Outages(results)
		r.Shuffle(len(results), func(i, j int) { results[i], results[j] = results[j], results[i] })
		if diff := cmp.Diff(want, Outages(results)); diff != "" {
			t.Fatalf("%q (-want +got):\n%s", b.String(), diff)
		}
		failures := 0
		for i, o := range want {
			failures += o.Failures
			if i > 0 && (want[i-1].End.IsZero() || o.Start.Before(want[i-1].End)) {
				t.Fatalf("%q: outage %d starts before outage %d ends", b.String(), i, i-1)
			}
		}
		if want := strings.Count(b.String(), "x"); failures != want {
			t.Fatalf("%q: %d failures in outages, want %d", b.String(), failures, want)
		}
	}
}

// TestConnectivityName: no two pairs share a name. A name is a DNS subdomain that
// contains source and target. If that is too long or not a valid name, it ends with a
// hash.
func TestConnectivityName(t *testing.T) {
	target := func(label string, port int) Endpoint { return Endpoint{Label: label, Peer: &Peer{Port: port}} }
	long := strings.Repeat("a", 63) + "." + strings.Repeat("b", 63) + "." + strings.Repeat("c", 63)
	sources := []Endpoint{
		{Label: "kube-apiserver-a"}, {Label: "kube-apiserver-10.0.0.1"},
		{Label: "kube-apiserver-a.example.com"}, {Label: "kube-apiserver-a.example.org"},
		{Label: long}, {Label: "a"}, {Label: "a-to-b"}, {Label: "a-to"},
	}
	targets := []Endpoint{
		target("etcd-server-a", 2379), target("etcd-server-a", 2380),
		target("etcd-server-10.0.0.1", 2379), target("etcd-server-10.0.0.2", 2379),
		target("etcd-server-2001:db8::1", 2379), target("etcd-server-2001-db8--1", 2379),
		target("Etcd", 1), target("etcd", 1), target("a-.b", 1), target("a..b", 1),
		target(long, 2379), target(long+"d", 2379), target("x_y", 1), target("b-to-c", 1),
		target("c", 1), target("to-c", 1), target("x-y", 1), {Label: "no-peer"},
	}
	seen := map[string]string{}
	for _, s := range sources {
		for _, tgt := range targets {
			name := ConnectivityName(s, tgt)
			if len(name) > 253 || !dnsSubdomain.MatchString(name) {
				t.Errorf("%q is not a DNS subdomain", name)
			}
			who := fmt.Sprintf("%s %s %v", s.Label, tgt.Label, tgt.Peer)
			if other, ok := seen[name]; ok {
				t.Errorf("%s and %s share the name %s", who, other, name)
			}
			seen[name] = who
			if ConnectivityName(s, tgt) != name {
				t.Errorf("%s is not stable", name)
			}
		}
	}
	if got, want := ConnectivityName(sources[0], targets[0]), "kube-apiserver-a-to-etcd-server-a-2379"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

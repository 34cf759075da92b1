// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/checkplan/checkplan/pkg/dataplane"
	"github.com/checkplan/checkplan/pkg/dataplane/iptables"
)

// captured has a cluster, and the rules that kube-proxy 1.35.6 wrote into kernels for its nodes.
const captured = "../../pkg/dataplane/want/testdata/"

// rulesOf returns the captured rules of node-a, as iptables-save printed them.
func rulesOf(t *testing.T, family dataplane.Family) string {
	t.Helper()
	packed, err := os.ReadFile(captured + "iptables-save-node-a-" + string(family) + ".txt.gz")
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
	return string(text)
}

// TestStateDiff: the rules of this machine are compared with the state of the node that it is.
func TestStateDiff(t *testing.T) {
	without := func(part string) func(string) string {
		return func(rules string) string {
			var left []string
			for line := range strings.Lines(rules) {
				if !strings.Contains(line, part) {
					left = append(left, line)
				}
			}
			return strings.Join(left, "")
		}
	}
	endpoint := without("--to-destination 10.244.1.4:8080")
	unknown := func(rules string) string {
		return strings.ReplaceAll(rules, "-A KUBE-SERVICES -d 10.96.0.1/32 ", "-A KUBE-SERVICES -m jam -d 10.96.0.1/32 ")
	}
	service := without("10.96.0.1/32")
	sticky := without("-A KUBE-SVC-25FJTMN2OLOPNGWS -m comment --comment \"shop/sticky:http -> 10.244.1.44:8080\"")
	endpoints := func(rules string) string { return sticky(endpoint(rules)) }
	for _, tt := range []struct {
		name      string
		namespace string
		names     []string
		output    string
		here      string                          // an address of the machine; node-a's by default
		damage    [2]func(string) string          // of the IPv4 rules, in each look
		read      func() (dataplane.Proxy, error) // nil: rules are there
		code      int
		want      []string // in what is printed, or the error
		not       string
		warnings  string
	}{
		{name: "as wanted", want: []string{"node-a: IPv4 iptables, IPv6 iptables; compared: ", "frontends\nno difference\n"}},
		{name: "an endpoint", damage: [2]func(string) string{endpoint, endpoint}, code: exitFailed, want: []string{
			"\nshop/plain\n  IPv4: no connection goes to endpoint 10.244.1.4:8080 at 10.96.0.1:80/TCP\n", "\n1 difference\n"}},
		{name: "under way", damage: [2]func(string) string{endpoint, nil}, want: []string{"\nno difference\n"}},
		{name: "come since", damage: [2]func(string) string{service, endpoint}, want: []string{"\nno difference\n"}},
		{name: "other Services", names: []string{"sticky"}, damage: [2]func(string) string{endpoint, endpoint}, want: []string{"no difference"}},
		{name: "this Service", names: []string{"plain"}, damage: [2]func(string) string{endpoint, endpoint}, code: exitFailed, want: []string{"1 difference"}},
		{name: "another namespace", namespace: "other", damage: [2]func(string) string{endpoint, endpoint}, code: exitError,
			want: []string{"compared: 0 frontends\n", "nothing was compared: the proxy of node node-a serves none of these Services"}, not: "no difference"},
		{name: "no such Service", namespace: "shop", names: []string{"plian"}, code: exitError, want: []string{"nothing was compared"},
			not: "no difference", warnings: "warning: the proxy of node node-a has no Service plian to serve\n"},
		{name: "no such Service, as JSON", names: []string{"plian"}, output: "json", code: exitError, want: []string{`"frontends": 0`, "nothing was compared"},
			warnings: "warning: the proxy of node node-a has no Service plian to serve\n"},
		{name: "no such Service in the namespace", namespace: "other", names: []string{"plain"}, code: exitError, want: []string{"nothing was compared"},
			warnings: "warning: the proxy of node node-a has no Service plain to serve\n"},
		{name: "one of two Services", names: []string{"plain", "stikcy"}, want: []string{"no difference"},
			warnings: "warning: the proxy of node node-a has no Service stikcy to serve\n"},
		{name: "JSON", output: "json", damage: [2]func(string) string{service, service}, code: exitFailed,
			want: []string{`"kind": "missing"`, `"service": "shop/plain"`, `"whole": true`, `"family": "IPv6"`}},
		{name: "under way, as JSON", output: "json", damage: [2]func(string) string{endpoint, nil},
			want: []string{`"differences": []`}, not: "null"},
		{name: "not understood", damage: [2]func(string) string{unknown, unknown}, code: exitError,
			want: []string{"a rule was not understood", "not all rules were understood"}, not: "no difference"},
		{name: "not understood once", damage: [2]func(string) string{unknown, endpoint}, code: exitFailed,
			want: []string{"no connection goes to endpoint 10.244.1.4:8080"}},
		{name: "not understood once, and under way elsewhere", damage: [2]func(string) string{unknown, endpoints}, code: exitFailed,
			want: []string{"no connection goes to endpoint 10.244.1.4:8080", "\n1 difference\n"}, not: "sticky"},
		{name: "no rules", read: func() (dataplane.Proxy, error) { return dataplane.Proxy{None: true}, nil }, code: exitFailed,
			want: []string{"node-a: IPv4 no rules, IPv6 no rules; compared: 213 frontends\n50 differences\n"}},
		{name: "another proxy", read: func() (dataplane.Proxy, error) { return dataplane.Proxy{Reason: "seen: Cilium"}, nil }, code: exitError,
			want: []string{"read the IPv4 rules of this machine: seen: Cilium"}},
		{name: "no right", read: func() (dataplane.Proxy, error) { return dataplane.Proxy{}, errors.New("no right") }, code: exitError,
			want: []string{"read the IPv4 rules of this machine: no right"}},
		{name: "another machine", here: "192.0.2.9/24", code: exitUsage,
			want: []string{"this one has no address of node node-a (192.0.2.1, 2001:db8::1)"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, stdout := newServices(t, stateOptions{diff: true, output: tt.output})
				s.namespace, s.names = tt.namespace, tt.names
				text, err := os.ReadFile(captured + "cluster.yaml")
				if err == nil {
					err = s.parse(text)
				}
				if err != nil {
					t.Fatal(err)
				}
				s.view = s.objects.View("node-a")
				looks := map[dataplane.Family]int{}
				s.machine.rules = func(family dataplane.Family) (dataplane.Proxy, *dataplane.Table, error) {
					if tt.read != nil {
						proxy, err := tt.read()
						return proxy, nil, err
					}
					rules := rulesOf(t, family)
					if damage := tt.damage[min(looks[family], 1)]; damage != nil && family == dataplane.IPv4 {
						rules = damage(rules)
					}
					looks[family]++
					have, ok := iptables.ParseSave(rules, family)
					if !ok {
						t.Fatal("no rules")
					}
					return dataplane.Proxy{Mode: dataplane.IPTables}, &have, nil
				}
				s.machine.addresses = func() ([]net.Addr, error) {
					ip, prefix, err := net.ParseCIDR(map[bool]string{true: "192.0.2.1/24", false: tt.here}[tt.here == ""])
					return []net.Addr{&net.IPNet{IP: ip, Mask: prefix.Mask}}, err
				}
				err = s.show(t.Context())
				code, printed := exitOK, stdout.String()
				if err != nil {
					code = exitError
					var e exit
					if errors.As(err, &e) {
						code = e.code
					}
					printed += fmt.Sprint(err)
				}
				if code != tt.code {
					t.Errorf("exit code %d, want %d: %v", code, tt.code, err)
				}
				for _, want := range tt.want {
					if !strings.Contains(printed, want) {
						t.Errorf("want %q in\n%s", want, printed)
					}
				}
				if tt.not != "" && strings.Contains(printed, tt.not) {
					t.Errorf("want no %q in\n%s", tt.not, printed)
				}
				if got := fmt.Sprint(s.env.stderr); got != tt.warnings {
					t.Errorf("warnings %q, want %q", got, tt.warnings)
				}
				if tt.output == "json" && !json.Valid(stdout.Bytes()) {
					t.Errorf("no JSON:\n%s", stdout)
				}
			})
		})
	}
}

// TestLasting: what is in one look only is under way, except for Services whose rules one look did not understand.
func TestLasting(t *testing.T) {
	of := func(kind dataplane.Kind, services ...string) (all []dataplane.Difference) {
		for _, service := range services {
			place := dataplane.Place{From: dataplane.Origins[:]}
			all = append(all, dataplane.Difference{Kind: kind, Service: service, At: []dataplane.Place{place}})
		}
		return all
	}
	for _, tt := range []struct {
		name                string
		first, second, want []dataplane.Difference
	}{
		{"none left", of(dataplane.Lost, "a"), nil, of(dataplane.Lost)},
		{"in both, in one", of(dataplane.Lost, "a", "b"), of(dataplane.Lost, "b", "c"), of(dataplane.Lost, "b")},
		{"not understood first", slices.Concat(of(dataplane.Unmeasured, "b"), of(dataplane.Lost, "c")), of(dataplane.Lost, "a", "b", "c"),
			of(dataplane.Lost, "b", "c")},
		{"not understood then", of(dataplane.Lost, "a", "b"), slices.Concat(of(dataplane.Lost, "a"), of(dataplane.Unmeasured, "b")),
			slices.Concat(of(dataplane.Lost, "a"), of(dataplane.Unmeasured, "b"))},
		{"never understood", of(dataplane.Unmeasured, "a"), of(dataplane.Unmeasured, "a"), of(dataplane.Unmeasured, "a")},
		{"understood then", of(dataplane.Unmeasured, "a"), nil, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := lasting(tt.first, tt.second)
			if got == nil {
				t.Error("nil")
			}
			same := func(a, b dataplane.Difference) bool { return a.Kind == b.Kind && a.Service == b.Service }
			if !slices.EqualFunc(got, tt.want, same) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

// SPDX-License-Identifier: Apache-2.0

package servicerules

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"sigs.k8s.io/yaml"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/dataplane"
	"github.com/checkplan/checkplan/pkg/dataplane/iptables"
	"github.com/checkplan/checkplan/pkg/dataplane/ipvs"
	"github.com/checkplan/checkplan/pkg/dataplane/netfilter"
	"github.com/checkplan/checkplan/pkg/dataplane/nftables"
)

// captured has the cluster, and the rules that kube-proxy 1.35.6 wrote into kernels for its nodes.
const captured = "../dataplane/want/testdata"

// specOf is a spec with the schema's defaults, changed.
func specOf(changes ...func(*Spec)) *Spec {
	s := &Spec{
		Placement: checkup.Placement{Tolerations: []checkup.Toleration{{Operator: "Exists"}}},
		Interval:  checkup.Duration(10 * time.Second),
		Timeouts:  checkup.Timeouts{Setup: checkup.Duration(2 * time.Minute), Probe: checkup.Duration(5 * time.Minute)},
	}
	for _, change := range changes {
		change(s)
	}
	return s
}

func planOf(spec *Spec) *checkup.Plan {
	return &checkup.Plan{
		Name: "day-2", Gate: checkup.Gate{Require: checkup.RequirePass},
		Checks: map[string]checkup.Check{"rules": {Spec: spec}},
	}
}

// objects of the captured cluster.
func objects(t testing.TB) []runtime.Object {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(captured, "cluster.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var list struct{ Items []json.RawMessage }
	if err := yaml.Unmarshal(text, &list); err != nil {
		t.Fatal(err)
	}
	var all []runtime.Object
	for _, item := range list.Items {
		var kind struct{ Kind string }
		if err := json.Unmarshal(item, &kind); err != nil {
			t.Fatal(err)
		}
		object := map[string]runtime.Object{
			"Node": &corev1.Node{}, "Service": &corev1.Service{}, "EndpointSlice": &discoveryv1.EndpointSlice{},
		}[kind.Kind]
		if err := json.Unmarshal(item, object); err != nil {
			t.Fatal(err)
		}
		if service, ok := object.(*corev1.Service); ok {
			service.Labels = map[string]string{"app": service.Name}
		}
		all = append(all, object)
	}
	return all
}

func unpacked(t testing.TB, file string, to any) {
	t.Helper()
	packed, err := os.ReadFile(filepath.Join(captured, file+".json.gz"))
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
	if err := json.Unmarshal(text, to); err != nil {
		t.Fatal(err)
	}
}

// readers read captured rules as an agent reads those of its node.
var readers = map[string]func(t testing.TB, node string, f checkup.IPFamily) *dataplane.Look{
	"nftables": func(t testing.TB, node string, f checkup.IPFamily) *dataplane.Look {
		var d netfilter.Dump
		unpacked(t, "nftables-"+node+"-"+string(f), &d)
		table, _ := nftables.Parse(&d)
		return &dataplane.Look{Proxy: dataplane.Proxy{Mode: table.Mode}, Table: &table}
	},
	"iptables-nft": func(t testing.TB, node string, f checkup.IPFamily) *dataplane.Look {
		var d netfilter.Dump
		unpacked(t, "iptables-nft-"+node+"-"+string(f), &d)
		table, _ := iptables.Parse(&d)
		return &dataplane.Look{Proxy: dataplane.Proxy{Mode: table.Mode}, Table: &table}
	},
	"iptables-legacy": func(t testing.TB, node string, f checkup.IPFamily) *dataplane.Look {
		var tables []netfilter.LegacyTable
		unpacked(t, "iptables-legacy-"+node+"-"+string(f), &tables)
		table, _, err := iptables.ParseLegacy(tables, dataplane.Family(f))
		if err != nil {
			t.Fatal(err)
		}
		return &dataplane.Look{Proxy: dataplane.Proxy{Mode: table.Mode, Legacy: true}, Table: &table}
	},
	"ipvs": func(t testing.TB, node string, f checkup.IPFamily) *dataplane.Look {
		var k ipvs.Kernel
		unpacked(t, "ipvs-"+node+"-"+string(f), &k)
		table, err := ipvs.Parse(&k)
		if err != nil {
			t.Fatal(err)
		}
		return &dataplane.Look{Proxy: dataplane.Proxy{Mode: table.Mode}, Table: &table}
	},
}

// side is a node in one family: what its agent reports.
type side struct {
	node   string
	family checkup.IPFamily
	looks  [checkup.TableLooks]*dataplane.Look
	// unmeasured is reported instead of the looks, garbage instead of their text; silent: nothing is.
	unmeasured *checkup.Cause
	garbage    []byte
	silent     bool
}

// lab is a run under construction.
type lab struct {
	client *fake.Clientset
	w      *checkup.Worksheet
	sides  []*side
	// now is the API server's time; zero if it does not answer with it.
	now time.Time
	// before and after change the cluster between setup and the first list, and between the looks and the last list.
	before, after func()
}

// clock is what Tables asks for the API server's time.
func (l *lab) clock(context.Context) (time.Time, error) {
	if l.now.IsZero() {
		return time.Time{}, errors.New("no Date")
	}
	return l.now, nil
}

// at is a time of the day of the run.
func at(clock string) time.Time {
	t, err := time.Parse(time.RFC3339, "2026-11-25T"+clock+"Z")
	if err != nil {
		panic(err)
	}
	return t
}

// written notes in a Service of one of the names, and in its EndpointSlices, when the API server wrote them last; in all
// without a name.
func written(clock string, names ...string) func(runtime.Object) {
	return func(o runtime.Object) {
		meta := o.(metav1.Object)
		if len(names) > 0 && !slices.Contains(names, cmp.Or(meta.GetLabels()[discoveryv1.LabelServiceName], meta.GetName())) {
			return
		}
		meta.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: "somebody", Time: &metav1.Time{Time: at(clock)}}})
	}
}

// labOf is the captured cluster, with rules of a reader. Changes are made to each of its objects.
func labOf(t testing.TB, reader string, spec *Spec, changes ...func(runtime.Object)) *lab {
	t.Helper()
	all := objects(t)
	for _, change := range changes {
		for _, o := range all {
			change(o)
		}
	}
	l := &lab{client: fake.NewSimpleClientset(all...), before: func() {}, after: func() {}}
	plan := planOf(spec)
	r := cluster.Reader{Kubernetes: l.client}
	s, err := cluster.Survey(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	if err := Survey(t.Context(), r, plan, s); err != nil {
		t.Fatal(err)
	}
	if l.w, _, err = Expand(plan, "rules", s, 0); err != nil {
		t.Fatal(err)
	}
	for _, source := range l.w.Sources {
		for _, f := range l.w.IPFamilies {
			is := &side{node: source.Node, family: f}
			for i := range is.looks {
				is.looks[i] = readers[reader](t, source.Node, f)
			}
			l.sides = append(l.sides, is)
		}
	}
	return l
}

// each changes both looks of the sides of nodes; all of them if none is named.
func (l *lab) each(change func(*dataplane.Look), nodes ...string) {
	for _, is := range l.sides {
		if len(nodes) == 0 || slices.Contains(nodes, is.node) {
			for _, look := range is.looks {
				change(look)
			}
		}
	}
}

// report reads, compares and judges, as the tasks do.
func (l *lab) report(t testing.TB, gate checkup.Gate) checkup.CheckReport {
	t.Helper()
	record := &checkup.Record{}
	for source := range l.w.Sources {
		record.Sources = append(record.Sources, checkup.Source{Source: source})
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // with a deadline, requests are tried again
	defer cancel()
	l.before()
	tables := tablesOf(ctx, l.client, l.w, l.clock)
	for i, is := range l.sides {
		source := i / len(l.w.IPFamilies)
		if is.silent {
			record.Sources[source].Cause = &checkup.Cause{Stage: checkup.StageStart, Message: "violates PodSecurity"}
			continue
		}
		r := checkup.TableReading{Source: source, Family: is.family}
		for k, look := range is.looks {
			var text bytes.Buffer
			zip := gzip.NewWriter(&text)
			if err := look.Write(zip); err != nil {
				t.Fatal(err)
			}
			zip.Close()
			if r.Looks[k] = (checkup.TableLook{Data: text.Bytes(), Unmeasured: is.unmeasured}); is.garbage != nil {
				r.Looks[k].Data = is.garbage
			}
		}
		record.Facts = append(record.Facts, tables.Compare(r))
	}
	l.after()
	record.Facts = append(record.Facts, tables.After(ctx))
	return Judge(l.w, &checkup.Roster{}, record, gate)
}

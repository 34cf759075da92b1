// SPDX-License-Identifier: Apache-2.0

package record

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	k8stesting "k8s.io/client-go/testing"

	"github.com/checkplan/checkplan/pkg/checkup"
)

func newStore() (*Store, *fake.Clientset) {
	client := fake.NewSimpleClientset()
	return &Store{ConfigMaps: client.CoreV1().ConfigMaps("ns"), Plan: "day-2", Run: "day-2-run-1", RunUID: "uid-1"}, client
}

// noise is text of n bytes that compresses to three quarters and no less: chunks
// grow with it.
func noise(n int, seed byte) string {
	b := make([]byte, base64.StdEncoding.DecodedLen(n)+3)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(b) // it does not fail
	return base64.StdEncoding.EncodeToString(b)[:n]
}

func list(t *testing.T, s *Store) []corev1.ConfigMap {
	t.Helper()
	l, err := s.ConfigMaps.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return l.Items
}

func TestSaveAndLoad(t *testing.T) {
	for _, tt := range []struct {
		name   string
		value  string
		chunks int
	}{
		{"empty", "", 1},
		{"small", "a", 1},
		{"compressible", strings.Repeat("0123456789", 3*chunkBytes/10), 1},
		{"several chunks", noise(3*chunkBytes, 0), 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, _ := newStore()
			if err := s.Save(t.Context(), Worksheet("mesh"), tt.value); err != nil {
				t.Fatal(err)
			}
			var got string
			if err := s.Load(t.Context(), Worksheet("mesh"), &got); err != nil {
				t.Fatal(err)
			}
			if got != tt.value {
				t.Errorf("loaded %d bytes, not the %d that were saved", len(got), len(tt.value))
			}
			cms := list(t, s)
			if len(cms) != tt.chunks {
				t.Errorf("%d ConfigMaps, want %d", len(cms), tt.chunks)
			}
			for _, cm := range cms {
				if n := len(cm.BinaryData[dataKey]); n > 700<<10 {
					t.Errorf("%s holds %d bytes, want well under 1 MiB", cm.Name, n)
				}
			}
		})
	}
}

// TestLooks: what a further look asks and measures is kept beside the first look, in the order of the
// looks. A look that was begun again has nothing of what was measured before, and another try has no look of an earlier
// one.
func TestLooks(t *testing.T) {
	s, _ := newStore()
	pair := checkup.Pair{Source: 1, Target: 2, Family: checkup.IPv4, Transport: checkup.UDP, Size: 64}
	first := s.Writer("mesh")
	first.Observation(checkup.Observation{Pair: pair, Sent: 5})
	if err := first.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	var want []checkup.Look
	for n := 1; n <= 2; n++ {
		l := checkup.Look{
			After:     checkup.Duration(time.Duration(n) * time.Second),
			Worksheet: checkup.Worksheet{Check: "mesh", Look: n, Again: []checkup.Again{{Pair: pair, Count: 25 * n}}},
		}
		for try := range 2 {
			w, err := first.BeginLook(t.Context(), &l)
			if err != nil {
				t.Fatal(err)
			}
			if try == n-1 { // of the first look, this is not the last try
				w.Observation(checkup.Observation{Pair: pair, Sent: 25 * n})
				if err := w.Flush(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		}
		if n == 2 {
			l.Record.Observations = []checkup.Observation{{Pair: pair, Sent: 50}}
		}
		want = append(want, l)
	}
	r, err := s.LoadRecord(t.Context(), "mesh")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, r.Looks); diff != "" || len(r.Observations) != 1 || r.Observations[0].Sent != 5 {
		t.Errorf("first look %+v, further looks (-want +got):\n%s", r.Observations, diff)
	}

	for _, cm := range list(t, s) {
		if cm.Name == s.name(observations("mesh", 2), 0) {
			if err := s.ConfigMaps.Delete(t.Context(), cm.Name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	r, err = s.LoadRecord(t.Context(), "mesh")
	if err == nil || r == nil || len(r.Observations) != 1 || len(r.Looks) != 1 {
		t.Errorf("%+v, %v; want an error about the second further look, and the others", r, err)
	}

	// Another try, which makes no further look.
	again := s.Writer("mesh")
	again.Observation(checkup.Observation{Pair: pair, Sent: 6})
	if err := again.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	r, err = s.LoadRecord(t.Context(), "mesh")
	if err != nil || len(r.Observations) != 1 || r.Observations[0].Sent != 6 || len(r.Looks) != 0 {
		t.Errorf("%+v, %v; want the other try, without the further looks of the first one", r, err)
	}
}

func TestObjects(t *testing.T) {
	s, _ := newStore()
	if err := s.Save(t.Context(), Worksheet("mesh"), 1); err != nil {
		t.Fatal(err)
	}
	cm := list(t, s)[0]
	wantLabels := map[string]string{
		"app.kubernetes.io/managed-by": "checkplan",
		"checkplan.dev/plan":           "day-2",
		"checkplan.dev/check":          "mesh",
		"checkplan.dev/run":            "uid-1",
		"checkplan.dev/role":           "worksheet",
	}
	if diff := cmp.Diff(wantLabels, cm.Labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	wantOwners := []metav1.OwnerReference{{APIVersion: "tekton.dev/v1", Kind: "PipelineRun", Name: "day-2-run-1", UID: "uid-1"}}
	if diff := cmp.Diff(wantOwners, cm.OwnerReferences); diff != "" {
		t.Errorf("owners (-want +got):\n%s", diff)
	}
}

// TestLoadDamaged: what is missing or corrupt is an error that names the object
// and that nobody takes for "never written".
func TestLoadDamaged(t *testing.T) {
	s, _ := newStore()
	k := Worksheet("mesh")
	second := s.name(k, 1)
	if err := s.Save(t.Context(), k, noise(3*chunkBytes/2, 0)); err != nil {
		t.Fatal(err)
	}
	whole := list(t, s)
	if len(whole) != 2 {
		t.Fatalf("%d ConfigMaps, want 2: each case damages the second", len(whole))
	}
	for _, tt := range []struct {
		name     string
		damage   func(ctx context.Context) error
		want     []string
		notFound bool
	}{
		{"never written", func(ctx context.Context) error {
			return s.ConfigMaps.Delete(ctx, s.name(k, 0), metav1.DeleteOptions{})
		}, []string{"load worksheet of check mesh", s.name(k, 0)}, true},
		{"missing chunk", func(ctx context.Context) error {
			return s.ConfigMaps.Delete(ctx, second, metav1.DeleteOptions{})
		}, []string{"load worksheet of check mesh: chunk 1 is missing", second}, false},
		{"corrupt chunk", func(ctx context.Context) error {
			return change(ctx, s, second, func(cm *corev1.ConfigMap) { cm.BinaryData[dataKey][5000] ^= 1 })
		}, []string{"ConfigMap " + second + " is corrupt"}, false},
		{"cut chunk", func(ctx context.Context) error {
			return change(ctx, s, second, func(cm *corev1.ConfigMap) { cm.BinaryData[dataKey] = cm.BinaryData[dataKey][:5000] })
		}, []string{"ConfigMap " + second + " is corrupt"}, false},
		{"emptied chunk", func(ctx context.Context) error {
			return change(ctx, s, second, func(cm *corev1.ConfigMap) { cm.BinaryData = nil })
		}, []string{"ConfigMap " + second + " is corrupt"}, false},
		{"gigabytes when decompressed", func(ctx context.Context) error {
			var bomb bytes.Buffer
			w := gzip.NewWriter(&bomb)
			zeros := make([]byte, 1<<20)
			for range chunkRaw>>20 + 1 {
				w.Write(zeros)
			}
			w.Close()
			return change(ctx, s, second, func(cm *corev1.ConfigMap) { cm.BinaryData[dataKey] = bomb.Bytes() })
		}, []string{"ConfigMap " + second + " is corrupt", "more than 16 MiB when decompressed"}, false},
		{"chunk of another value", func(ctx context.Context) error {
			return change(ctx, s, second, func(cm *corev1.ConfigMap) {
				cm.BinaryData[dataKey] = compress([]byte("x"), chunkBytes)[0].compressed
				delete(cm.Data, moreKey)
			})
		}, []string{"ConfigMap " + s.name(k, 0), "do not belong together"}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, cm := range whole {
				if err := s.write(t.Context(), cm.DeepCopy()); err != nil {
					t.Fatal(err)
				}
			}
			if err := tt.damage(t.Context()); err != nil {
				t.Fatal(err)
			}
			var got string
			err := s.Load(t.Context(), k, &got)
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %q", err, want)
				}
			}
			if apierrors.IsNotFound(err) != tt.notFound {
				t.Errorf("IsNotFound(%v) = %v, want %v", err, !tt.notFound, tt.notFound)
			}
		})
	}
}

func change(ctx context.Context, s *Store, name string, f func(*corev1.ConfigMap)) error {
	cm, err := s.ConfigMaps.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	cm = cm.DeepCopy()
	f(cm)
	_, err = s.ConfigMaps.Update(ctx, cm, metav1.UpdateOptions{})
	return err
}

func observation(i, rtts int) checkup.Observation {
	o := checkup.Observation{Pair: checkup.Pair{Source: i % 100, Target: i / 100, Family: checkup.IPv4, Transport: checkup.UDP, Size: 64}, Sent: rtts, Received: rtts}
	r := rand.New(rand.NewPCG(uint64(i), 0))
	for range rtts {
		o.RTTs = append(o.RTTs, r.Int64N(1<<40))
	}
	return o
}

func TestRecord(t *testing.T) {
	s, client := newStore()
	w := s.Writer("mesh")
	var want []checkup.Observation
	const observations = 250
	for i := range observations {
		o := observation(i, 40)
		// More than any error says, so that few observations fill several chunks.
		o.Failure = &checkup.Cause{Stage: checkup.StageEcho, Message: noise(3*appendedBytes/observations, byte(i))}
		want = append(want, o)
		w.Observation(o)
		if i%50 == 0 {
			if err := w.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			got, err := s.LoadRecord(t.Context(), "mesh")
			if err != nil {
				t.Fatal(err)
			}
			if len(got.Observations) != i+1 {
				t.Fatalf("after a Flush there are %d observations, want %d", len(got.Observations), i+1)
			}
		}
	}
	cause := &checkup.Cause{Stage: checkup.StageCollect, Message: "gone"}
	w.Source(checkup.Source{Source: 1})
	w.Source(checkup.Source{Source: 0})
	w.Source(checkup.Source{Source: 1, Cause: cause})
	pair := checkup.Pair{Source: 1, Target: 2, Family: checkup.IPv6, Transport: checkup.UDP, Size: 8}
	w.Receptions(2, []checkup.Reception{{Pair: pair, Packets: 5}})
	w.Receptions(0, nil)
	if err := w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	got, err := s.LoadRecord(t.Context(), "mesh")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&checkup.Record{
		Sources:      []checkup.Source{{Source: 0}, {Source: 1, Cause: cause}},
		Observations: want,
		Receptions:   []checkup.Reception{{Pair: pair, Packets: 5}},
		Counted:      []int{0, 2},
	}, got); diff != "" {
		t.Errorf("record (-want +got):\n%s", diff)
	}

	before := len(client.Actions())
	if err := w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := len(client.Actions()); n != before {
		t.Errorf("a Flush without news made %d requests, want none", n-before)
	}
	w.Observation(observation(1, 1))
	if err := w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := len(client.Actions()) - before; n != 2 { // create, and update because it is there
		t.Errorf("a Flush of one more observation made %d requests, want 2: only the newest chunk", n)
	}
	if n := len(list(t, s)); n < 3 {
		t.Errorf("%d chunks: the test does not test what it should", n)
	}
}

// TestFlushFailed: nothing is lost when a Flush fails, and what was there before
// can still be read.
func TestFlushFailed(t *testing.T) {
	s, client := newStore()
	w := s.Writer("mesh")
	w.Observation(observation(0, 1))
	if err := w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	broken := true
	client.PrependReactor("*", "configmaps", func(a k8stesting.Action) (bool, runtime.Object, error) {
		write := a.GetVerb() == "create" || a.GetVerb() == "update"
		return broken && write, nil, errors.New("no route to host")
	})
	w.Observation(observation(1, 1))
	if err := w.Flush(t.Context()); err == nil || !strings.Contains(err.Error(), "no route to host") {
		t.Fatalf("Flush: %v, want the API's error", err)
	}
	if r, err := s.LoadRecord(t.Context(), "mesh"); err != nil || len(r.Observations) != 1 {
		t.Errorf("after a failed Flush: %v, %v, want the one observation from before", r, err)
	}
	broken = false
	if err := w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r, err := s.LoadRecord(t.Context(), "mesh"); err != nil || len(r.Observations) != 2 {
		t.Errorf("after a repeated Flush: %v, %v, want both observations", r, err)
	}
}

// TestRetry: a second try overwrites the record of the first.
func TestRetry(t *testing.T) {
	s, _ := newStore()
	for try := range 2 {
		w := s.Writer("mesh")
		w.Observation(observation(try, 1))
		if err := w.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	r, err := s.LoadRecord(t.Context(), "mesh")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]checkup.Observation{observation(1, 1)}, r.Observations); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestConcurrentWriter(t *testing.T) {
	s, _ := newStore()
	w := s.Writer("mesh")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 50 {
				w.Observation(observation(i*50+j, 2))
				if j%10 == 0 {
					if err := w.Flush(t.Context()); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	if err := w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r, err := s.LoadRecord(t.Context(), "mesh"); err != nil || len(r.Observations) != 400 {
		t.Errorf("%v, %v, want 400 observations", r, err)
	}
}

func TestRecordOfOtherBytes(t *testing.T) {
	s, _ := newStore()
	if err := s.put(t.Context(), observations("mesh", 0), 0, compress([]byte("{}\n}\n"), chunkBytes), nil); err != nil {
		t.Fatal(err)
	}
	_, err := s.LoadRecord(t.Context(), "mesh")
	if err == nil || !strings.Contains(err.Error(), "ConfigMap "+s.name(observations("mesh", 0), 0)) {
		t.Errorf("%v, want an error that names the ConfigMap", err)
	}
}

func TestProgress(t *testing.T) {
	s, _ := newStore()
	if _, err := s.LoadProgress(t.Context(), "mesh"); !apierrors.IsNotFound(err) {
		t.Errorf("before it begins: %v, want not found", err)
	}
	for _, tt := range []struct {
		Progress
		want string
	}{
		{Progress{Phase: "setup", Ready: 1, Pods: 2}, "1 of 2 responders ready"},
		{Progress{Phase: "setup", Ready: 1, Pods: 2, VMs: true}, "1 of 2 VMs answer"},
		{Progress{Phase: "probe", Ready: 2, Pods: 2, Measured: 7, Pairs: 9}, "2 of 2 agents started, 7 of 9 pairs measured"},
		{Progress{Phase: "probe", Ready: 2, Pods: 2, Measured: 7, Pairs: 9, VMs: true}, "2 of 2 VMs answer, 7 of 9 pairs measured"},
		{Progress{Phase: "probe", Ready: 2, Pods: 2, Results: 5, Expected: 6, Measured: 7, Pairs: 9}, "2 of 2 agents started, 5 of 6 measurements made"},
	} {
		p := tt.Progress
		if got := p.String(); got != tt.want {
			t.Errorf("%q, want %q", got, tt.want)
		}
		if err := s.SaveProgress(t.Context(), "mesh", p); err != nil {
			t.Fatal(err)
		}
		if got, err := s.LoadProgress(t.Context(), "mesh"); err != nil || got != p {
			t.Errorf("got %v, %v, want %v", got, err, p)
		}
	}
}

func report(run string, minute int) *checkup.Report {
	return &checkup.Report{
		Plan: "day-2", Run: run, RunUID: "uid-of-" + run, Verdict: checkup.RunFail, Summary: "3 of 9 pairs failed",
		Finished: time.Date(2026, 1, 2, 3, minute, 0, 0, time.UTC),
		Checks:   []checkup.CheckReport{{Name: "mesh", Coverage: &checkup.Coverage{Round: minute}}, {Name: "never-ran"}},
	}
}

func TestReports(t *testing.T) {
	s, _ := newStore()
	save := func(r *checkup.Report, keep int) {
		t.Helper()
		one := Store{ConfigMaps: s.ConfigMaps, Plan: r.Plan, Run: r.Run, RunUID: r.RunUID}
		if err := errors.Join(one.SaveReport(t.Context(), r), one.PruneReports(t.Context(), keep)); err != nil {
			t.Fatal(err)
		}
	}
	other := report("other-run", 0)
	other.Plan = "other"
	save(other, 2)
	for i := range 4 {
		save(report(fmt.Sprintf("run-%d", i), i), 2)
	}
	again := report("run-3", 9) // of a PipelineRun that has the name of an earlier one
	again.RunUID = "another-uid"
	save(again, 2)

	var left []string
	for _, cm := range list(t, s) {
		left = append(left, cm.Labels[LabelRunName])
		if len(cm.OwnerReferences) != 0 {
			t.Errorf("report of %s has an owner: it would go with it", cm.Labels[LabelRunName])
		}
	}
	slices.Sort(left)
	if diff := cmp.Diff([]string{"other-run", "run-3", "run-3"}, left); diff != "" {
		t.Errorf("reports that are left (-want +got):\n%s", diff)
	}
	for _, tt := range []struct {
		run  string
		want *checkup.Report
	}{
		{"run-3", again}, {"uid-of-run-3", report("run-3", 3)}, {"other-run", other},
	} {
		got, err := FindReport(t.Context(), s.ConfigMaps, tt.run)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.run, diff)
		}
	}
	for _, run := range []string{"run-0", "", "not a label value!"} {
		if _, err := FindReport(t.Context(), s.ConfigMaps, run); !apierrors.IsNotFound(err) {
			t.Errorf("run %q: %v, want not found", run, err)
		}
	}
}

// endless is a list of reports that never ends.
type endless struct{}

func (endless) List(_ context.Context, o metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	all := &metav1.PartialObjectMetadataList{ListMeta: metav1.ListMeta{Continue: "more"}}
	for i := range o.Limit {
		all.Items = append(all.Items, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: []string{"few", "many", "many"}[i%3]}})
	}
	return all, nil
}

// TestReportsOfAll: reports of all namespaces, the newest of each plan, and an end to a list that has none.
func TestReportsOfAll(t *testing.T) {
	at := func(minute int) string { return time.Date(2026, 1, 1, 0, minute, 0, 0, time.UTC).Format(time.RFC3339) }
	cm := func(namespace, plan, uid, finished string, role checkup.Role) metav1.PartialObjectMetadata {
		return metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Annotations: map[string]string{annotationFinished: finished},
			Labels: map[string]string{checkup.LabelRole: string(role), checkup.LabelPlan: plan, checkup.LabelRun: uid, LabelRunName: "run-of-" + uid}}}
	}
	reports, plans, err := Reports(t.Context(), listed{
		cm("b", "mesh", "1", at(1), checkup.RoleReport), cm("b", "mesh", "1", at(1), checkup.RoleReport), // two chunks
		cm("b", "mesh", "2", at(2), checkup.RoleReport), cm("a", "mesh", "2", at(3), checkup.RoleReport),
		cm("b", "old", "", "", checkup.RoleHistory), cm("b", "", "3", "no time", checkup.RoleReport),
	})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range reports {
		got = append(got, r.Namespace+"/"+r.Plan+" "+r.Run)
	}
	for _, p := range plans {
		newest := "none"
		if p.Newest != nil {
			newest = p.Newest.Run
		}
		got = append(got, p.Namespace+"/"+p.Plan+": "+newest)
	}
	want := []string{"a/mesh run-of-2", "b/mesh run-of-2", "b/mesh run-of-1", "b/ run-of-3", "a/mesh: run-of-2", "b/mesh: run-of-2", "b/old: none"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, _, err := Reports(t.Context(), endless{}); err == nil || !strings.Contains(err.Error(), "of them in namespace many: lower the retention") {
		t.Errorf("an endless list: %v", err)
	}
}

// listed is a list of one page.
type listed []metav1.PartialObjectMetadata

func (l listed) List(context.Context, metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	return &metav1.PartialObjectMetadataList{Items: l}, nil
}

// paged lists a few ConfigMaps at a time, as an API server does that is asked to.
type paged struct {
	corev1client.ConfigMapInterface
	largest *int64
}

func (p paged) List(ctx context.Context, o metav1.ListOptions) (*corev1.ConfigMapList, error) {
	list, err := p.ConfigMapInterface.List(ctx, o)
	if err != nil {
		return nil, err
	}
	*p.largest = max(*p.largest, o.Limit)
	from, _ := strconv.Atoi(o.Continue)
	if to := from + int(o.Limit); o.Limit > 0 && to < len(list.Items) {
		list.Items, list.Continue = list.Items[from:to], strconv.Itoa(to)
	} else {
		list.Items = list.Items[from:]
	}
	return list, nil
}

// TestPruneInPages: the oldest of many reports are deleted, and never many are read at a time.
func TestPruneInPages(t *testing.T) {
	s, _ := newStore()
	largest := int64(0)
	s.ConfigMaps = paged{s.ConfigMaps, &largest}
	for i := range 3 * reportsPage {
		r := report(fmt.Sprintf("run-%d", i), i)
		one := Store{ConfigMaps: s.ConfigMaps, Plan: r.Plan, Run: r.Run, RunUID: r.RunUID}
		if err := one.SaveReport(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.PruneReports(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	left, err := listReports(t.Context(), s.ConfigMaps, nil)
	if err != nil || len(left) != 2 || left[0].run != "run-59" || left[1].run != "run-58" || largest != reportsPage {
		t.Errorf("%v, left %+v, %d in one page", err, left, largest)
	}
}

func TestReportObject(t *testing.T) {
	s, _ := newStore()
	r := report(s.Run, 5)
	if err := s.SaveReport(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	cm, err := s.ConfigMaps.Get(t.Context(), s.ReportName(), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"round.checkplan.dev/mesh": "5", "checkplan.dev/finished": "2026-01-02T03:05:00Z"}, cm.Annotations); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}
	if cm.Data["verdict"] != "fail" || cm.Data["summary"] != "3 of 9 pairs failed" {
		t.Errorf("data: %v, want verdict and summary", cm.Data)
	}
}

// TestChunksAreBounded: a report of which each chunk says that another one follows comes to an end.
func TestChunksAreBounded(t *testing.T) {
	s, client := newStore()
	reads := 0
	client.PrependReactor("get", "configmaps", func(a k8stesting.Action) (bool, runtime.Object, error) {
		if reads++; reads > 100 {
			return false, nil, nil
		}
		return true, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: a.(k8stesting.GetAction).GetName()},
			Data:       map[string]string{moreKey: "true"}, BinaryData: map[string][]byte{dataKey: compress(nil, chunkBytes)[0].compressed},
		}, nil
	})
	_, err := LoadReport(t.Context(), s.ConfigMaps, s.RunUID, 10*chunkLeast)
	if err == nil || !strings.Contains(err.Error(), "more than 12 chunks") {
		t.Errorf("%v, want an error about the number of chunks", err)
	}
}

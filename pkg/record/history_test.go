// SPDX-License-Identifier: Apache-2.0

package record

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
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
	k8stesting "k8s.io/client-go/testing"
	"sigs.k8s.io/yaml"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/history"
)

// versioned is a client that checks and raises resourceVersions, and sets creation times, as an API server does;
// client-go's fake does not.
func versioned() (*Store, *fake.Clientset) {
	s, client := newStore()
	var mu sync.Mutex
	last := 0
	versions := map[string]string{}
	set := func(object runtime.Object) *corev1.ConfigMap {
		cm := object.(*corev1.ConfigMap)
		last++
		cm.ResourceVersion, cm.CreationTimestamp = strconv.Itoa(last), metav1.Now()
		versions[cm.Name] = cm.ResourceVersion
		return cm
	}
	client.PrependReactor("create", "configmaps", func(a k8stesting.Action) (bool, runtime.Object, error) {
		mu.Lock()
		defer mu.Unlock()
		cm := a.(k8stesting.CreateAction).GetObject().(*corev1.ConfigMap)
		if versions[cm.Name] != "" {
			return true, nil, apierrors.NewAlreadyExists(corev1.Resource("configmaps"), cm.Name)
		}
		err := client.Tracker().Create(corev1.SchemeGroupVersion.WithResource("configmaps"), set(cm), "ns")
		return true, cm, err
	})
	client.PrependReactor("update", "configmaps", func(a k8stesting.Action) (bool, runtime.Object, error) {
		mu.Lock()
		defer mu.Unlock()
		cm := a.(k8stesting.UpdateAction).GetObject().(*corev1.ConfigMap)
		if cm.ResourceVersion != "" && cm.ResourceVersion != versions[cm.Name] {
			return true, nil, apierrors.NewConflict(corev1.Resource("configmaps"), cm.Name, errors.New("changed"))
		}
		err := client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("configmaps"), set(cm), "ns")
		return true, cm, err
	})
	client.PrependReactor("delete", "configmaps", func(a k8stesting.Action) (bool, runtime.Object, error) {
		mu.Lock()
		defer mu.Unlock()
		delete(versions, a.(k8stesting.DeleteAction).GetName())
		return false, nil, nil
	})
	return s, client
}

func entryOf(run int) *history.Entry {
	at := time.Date(2026, 1, 1, run, 0, 0, 0, time.UTC)
	return history.EntryOf(&checkup.Report{
		Plan: "day-2", Run: fmt.Sprintf("run-%d", run), RunUID: fmt.Sprintf("uid-%d", run), Verdict: checkup.RunPass,
		Started: at, Finished: at,
	}, nil)
}

func mustLoad(t *testing.T, s *Store) *history.History {
	t.Helper()
	h, err := LoadHistory(t.Context(), s.ConfigMaps, "day-2")
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// TestHistoryKeepsPieces: a part that did not change is not written again, and pieces that are no longer listed go.
func TestHistoryKeepsPieces(t *testing.T) {
	s, client := versioned()
	if h := mustLoad(t, s); len(h.Runs) != 0 || h.SetAside != nil {
		t.Errorf("%d runs, notes %q before the first run; want none", len(h.Runs), h.SetAside)
	}
	for run := range 20 {
		if run == 19 {
			client.ClearActions()
		}
		if err := s.AddHistory(t.Context(), entryOf(run)); err != nil {
			t.Fatal(err)
		}
	}
	writes := 0
	for _, a := range client.Actions() {
		if a.GetVerb() == "create" || a.GetVerb() == "update" {
			writes++
		}
	}
	if writes > 3 { // the newest runs, and the index
		t.Errorf("%d writes for one more run, want at most 3", writes)
	}
	h := mustLoad(t, s)
	if len(h.Runs) != 20 || h.Runs[19].Name != "run-19" {
		t.Errorf("%d runs, want 20", len(h.Runs))
	}
	if cms := list(t, s); len(cms) != 3 { // index, state, runs
		t.Errorf("%d ConfigMaps, want 3", len(cms))
	}
	for _, cm := range list(t, s) {
		if cm.Labels[checkup.LabelRole] != string(checkup.RoleHistory) || cm.OwnerReferences != nil {
			t.Errorf("ConfigMap %s has labels %v, owners %v", cm.Name, cm.Labels, cm.OwnerReferences)
		}
	}
}

// TestRunsThatEndAtOnce lose nothing.
func TestRunsThatEndAtOnce(t *testing.T) {
	s, _ := versioned()
	var wg sync.WaitGroup
	for run := range 6 {
		wg.Go(func() {
			if err := s.AddHistory(t.Context(), entryOf(run)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	h := mustLoad(t, s)
	have := map[string]bool{}
	for _, r := range h.Runs {
		have[r.Name] = true
	}
	if len(have) != 6 || len(h.Runs) != 6 || h.SetAside != nil {
		t.Errorf("runs %v, notes %q; want 6 runs and no notes", have, h.SetAside)
	}
}

// TestHistoryIsSetAside: what is corrupt is left out with a note that stays, and the next run is added.
func TestHistoryIsSetAside(t *testing.T) {
	change := func(prefix string, change func(*corev1.ConfigMap)) func(*testing.T, *Store) {
		return func(t *testing.T, s *Store) {
			for _, cm := range list(t, s) {
				if strings.HasPrefix(cm.Name, prefix) && (cm.BinaryData != nil) == (prefix != HistoryName("day-2")) {
					change(&cm)
					cm.ResourceVersion = ""
					if _, err := s.ConfigMaps.Update(t.Context(), &cm, metav1.UpdateOptions{}); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
	}
	drop := func(t *testing.T, s *Store) {
		for _, cm := range list(t, s) {
			if cm.BinaryData != nil {
				if err := s.ConfigMaps.Delete(context.Background(), cm.Name, metav1.DeleteOptions{}); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	relist := func(f func([]indexed) []indexed) func(*testing.T, *Store) {
		return change("day-2-history", func(cm *corev1.ConfigMap) {
			listed, err := listedPieces(cm)
			if err != nil {
				t.Fatal(err)
			}
			text, err := json.Marshal(f(listed))
			if err != nil {
				t.Fatal(err)
			}
			cm.Data = map[string]string{indexKey: string(text)}
		})
	}
	large := func(t *testing.T, s *Store) {
		var pieces []string
		for i := range byte(history.MaxBytes>>20 + 1) {
			piece := bytes.Repeat([]byte{i}, 1<<20)
			cm := s.historyMap(pieceName(HistoryName("day-2"), piece))
			cm.BinaryData = map[string][]byte{pieceKey: piece}
			if err := s.write(t.Context(), cm); err != nil {
				t.Fatal(err)
			}
			pieces = append(pieces, cm.Name)
		}
		relist(func([]indexed) []indexed { return []indexed{{"runs-0", pieces}} })(t, s)
	}
	for _, tt := range []struct {
		name  string
		spoil func(*testing.T, *Store)
		note  string
	}{
		{"a piece listed twice", relist(func(all []indexed) []indexed {
			all[0].Pieces = append(all[0].Pieces, all[0].Pieces[0])
			return all
		}), "twice"},
		{"a part listed twice", relist(func(all []indexed) []indexed { return append(all, all[0]) }), "twice"},
		{"17 MiB", large, "part runs-0 of the history is ignored: the history has more than 16 MiB"},
		{"index of nonsense", change("day-2-history", func(cm *corev1.ConfigMap) { cm.Data = map[string]string{indexKey: "?"} }), "is not an index"},
		{"corrupt pieces", change("day-2-history-", func(cm *corev1.ConfigMap) { cm.BinaryData[pieceKey][9] ^= 1 }), "is corrupt"},
		{"missing pieces", drop, "does not exist"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, _ := versioned()
			if err := s.AddHistory(t.Context(), entryOf(0)); err != nil {
				t.Fatal(err)
			}
			tt.spoil(t, s)
			if h := mustLoad(t, s); len(h.Runs) != 0 || !strings.Contains(strings.Join(h.SetAside, "\n"), tt.note) {
				t.Errorf("%d runs, notes %q; want none and %q", len(h.Runs), h.SetAside, tt.note)
			}
			if err := s.AddHistory(t.Context(), entryOf(1)); err != nil {
				t.Fatal(err)
			}
			if h := mustLoad(t, s); len(h.Runs) != 1 || !strings.Contains(strings.Join(h.SetAside, "\n"), tt.note) {
				t.Errorf("%d runs, notes %q after the next run; want 1 and %q", len(h.Runs), h.SetAside, tt.note)
			}
		})
	}
}

// TestForeignHistory: another's ConfigMap is not overwritten.
func TestForeignHistory(t *testing.T) {
	s, _ := versioned()
	other := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "day-2-history"}, Data: map[string]string{"mine": "yes"}}
	if _, err := s.ConfigMaps.Create(t.Context(), other, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := s.AddHistory(t.Context(), entryOf(0)); err == nil || !strings.Contains(err.Error(), "rename or delete it") {
		t.Errorf("error %v, want one that names the other ConfigMap", err)
	}
	if cm := list(t, s)[0]; cm.Data["mine"] != "yes" || len(list(t, s)) != 1 {
		t.Errorf("the other's ConfigMap was changed: %v", cm.Data)
	}
}

// TestReadHistory reads what kubectl prints.
func TestReadHistory(t *testing.T) {
	s, _ := versioned()
	if err := s.AddHistory(t.Context(), entryOf(0)); err != nil {
		t.Fatal(err)
	}
	printed := func(cms ...corev1.ConfigMap) []byte {
		text, err := yaml.Marshal(corev1.ConfigMapList{Items: cms})
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	h, err := ReadHistory(t.Context(), printed(list(t, s)...))
	if err != nil || len(h.Runs) != 1 || h.Plan != "day-2" {
		t.Errorf("%+v, %v; want one run of plan day-2", h, err)
	}
	for name, text := range map[string][]byte{"no list": []byte("[]"), "nothing": nil, "no index": printed(list(t, s)[1:]...)} {
		if h, err := ReadHistory(t.Context(), text); err == nil && name != "no index" {
			t.Errorf("%s: %+v, want an error", name, h)
		}
	}
}

// TestSavedHistory: testdata/history.yaml, as kubectl prints it, is the history of twelve runs of a mesh of four nodes.
// Runs 5 to 7 found nothing coming into node-d, and run 9 did not report. UPDATE=1 writes the file.
func TestSavedHistory(t *testing.T) {
	const path = "testdata/history.yaml"
	s, _ := versioned()
	for run := range 13 {
		if run != 9 {
			if err := s.AddHistory(t.Context(), meshEntry(run)); err != nil {
				t.Fatal(err)
			}
		}
	}
	want := mustLoad(t, s)
	if os.Getenv("UPDATE") != "" {
		save(t, s, path)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	got, err := ReadHistory(t.Context(), text)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want.Overview(history.Filter{}), got.Overview(history.Filter{})); diff != "" {
		t.Errorf("the saved history differs (UPDATE=1 writes it): %s", diff)
	}
}

// TestNewerHistory: a history that a newer checkplan wrote is never written, whichever part of it is newer, and what
// can be read of it is read. testdata/history-newer.yaml is such a history; UPDATE=1 writes it.
func TestNewerHistory(t *testing.T) {
	const path = "testdata/history-newer.yaml"
	for part, runs := range map[string]int{"state": 2, "runs-0": 0} {
		s, _ := versioned()
		for run := range 2 {
			if err := s.AddHistory(t.Context(), meshEntry(run)); err != nil {
				t.Fatal(err)
			}
		}
		makeNewer(t, s, part)
		before := list(t, s)
		if err := s.AddHistory(t.Context(), meshEntry(2)); !errors.Is(err, ErrNewer) {
			t.Errorf("part %s is newer: error %v, want %v", part, err, ErrNewer)
		}
		if diff := cmp.Diff(before, list(t, s)); diff != "" {
			t.Errorf("part %s is newer: the history was changed: %s", part, diff)
		}
		h, err := LoadHistory(t.Context(), s.ConfigMaps, "day-2")
		if !errors.Is(err, ErrNewer) || h == nil || len(h.Runs) != runs || !strings.Contains(strings.Join(h.SetAside, "\n"), "another checkplan wrote it") {
			t.Errorf("part %s is newer: %+v, %v; want %d runs, a note, and %v", part, h, err, runs, ErrNewer)
		}
		if part == "state" && os.Getenv("UPDATE") != "" {
			save(t, s, path)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if h, err := ReadHistory(t.Context(), text); !errors.Is(err, ErrNewer) || len(h.Runs) != 2 {
		t.Errorf("the saved history: %+v, %v (UPDATE=1 writes it)", h, err)
	}
}

// makeNewer changes a part of the history as a newer checkplan would: to its own version, under the name of its
// content.
func makeNewer(t *testing.T, s *Store, part string) {
	t.Helper()
	must := func(err error) {
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
	}
	index, err := s.ConfigMaps.Get(t.Context(), HistoryName("day-2"), metav1.GetOptions{})
	must(err)
	listed, err := listedPieces(index)
	must(err)
	i := slices.IndexFunc(listed, func(p indexed) bool { return p.Part == part })
	old, err := s.ConfigMaps.Get(t.Context(), listed[i].Pieces[0], metav1.GetOptions{})
	must(err)
	r, err := gzip.NewReader(bytes.NewReader(old.BinaryData[pieceKey]))
	must(err)
	text, err := io.ReadAll(r)
	must(err)
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err = w.Write(bytes.Replace(text, []byte(`"version":1`), []byte(`"version":99`), 1))
	must(err)
	must(w.Close())
	piece := s.historyMap(pieceName(index.Name, b.Bytes()))
	piece.BinaryData = map[string][]byte{pieceKey: b.Bytes()}
	_, err = s.ConfigMaps.Create(t.Context(), piece, metav1.CreateOptions{})
	must(err)
	must(s.ConfigMaps.Delete(t.Context(), old.Name, metav1.DeleteOptions{}))
	listed[i].Pieces[0] = piece.Name
	content, err := json.Marshal(listed)
	must(err)
	index.Data[indexKey] = string(content)
	_, err = s.ConfigMaps.Update(t.Context(), index, metav1.UpdateOptions{})
	must(err)
}

// save writes all ConfigMaps to a file, as kubectl prints them.
func save(t *testing.T, s *Store, path string) {
	t.Helper()
	text, err := yaml.Marshal(corev1.ConfigMapList{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "List"}, Items: list(t, s),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text, 0o644); err != nil {
		t.Fatal(err)
	}
}

// meshEntry is a run of a mesh of four nodes with degree 1, which rotates.
func meshEntry(run int) *history.Entry {
	names := []string{"node-a", "node-b", "node-c", "node-d"}
	w := &checkup.Worksheet{Plan: "day-2", Check: "mesh", Seed: 1, Round: run % 3, Rounds: 3, Degree: 1, Possible: 12,
		IPFamilies: []checkup.IPFamily{checkup.IPv4},
		Probes:     []checkup.TransportProbe{{Transport: checkup.UDP, Probe: checkup.Probe{Sizes: []int{64}, Count: 2}}}}
	c := checkup.CheckReport{Name: "mesh", Kind: "podMesh", Verdict: checkup.RunPass,
		Coverage: &checkup.Coverage{Possible: 12, Round: run % 3, Rounds: 3}}
	record := &checkup.Record{}
	rtt := int64(200 + 10*run)
	for i, name := range names {
		target := (i + 1 + run%3) % 4
		w.Sources = append(w.Sources, checkup.Endpoint{Node: name})
		w.Assignments = append(w.Assignments, []int{target})
		o := checkup.Observation{Sent: 2, Received: 2, RTTs: []int64{rtt, rtt + 20}, Pair: checkup.Pair{
			Source: i, Target: target, Family: checkup.IPv4, Transport: checkup.UDP, Size: 64}}
		c.Counts.Expected++
		if run >= 5 && run <= 7 && names[target] == "node-d" {
			o.Received, o.RTTs = 0, nil
			c.Counts.Fail++
			c.Verdict = checkup.RunFail
			c.Units = append(c.Units, checkup.Unit{Source: name, Target: names[target], Family: checkup.IPv4,
				Transport: checkup.UDP, Size: 64, Verdict: checkup.Fail})
			c.Findings = []checkup.Finding{{Cause: checkup.CauseNodeIngress, Subject: "node-d",
				Message: "nothing reaches the pods on node node-d"}}
		} else {
			c.Counts.Pass++
		}
		record.Observations = append(record.Observations, o)
	}
	w.Targets = w.Sources
	c.Delays = []checkup.DelayRow{{Transport: checkup.UDP, Family: checkup.IPv4, Size: 64, Pairs: 4, Sent: 8,
		Received: 2 * c.Counts.Pass, Delay: &checkup.Delay{P50: rtt, P99: rtt + 20}}}
	at := time.Date(2026, 1, 1, 0, run, 0, 0, time.UTC)
	return history.EntryOf(&checkup.Report{
		Plan: "day-2", Run: fmt.Sprintf("day-2-run-%d", run), RunUID: fmt.Sprintf("uid-%d", run), Verdict: c.Verdict,
		Started: at, Finished: at.Add(20 * time.Second), Counts: c.Counts, Checks: []checkup.CheckReport{c},
	}, map[string]history.Sheet{"mesh": {Worksheet: w, Record: record}})
}

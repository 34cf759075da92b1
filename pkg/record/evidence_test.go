// SPDX-License-Identifier: Apache-2.0

package record

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// metadataOf lists the metadata of a store's ConfigMaps, one on each page.
type metadataOf struct{ store *Store }

func (m metadataOf) List(ctx context.Context, o metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	l, err := m.store.ConfigMaps.List(ctx, metav1.ListOptions{LabelSelector: o.LabelSelector})
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc([]byte(o.Continue), func(b byte) bool { return b != 'x' })
	if i < 0 {
		i = len(o.Continue)
	}
	page := &metav1.PartialObjectMetadataList{}
	if i < len(l.Items) {
		page.Items = append(page.Items, metav1.PartialObjectMetadata{ObjectMeta: l.Items[i].ObjectMeta})
	}
	if i+1 < len(l.Items) {
		page.Continue = strings.Repeat("x", i+1)
	}
	return page, nil
}

// TestLoadEvidence: all that the tasks of the run kept, and nothing of another run.
func TestLoadEvidence(t *testing.T) {
	s, _ := newStore()
	load := func() (*checkup.Evidence, error) {
		return LoadEvidence(t.Context(), s.ConfigMaps, metadataOf{s}, s.RunUID)
	}
	want := &checkup.Evidence{APIVersion: checkup.APIVersion, Kind: checkup.EvidenceKind}
	got, err := load()
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("a run without evidence: %v (-want +got):\n%s", err, diff)
	}

	want.Pods = []checkup.PodEvidence{
		{Pod: "agent-1", Check: "mesh", Node: "n1", Problem: "OOMKilled", Log: noise(2*chunkBytes, 1), Manifest: json.RawMessage(`{"kind":"Pod"}`)},
		{Pod: "agent-2", Check: "mesh", Problem: "Unschedulable", Warning: "FailedScheduling: no node"},
	}
	want.VMs = []checkup.VMEvidence{{
		VM: "vm-1", Check: "vms", Node: "n1", Phase: "Failed", Events: []string{"one"}, Logs: map[string]string{"compute": "qemu"},
		Manifest: json.RawMessage(`{"kind":"VirtualMachineInstance"}`),
	}}
	said := []checkup.Transcript{{Name: "vm-1", VM: "n1", Text: "login: "}}
	want.Consoles = []checkup.ConsoleEvidence{
		{Check: "more", Phase: checkup.PhaseProbe, Transcripts: said},
		{Check: "vms", Phase: checkup.PhaseSetup, Transcripts: said},
		{Check: "vms", Phase: checkup.PhaseProbe, Transcripts: said},
	}
	other := &Store{ConfigMaps: s.ConfigMaps, Plan: s.Plan, Run: "day-2-run-2", RunUID: "uid-2"}
	for _, save := range []struct {
		store *Store
		key   Key
		value any
	}{
		{s, Evidence(), want.Pods}, {s, EvidenceVMs(), want.VMs}, {s, Consoles("vms", checkup.PhaseProbe), said},
		{s, Consoles("vms", checkup.PhaseSetup), said}, {s, Consoles("more", checkup.PhaseProbe), said},
		{s, Worksheet("mesh"), "no evidence"}, {other, Consoles("vms", checkup.PhaseSetup), said},
		{other, Evidence(), []checkup.PodEvidence{{Pod: "of another run"}}},
	} {
		if err := save.store.Save(t.Context(), save.key, save.value); err != nil {
			t.Fatal(err)
		}
	}
	got, err = load()
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}

	// A part that is missing is an error.
	if err := s.ConfigMaps.Delete(t.Context(), s.name(Evidence(), 1), metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := load(); err == nil || !strings.Contains(err.Error(), "load evidence: chunk 1 is missing") {
		t.Errorf("%v, want that a chunk is missing", err)
	}
}

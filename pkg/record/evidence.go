// SPDX-License-Identifier: Apache-2.0

package record

import (
	"context"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Evidence is the key of what teardown keeps of fixtures that went wrong.
func Evidence() Key { return Key{Role: checkup.RoleEvidence} }

// EvidenceVMs is the key of what teardown keeps of VMs of checks that did not pass.
func EvidenceVMs() Key { return Key{Role: checkup.RoleEvidence, Part: "vms"} }

// Consoles is the key of the output of the consoles of a check's VMs in a phase.
func Consoles(check string, phase checkup.Phase) Key {
	return Key{Role: checkup.RoleEvidence, Check: check, Part: "consoles-" + string(phase)}
}

// evidenceMost is the most JSON of one value of evidence that LoadEvidence reads. The tasks keep up to 20 pods, 20 VMs
// and 1 MiB of consoles, each with logs of 64 KiB.
const evidenceMost = 64 << 20

// LoadEvidence reads the evidence of a run by its UID. It has neither namespace nor name of the run. A run without
// evidence is no error.
func LoadEvidence(
	ctx context.Context, configMaps corev1client.ConfigMapInterface, names Lister, runUID string,
) (*checkup.Evidence, error) {
	of := labels.Set{checkup.LabelRole: string(checkup.RoleEvidence), checkup.LabelRun: runUID}
	e := &checkup.Evidence{APIVersion: checkup.APIVersion, Kind: checkup.EvidenceKind}
	if _, err := labels.ValidatedSelectorFromSet(of); err != nil {
		return e, nil // no label can have that value
	}
	exists := map[string]bool{}
	var checks []string
	o := metav1.ListOptions{LabelSelector: of.String(), Limit: listPage}
	err := everyPage(ctx, o, names.List, func(page *metav1.PartialObjectMetadataList) error {
		for _, cm := range page.Items {
			exists[cm.Name] = true
			checks = append(checks, cm.Labels[checkup.LabelCheck])
		}
		if len(exists) > listMost {
			return fmt.Errorf("run %s has more than %d ConfigMaps", runUID, listMost)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list evidence: %w", err)
	}
	s := Store{ConfigMaps: configMaps, RunUID: runUID, most: evidenceMost}
	load := func(k Key, value any) (bool, error) {
		if !exists[s.name(k, 0)] {
			return false, nil
		}
		return true, s.Load(ctx, k, value)
	}
	if _, err := load(Evidence(), &e.Pods); err != nil {
		return nil, err
	}
	if _, err := load(EvidenceVMs(), &e.VMs); err != nil {
		return nil, err
	}
	slices.Sort(checks)
	for _, check := range slices.Compact(checks) {
		for _, phase := range []checkup.Phase{checkup.PhaseSetup, checkup.PhaseProbe} {
			c := checkup.ConsoleEvidence{Check: check, Phase: phase}
			switch found, err := load(Consoles(check, phase), &c.Transcripts); {
			case err != nil:
				return nil, err
			case found:
				e.Consoles = append(e.Consoles, c)
			}
		}
	}
	return e, nil
}

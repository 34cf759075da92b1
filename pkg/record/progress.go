// SPDX-License-Identifier: Apache-2.0

package record

import (
	"context"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Progress is how far a check is, for people who follow a run. It is JSON in
// data["progress"] of one ConfigMap per check, written at most every few seconds.
type Progress struct {
	// Phase is "setup" while responders or VMs start and "probe" while agents or VMs
	// measure.
	Phase string `json:"phase"`
	// Ready of Pods: responders that are ready in setup, agents that have started
	// in probe.
	Ready int `json:"ready"`
	Pods  int `json:"pods"`
	// Measured of Pairs: pairs whose observation arrived; both 0 in setup.
	Measured int `json:"measured"`
	Pairs    int `json:"pairs"`
	// Results of Expected: measurements that arrived of pairs that are reported one by
	// one; both 0 for others.
	Results  int `json:"results,omitempty"`
	Expected int `json:"expected,omitempty"`
	// Look is the worksheet's: 0 for the first look.
	Look int `json:"look,omitempty"`
	// VMs says that Pods counts VMs that answer on their consoles.
	VMs bool `json:"vms,omitempty"`
	// Tables says that Pairs counts tables of nodes' rules.
	Tables bool `json:"tables,omitempty"`
}

// String reads "12 of 15 agents started, 300 of 1200 pairs measured", with "second look: "
// before it in one, or
// "... 300 of 1200 measurements made", or "2 of 2 VMs answer, 1 of 4 pairs measured".
func (p Progress) String() string {
	ready := fmt.Sprintf("%d of %s started", p.Ready, checkup.Count(p.Pods, "agent"))
	switch {
	case p.VMs:
		ready = fmt.Sprintf("%d of %d VMs answer", p.Ready, p.Pods)
	case p.Phase == "setup":
		ready = fmt.Sprintf("%d of %s ready", p.Ready, checkup.Count(p.Pods, "responder"))
	}
	switch {
	case p.Phase == "setup":
		return ready
	case p.Tables:
		return fmt.Sprintf("%s, %d of %d tables of rules read", ready, p.Measured, p.Pairs)
	case p.Expected > 0:
		return fmt.Sprintf("%s, %d of %d measurements made", ready, p.Results, p.Expected)
	case p.Look > 0:
		return fmt.Sprintf("second look: %s, %d of %d pairs measured", ready, p.Measured, p.Pairs)
	default:
		return fmt.Sprintf("%s, %d of %d pairs measured", ready, p.Measured, p.Pairs)
	}
}

const progressKey = "progress"

func progress(check string) Key {
	return Key{Role: checkup.RoleRecord, Check: check, Part: progressKey}
}

// SaveProgress overwrites the progress of a check.
func (s *Store) SaveProgress(ctx context.Context, check string, p Progress) error {
	b, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("encode progress: %w", err)
	}
	cm := s.configMap(progress(check), 0)
	cm.Data[progressKey] = string(b)
	return s.write(ctx, cm)
}

// LoadProgress reads the progress of a check. If the check has not begun, the error
// satisfies apierrors.IsNotFound.
func (s *Store) LoadProgress(ctx context.Context, check string) (Progress, error) {
	var p Progress
	cm, err := s.ConfigMaps.Get(ctx, s.name(progress(check), 0), metav1.GetOptions{})
	if err != nil {
		return p, fmt.Errorf("load progress of check %s: %w", check, err)
	}
	if err := json.Unmarshal([]byte(cm.Data[progressKey]), &p); err != nil {
		return p, fmt.Errorf("load progress of check %s: ConfigMap %s: %w", check, cm.Name, err)
	}
	return p, nil
}

// SPDX-License-Identifier: Apache-2.0

package print

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// TestEvidence: what is printed of the pods and VMs of a run, in an order that does not change, and that a log cannot
// forge a command or a heading.
func TestEvidence(t *testing.T) {
	for _, tt := range []struct {
		name string
		of   checkup.Evidence
		want string
	}{
		{"nothing", checkup.Evidence{}, `
Evidence of run vms-abcde in namespace checkplan: none: no pod and no VM went wrong
`},
		{"pods and VMs", checkup.Evidence{
			Pods: []checkup.PodEvidence{
				{Pod: "agent-0", Check: "mesh", Node: "n1", Problem: "OOMKilled: exit code 137", Log: "::error::forged\r\n\x1b[2Jcleared\n\npod forged of check mesh\n"},
				{Pod: "agent-1", Check: "mesh", Problem: "Unschedulable: Insufficient memory", Warning: "FailedScheduling: Insufficient memory"},
			},
			VMs: []checkup.VMEvidence{{
				VM: "checkplan-vm-0", Check: "vms", Node: "n1", Phase: "Failed", Events: []string{"2026-01-02T03:04:05Z Warning Pod: Failed: no kvm", "second"},
				Logs: map[string]string{"guest-console-log": "login:", "compute": "qemu\nended", "empty": ""},
			}},
			Consoles: []checkup.ConsoleEvidence{{Check: "vms", Phase: checkup.PhaseSetup, Transcripts: []checkup.Transcript{
				{Name: "checkplan-vm-0", VM: "n1", Text: "booting\r\nlogin: "},
			}}},
		}, `
Evidence of run vms-abcde in namespace checkplan: 2 pods, 1 VM, 1 console

pod agent-0 of check mesh on node n1: OOMKilled: exit code 137
  log
    | ::error::forged
    | �[2Jcleared
    |
    | pod forged of check mesh

pod agent-1 of check mesh, not scheduled: Unschedulable: Insufficient memory
  event: FailedScheduling: Insufficient memory

VM checkplan-vm-0 of check vms on node n1: phase Failed
  events
    | 2026-01-02T03:04:05Z Warning Pod: Failed: no kvm
    | second
  log of container compute
    | qemu
    | ended
  log of container guest-console-log
    | login:

console of VM n1 (checkplan-vm-0) of check vms in setup
  received
    | booting
    | login:

manifests: --output json
`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.of.Namespace, tt.of.Run = "checkplan", "vms-abcde"
			var b strings.Builder
			if err := Evidence(&b, &tt.of, TextOptions{}); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want[1:], b.String()); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

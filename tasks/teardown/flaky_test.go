// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/kubernetes/fake"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/record"
	"github.com/checkplan/checkplan/tasks/internal/flaky"
)

// TestEachRequestFailsOnce: whichever request of teardown fails once, and in whatever way, the evidence of the agent
// and of the VM is kept, and nothing is left behind.
func TestEachRequestFailsOnce(t *testing.T) {
	teardown := func(requests *flaky.Requests) string {
		outcome := ""
		synctest.Test(t, func(t *testing.T) {
			tk, virt, _ := vmTask(t, checkup.TeardownAlways)
			client := tk.Kubernetes.(*fake.Clientset)
			requests.Of(&client.Fake, &virt.Fake)
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			err := run(ctx, tk)
			requests.Stop()
			plan, problem := tk.Plan()
			if problem != nil {
				t.Error(problem)
				return
			}
			left, problem := tk.Left(t.Context(), plan)
			var pods []checkup.PodEvidence
			noPods := tk.Store("").Load(t.Context(), record.Evidence(), &pods)
			var vms []checkup.VMEvidence
			noVMs := tk.Store("").Load(t.Context(), record.EvidenceVMs(), &vms)
			outcome = fmt.Sprint(errors.Join(err, problem, noPods, noVMs), left)
			for _, e := range pods {
				outcome += " " + e.Pod + " " + e.Log
			}
			for _, e := range vms {
				outcome += " " + e.VM
			}
		})
		return outcome
	}
	flaky.EachOnce(t, flaky.InEveryWay, teardown)
}

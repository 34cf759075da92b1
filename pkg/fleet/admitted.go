// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Admitted asks the API server, by a dry run of the first one, whether admission accepts the agents of the worksheet
// that are on the host network: Pod Security and OpenShift's security context constraints refuse them where they accept
// others. It creates nothing. The error says why all agents would be refused, and what to do. If only some would be, or
// the API server does not answer the question, the log has a warning, and the probe task finds out. Agents that read
// rules are not asked about: for their check, a refusal is a fact about the node.
//
// account is the service account that will create the agents; empty means that it is not known. OpenShift accepts what
// the creator of a pod or the pod's own account may use, so the pod of the dry run has this account. Without it, a
// refusal by OpenShift is about the account that asks, and is a warning.
//
// Pod Security may exempt users (exemptions.usernames of the API server's configuration), and decides by who asks. If
// account is exempt and the one that asks is not, the error is wrong: both have to be exempt.
func (f *Fleet) Admitted(ctx context.Context, w *checkup.Worksheet, account string) error {
	first, agents, refused := -1, 0, 0
	for i, e := range w.Sources {
		if e.Node == "" || e.Inside || len(w.Assignments) <= i || len(w.Assignments[i]) == 0 {
			continue // no agent of its own
		}
		agents++
		if e.HostNetwork {
			refused++
			if first < 0 {
				first = i
			}
		}
	}
	if first < 0 {
		return nil
	}
	pod, err := f.agent(w, first)
	if err != nil {
		return fmt.Errorf("agent for %s: %w", w.Sources[first].Name(), err)
	}
	pod.Spec.ServiceAccountName = account
	_, err = f.Client.CoreV1().Pods(f.Namespace).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err == nil || ctx.Err() != nil {
		return nil
	}
	dryRun := fmt.Errorf("a dry run of the agent for %s, on the host network: %w", w.Sources[first].Name(),
		f.advise(err, pod))
	switch {
	case !refusedSecurity(err) && !refusedConstraints(err):
		f.logf("::warning::%s", OneLine(dryRun.Error()))
		return nil
	case account == "" && refusedConstraints(err):
		f.logf("::warning::%s may be refused, depending on the account of the probe task: %s",
			checkup.Count(refused, "agent"), OneLine(dryRun.Error()))
		return nil
	case refused < agents:
		f.logf("::warning::%d of %s will be refused: %s", refused, checkup.Count(agents, "agent"), OneLine(dryRun.Error()))
		return nil
	}
	return dryRun
}

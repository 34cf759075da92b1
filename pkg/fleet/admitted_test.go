// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// TestAdmitted: one agent on the host network is asked about, and nothing is created. A refusal that concerns all
// agents is an error with what to do. One that concerns some, or an answer that is no refusal, is a warning.
func TestAdmitted(t *testing.T) {
	forbidden := func(words string) error { return apierrors.NewForbidden(pods, "x", errors.New(words)) }
	// The words of Kubernetes 1.35, and of OpenShift's admission (apiserver-library-go, sccadmission).
	podSecurity := forbidden(`violates PodSecurity "baseline:latest": host namespaces (hostNetwork=true)`)
	constraints := forbidden("unable to validate against any security context constraint: [provider \"restricted-v2\": " +
		".spec.securityContext.hostNetwork: Invalid value: true: Host network is not allowed to be used]")
	none := func(w *checkup.Worksheet) {
		for i := range w.Sources {
			w.Sources[i].HostNetwork = false
		}
	}
	for _, tt := range []struct {
		name    string
		change  func(*checkup.Worksheet) // of three sources on the host network
		answer  error
		unknown bool // the account of the probe task
		asked   int
		err     string // a part
		warning string // a part
	}{
		{name: "admitted", asked: 1},
		{name: "no agent on the host network", change: none, answer: podSecurity},
		{name: "refused by pod security", answer: podSecurity, asked: 1,
			err: "a dry run of the agent for kube-apiserver-n0, on the host network: pods \"x\" is forbidden: violates PodSecurity"},
		{name: "and what to do", answer: podSecurity, asked: 1,
			err: "kubectl label --overwrite namespace ns pod-security.kubernetes.io/enforce=privileged"},
		{name: "refused by OpenShift", answer: constraints, asked: 1, err: "Host network is not allowed to be used]; the agent must " +
			"be on the host network, as its component is: compile the plan with preset openshift or auto"},
		{name: "refused by OpenShift, but perhaps not to the probe task", answer: constraints, unknown: true, asked: 1,
			warning: "3 agents may be refused, depending on the account of the probe task: a dry run of the agent for kube-apiserver-n0"},
		{name: "refused on some nodes, but perhaps not to the probe task", answer: constraints, unknown: true, asked: 1,
			change:  func(w *checkup.Worksheet) { w.Sources[0].HostNetwork = false },
			warning: "2 agents may be refused, depending on the account"},
		{name: "refused by pod security, whose account does not matter", answer: podSecurity, unknown: true, asked: 1,
			err: "violates PodSecurity"},
		{name: "refused on some nodes", change: func(w *checkup.Worksheet) { w.Sources[0].HostNetwork = false }, answer: constraints, asked: 1,
			warning: "2 of 3 agents will be refused: a dry run of the agent for kube-apiserver-n1"},
		{name: "sources without an agent do not count", change: func(w *checkup.Worksheet) {
			w.Sources[0].HostNetwork, w.Sources[0].Node = false, ""
			w.Sources[1].HostNetwork, w.Assignments[1] = false, nil
		}, answer: constraints, asked: 1, err: "the agent for kube-apiserver-n2"},
		{name: "no right to ask", answer: forbidden(`User "a" cannot create resource "pods"`), asked: 1, warning: "cannot create resource"},
		{name: "a webhook without dry runs", answer: apierrors.NewBadRequest("admission webhook \"w\" does not support dry run"), asked: 1,
			warning: "does not support dry run"},
		{name: "the API server is away", answer: apierrors.NewInternalError(errors.New("etcd leader changed")), asked: 1,
			warning: "etcd leader changed"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := connections(3)
			if tt.change != nil {
				tt.change(w)
			}
			account := "probe"
			if tt.unknown {
				account = ""
			}
			c := newCluster()
			asked := 0
			c.PrependReactor("create", "*", func(a k8stesting.Action) (bool, runtime.Object, error) {
				create := a.(k8stesting.CreateActionImpl)
				pod, _ := create.GetObject().(*corev1.Pod)
				if pod == nil || !slices.Equal(create.CreateOptions.DryRun, []string{metav1.DryRunAll}) || !pod.Spec.HostNetwork ||
					pod.Spec.ServiceAccountName != account {
					t.Errorf("created: %v", create.GetObject())
				}
				asked++
				return true, pod, tt.answer
			})
			f, log := newFleet(t, c)
			err := f.Admitted(t.Context(), w, account)
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("error %v, want %q", err, tt.err)
			}
			if asked != tt.asked {
				t.Errorf("%d pods were asked about, want %d", asked, tt.asked)
			}
			text := log.String()
			warned := strings.HasPrefix(text, "::warning::")
			if warned != (tt.warning != "") || !strings.Contains(text, tt.warning) {
				t.Errorf("log %q, want a warning %q", text, tt.warning)
			}
		})
	}
}

// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// FuzzNetworkStatus: any annotation of Multus names the network or is a cause, and any event is understood.
func FuzzNetworkStatus(f *testing.F) {
	f.Add(`[{"name":"cbr0","default":true},{"name":"ns/br10"}]`, "failed (add): desc = bridge br10 is missing")
	f.Add(`[null,{"name":1}]`, "")
	f.Add("{", "desc = ")
	f.Fuzz(func(t *testing.T, status, event string) {
		p := &preflight{Fleet: &Fleet{Namespace: "ns"}}
		pod := &corev1.Pod{}
		pod.Annotations = map[string]string{annotationNetworkStatus: status}
		p.attached(pod, checkup.Endpoint{VM: &checkup.VM{Network: checkup.NetworkRef{Name: "br10"}}})
		PluginWords(event)
		NetworkFailed(pod, Warning{"FailedCreatePodSandBox", event})
		SchedulerWords(event)
		if line := OneLine(event); len(line) > 503 {
			t.Fatalf("%d bytes", len(line))
		}
	})
}

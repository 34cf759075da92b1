// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// TestTeardownServices: the Services of a run are deleted, and no others; a plan without such a check does not ask for
// Services, to which it has no right.
func TestTeardownServices(t *testing.T) {
	for _, tt := range []struct {
		name, checks string
		left, asked  int
	}{
		{"a canary", `{"canary":{"serviceCanary":{}}}`, 1, 1},
		{"no canary", `{"mesh":{"podMesh":{}}}`, 2, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tk, client, log := newTask(t, checkup.TeardownAlways)
			tk.PlanJSON = `{"name":"day-2","gate":{"require":"Pass","maxUnmeasured":"0%"},"teardown":"Always","checks":` + tt.checks + `}`
			for _, name := range []string{"ours", "somebody's"} {
				service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", UID: "uid-of-service"}}
				if name == "ours" {
					service.Labels = map[string]string{checkup.LabelRun: "uid-1", checkup.LabelRole: string(checkup.RoleService)}
				}
				if err := client.Tracker().Add(service); err != nil {
					t.Fatal(err)
				}
			}
			asked := 0
			client.PrependReactor("*", "services", func(k8stesting.Action) (bool, runtime.Object, error) {
				asked++
				return false, nil, nil
			})
			if err := run(t.Context(), tk); err != nil {
				t.Fatal(err, log)
			}
			if (asked > 0) != (tt.asked > 0) {
				t.Errorf("%d requests for Services", asked)
			}
			list, err := client.CoreV1().Services("ns").List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if len(list.Items) != tt.left {
				t.Errorf("%d Services are left, want %d", len(list.Items), tt.left)
			}
		})
	}
}

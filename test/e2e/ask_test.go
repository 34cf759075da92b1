// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/fleet"
	"github.com/checkplan/checkplan/pkg/scheduling"
	"github.com/checkplan/checkplan/pkg/tekton"
)

// TestAsk: two pods of a workload, in a namespace that enforces restricted pod security. Asked from inside the one, the
// other is reached; it is not while packets between these two pods alone are dropped, as by a NetworkPolicy. What is
// left in the source pod are containers that have ended. It runs in parallel: nothing else notices its fault.
func TestAsk(t *testing.T) {
	parallel(t)
	const namespace = "shop"
	c := cluster(t)
	made := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace, Labels: map[string]string{checkup.LabelPodSecurity: "restricted"}}}
	if _, err := c.Kube.CoreV1().Namespaces().Create(t.Context(), made, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	t.Cleanup(func() { sandbox(t, "kubectl", "delete", "--wait=false", "namespace", namespace) })
	for name, node := range map[string]string{"web-1": "worker-1", "db-0": "worker-2"} {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": name}},
			Spec: corev1.PodSpec{
				Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
					NodeSelectorTerms: []corev1.NodeSelectorTerm{fleet.NodeTerm(node)},
				}}},
				TerminationGracePeriodSeconds: new(int64(1)),
				Containers: []corev1.Container{{
					Name: "server", Image: tekton.AgentImage(tekton.Options{}), ImagePullPolicy: corev1.PullIfNotPresent,
					Command: []string{"/ko-app/agent"}, Args: []string{"respond"},
					Ports: []corev1.ContainerPort{{ContainerPort: fleet.HTTPPort}},
				}},
			},
		}
		scheduling.Restrict(&pod.Spec)
		if _, err := c.Kube.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	address := func(name string) (ip string) {
		eventually(t, time.Minute, func() error {
			pod, err := c.Kube.CoreV1().Pods(namespace).Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			ip = pod.Status.PodIP
			for _, condition := range pod.Status.Conditions {
				if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue && ip != "" {
					return nil
				}
			}
			return fmt.Errorf("pod %s is %s and not ready", name, pod.Status.Phase)
		})
		return ip
	}
	web, db := address("web-1"), address("db-0")
	ask := func(wantCode int, want ...string) {
		t.Helper()
		began := time.Now()
		asked := start(t, "ask", "shop/web-1", "shop/db-0")
		code := asked.wait(t)
		t.Logf("answered after %s: %s", time.Since(began).Round(time.Second), asked.stdout.String())
		for _, w := range want {
			if code != wantCode || !strings.Contains(asked.stdout.String(), w) {
				t.Errorf("planner ask: exit code %d, %q; want %d, and %q\n%s", code, asked.stdout.String(), wantCode, w, asked.stderr.String())
			}
		}
	}
	ask(0, "shop/web-1 reaches shop/db-0:7080 by tcp, IPv4: 20 of 20, p50 ")
	faultID(t, "drop", "--src", web, "--dst", db, "--protocol", "tcp", "--dport", "7080")
	ask(3, "shop/web-1 does not reach shop/db-0:7080 by tcp, IPv4: 0 of 20; connect: ")

	// A verdict that is no pass is news, of a first run too.
	within(t, 30*time.Second, func() error {
		events, err := c.Kube.CoreV1().Events(c.Namespace).List(t.Context(), metav1.ListOptions{FieldSelector: "reason=VerdictFail"})
		if err != nil {
			return err
		}
		for _, e := range events.Items {
			if e.InvolvedObject.Kind == "PipelineRun" && strings.HasPrefix(e.InvolvedObject.Name, "ask-") && e.Type == corev1.EventTypeWarning {
				return nil
			}
		}
		return fmt.Errorf("no event of the question that failed among %d", len(events.Items))
	})

	pod, err := c.Kube.CoreV1().Pods(namespace).Get(t.Context(), "web-1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(pod.Spec.EphemeralContainers); n != 2 {
		t.Errorf("%d ephemeral containers in the source pod, want one for each question", n)
	}
	for _, s := range pod.Status.EphemeralContainerStatuses {
		if s.State.Terminated == nil || s.State.Terminated.ExitCode != 0 {
			t.Errorf("ephemeral container %s: %+v, want that it has ended", s.Name, s.State)
		}
	}
	// The questions left no run, no account and no right.
	within(t, 30*time.Second, func() error {
		var left []string
		runs, err := c.Tekton.TektonV1().PipelineRuns(c.Namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, run := range runs.Items {
			left = append(left, run.Name)
		}
		accounts, err := c.Kube.CoreV1().ServiceAccounts(c.Namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, account := range accounts.Items {
			left = append(left, account.Name)
		}
		for _, in := range []string{c.Namespace, namespace} {
			roles, err := c.Kube.RbacV1().Roles(in).List(t.Context(), metav1.ListOptions{})
			if err != nil {
				return err
			}
			for _, role := range roles.Items {
				left = append(left, strings.TrimPrefix(role.Name, "checkplan:"+c.Namespace+":"))
			}
		}
		for _, name := range left {
			if strings.HasPrefix(name, "ask-") {
				return fmt.Errorf("%s is left", name)
			}
		}
		return nil
	})
}

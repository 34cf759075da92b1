// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/checkplan/checkplan/pkg/tekton"
)

// policed is a pod as the phases make them. It ends at once, whether the node exists or not.
const policed = `
metadata: {generateName: policed-}
spec:
  restartPolicy: Never
  activeDeadlineSeconds: 1
  automountServiceAccountToken: false
  securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}
  affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [
    {matchFields: [{key: metadata.name, operator: In, values: [nowhere]}]}]}}}
  containers:
  - name: agent
    image: IMAGE
    args: [version]
    securityContext:
      {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, runAsNonRoot: true, capabilities: {drop: [ALL]}}
`

// TestPolicies: in a namespace that admits every pod, the accounts of a plan may create pods as their phases make them,
// and each rule of the policies refuses a pod that breaks it, for both accounts.
func TestPolicies(t *testing.T) {
	parallel(t)
	const namespace, plan = "policed", "pod-mesh"
	c := cluster(t)
	made := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "privileged"}}}
	if _, err := c.Kube.CoreV1().Namespaces().Create(t.Context(), made, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if compiled := start(t, "compile", "-n", namespace, "--policies", "--output-dir", dir, "../../plans/pod-mesh.cue"); compiled.wait(t) != 0 {
		t.Fatal(compiled.stderr.String())
	}
	sandbox(t, "kubectl", "apply", "-k", dir)
	sandbox(t, "kubectl", "apply", "-f", filepath.Join(dir, "policies"))
	t.Cleanup(func() {
		sandbox(t, "kubectl", "delete", "-f", filepath.Join(dir, "policies"))
		sandbox(t, "kubectl", "delete", "--wait=false", "namespace", namespace)
	})
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		t.Fatal(err)
	}
	create := func(phase string, change func(*corev1.PodSpec)) error {
		as := rest.CopyConfig(config)
		as.Impersonate.UserName = fmt.Sprintf("system:serviceaccount:%s:%s-%s", namespace, plan, phase)
		client, err := kubernetes.NewForConfig(as)
		if err != nil {
			t.Fatal(err)
		}
		pod := &corev1.Pod{}
		text := strings.ReplaceAll(policed, "IMAGE", tekton.AgentImage(tekton.Options{}))
		if err := yaml.Unmarshal([]byte(text), pod); err != nil {
			t.Fatal(err)
		}
		if change != nil {
			change(&pod.Spec)
		}
		_, err = client.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{})
		return err
	}
	yes, no := true, false
	for _, phase := range []string{"setup", "probe"} {
		for _, tt := range []struct {
			words  string // of the message
			change func(*corev1.PodSpec)
		}{
			{"have the agent's image", func(s *corev1.PodSpec) { s.Containers[0].Image = "registry.example/evil" }},
			{"not have hostNetwork, hostPID or hostIPC", func(s *corev1.PodSpec) { s.HostNetwork = true }},
			{"not have hostNetwork, hostPID or hostIPC", func(s *corev1.PodSpec) { s.HostPID = true }},
			{"be pinned to a node", func(s *corev1.PodSpec) { s.Affinity = nil }},
			{"have no API token", func(s *corev1.PodSpec) { s.AutomountServiceAccountToken = &yes }},
			{"volumes of ConfigMaps only", func(s *corev1.PodSpec) {
				s.Volumes = []corev1.Volume{{Name: "host", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}}}
			}},
			{"be restricted", func(s *corev1.PodSpec) { s.Containers[0].SecurityContext.RunAsNonRoot = &no }},
			{"be restricted", func(s *corev1.PodSpec) {
				s.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: &yes}
			}},
			{"have restartPolicy Never and activeDeadlineSeconds", func(s *corev1.PodSpec) { s.ActiveDeadlineSeconds = nil }},
		} {
			// API servers read a new policy, and RBAC, after a while. Until then, a pod is created or denied.
			eventually(t, time.Minute, func() error {
				if err := create(phase, tt.change); err == nil || !strings.Contains(err.Error(), tt.words) {
					return fmt.Errorf("%s: %v, want it refused: it must %s", phase, err, tt.words) //nolint:errorlint // err can be nil
				}
				return nil
			})
		}
		eventually(t, time.Minute, func() error { return create(phase, nil) })
	}
}

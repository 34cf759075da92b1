// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Two overlays of one catalog, in two namespaces, do not disturb each other: runs of both pass side by side. They are
// started by accounts that may start runs and read, but apply nothing.
func TestOverlays(t *testing.T) {
	parallel(t)
	dir := t.TempDir()
	if c := start(t, "catalog", "--plans", "../../plans/smoke.cue", filepath.Join(dir, "catalog")); c.wait(t) != 0 {
		t.Fatal(c.stderr.String())
	}
	namespaces := []string{"overlay-a", "overlay-b"}
	for _, namespace := range namespaces {
		overlay(t, dir, namespace)
		// The overlay is what planner would apply.
		if c := start(t, "diff", "../../plans/smoke.cue", "-n", namespace); c.wait(t) != 0 {
			t.Errorf("planner diff in namespace %s: %s%s", namespace, c.stdout.String(), c.stderr.String())
		}
	}
	var runs []*command
	for _, namespace := range namespaces {
		runs = append(runs, start(t, "start", "smoke", "--kubeconfig", starter(t, namespace), "-n", namespace))
	}
	for i, c := range runs {
		if code := c.wait(t); code != 0 || !strings.Contains(c.stdout.String(), "gate: passed") {
			t.Errorf("planner start in namespace %s: exit code %d\n%s\n%s", namespaces[i], code, c.stdout.String(), c.stderr.String())
		}
	}
}

// overlay creates a namespace, and applies an overlay of dir/catalog to it, until the test ends.
func overlay(t *testing.T, dir, namespace string) {
	t.Helper()
	namespaced(t, namespace)
	for file, text := range map[string]string{
		"namespaced/kustomization.yaml": "namespace: " + namespace + "\nresources: [../../catalog]\n",
		"kustomization.yaml":            "resources: [namespaced]\ncomponents: [../catalog/cluster]\n",
	} {
		path := filepath.Join(dir, namespace, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	overlay := filepath.Join(dir, namespace)
	t.Cleanup(func() { sandbox(t, "kubectl", "delete", "--wait=false", "--ignore-not-found", "-k", overlay) })
	sandbox(t, "kubectl", "apply", "-k", overlay)
}

// namespaced creates a namespace, until the test ends.
func namespaced(t *testing.T, name string) {
	t.Helper()
	namespaces := cluster(t).Kube.CoreV1().Namespaces()
	made := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := namespaces.Create(t.Context(), made, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	t.Cleanup(func() { sandbox(t, "kubectl", "delete", "--wait=false", "namespace", name) })
}

// starter returns the kubeconfig of an account with the rights that planner start asks for, and no other.
func starter(t *testing.T, namespace string) string {
	t.Helper()
	const name = "starter"
	c := cluster(t)
	meta := metav1.ObjectMeta{Name: name}
	account := &corev1.ServiceAccount{ObjectMeta: meta}
	if _, err := c.Kube.CoreV1().ServiceAccounts(namespace).Create(t.Context(), account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	role := &rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"tekton.dev"}, Resources: []string{"pipelines"}, Verbs: []string{"get"}},
		{APIGroups: []string{"tekton.dev"}, Resources: []string{"pipelineruns"}, Verbs: []string{"create", "get"}},
		{APIGroups: []string{"tekton.dev"}, Resources: []string{"taskruns"}, Verbs: []string{"list"}},
		{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get", "list"}},
	}}
	if _, err := c.Kube.RbacV1().Roles(namespace).Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: meta,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: name, Namespace: namespace}},
	}
	if _, err := c.Kube.RbacV1().RoleBindings(namespace).Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	token, err := c.Kube.CoreV1().ServiceAccounts(namespace).CreateToken(t.Context(), name, &authenticationv1.TokenRequest{},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.LoadFromFile(os.Getenv("KUBECONFIG"))
	if err != nil {
		t.Fatal(err)
	}
	for user := range config.AuthInfos {
		config.AuthInfos[user] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	}
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		t.Fatal(err)
	}
	return file
}

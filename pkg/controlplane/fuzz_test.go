// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/checkplan/checkplan/pkg/cluster"
)

// FuzzKubeadmConfig: any ConfigMaps of kubeadm are understood or are an error.
func FuzzKubeadmConfig(f *testing.F) {
	f.Add("controlPlaneEndpoint: 10.0.0.1:6443\netcd: {external: {endpoints: [\"https://10.0.0.2:2379\"]}}", "clusters: [{cluster: {server: \"https://10.0.0.1:6443\"}}]")
	f.Add("controlPlaneEndpoint: \"[::1\"", "clusters: [null]")
	f.Add("\rx", "a: &a [*a]")
	f.Fuzz(func(t *testing.T, config, info string) {
		client := fake.NewSimpleClientset(
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kubeadm-config"}, Data: map[string]string{"ClusterConfiguration": config}},
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-public", Name: "cluster-info"}, Data: map[string]string{"kubeconfig": info}},
		)
		v := &survey{Reader: cluster.Reader{Kubernetes: client}, s: &cluster.Snapshot{}}
		_ = v.kubeadmConfig(t.Context())
		_ = v.clusterInfo(t.Context())
	})
}

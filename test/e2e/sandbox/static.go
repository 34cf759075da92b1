// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"
)

// livenessFailures is how many liveness probes in a row, one each 10 s, a static
// pod may fail before the kubelet restarts it. kubeadm's is 8; here a component
// that a fault keeps silent must stay so for as long as a test likes: 30 minutes.
const livenessFailures = 180

// staticPods is the directory of manifests that the kubelet of a control plane
// runs by itself, without an API server.
func (d dirs) staticPods(n nodePlan) string { return d.file("nodes", n.Name, "manifests") }

func (d dirs) staticPodFile(n nodePlan, name string) string {
	return d.file("nodes", n.Name, "manifests", name+".yaml")
}

// staticComponents lists what control planes run as static pods, in the order
// in which they need each other.
func staticComponents() []string { return []string{"etcd", "kube-apiserver"} }

// staticPod is the manifest of a control plane's etcd or API server, with
// kubeadm's labels, annotations and probes (cmd/kubeadm/app/phases/controlplane
// and etcd), and with the mark by which the sandbox finds its own processes.
func (d dirs) staticPod(p plan, n nodePlan, name string) ([]byte, error) {
	var (
		comp        component
		annotations map[string]string
		probe       corev1.HTTPGetAction
	)
	directory := corev1.HostPathDirectoryOrCreate
	volume := func(name, path string) corev1.Volume {
		return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
			HostPath: &corev1.HostPathVolumeSource{Path: path, Type: &directory},
		}}
	}
	volumes := []corev1.Volume{volume("certs", d.file("pki"))}
	mounts := []corev1.VolumeMount{{Name: "certs", MountPath: pkiDir, ReadOnly: true}}
	switch name {
	case "etcd":
		comp = etcd(p, n)
		annotations = map[string]string{"kubeadm.kubernetes.io/etcd.advertise-client-urls": etcdURL(n.IPs[0])}
		probe = corev1.HTTPGetAction{
			Scheme: corev1.URISchemeHTTP, Host: loopback(p.Family).String(), Port: intstr.FromInt32(etcdMetricsPort),
		}
		volumes = append(volumes, volume("etcd-data", d.file("nodes", n.Name, "etcd")))
		mounts = append(mounts, corev1.VolumeMount{Name: "etcd-data", MountPath: "/var/lib/etcd"})
	case "kube-apiserver":
		comp = apiServer(p, n)
		annotations = map[string]string{
			"kubeadm.kubernetes.io/kube-apiserver.advertise-address.endpoint": netip.AddrPortFrom(n.IPs[0], apiServerPort).String(),
		}
		probe = corev1.HTTPGetAction{
			Scheme: corev1.URISchemeHTTPS, Host: n.IPs[0].String(), Port: intstr.FromInt32(apiServerPort),
		}
	default:
		return nil, fmt.Errorf("%s is no static pod", name)
	}
	live, ready := probe, probe
	live.Path, ready.Path = "/livez", "/readyz"
	root, critical := int64(0), int32(2_000_001_000) // of system-node-critical; no API server fills it in

	pod := corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: metav1.NamespaceSystem, Annotations: annotations,
			Labels: map[string]string{"component": name, "tier": "control-plane"},
		},
		Spec: corev1.PodSpec{
			HostNetwork:       true,
			PriorityClassName: "system-node-critical",
			Priority:          &critical,
			SecurityContext: &corev1.PodSecurityContext{
				RunAsUser: &root, RunAsGroup: &root,
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name:            name,
				Image:           image(name),
				ImagePullPolicy: corev1.PullIfNotPresent,
				Command:         append([]string{name}, comp.args...),
				Env:             []corev1.EnvVar{{Name: markVariable, Value: d.mark(n.Name, name)}},
				VolumeMounts:    mounts,
				LivenessProbe: &corev1.Probe{
					ProbeHandler:  corev1.ProbeHandler{HTTPGet: &live},
					PeriodSeconds: 10, TimeoutSeconds: 15, InitialDelaySeconds: 10, FailureThreshold: livenessFailures,
				},
				ReadinessProbe: &corev1.Probe{
					ProbeHandler:  corev1.ProbeHandler{HTTPGet: &ready},
					PeriodSeconds: 1, TimeoutSeconds: 15, FailureThreshold: 3,
				},
			}},
			Volumes: volumes,
		},
	}
	b, err := yaml.Marshal(pod)
	if err != nil {
		return nil, fmt.Errorf("writing the static pod %s of %s: %w", name, n.Name, err)
	}
	return b, nil
}

// writeStaticPod has the kubelet of a control plane run a static pod.
func (d dirs) writeStaticPod(p plan, n nodePlan, name string) error {
	b, err := d.staticPod(p, n, name)
	if err != nil {
		return err
	}
	name = d.staticPodFile(n, name)
	if have, err := os.ReadFile(name); err == nil && bytes.Equal(have, b) {
		return nil
	}
	// The kubelet reads every file of the directory, so the file is made outside.
	outside := d.file("nodes", n.Name, filepath.Base(name))
	if err := errors.Join(os.MkdirAll(d.staticPods(n), 0o755), os.WriteFile(outside, b, 0o600)); err != nil {
		return fmt.Errorf("writing a static pod of %s: %w", n.Name, err)
	}
	if err := os.Rename(outside, name); err != nil {
		return fmt.Errorf("writing a static pod of %s: %w", n.Name, err)
	}
	return nil
}

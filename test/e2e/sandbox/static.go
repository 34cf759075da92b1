// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"
)

// livenessFailures is how many liveness probes in a row a static pod may fail, one every 10 s,
// before the kubelet restarts it. kubeadm uses 8. Here a fault may silence a component for as long
// as a test needs: 30 minutes.
const livenessFailures = 180

// goVariables are the variables of a component for Go's runtime. Dozens of its processes share a few cores: with a
// thread for each core they spend much of their time on waking one another up, and memory is less scarce than CPU time.
// What programs Services, and is measured, has Go's defaults. What containerd runs outside of containers inherits them.
func goVariables(comp string) []corev1.EnvVar {
	switch comp {
	case "kube-proxy", "node-state", "service-proxy":
		return nil
	}
	variables := []corev1.EnvVar{{Name: "GOGC", Value: "400"}, {Name: "GOMAXPROCS", Value: "1"}}
	if comp == "kube-apiserver" {
		// It uses a fifth of the CPU time of the end-to-end tests. With 400, a sixth of that was garbage collection. About
		// 200 MB of its memory are in use.
		variables[0].Value = "1000"
		variables = append(variables, corev1.EnvVar{Name: "GOMEMLIMIT", Value: "2GiB"})
	}
	return variables
}

// staticPods is the directory of static pod manifests of a control plane's kubelet.
func (d dirs) staticPods(n nodePlan) string { return d.file("nodes", n.Name, "manifests") }

func (d dirs) staticPodFile(n nodePlan, name string) string {
	return d.file("nodes", n.Name, "manifests", name+".yaml")
}

// staticComponents lists the static pods of control planes, in the order in which they depend on
// each other.
func staticComponents() []string { return []string{"etcd", "kube-apiserver"} }

// staticPod returns the manifest of a control plane's etcd or API server. Labels, annotations, CPU requests and
// probes are those of kubeadm (cmd/kubeadm/app/phases/controlplane and etcd). An environment
// variable marks the process as one of the sandbox.
func (d dirs) staticPod(p plan, n nodePlan, name string) ([]byte, error) {
	var (
		comp        component
		annotations map[string]string
		probe       corev1.HTTPGetAction
		cpu         string
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
		comp, cpu = etcd(p, n), "100m"
		annotations = map[string]string{"kubeadm.kubernetes.io/etcd.advertise-client-urls": etcdURL(n.IPs[0])}
		probe = corev1.HTTPGetAction{
			Scheme: corev1.URISchemeHTTP, Host: loopback(p.Family).String(), Port: intstr.FromInt32(etcdMetricsPort),
		}
		volumes = append(volumes, volume("etcd-data", d.file("nodes", n.Name, "etcd")))
		mounts = append(mounts, corev1.VolumeMount{Name: "etcd-data", MountPath: "/var/lib/etcd"})
	case "kube-apiserver":
		comp, cpu = apiServer(p, n), "250m"
		endpoint := netip.AddrPortFrom(n.IPs[0], apiServerPort).String()
		annotations = map[string]string{"kubeadm.kubernetes.io/kube-apiserver.advertise-address.endpoint": endpoint}
		probe = corev1.HTTPGetAction{
			Scheme: corev1.URISchemeHTTPS, Host: n.IPs[0].String(), Port: intstr.FromInt32(apiServerPort),
		}
	default:
		return nil, fmt.Errorf("%s is not a static pod: want etcd or kube-apiserver", name)
	}
	live, ready := probe, probe
	live.Path, ready.Path = "/livez", "/readyz"
	root, critical := int64(0), int32(2_000_001_000) // of system-node-critical; no API server sets it

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
				Env:             append([]corev1.EnvVar{{Name: markVariable, Value: d.mark(n.Name, name)}}, goVariables(name)...),
				Resources: corev1.ResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)},
				},
				VolumeMounts: mounts,
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
		return nil, fmt.Errorf("write the static pod %s of %s: %w", name, n.Name, err)
	}
	return b, nil
}

// writeStaticPod writes the manifest of a static pod, which makes the kubelet of a control plane
// run it. It does nothing if the manifest is already written.
func (d dirs) writeStaticPod(p plan, n nodePlan, name string) error {
	b, err := d.staticPod(p, n, name)
	if err != nil {
		return err
	}
	file := d.staticPodFile(n, name)
	if have, err := os.ReadFile(file); err == nil && bytes.Equal(have, b) {
		return nil
	}
	// The kubelet reads every file in the directory, also incomplete ones. So write the file
	// outside and move it.
	outside := d.file("nodes", n.Name, filepath.Base(file))
	if err := errors.Join(os.MkdirAll(d.staticPods(n), 0o755), os.WriteFile(outside, b, 0o600)); err != nil {
		return fmt.Errorf("write a static pod of %s: %w", n.Name, err)
	}
	if err := os.Rename(outside, file); err != nil {
		return fmt.Errorf("write a static pod of %s: %w", n.Name, err)
	}
	return nil
}

// portOf returns the port on which a static pod serves clients.
func portOf(name string) uint16 {
	if name == "etcd" {
		return etcdPort
	}
	return apiServerPort
}

// lingerTime is how long a static pod may finish its work after it refuses connections. An API
// server would continue until the kubelet kills it.
const lingerTime = time.Second

// stopStaticPod removes the manifest of a static pod, waits until the pod is gone, and prints since
// when it refuses connections. The pod is gone when containerd has removed its container: the
// kubelet waits ten seconds after the end of a container that it still sees, before it starts a new
// one.
func (c *cluster) stopStaticPod(ctx context.Context, node, name string) error {
	n, err := c.node(node)
	if err != nil {
		return err
	}
	gone := func() error { return nil }
	if pid, err := c.find(node, name); err != nil {
		return err
	} else if pid != 0 {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		if err != nil {
			return fmt.Errorf("stop %s of %s: %w", name, node, err)
		}
		id := filepath.Base(strings.TrimSpace(string(b))) // of the last line; all end with the container
		record := c.file("nodes", node, "containerd", "io.containerd.grpc.v1.cri", "containers", id)
		gone = func() error {
			if _, err := os.Stat(record); err == nil {
				return fmt.Errorf("containerd still has the container: %s exists", record)
			}
			return nil
		}
	}
	if err := os.Remove(c.staticPodFile(n, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("stop %s of %s: %w", name, node, err)
	}
	dial := c.fabricDialer()
	address := netip.AddrPortFrom(n.IPs[0], portOf(name)).String()
	err = poll(ctx, time.Minute, func() error {
		conn, err := dial(ctx, "tcp", address)
		if err == nil {
			_ = conn.Close() // only the connect matters
			return errors.New("it still accepts connections")
		}
		return nil
	})
	refused := time.Now()
	if err != nil {
		return fmt.Errorf("stop %s of %s: %w", name, node, err)
	}
	err = poll(ctx, time.Minute, func() error {
		pid, err := c.find(node, name)
		if err != nil || pid == 0 {
			return errors.Join(err, gone())
		}
		if time.Since(refused) > lingerTime {
			err = syscall.Kill(pid, syscall.SIGKILL)
		}
		return errors.Join(fmt.Errorf("process %d still runs", pid), err)
	})
	if err != nil {
		return fmt.Errorf("stop %s of %s: %w", name, node, err)
	}
	c.progress.printf("%s of %s: down since %s", name, node, timestamp(refused))
	return nil
}

// startStaticPod writes the manifest of a static pod, waits until the pod is ready, and prints
// since when it accepts connections and since when it is ready.
func (c *cluster) startStaticPod(ctx context.Context, n nodePlan, name string) error {
	if err := c.writeStaticPod(c.plan, n, name); err != nil {
		return err
	}
	dial := c.fabricDialer()
	address := netip.AddrPortFrom(n.IPs[0], portOf(name)).String()
	err := poll(ctx, startTime, func() error {
		conn, err := dial(ctx, "tcp", address)
		if err == nil {
			_ = conn.Close() // only the connect matters
		}
		return err
	})
	accepts := time.Now()
	if err != nil {
		return errors.Join(fmt.Errorf("start %s of %s: %w", name, n.Name, err), c.podFailed(n.Name, name))
	}
	if name == "kube-apiserver" {
		ca, err := os.ReadFile(c.file("pki", "ca.crt"))
		if err != nil {
			return fmt.Errorf("read the certificate authority: %w", err)
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(ca)
		ready := readiness(address, roots, dial)
		if err := poll(ctx, startTime, func() error { return ready(ctx) }); err != nil {
			return errors.Join(fmt.Errorf("start %s of %s: %w", name, n.Name, err), c.podFailed(n.Name, name))
		}
	}
	c.progress.printf("%s of %s: up since %s, ready since %s", name, n.Name, timestamp(accepts), timestamp(time.Now()))
	return nil
}

// fabricDialer connects from the fabric's namespace, where no rules of a node apply.
func (c *cluster) fabricDialer() dialFunc {
	netns := c.Processes[fabric].NetNS
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		type dialed struct {
			conn net.Conn
			err  error
		}
		done := make(chan dialed, 1)
		go func() {
			// Do not unlock the thread: the runtime then ends it with the goroutine, because it is
			// in another namespace. A socket belongs to the namespace of the thread that created
			// it.
			runtime.LockOSThread()
			if err := enterNetNS(netns); err != nil {
				done <- dialed{err: err}
				return
			}
			dialer := net.Dialer{Timeout: time.Second}
			conn, err := dialer.DialContext(ctx, network, address)
			done <- dialed{conn, err}
		}()
		d := <-done
		return d.conn, d.err
	}
}

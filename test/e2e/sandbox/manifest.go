// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
)

//go:embed manifests/coredns.yaml
var corednsManifest string

// userNamespace is the namespace for users of the sandbox, with restricted pod security. It is the
// namespace of the current context in the kubeconfig.
const userNamespace = "checkplan"

const controlPlaneLabel = "node-role.kubernetes.io/control-plane"

//go:embed manifests/kubeadm.yaml
var kubeadmManifest string

// kubeadmObjects returns the ConfigMaps in which kubeadm records the control plane's endpoint. ca
// is the cluster's authority, PEM.
func kubeadmObjects(p plan, ca []byte) ([]*unstructured.Unstructured, error) {
	endpoint := p.controlPlaneEndpoint()
	if strings.HasPrefix(endpoint, "[") { // IPv6: without quotes, YAML reads it as a list
		endpoint = strconv.Quote(endpoint)
	}
	objects, err := decode([]byte(strings.NewReplacer(
		"controlPlaneEndpoint: CONTROL_PLANE_ENDPOINT", "controlPlaneEndpoint: "+endpoint,
		"server: https://CONTROL_PLANE_ENDPOINT", "server: https://"+p.controlPlaneEndpoint(),
		"kubernetesVersion: KUBERNETES_VERSION", "kubernetesVersion: "+kubernetesVersion,
		"podSubnet: POD_SUBNET", "podSubnet: "+joined(p.PodNets),
		"serviceSubnet: SERVICE_SUBNET", "serviceSubnet: "+joined(p.ServiceNets),
		"certificate-authority-data: CA_DATA", "certificate-authority-data: "+base64.StdEncoding.EncodeToString(ca),
	).Replace(kubeadmManifest)))
	if err != nil {
		return nil, fmt.Errorf("manifests/kubeadm.yaml: %w", err)
	}
	return objects, nil
}

// nodeObjects returns the Nodes. They are created before their kubelets run: zone, role, taint and
// pod CIDRs, which a kubelet may not set, are then set from the start.
func nodeObjects(p plan) []*unstructured.Unstructured {
	var objects []*unstructured.Unstructured
	for _, n := range p.Nodes {
		labels := map[string]any{"kubernetes.io/hostname": n.Name, "kubernetes.io/os": "linux"}
		var cidrs []any
		for _, c := range n.PodCIDRs {
			cidrs = append(cidrs, c.String())
		}
		spec := map[string]any{"podCIDR": cidrs[0], "podCIDRs": cidrs}
		if n.ControlPlane {
			labels[controlPlaneLabel] = ""
			spec["taints"] = []any{map[string]any{"key": controlPlaneLabel, "effect": "NoSchedule"}}
		} else {
			labels["topology.kubernetes.io/zone"] = n.Zone
		}
		objects = append(objects, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "Node",
			"metadata": map[string]any{"name": n.Name, "labels": labels},
			"spec":     spec,
		}})
	}
	return objects
}

func userNamespaceObject() *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Namespace",
		"metadata": map[string]any{
			"name":   userNamespace,
			"labels": map[string]any{"pod-security.kubernetes.io/enforce": "restricted"},
		},
	}}
}

// corednsObjects returns the objects of CoreDNS for the plan's service addresses.
func corednsObjects(p plan) ([]*unstructured.Unstructured, error) {
	ips := p.dnsServiceIPs()
	policy := "SingleStack"
	if len(p.ServiceNets) > 1 {
		policy = "RequireDualStack"
	}
	objects, err := decode([]byte(strings.NewReplacer(
		"image: IMAGE", "image: "+image("coredns"),
		"clusterIP: CLUSTER_IP", "clusterIP: "+quoted(ips[:1]),
		"[ALL_CLUSTER_IPS]", "["+quoted(ips)+"]",
		"ipFamilyPolicy: IP_FAMILY_POLICY", "ipFamilyPolicy: "+policy,
	).Replace(corednsManifest)))
	if err != nil {
		return nil, fmt.Errorf("manifests/coredns.yaml: %w", err)
	}
	return objects, onControlPlane(objects)
}

// quoted formats addresses as items of a YAML flow sequence.
func quoted(ips []netip.Addr) string {
	var items []string
	for _, ip := range ips {
		items = append(items, strconv.Quote(ip.String()))
	}
	return strings.Join(items, ", ")
}

// tektonObjects reads Tekton's manifests from the config directory of its module and completes them
// like a release of Tekton: with versions, and with the images built here. In addition:
//   - it omits the events controller and the autoscaler;
//   - it sets set-security-context: TaskRun pods must fit restricted namespaces;
//   - it pins controller and webhook to the first control plane, because other nodes get faults,
//     requests CPU for both, and probes them every second until they have started.
func tektonObjects(config fs.FS) ([]*unstructured.Unstructured, error) {
	objects, err := manifests(config)
	if err != nil {
		return nil, err
	}
	for _, o := range objects {
		if o.GetKind() == "ConfigMap" && o.GetName() == "feature-flags" {
			for flag, value := range featureFlags {
				if err := unstructured.SetNestedField(o.Object, value, "data", flag); err != nil {
					return nil, fmt.Errorf("set Tekton's feature flags: %w", err)
				}
			}
		}
	}
	return objects, onControlPlane(objects)
}

// manifests reads Tekton's manifests from a directory of its module, without those that the sandbox does not use.
func manifests(config fs.FS) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	err := fs.WalkDir(config, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		switch {
		case d.IsDir() && path == "resolvers":
			return fs.SkipDir
		case d.IsDir(), filepath.Ext(path) != ".yaml", path == "events.yaml", path == "webhook-hpa.yaml":
			return nil
		}
		b, err := fs.ReadFile(config, path)
		if err != nil {
			return err
		}
		found, err := decode(release(b))
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		objects = append(objects, found...)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read Tekton's manifests: %w", err)
	}
	if len(objects) == 0 {
		return nil, errors.New("read Tekton's manifests: no objects found")
	}
	return objects, nil
}

// featureFlags are those of Tekton that differ from its release. No sidecar is injected into pods here, so steps need
// not wait for the file in which the kubelet reports that every container is ready: that takes one to two seconds.
var featureFlags = map[string]string{
	"set-security-context":                          "true",
	"running-in-environment-with-injected-sidecars": "false",
}

// release makes the replacements of Tekton's release pipeline (tekton/publish.yaml).
func release(manifest []byte) []byte {
	manifest = bytes.ReplaceAll(manifest, []byte(`"devel"`), []byte(`"`+tektonVersion+`"`))
	return regexp.MustCompile(`ko://github\.com/tektoncd/pipeline/cmd/([a-z]+)`).
		ReplaceAllFunc(manifest, func(m []byte) []byte {
			return []byte(image(string(m[bytes.LastIndexByte(m, '/')+1:])))
		})
}

// controllerCPU is the CPU request of each controller on a control plane: kubeadm's of CoreDNS, and Tekton's of its
// webhook. The kernel gives CPU time by requests when a node has too little: next to those of the API server and etcd,
// a controller without a request would get none.
const controllerCPU = "100m"

// onControlPlane pins every Deployment to the first control plane, requests CPU for its containers, and probes every
// second whether they have started, for up to ten minutes. Then it probes every 10 s, and a pod that answers late stays
// ready for half a minute, as by default.
func onControlPlane(objects []*unstructured.Unstructured) error {
	for _, o := range objects {
		if o.GetKind() != "Deployment" {
			continue
		}
		pod := func(field string) []string { return []string{"spec", "template", "spec", field} }
		containers, _, err := unstructured.NestedSlice(o.Object, pod("containers")...)
		if err != nil {
			return fmt.Errorf("set placement of %s: %w", o.GetName(), err)
		}
		for _, c := range containers {
			c := c.(map[string]any)
			if probe, ok := c["readinessProbe"].(map[string]any); ok {
				probe["initialDelaySeconds"], probe["periodSeconds"] = int64(0), int64(10)
				probe["timeoutSeconds"], probe["failureThreshold"] = int64(5), int64(3)
				startup := maps.Clone(probe)
				startup["periodSeconds"], startup["failureThreshold"] = int64(1), int64(600)
				c["startupProbe"] = startup
			}
			if err := unstructured.SetNestedField(c, controllerCPU, "resources", "requests", "cpu"); err != nil {
				return fmt.Errorf("set the CPU request of %s: %w", o.GetName(), err)
			}
		}
		err = errors.Join(
			unstructured.SetNestedSlice(o.Object, containers, pod("containers")...),
			unstructured.SetNestedField(o.Object, firstControlPlane, append(pod("nodeSelector"), "kubernetes.io/hostname")...),
			unstructured.SetNestedSlice(o.Object, []any{map[string]any{
				"key": controlPlaneLabel, "operator": "Exists", "effect": "NoSchedule",
			}}, pod("tolerations")...),
		)
		if err != nil {
			return fmt.Errorf("set placement of %s: %w", o.GetName(), err)
		}
	}
	return nil
}

// decode reads the objects of a YAML stream. It skips empty documents.
func decode(manifest []byte) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	d := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(manifest), 4096)
	for {
		o := map[string]any{}
		if err := d.Decode(&o); errors.Is(err, io.EOF) {
			return objects, nil
		} else if err != nil {
			return nil, err
		}
		if len(o) > 0 {
			objects = append(objects, &unstructured.Unstructured{Object: o})
		}
	}
}

// inOrder sorts objects by their dependencies and keeps the order otherwise.
func inOrder(objects []*unstructured.Unstructured) []*unstructured.Unstructured {
	rank := func(o *unstructured.Unstructured) int {
		kinds := []string{"Namespace", "CustomResourceDefinition", "ServiceAccount", "ClusterRole", "Role",
			"ClusterRoleBinding", "RoleBinding", "ConfigMap", "Secret", "Service"}
		if i := slices.Index(kinds, o.GetKind()); i >= 0 {
			return i
		}
		return len(kinds)
	}
	sorted := slices.Clone(objects)
	slices.SortStableFunc(sorted, func(a, b *unstructured.Unstructured) int { return rank(a) - rank(b) })
	return sorted
}

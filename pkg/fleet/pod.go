// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/scheduling"
)

// Ports of a responder.
const (
	EchoPort   = 7007 // TCP and UDP echo
	HTTPPort   = 7080 // HTTP: /healthz, /bytes?n=
	HealthPort = 7081 // HTTP: /healthz for the kubelet, which measurements and their load do not reach
)

const (
	// grace is how long a fixture has to end by itself, in seconds: enough for a
	// responder to report what it counted.
	grace = 5

	agentBinary = "/ko-app/agent"
	orderDir    = "/etc/checkplan"
	orderFile   = "order.json"
	// An order above plainOrder bytes is compressed, and cut into parts of at most orderPart bytes: a ConfigMap has at
	// most 1 MiB.
	plainOrder = 64 << 10
	orderPart  = 512 << 10
	// certificateDir holds a directory for each client certificate of a source,
	// named as its Secret. The kubelet makes room for a mount within a mount.
	certificateDir = orderDir + "/certificates"
)

// Pods returns every pod that a run creates for a worksheet if everything starts that
// it waits for: agents by the index of their source, responders by that of their
// target, nil where there is none, as for sources that are existing pods. They are complete except for what only a run
// knows: their owner, their time of expiry, and the hash in their names. Pods is pure. The error is about a resource
// that is not a quantity.
func Pods(w *checkup.Worksheet, namespace, image string) (agents, responders []*corev1.Pod, err error) {
	f := &Fleet{Namespace: namespace, Plan: w.Plan, Image: image, Now: func() time.Time { return time.Time{} }}
	agents, responders = make([]*corev1.Pod, len(w.Sources)), make([]*corev1.Pod, len(w.Targets))
	for s, e := range w.Sources {
		works := w.Tables != nil || s < len(w.Assignments) && len(w.Assignments[s]) > 0
		if !works || e.Node == "" || e.VM != nil || e.Inside {
			continue
		}
		if agents[s], err = f.agent(w, s); err != nil {
			return nil, nil, fmt.Errorf("agent for %s: %w", w.Sources[s].Name(), err)
		}
	}
	for t, degree := range w.InDegrees() {
		if degree == 0 && !w.Targets[t].Turns() || !w.Targets[t].IsFixture() {
			continue
		}
		if responders[t], err = f.responder(w, t); err != nil {
			return nil, nil, fmt.Errorf("responder for %s: %w", w.Targets[t].Name(), err)
		}
	}
	for _, pod := range slices.Concat(agents, responders) {
		if pod != nil {
			pod.OwnerReferences = nil
			delete(pod.Annotations, AnnotationExpires)
		}
	}
	return agents, responders, nil
}

// endTime is how long a responder goes on answering whose pod is deleted at the turn: as long as a service proxy may
// take to lead new connections elsewhere, and then flows, and as agents measure: some seconds.
const endTime = 2*time.Duration(checkup.FollowTime) + 10*time.Second

// neverReadyPath is the path of a readiness probe that a responder answers with 404.
const neverReadyPath = "/never"

// responder returns the pod that answers on a target's node. It runs until the agents
// of its check have certainly ended, and then ends by itself.
func (f *Fleet) responder(w *checkup.Worksheet, target int) (*corev1.Pod, error) {
	life := time.Duration(w.Timeouts.Setup) + time.Duration(w.ProbeTimeout()) + expiry
	pod, err := f.pod(w, checkup.RoleResponder, w.Targets[target], life)
	if err != nil {
		return nil, err
	}
	c := &pod.Spec.Containers[0]
	c.Args = []string{"respond"}
	c.Ports = []corev1.ContainerPort{
		{Name: "echo-tcp", ContainerPort: EchoPort, Protocol: corev1.ProtocolTCP},
		{Name: "echo-udp", ContainerPort: EchoPort, Protocol: corev1.ProtocolUDP},
		{Name: "http", ContainerPort: HTTPPort, Protocol: corev1.ProtocolTCP},
		{Name: "health", ContainerPort: HealthPort, Protocol: corev1.ProtocolTCP},
	}
	c.ReadinessProbe = &corev1.Probe{
		ProbeHandler: corev1.ProbeHandler{
			HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt32(HealthPort)},
		},
		PeriodSeconds: 1,
		// A responder on a busy node answers late. With Kubernetes' defaults, 1 s three times in a row makes it not ready:
		// the endpoints of canaries would change while they are measured.
		TimeoutSeconds: 5, FailureThreshold: 6,
	}
	if w.Targets[target].Ends {
		c.Args = append(c.Args, "--linger", endTime.String())
	}
	if w.Targets[target].NeverReady {
		c.StartupProbe = c.ReadinessProbe.DeepCopy()
		c.StartupProbe.FailureThreshold = 60
		c.ReadinessProbe.HTTPGet.Path, c.ReadinessProbe.PeriodSeconds = neverReadyPath, 10
	}
	return pod, nil
}

// agent returns the pod that measures from a source's node. Its order is in the
// ConfigMap of the same name.
func (f *Fleet) agent(w *checkup.Worksheet, source int) (*corev1.Pod, error) {
	e := w.Sources[source]
	pod, err := f.pod(w, checkup.RoleAgent, e, time.Duration(w.ProbeTimeout())+time.Minute)
	if err != nil {
		return nil, err
	}
	c := &pod.Spec.Containers[0]
	c.Args = []string{"probe", "--order", orderDir + "/" + orderFile}
	c.VolumeMounts = []corev1.VolumeMount{{Name: "order", MountPath: orderDir, ReadOnly: true}}
	pod.Spec.Volumes = []corev1.Volume{{Name: "order", VolumeSource: corev1.VolumeSource{
		ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: pod.Name}},
	}}}
	for i, secret := range e.ClientCertificates {
		name, optional := fmt.Sprintf("certificate-%d", i), true
		c.VolumeMounts = append(
			c.VolumeMounts,
			corev1.VolumeMount{Name: name, MountPath: certificateDir + "/" + secret, ReadOnly: true},
		)
		// Optional: an agent without its certificate says so, a pod without it would
		// not start.
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
			Secret: &corev1.SecretVolumeSource{SecretName: secret, Optional: &optional},
		}})
	}
	if e.HostNetwork {
		// As static pods have it: their node's resolver, not the cluster's, which may
		// depend on what is probed.
		pod.Spec.HostNetwork, pod.Spec.DNSPolicy = true, corev1.DNSDefault
	}
	if w.Tables != nil {
		readRules(&pod.Spec)
	}
	if _, ok := w.Probe(checkup.ICMP); ok && !e.HostNetwork {
		// Ping sockets without a capability. One of Kubernetes' safe sysctls, which
		// restricted pod security admits; containerd sets it by default from 2.0.
		pod.Spec.SecurityContext.Sysctls = []corev1.Sysctl{{Name: "net.ipv4.ping_group_range", Value: "0 2147483647"}}
	}
	return pod, nil
}

// readRules lets a restricted pod in its node's network read the rules of the node, and nothing else: as root with no
// capability but NET_ADMIN. The kernel shows its rules to this capability only, and Kubernetes gives added capabilities
// to root only (no ambient capabilities, KEP-2763). The list of iptables-legacy's tables can be read by root only, too.
func readRules(spec *corev1.PodSpec) {
	spec.SecurityContext.RunAsNonRoot = nil
	for i := range spec.Containers {
		c := spec.Containers[i].SecurityContext
		c.RunAsNonRoot, c.RunAsUser = nil, new(int64(0))
		c.Capabilities.Add = []corev1.Capability{rulesCapability}
	}
}

// readsRules reports whether readRules changed a pod.
func readsRules(spec *corev1.PodSpec) bool {
	return slices.ContainsFunc(spec.Containers, func(c corev1.Container) bool {
		return c.SecurityContext != nil && c.SecurityContext.Capabilities != nil &&
			slices.Contains(c.SecurityContext.Capabilities.Add, rulesCapability)
	})
}

// rulesCapability is what an agent has that reads the rules of its node.
const rulesCapability corev1.Capability = "NET_ADMIN"

// ordersOf returns the ConfigMaps with an agent's order. One has the agent's name, and further parts have a number,
// too. If there is more than one, the agent's volume has all of them.
func ordersOf(agent *corev1.Pod, order checkup.Order) ([]*corev1.ConfigMap, error) {
	raw, err := json.Marshal(order)
	if err != nil {
		return nil, fmt.Errorf("encode its order: %w", err)
	}
	if len(raw) <= plainOrder {
		return []*corev1.ConfigMap{{
			ObjectMeta: *agent.ObjectMeta.DeepCopy(),
			Data:       map[string]string{orderFile: string(raw)},
		}}, nil
	}
	var compressed bytes.Buffer
	w := gzip.NewWriter(&compressed)
	_, _ = w.Write(raw) // a bytes.Buffer does not fail
	w.Close()
	var cms []*corev1.ConfigMap
	var all corev1.ProjectedVolumeSource
	for part := range slices.Chunk(compressed.Bytes(), orderPart) {
		file, cm := orderFile+".gz", &corev1.ConfigMap{ObjectMeta: *agent.ObjectMeta.DeepCopy()}
		if n := len(cms); n > 0 {
			file, cm.Name = fmt.Sprintf("%s.%d", file, n), fmt.Sprintf("%s-%d", cm.Name, n)
		}
		cm.BinaryData = map[string][]byte{file: part}
		cms = append(cms, cm)
		all.Sources = append(all.Sources, corev1.VolumeProjection{
			ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: cm.Name}},
		})
	}
	if len(cms) > 1 {
		agent.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{Projected: &all}
	}
	return cms, nil
}

// pod returns what responders and agents have in common.
func (f *Fleet) pod(
	w *checkup.Worksheet,
	role checkup.Role,
	e checkup.Endpoint,
	life time.Duration,
) (*corev1.Pod, error) {
	requests, err := quantities(w.Resources.Requests)
	if err != nil {
		return nil, fmt.Errorf("resources.requests: %w", err)
	}
	limits, err := quantities(w.Resources.Limits)
	if err != nil {
		return nil, fmt.Errorf("resources.limits: %w", err)
	}
	meta := metav1.ObjectMeta{
		Name:      checkup.ObjectName(f.RunUID, w.Check, role, partOf(w, role, e)),
		Namespace: f.Namespace,
		Labels:    f.Labels(w.Check, role),
		Annotations: map[string]string{
			AnnotationExpires: f.now().Add(life + expiry).UTC().Format(time.RFC3339),
		},
		OwnerReferences: f.Owners(),
	}
	meta.Labels[checkup.LabelPlan] = f.Plan
	meta.Labels[checkup.LabelManagedBy] = checkup.ManagedBy
	for _, service := range e.In {
		meta.Labels[checkup.LabelIn+service] = "true"
	}
	pod := &corev1.Pod{
		ObjectMeta: meta,
		Spec: corev1.PodSpec{
			// Not nodeName: the scheduler is to consider the pod and to report why it does
			// not fit.
			Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
					NodeSelectorTerms: []corev1.NodeSelectorTerm{NodeTerm(e.Node)},
				},
			}},
			Tolerations:                   scheduling.Tolerations(e.Tolerations), // complete, with the DaemonSet controller's
			RestartPolicy:                 corev1.RestartPolicyNever,
			ActiveDeadlineSeconds:         new(max(1, int64(life/time.Second))),
			TerminationGracePeriodSeconds: new(int64(grace)),
			Containers: []corev1.Container{{
				Name:            string(role),
				Image:           f.Image,
				ImagePullPolicy: corev1.PullIfNotPresent,
				Command:         []string{agentBinary},
				Resources:       corev1.ResourceRequirements{Requests: requests, Limits: limits},
				// The end of its log becomes the message in its status when it fails.
				TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
			}},
		},
	}
	scheduling.Restrict(&pod.Spec)
	return pod, nil
}

// partOf distinguishes the pods of one role: by their endpoint, and agents by the look,
// because an agent is started for each. Responders are started once.
func partOf(w *checkup.Worksheet, role checkup.Role, e checkup.Endpoint) string {
	if role == checkup.RoleAgent && w.Look > 0 {
		return fmt.Sprintf("%s/look-%d", e.Name(), w.Look)
	}
	return e.Name()
}

// NodeTerm selects a node by its name, whatever its labels say.
func NodeTerm(node string) corev1.NodeSelectorTerm {
	return corev1.NodeSelectorTerm{
		MatchFields: []corev1.NodeSelectorRequirement{
			{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node}},
		},
	}
}

func quantities(of map[string]string) (corev1.ResourceList, error) {
	if len(of) == 0 {
		return nil, nil
	}
	list := corev1.ResourceList{}
	for name, value := range of {
		q, err := resource.ParseQuantity(value)
		if err != nil {
			return nil, fmt.Errorf("%s: %q is not a quantity: %w", name, value, err)
		}
		list[corev1.ResourceName(name)] = q
	}
	return list, nil
}

// Orders returns the order of each source of the worksheet, except of sources that have
// nothing to measure or no node: a target that is not ready is in no order. If agents read tables, each source with a
// node has an order. An agent may
// take three quarters of the check's probe timeout, and the time for which it is to
// watch; the rest is for starting it and for reading its log.
func Orders(w *checkup.Worksheet, roster *checkup.Roster) []checkup.Order {
	var orders []checkup.Order
	turning := w.Turning()
	if w.Tables != nil {
		for source, e := range w.Sources {
			if e.Node != "" {
				orders = append(orders, checkup.Order{
					Source: source, Seed: w.Seed + uint64(source), Limits: w.Limits, IPFamilies: w.IPFamilies,
					Deadline: w.AgentDeadline(), Tables: w.Tables,
				})
			}
		}
		return orders
	}
	for source, targets := range w.Assignments {
		again := againOf(w, source)
		e := w.Sources[source]
		if e.Node == "" || e.Inside && e.Cause != nil || w.Again != nil && again == nil {
			continue
		}
		order := checkup.Order{
			Source:      source,
			Seed:        w.Seed + uint64(w.Round)<<32 + uint64(source),
			Limits:      w.Limits,
			Probes:      w.Probes,
			IPFamilies:  w.IPFamilies,
			Deadline:    w.AgentDeadline(),
			Respond:     len(e.In) > 0,
			Connections: w.Connections,
			Look:        w.Look,
			Again:       again,
		}
		for _, t := range targets {
			entry := roster.Targets[t]
			if peer := w.Targets[t].Peer; peer != nil {
				if entry.Cause == nil {
					order.Targets = append(order.Targets, checkup.OrderTarget{Target: t, Peer: peer})
				}
				continue
			}
			addresses := map[checkup.IPFamily]string{}
			for _, family := range w.IPFamilies {
				if a, ok := entry.Addresses[family]; ok {
					addresses[family] = a
				}
			}
			if entry.Cause == nil && len(addresses) > 0 {
				var settle checkup.Duration
				if of := w.Targets[t].OfService; of != "" && slices.Contains(e.In, of) {
					settle = w.FollowWait()
				}
				service, _ := w.ServiceOf(t)
				var turn checkup.Duration
				keep, turns := turning[service.Name]
				if turns && w.Look == 0 {
					turn = w.TurnWait()
				}
				order.Targets = append(order.Targets, checkup.OrderTarget{
					Target: t, Settle: settle, Turn: turn, Keep: keep, Idle: service.IdleTime(),
					Addresses: addresses, Ports: entry.Ports,
					Witness: service.ExternalLocal ||
						w.Witnesses(checkup.Pair{Source: source, Target: t, Transport: checkup.TCP}),
					Identify: len(w.Services) > 0,
				})
			}
		}
		if len(order.Targets) > 0 {
			orders = append(orders, order)
		}
	}
	return orders
}

// againOf returns what a further look asks of a source; nil in the first look.
func againOf(w *checkup.Worksheet, source int) []checkup.Again {
	var again []checkup.Again
	for _, a := range w.Again {
		if a.Source == source {
			again = append(again, a)
		}
	}
	return again
}

// entry returns the roster entry of a responder that is ready.
func entry(pod *corev1.Pod) checkup.RosterEntry {
	e := checkup.RosterEntry{
		Pod:       pod.Namespace + "/" + pod.Name,
		UID:       string(pod.UID),
		Addresses: addressesOf(pod),
		Ports:     map[checkup.Transport]int{checkup.TCP: EchoPort, checkup.UDP: EchoPort, checkup.HTTP: HTTPPort},
	}
	if len(e.Addresses) == 0 {
		e.Cause = &checkup.Cause{Stage: checkup.StageSetup, Message: "the responder is ready but has no IP address"}
	}
	return e
}

// addressesOf returns the addresses of a pod by family.
func addressesOf(pod *corev1.Pod) map[checkup.IPFamily]string {
	addresses := map[checkup.IPFamily]string{}
	for _, ip := range pod.Status.PodIPs {
		a, err := netip.ParseAddr(ip.IP)
		switch {
		case err != nil: // the API server admits only valid ones; such an address cannot be probed
		case a.Is4():
			addresses[checkup.IPv4] = ip.IP
		default:
			addresses[checkup.IPv6] = ip.IP
		}
	}
	return addresses
}

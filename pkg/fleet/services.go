// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/retry"
)

// ServicePort is the TCP and UDP port of the Services that setup creates. It is not the responders' own: a proxy must
// change it.
const ServicePort = 7

// startServices creates the worksheet's Services over the responders that are up, waits until their EndpointSlices have
// these, for at most Patience, and fills in the roster's entries of the targets that are Services. A Service that
// cannot be used is a Cause in the entries of its targets.
//
// The responders own the Services: however a run ends, the garbage collector deletes the Services after the last
// responder.
func (f *Fleet) startServices(ctx context.Context, w *checkup.Worksheet, roster *checkup.Roster) error {
	if len(w.Services) == 0 {
		return nil
	}
	owners := f.responderOwners(w, roster)
	created := make([]*corev1.Service, len(w.Services))
	causes := make([]*checkup.Cause, len(w.Services))
	if len(owners) == 0 {
		for i := range causes {
			causes[i] = setupCause("the Service was not created: no responder is ready")
		}
	} else {
		f.logf("creating %s", checkup.Count(len(w.Services), "Service"))
		errs := Each(len(w.Services), func(i int) (err error) {
			created[i], err = f.createService(ctx, f.service(w, w.Services[i], owners))
			return err
		})
		if err := EveryOne(errs); err != nil && ctx.Err() == nil {
			return fmt.Errorf("none of %s could be created: %w", checkup.Count(len(w.Services), "Service"), err)
		}
		for i, err := range errs {
			if err != nil {
				created[i], causes[i] = nil, setupCause("the Service was not created: "+OneLine(err.Error()))
			}
		}
		if err := f.awaitEndpoints(ctx, w, roster, created, causes); err != nil {
			return err
		}
	}
	for t, e := range w.Targets {
		i := slices.IndexFunc(w.Services, func(s checkup.ServiceFixture) bool { return s.Name == e.OfService })
		if e.OfService == "" || i < 0 {
			continue
		}
		if causes[i] != nil {
			roster.Targets[t].Cause = causes[i]
			continue
		}
		roster.Targets[t] = serviceEntry(e, created[i])
	}
	return nil
}

// responderOwners are the owner references to the responders that are up.
func (f *Fleet) responderOwners(w *checkup.Worksheet, roster *checkup.Roster) []metav1.OwnerReference {
	var owners []metav1.OwnerReference
	for _, t := range responders(w, roster) {
		_, name, _ := strings.Cut(roster.Targets[t].Pod, "/")
		if uid := roster.Targets[t].UID; name != "" && uid != "" {
			owners = append(owners, metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: name, UID: types.UID(uid)})
		}
	}
	return owners
}

// service returns the object of a Service of the worksheet.
func (f *Fleet) service(
	w *checkup.Worksheet, s checkup.ServiceFixture, owners []metav1.OwnerReference,
) *corev1.Service {
	life := time.Duration(w.Timeouts.Setup) + time.Duration(w.ProbeTimeout()) + expiry
	meta := metav1.ObjectMeta{
		Name: f.ServiceName(w.Check, s.Name), Namespace: f.Namespace, Labels: f.Labels(w.Check, checkup.RoleService),
		Annotations:     map[string]string{AnnotationExpires: f.now().Add(life + expiry).UTC().Format(time.RFC3339)},
		OwnerReferences: owners,
	}
	meta.Labels[checkup.LabelPlan] = f.Plan
	meta.Labels[checkup.LabelManagedBy] = checkup.ManagedBy
	selector := f.Labels(w.Check, "")
	selector[checkup.LabelIn+s.Name] = "true"
	port := func(name string, protocol corev1.Protocol) corev1.ServicePort {
		return corev1.ServicePort{Name: name, Protocol: protocol, Port: ServicePort, TargetPort: intstr.FromInt32(EchoPort)}
	}
	spec := corev1.ServiceSpec{
		Type: corev1.ServiceTypeClusterIP, Selector: selector, PublishNotReadyAddresses: s.PublishNotReady,
		Ports:          []corev1.ServicePort{port("tcp", corev1.ProtocolTCP), port("udp", corev1.ProtocolUDP)},
		IPFamilyPolicy: new(corev1.IPFamilyPolicyPreferDualStack),
	}
	if len(w.IPFamilies) == 1 {
		spec.IPFamilyPolicy = new(corev1.IPFamilyPolicySingleStack)
		spec.IPFamilies = []corev1.IPFamily{corev1.IPFamily(w.IPFamilies[0])}
	}
	if s.Headless {
		spec.ClusterIP = corev1.ClusterIPNone
	}
	if s.NodePort {
		spec.Type = corev1.ServiceTypeNodePort
	}
	if s.InternalLocal {
		spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
	}
	if s.ExternalLocal {
		spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	}
	if s.ClientIP > 0 {
		spec.SessionAffinity = corev1.ServiceAffinityClientIP
		spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{
			ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &s.ClientIP},
		}
	}
	if s.Distribution != "" {
		spec.TrafficDistribution = &s.Distribution
	}
	return &corev1.Service{ObjectMeta: meta, Spec: spec}
}

// ServiceName names the object of a Service of a worksheet.
func (f *Fleet) ServiceName(check, service string) string {
	return checkup.ObjectName(f.RunUID, check, checkup.RoleService, service)
}

// createService creates a Service. That of an earlier try of the task, whose responders may not be those of this one,
// is replaced.
func (f *Fleet) createService(ctx context.Context, service *corev1.Service) (*corev1.Service, error) {
	api := f.Client.CoreV1().Services(f.Namespace)
	for try := 1; ; try++ {
		created, err := api.Create(ctx, service, metav1.CreateOptions{})
		if err == nil {
			return created, nil
		}
		if apierrors.IsAlreadyExists(err) {
			deleted := api.Delete(ctx, service.Name, metav1.DeleteOptions{})
			if deleted != nil && !apierrors.IsNotFound(deleted) {
				err = fmt.Errorf("replace that of an earlier try: %w", deleted)
			}
		}
		if try >= tries || !retry.Passing(err) && !apierrors.IsAlreadyExists(err) || !Sleep(ctx, f.retry()) {
			return nil, fmt.Errorf("create service %s: %w", service.Name, err)
		}
	}
}

// awaitEndpoints waits until the EndpointSlices of the Services have every responder that they select and that is up,
// in each family of the Service. A Service of which they do not is given a cause. An error says that there is no right
// to list them.
func (f *Fleet) awaitEndpoints(
	ctx context.Context, w *checkup.Worksheet, roster *checkup.Roster, services []*corev1.Service, causes []*checkup.Cause,
) error {
	missing := map[int]string{} // by Service
	patience, cancel := context.WithTimeout(ctx, f.patience())
	defer cancel()
	var denials Denials
	for {
		listed, err := f.endpoints(ctx, w)
		if err == nil {
			clear(missing)
			for i, service := range services {
				if lacks := f.lacks(w, roster, w.Services[i].Name, service, listed); lacks != "" {
					missing[i] = lacks
				}
			}
		}
		if err == nil && len(missing) == 0 {
			return nil
		}
		if !denials.Final(err) && Sleep(patience, f.retry()) {
			continue
		}
		if apierrors.IsForbidden(err) {
			return err
		}
		for i, service := range services {
			switch lacks := missing[i]; {
			case service == nil:
			case err != nil:
				causes[i] = setupCause("its EndpointSlices cannot be read: " + OneLine(err.Error()))
			case lacks != "":
				causes[i] = setupCause(fmt.Sprintf("its EndpointSlices do not have %s after %s: is kube-controller-manager up?",
					lacks, f.patience()))
				f.logf("::warning::Service %s: %s", w.Services[i].Name, causes[i].Message)
			}
		}
		return nil
	}
}

// endpoints lists the EndpointSlices of the worksheet's Services.
func (f *Fleet) endpoints(ctx context.Context, w *checkup.Worksheet) ([]discoveryv1.EndpointSlice, error) {
	var names []string
	for _, s := range w.Services {
		names = append(names, f.ServiceName(w.Check, s.Name))
	}
	list, err := f.Client.DiscoveryV1().EndpointSlices(f.Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: discoveryv1.LabelServiceName + " in (" + strings.Join(names, ",") + ")",
	})
	if err != nil {
		return nil, fmt.Errorf("list the endpoint slices of the run's Services: %w", err)
	}
	return list.Items, nil
}

// lacks names an endpoint that the EndpointSlices of a Service do not have; empty if they have all, or if there is no
// such Service.
func (f *Fleet) lacks(
	w *checkup.Worksheet, roster *checkup.Roster, name string, service *corev1.Service, listed []discoveryv1.EndpointSlice,
) string {
	if service == nil {
		return ""
	}
	for _, t := range responders(w, roster) {
		if !slices.Contains(w.Targets[t].In, name) {
			continue
		}
		for _, family := range service.Spec.IPFamilies {
			address, ok := roster.Targets[t].Addresses[checkup.IPFamily(family)]
			if ok && !slices.ContainsFunc(listed, func(s discoveryv1.EndpointSlice) bool {
				return s.Labels[discoveryv1.LabelServiceName] == service.Name && slices.ContainsFunc(s.Endpoints,
					func(e discoveryv1.Endpoint) bool { return slices.Contains(e.Addresses, address) })
			}) {
				return fmt.Sprintf("endpoint %s (%s)", address, w.Targets[t].Node)
			}
		}
	}
	return ""
}

// serviceEntry returns the roster entry of a target that is a Service.
func serviceEntry(e checkup.Endpoint, service *corev1.Service) checkup.RosterEntry {
	entry := checkup.RosterEntry{
		Pod: service.Namespace + "/" + service.Name, UID: string(service.UID),
		Addresses: map[checkup.IPFamily]string{}, Ports: map[checkup.Transport]int{},
	}
	for i, family := range service.Spec.IPFamilies {
		if f := checkup.IPFamily(family); e.Hosts[f] != "" {
			entry.Addresses[f] = e.Hosts[f]
		} else if len(e.Hosts) == 0 && i < len(service.Spec.ClusterIPs) {
			entry.Addresses[f] = service.Spec.ClusterIPs[i]
		}
	}
	for _, port := range service.Spec.Ports {
		transport := checkup.Transport(strings.ToLower(string(port.Protocol)))
		entry.Ports[transport] = int(port.Port)
		if len(e.Hosts) > 0 {
			entry.Ports[transport] = int(port.NodePort)
		}
	}
	if len(entry.Addresses) == 0 {
		entry.Cause = setupCause("the Service was given no address")
	}
	return entry
}

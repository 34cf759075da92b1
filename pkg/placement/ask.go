// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/retry"
)

// patience is the timeout of one request: kube-apiserver's default for a request with its webhooks (--request-timeout).
const patience = time.Minute

// Ask creates the pod of each side in the namespace as a dry run: admission decides
// (pod security, quota, limits, priority, webhooks), and nothing is stored. It
// returns one Fact for each side of the worksheet, in its order, whose Content is an
// Admission; if the API server was not asked or did not decide until the deadline of ctx, its Cause says why.
// It needs the verb create on pods in the namespace.
func Ask(ctx context.Context, c kubernetes.Interface, namespace string, w *checkup.Worksheet) []checkup.Fact {
	var facts []checkup.Fact
	sheet, err := SheetOf(w)
	if err != nil {
		for _, unit := range w.Units {
			facts = append(facts, checkup.Fact{Unit: unit, Cause: undecided("%v", err)})
		}
		return facts
	}
	facts = make([]checkup.Fact, len(sheet.Sides))
	var wg sync.WaitGroup // a side that is asked for again and again must not take the time of the other
	for i, side := range sheet.Sides {
		wg.Go(func() {
			f := checkup.Fact{Unit: string(side.Side)}
			var a Admission
			if a, f.Cause = ask(ctx, c, namespace, side); f.Cause == nil {
				var err error
				if f.Content, err = json.Marshal(a); err != nil {
					f.Cause = undecided("cannot write the API server's answer: %v", err)
				}
			}
			facts[i] = f
		})
	}
	wg.Wait()
	return facts
}

func ask(ctx context.Context, c kubernetes.Interface, namespace string, side Side) (a Admission, cause *checkup.Cause) {
	var pod corev1.Pod
	if err := json.Unmarshal(side.Pod, &pod); err != nil {
		return a, undecided("cannot read the pod of this side in the worksheet: %v", err)
	}
	pod.Namespace = namespace
	err := retry.Until(ctx, func() error {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		admitted, warnings, err := dryRun(ctx, c, &pod)
		a.Warnings = warnings
		switch {
		case err == nil:
			a.Allowed, a.Changed = true, changes(&pod, admitted)
		case denied(err): // a decision: it is not asked for again
			a.Message = err.Error()
		default:
			return err
		}
		return nil
	})
	switch {
	case err == nil:
	case noRight(err):
		cause = undecided(
			"missing the verb create on pods in namespace %s (a Role), which a dry run also needs: %v",
			namespace,
			err,
		)
	case apierrors.IsAlreadyExists(err):
		cause = undecided(
			"a pod with the name of the dry run's pod already exists, and the API server did not decide: %v",
			err,
		)
	default:
		cause = undecided("the API server did not decide on the pod: %v", err)
	}
	return a, cause
}

func undecided(format string, args ...any) *checkup.Cause {
	return &checkup.Cause{Stage: checkup.StageCollect, Message: fmt.Sprintf(format, args...)}
}

// dryRun creates the pod with dryRun=All. It returns the pod as it would be stored, and the warnings of the answer,
// also with an error.
func dryRun(ctx context.Context, c kubernetes.Interface, pod *corev1.Pod) (*corev1.Pod, []string, error) {
	options := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	pods := c.CoreV1()
	// A separate request, because only that returns its own warnings. A fake clientset without HTTP has no REST client
	// and no warnings.
	client, ok := pods.RESTClient().(*rest.RESTClient)
	if !ok || client == nil {
		admitted, err := pods.Pods(pod.Namespace).Create(ctx, pod, options)
		return admitted, nil, err
	}
	var heard warnings
	admitted := &corev1.Pod{}
	err := client.Post().Namespace(pod.Namespace).Resource("pods").
		VersionedParams(&options, scheme.ParameterCodec).
		WarningHandlerWithContext(&heard).
		Body(pod).Do(ctx).Into(admitted)
	return admitted, heard, err
}

// warnings are the warnings of one answer, without duplicates.
type warnings []string

// HandleWarningHeaderWithContext implements rest.WarningHandlerWithContext. 299 is the only code that Kubernetes uses,
// for a "miscellaneous persistent warning".
func (w *warnings) HandleWarningHeaderWithContext(_ context.Context, code int, _ string, text string) {
	if code == 299 && text != "" && !slices.Contains(*w, text) {
		*w = append(*w, text)
	}
}

// denied reports whether the error is a decision against the pod: a 4xx of admission or validation, not of an earlier
// step.
func denied(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	switch s := status.Status(); {
	case strings.HasPrefix(s.Message, "admission webhook ") && strings.Contains(s.Message, " denied the request"):
		return true // webhooks may use any code and reason
	case s.Reason == metav1.StatusReasonForbidden:
		return !noRight(err)
	default:
		return s.Reason == metav1.StatusReasonInvalid
	}
}

// noRight reports whether authorization rejected the request. Its error does not contain the pod's name, which
// authorization does not know; an error of admission contains it (NewForbidden in k8s.io/apiserver, pkg/admission and
// pkg/endpoints/handlers/responsewriters).
func noRight(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Reason != metav1.StatusReasonForbidden {
		return false
	}
	details := status.Status().Details
	return details != nil && details.Kind == "pods" && details.Name == ""
}

// changes lists the changes of admission to the pod that affect its scheduling and are not part of the prediction.
func changes(asked, admitted *corev1.Pod) []string {
	var lines []string
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }

	for _, t := range admitted.Spec.Tolerations {
		if !reckoned(t) &&
			!slices.ContainsFunc(asked.Spec.Tolerations, func(have corev1.Toleration) bool { return same(have, t) }) {
			add("toleration %s added", tolerationString(t))
		}
	}
	for _, t := range asked.Spec.Tolerations {
		if !slices.ContainsFunc(admitted.Spec.Tolerations, func(have corev1.Toleration) bool { return same(have, t) }) {
			add("toleration %s removed", tolerationString(t))
		}
	}
	lines = append(lines, differences("node selector ", asked.Spec.NodeSelector, admitted.Spec.NodeSelector, "=")...)
	if !equality.Semantic.DeepEqual(asked.Spec.Affinity, admitted.Spec.Affinity) {
		add("affinity changed")
	}
	if !equality.Semantic.DeepEqual(asked.Spec.TopologySpreadConstraints, admitted.Spec.TopologySpreadConstraints) {
		add("topology spread constraints changed")
	}
	if class := admitted.Spec.PriorityClassName; class != "" && admitted.Spec.Priority != nil {
		// The class does not contain the priority, and only now is it known that a requested class exists.
		if class == asked.Spec.PriorityClassName {
			add("priority %d from the class %s", *admitted.Spec.Priority, class)
		} else {
			add("priority %d from the class %s, which was not requested", *admitted.Spec.Priority, class)
		}
	}
	if name := admitted.Spec.SchedulerName; name != "" && name != corev1.DefaultSchedulerName {
		add("scheduler %s decides: the prediction does not apply to it", name)
	}
	if admitted.Spec.RuntimeClassName != nil && asked.Spec.RuntimeClassName == nil {
		add("runtime class %s added", *admitted.Spec.RuntimeClassName)
	}
	if len(admitted.Spec.Overhead) > 0 {
		lines = append(lines, differences("overhead ", nil, quantities(admitted.Spec.Overhead), " ")...)
	}
	for _, gate := range admitted.Spec.SchedulingGates {
		add("scheduling gate %s added: the pod waits until it is removed", gate.Name)
	}
	lines = append(lines, containerChanges(asked, admitted)...)
	return lines
}

// containerChanges lists the changes of the containers' resources and host ports.
func containerChanges(asked, admitted *corev1.Pod) []string {
	var lines []string
	before := map[string]corev1.Container{}
	for _, c := range slices.Concat(asked.Spec.InitContainers, asked.Spec.Containers) {
		before[c.Name] = c
	}
	for _, c := range slices.Concat(admitted.Spec.InitContainers, admitted.Spec.Containers) {
		old, known := before[c.Name]
		if !known {
			lines = append(lines, fmt.Sprintf("container %s added", c.Name))
		}
		lines = append(
			lines,
			differences("request ", quantities(old.Resources.Requests), quantities(c.Resources.Requests), " ")...)
		lines = append(lines, differences("limit ", quantities(old.Resources.Limits), quantities(c.Resources.Limits), " ")...)
		for _, port := range c.Ports {
			if port.HostPort != 0 && !slices.ContainsFunc(old.Ports, func(p corev1.ContainerPort) bool {
				return p.HostPort == port.HostPort && p.Protocol == port.Protocol
			}) {
				lines = append(lines, fmt.Sprintf("host port %d/%s added", port.HostPort, port.Protocol))
			}
		}
	}
	return lines
}

// differences lists the added, removed and changed entries of a map, by key.
func differences(what string, before, after map[string]string, joint string) []string {
	all := maps.Clone(after)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, before)
	var lines []string
	for _, key := range slices.Sorted(maps.Keys(all)) {
		old, was := before[key]
		now, is := after[key]
		switch {
		case !is:
			lines = append(lines, fmt.Sprintf("%s%s%s%s removed", what, key, joint, old))
		case !was:
			lines = append(lines, fmt.Sprintf("%s%s%s%s added", what, key, joint, now))
		case old != now:
			lines = append(lines, fmt.Sprintf("%s%s%s%s instead of %s", what, key, joint, now, old))
		}
	}
	return lines
}

// quantities formats each quantity as Kubernetes does.
func quantities(list corev1.ResourceList) map[string]string {
	all := map[string]string{}
	for name, q := range list {
		all[string(name)] = q.String()
	}
	return all
}

// reckoned reports whether a toleration is one that the admission plugin DefaultTolerationSeconds adds to every pod by
// default, and that pkg/scheduling already includes.
func reckoned(t corev1.Toleration) bool {
	return (t.Key == corev1.TaintNodeNotReady || t.Key == corev1.TaintNodeUnreachable) &&
		t.Operator == corev1.TolerationOpExists && t.Effect == corev1.TaintEffectNoExecute &&
		t.TolerationSeconds != nil && *t.TolerationSeconds == 300
}

func same(a, b corev1.Toleration) bool { return equality.Semantic.DeepEqual(a, b) }

// tolerationString formats a toleration like the taints that it tolerates:
// "dedicated=infra:NoSchedule", "node.kubernetes.io/not-ready:NoExecute for 300s",
// "of everything".
func tolerationString(t corev1.Toleration) string {
	s := t.Key
	switch {
	case t.Key == "":
		s = "of everything"
	case t.Operator != corev1.TolerationOpExists && t.Value != "":
		s += "=" + t.Value
	}
	if t.Effect != "" {
		s += ":" + string(t.Effect)
	}
	if t.TolerationSeconds != nil {
		s += fmt.Sprintf(" for %ds", *t.TolerationSeconds)
	}
	return s
}

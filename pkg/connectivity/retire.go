// SPDX-License-Identifier: Apache-2.0

package connectivity

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/dynamic"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/crd"
)

// RetireOptions select the objects that Retire checks.
type RetireOptions struct {
	Dynamic   dynamic.Interface
	Namespace string
	// Worksheets of the plan's checks that write objects: the expected pairs, and how long the objects of other pairs
	// are kept. Those without Connections are skipped.
	Worksheets []*checkup.Worksheet
	// Started is the start time of the run.
	Started time.Time
}

// abandoned is how old the last result of an object of another check or plan is when Retire deletes the object, if its
// retention is not longer: no worksheet shows whether its check still expects the pair. A plan that runs once a month
// finds its objects.
const abandoned = 35 * 24 * time.Hour

// standing is what the worksheets show about the pair of an object.
type standing int

const (
	unknown    standing = iota // its check has no worksheet here
	expected                   // by any check of the plan
	unexpected                 // by all of them, and its check has a worksheet
)

// Retire checks the objects of the namespace after a run. Objects of pairs that no worksheet expects become Unknown if
// their last result is older than staleAfter, and are deleted if it is older than retention; an object without a result
// is judged by its own age. Objects of expected pairs are never deleted. They become Unknown if their last result was
// older than staleAfter when the run began and the run added none, for example because its probe task never ran.
// Objects of other checks and plans age by their annotations, because nothing else would age them until their next run.
// They are deleted after 35 days at the earliest: their checks may still expect the pairs.
//
// The error joins the errors of all objects that could not be read or written; the other objects are still processed.
func Retire(ctx context.Context, o RetireOptions) (deleted int, err error) {
	other := func(w *checkup.Worksheet) bool { return w.Connections == nil }
	sheets := slices.DeleteFunc(slices.Clone(o.Worksheets), other)
	if len(sheets) == 0 {
		return 0, nil
	}
	wanted := map[string]bool{}
	for _, w := range sheets {
		for p := range w.Pairs() {
			if w.Targets[p.Target].Peer != nil {
				wanted[checkup.ConnectivityName(w.Sources[p.Source], w.Targets[p.Target])] = true
			}
		}
	}
	objects := o.Dynamic.Resource(Resource).Namespace(o.Namespace)
	now := time.Now()
	var (
		mu       sync.Mutex // guards deleted and problems
		problems []error
		group    errgroup.Group
	)
	group.SetLimit(crd.AtOnce)
	ours := labels.SelectorFromSet(labels.Set{checkup.LabelManagedBy: checkup.ManagedBy}).String()
	err = crd.Each(ctx, objects, metav1.ListOptions{LabelSelector: ours}, func(u *unstructured.Unstructured) error {
		ages, ok := agesOf(u)
		pair := unknown
		for _, w := range sheets {
			if has(u.GetLabels(), ownLabels(w.Plan, w.Check)) {
				ages, ok, pair = w.Connections.Checks, true, unexpected
			}
		}
		if !ok {
			return nil
		}
		if wanted[u.GetName()] {
			pair = expected
		}
		group.Go(func() error {
			gone, err := retire(ctx, objects, u, pair, ages, o.Started, now)
			mu.Lock()
			defer mu.Unlock()
			if gone {
				deleted++
			}
			if err != nil {
				problems = append(problems, err)
			}
			return nil
		})
		return nil
	})
	_ = group.Wait()
	if err != nil {
		problems = append(problems, fmt.Errorf("list %ss in namespace %s: %w", Kind, o.Namespace, err))
	}
	return deleted, errors.Join(problems...)
}

// retire updates or deletes one object, if needed.
func retire(
	ctx context.Context,
	objects dynamic.ResourceInterface,
	u *unstructured.Unstructured,
	pair standing,
	c checkup.ConnectivityChecks,
	started, now time.Time,
) (deleted bool, err error) {
	status, err := statusOf(u)
	if err != nil {
		return false, err
	}
	last, what := newest(&status), "no result since "
	if last.IsZero() {
		last, what = u.GetCreationTimestamp().Time, "no result since the object was created at "
	}
	age := now.Sub(last)
	retention := time.Duration(c.Retention)
	if pair == unknown {
		retention = max(retention, abandoned)
	}
	if pair == expected {
		age = started.Sub(last)
	} else if age >= retention {
		return crd.Delete(ctx, objects, u)
	}
	if age < time.Duration(c.StaleAfter) || reachable(&status).Status == metav1.ConditionUnknown {
		return false, nil
	}
	message := what + last.UTC().Format(time.RFC3339)
	if pair == unexpected {
		message += "; the pair is no longer expected"
	}
	h := history{settled: status, id: identity{label: targetLabel(u)}}
	h.unknown(ReasonNoRecentResult, message, now)
	configuration := statusConfiguration(u.GetNamespace(), u.GetName(), &h.settled)
	configuration.SetResourceVersion(u.GetResourceVersion()) // a precondition, as above
	_, err = objects.ApplyStatus(
		ctx,
		u.GetName(),
		configuration,
		metav1.ApplyOptions{FieldManager: checkup.ManagedBy, Force: true},
	)
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return false, fmt.Errorf("write the status of %s %s: %w", Kind, u.GetName(), err)
	}
	return false, nil
}

// targetLabel returns the target's name in messages: the annotated one, or else the endpoint.
func targetLabel(u *unstructured.Unstructured) string {
	if label := u.GetAnnotations()[annotationTarget]; label != "" {
		return label
	}
	endpoint, _, _ := unstructured.NestedString(u.Object, "spec", "targetEndpoint")
	return endpoint
}

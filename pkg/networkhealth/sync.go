// SPDX-License-Identifier: Apache-2.0

package networkhealth

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/dynamic"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/crd"
	"github.com/checkplan/checkplan/pkg/retry"
)

// EnsureCRD makes sure that PodNetworkHealths can be written, as crd.Definition.Ensure says.
func EnsureCRD(ctx context.Context, client dynamic.Interface, install bool) (unwritten string, err error) {
	return definition.Ensure(ctx, client, install)
}

// Rights returns the rights that this package needs for a plan with this configuration; none for nil.
func Rights(c *checkup.PodNetworkHealth) []checkup.Right {
	if c == nil {
		return nil
	}
	rights := definition.Rights("pkg/networkhealth", Kind+"s", c.InstallCRD)
	objects := func(resource, why string, verbs ...string) {
		for _, verb := range verbs {
			rights = append(rights, checkup.Right{
				Phase: checkup.PhaseConclude, Scope: checkup.ScopeRun, Group: Group, Resource: resource, Verb: verb,
				Why: "pkg/networkhealth Sync: " + why,
			})
		}
	}
	objects(Resource.Resource, "reads the existing objects", "list")
	objects(Resource.Resource, "writes an object for each pair, at most the plan's number", "create", "patch")
	objects(Resource.Resource, "deletes objects that are too old or too many, and those of pods that are gone", "delete")
	objects(Resource.Resource+"/status", "writes what was observed", "patch")
	return rights
}

// Options are where Sync writes.
type Options struct {
	Dynamic   dynamic.Interface
	Namespace string
	// Logf writes one log line. Nil means no log.
	Logf func(format string, args ...any)
}

// Sync reads the objects of the namespace, and writes what Reconcile says: deletions first, then the worst objects. It
// needs the CRD (EnsureCRD). Requests are tried until the deadline of ctx. in.Existing is set by Sync.
//
// The error says how many objects could not be written, and why the first of them; the others are written.
func Sync(ctx context.Context, o Options, in Input) (Changes, error) {
	s := &syncing{
		objects: o.Dynamic.Resource(Resource).Namespace(o.Namespace), logf: o.Logf,
		limiter: rate.NewLimiter(crd.PerSecond, crd.Burst),
	}
	if s.logf == nil {
		s.logf = func(string, ...any) {}
	}
	foreign := map[string]bool{}
	err := retry.Until(ctx, func() error {
		in.Existing = nil
		clear(foreign)
		return crd.Each(ctx, s.objects, metav1.ListOptions{}, func(u *unstructured.Unstructured) error {
			if h, err := read(u); err == nil && managed(u) && h.Spec.Observer.Name == ObserverName {
				in.Existing = append(in.Existing, h)
			} else {
				foreign[u.GetName()] = true
			}
			return nil
		})
	})
	if err != nil {
		return Changes{}, fmt.Errorf("list %ss in namespace %s: %w", Kind, o.Namespace, err)
	}
	slices.SortFunc(in.Existing, func(a, b *Health) int { return cmp.Compare(a.Name, b.Name) })
	changes := Reconcile(in)
	s.each(ctx, len(changes.Delete), func(i int) error {
		u := &unstructured.Unstructured{}
		h := changes.Delete[i]
		u.SetKind(Kind)
		u.SetName(h.Name)
		u.SetUID(h.UID)
		u.SetResourceVersion(h.ResourceVersion)
		_, err := crd.Delete(ctx, s.objects, u)
		return err
	})
	s.each(ctx, len(changes.Write), func(i int) error {
		w := &changes.Write[i]
		if foreign[w.Name] {
			s.logf("%s %s is not written: the object of this name belongs to someone else", Kind, w.Name)
			return nil
		}
		return s.write(ctx, w)
	})
	total := len(changes.Delete) + len(changes.Write)
	if n := len(s.problems); n > 0 {
		return changes, fmt.Errorf("%d of %d changes of %ss could not be made: %w", n, total, Kind, s.problems[0])
	}
	return changes, nil
}

// managed reports whether an object says that it is ours.
func managed(u *unstructured.Unstructured) bool {
	return u.GetLabels()[checkup.LabelManagedBy] == checkup.ManagedBy
}

// read decodes an object.
func read(u *unstructured.Unstructured) (*Health, error) {
	b, err := json.Marshal(u.Object)
	if err != nil {
		return nil, err
	}
	h := &Health{}
	if err := json.Unmarshal(b, h); err != nil {
		return nil, fmt.Errorf("read %s %s: %w", Kind, u.GetName(), err)
	}
	return h, nil
}

// syncing is one call of Sync.
type syncing struct {
	objects dynamic.ResourceInterface
	logf    func(string, ...any)
	limiter *rate.Limiter

	mu       sync.Mutex // guards following
	problems []error
}

// each makes requests, in their order and not too fast, several at once.
func (s *syncing) each(ctx context.Context, n int, do func(int) error) {
	group := errgroup.Group{}
	group.SetLimit(crd.AtOnce)
	for i := range n {
		group.Go(func() error {
			if err := retry.Until(ctx, func() error { return do(i) }); err != nil {
				s.mu.Lock()
				s.problems = append(s.problems, err)
				s.mu.Unlock()
			}
			return nil // each has its own error
		})
	}
	_ = group.Wait()
}

// write writes one object: labels and spec if needed, and the status.
func (s *syncing) write(ctx context.Context, w *Write) error {
	exists := w.Before != nil
	for k, v := range w.Labels {
		exists = exists && w.Before.Labels[k] == v
	}
	for {
		created := false
		if !exists {
			u := w.object()
			u.SetLabels(w.Labels)
			u.Object["spec"] = fields(w.Spec)
			if err := s.apply(ctx, func(ctx context.Context) error {
				_, err := s.objects.Apply(ctx, w.Name, u, force)
				return err
			}); err != nil {
				return fmt.Errorf("write %s %s: %w", Kind, w.Name, err)
			}
			created = true
		}
		u := w.object()
		u.Object["status"] = fields(w.Status)
		if w.Aged {
			u.SetResourceVersion(w.Before.ResourceVersion)
		}
		err := s.apply(ctx, func(ctx context.Context) error {
			_, err := s.objects.ApplyStatus(ctx, w.Name, u, force)
			return err
		})
		switch {
		case w.Aged && (apierrors.IsNotFound(err) || apierrors.IsConflict(err)):
			return nil // someone has deleted or written it since
		case apierrors.IsNotFound(err) && !created:
			exists = false
		case err != nil:
			return fmt.Errorf("write the status of %s %s: %w", Kind, w.Name, err)
		default:
			return nil
		}
	}
}

// force takes over our fields if someone else has set them.
var force = metav1.ApplyOptions{FieldManager: checkup.ManagedBy, Force: true}

// apply makes one request, within the limits.
func (s *syncing) apply(ctx context.Context, request func(context.Context) error) error {
	if err := s.limiter.Wait(ctx); err != nil {
		return context.DeadlineExceeded // the limiter says so before it is reached
	}
	one, cancel := context.WithTimeout(ctx, crd.Timeout)
	defer cancel()
	err := request(one)
	if err != nil && one.Err() != nil && ctx.Err() == nil {
		return fmt.Errorf("no answer within %s", crd.Timeout) // it is tried again
	}
	return err
}

// object is an empty configuration for server-side apply.
func (w *Write) object() *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetAPIVersion(Group + "/" + Version)
	u.SetKind(Kind)
	u.SetName(w.Name)
	return u
}

// fields are the fields of a Spec or Status, in the types of unstructured objects.
func fields(of any) map[string]any {
	b, err := json.Marshal(of)
	if err != nil {
		panic(err) // plain structs
	}
	u := map[string]any{}
	if err := utiljson.Unmarshal(b, &u); err != nil { // whole numbers are int64
		panic(err)
	}
	return u
}

// Deadline is the longest time that Sync should be given: for writing as many objects as a plan may have, twice.
const Deadline = 45 * time.Second

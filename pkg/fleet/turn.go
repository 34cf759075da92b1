// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/retry"
)

// Turn makes the turn of a worksheet: it changes labels of responders, and deletes those that end, with a grace period
// in which they go on answering. It waits, for at most Patience, until the EndpointSlices have that; then others join,
// and it waits again. So whoever reads that an endpoint has joined has read that the other one left, or terminates,
// too.
func (f *Fleet) Turn(ctx context.Context, w *checkup.Worksheet, roster *checkup.Roster) error {
	for _, join := range []bool{false, true} {
		targets := responders(w, roster)
		errs := Each(len(targets), func(i int) error { return f.turn(ctx, w, roster, targets[i], join) })
		if err := errors.Join(errs...); err != nil {
			return err
		}
		if err := f.awaitTurn(ctx, w, roster, join); err != nil {
			return err
		}
	}
	return nil
}

// turn lets one responder join its Services, or leave them and end.
func (f *Fleet) turn(ctx context.Context, w *checkup.Worksheet, roster *checkup.Roster, target int, join bool) error {
	e := w.Targets[target]
	_, pod, _ := strings.Cut(roster.Targets[target].Pod, "/")
	labels := map[string]any{}
	if join {
		for _, service := range e.Joins {
			labels[checkup.LabelIn+service] = "true"
		}
	} else {
		for _, service := range e.Leaves {
			labels[checkup.LabelIn+service] = nil
		}
	}
	if len(labels) > 0 {
		if err := f.patch(ctx, pod, map[string]any{"labels": labels}); err != nil {
			return fmt.Errorf("change the labels of pod %s: %w", pod, err)
		}
	}
	if join || !e.Ends {
		return nil
	}
	err := retry.Until(ctx, func() error {
		period := int64(endTime / time.Second)
		return f.Client.CoreV1().Pods(f.Namespace).Delete(ctx, pod, metav1.DeleteOptions{GracePeriodSeconds: &period})
	})
	if err != nil {
		return fmt.Errorf("delete pod %s: %w", pod, err)
	}
	return nil
}

// awaitTurn waits until the EndpointSlices have what turn changed.
func (f *Fleet) awaitTurn(ctx context.Context, w *checkup.Worksheet, roster *checkup.Roster, join bool) error {
	patience, cancel := context.WithTimeout(ctx, f.patience())
	defer cancel()
	var denials Denials
	for {
		listed, err := f.endpoints(ctx, w)
		if err == nil {
			late := f.unturned(w, roster, listed, join)
			if late == "" {
				return nil
			}
			err = fmt.Errorf("the EndpointSlices of Service %s have not changed after %s: is kube-controller-manager up?",
				late, f.patience())
		}
		if denials.Final(err) || !Sleep(patience, f.retry()) {
			return err
		}
	}
}

// unturned names a Service whose EndpointSlices do not have yet what turn changed; empty if all have it.
func (f *Fleet) unturned(
	w *checkup.Worksheet, roster *checkup.Roster, listed []discoveryv1.EndpointSlice, join bool,
) string {
	for _, t := range responders(w, roster) {
		e := w.Targets[t]
		services := e.Joins
		if !join {
			services = e.Leaves
			if e.Ends {
				services = e.In
			}
		}
		for _, service := range services {
			for family, address := range roster.Targets[t].Addresses {
				if f.isReady(listed, w.Check, service, address) != join && serves(w, roster, service, family) {
					return service
				}
			}
		}
	}
	return ""
}

// isReady reports whether an address is a ready endpoint of a Service.
func (f *Fleet) isReady(listed []discoveryv1.EndpointSlice, check, service, address string) bool {
	return slices.ContainsFunc(listed, func(s discoveryv1.EndpointSlice) bool {
		return s.Labels[discoveryv1.LabelServiceName] == f.ServiceName(check, service) &&
			slices.ContainsFunc(s.Endpoints, func(e discoveryv1.Endpoint) bool {
				return slices.Contains(e.Addresses, address) && (e.Conditions.Ready == nil || *e.Conditions.Ready)
			})
	})
}

// serves reports whether a Service has an address of a family.
func serves(w *checkup.Worksheet, roster *checkup.Roster, service string, family checkup.IPFamily) bool {
	for t, e := range w.Targets {
		if e.OfService == service && roster.Targets[t].Addresses[family] != "" {
			return true
		}
	}
	return false
}

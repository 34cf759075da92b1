// SPDX-License-Identifier: Apache-2.0

// Package guest runs the VMs of a check on KubeVirt: it starts them on their
// networks, waits until they answer on their consoles, makes them measure, keeps
// evidence of what went wrong, and removes them.
//
// As with the pods of pkg/fleet, what the cluster does to one VM is data: a Cause with
// the message of the component that stopped it. An error is returned for what concerns
// them all.
//
// VMs are named by checkup.ObjectName. A VM is never changed, because that would need
// one more right: the VMs of a check are owned by one ConfigMap, the anchor, and the
// anchor is owned by the pod of the task that uses them. If one process runs all phases
// (Fleet.Alone), its pod owns the VMs, and they are read by name: it needs the rights to
// get, create and delete VMs, and to their consoles, and no other. checkplan's own guest
// also ends by itself, and a later run sweeps what is past its AnnotationExpires.
package guest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	kubevirtv1 "kubevirt.io/api/core/v1"
	kvcorev1 "kubevirt.io/client-go/kubevirt/typed/core/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/console"
	"github.com/checkplan/checkplan/pkg/fleet"
)

// Guests is the VMs of one run, as one of its tasks sees them.
type Guests struct {
	// Fleet has client, namespace, plan, run, owner, clock and log. Its preflight pods
	// are started before the VMs.
	Fleet *fleet.Fleet
	VMs   kvcorev1.KubevirtV1Interface
	// NoPods says that some right to pods is missing: there are no preflight pods, and the pods of VMs are not
	// read.
	NoPods bool
	// Image of checkplan's own guest. Needed to start VMs only.
	Image string
	// Console connects to the console of a VM of the namespace.
	Console func(ctx context.Context, name string) (io.ReadWriteCloser, error)

	// Poll is how often the state of VMs is read while they are waited for; 0 means 1 s.
	Poll time.Duration
	// Patience is how long a VM may be in a state from which VMs rarely recover; 0
	// means 20 s.
	Patience time.Duration
	// Force is how long the pod of a VM may outlive its grace period until it is deleted
	// without waiting for its kubelet; 0 means 15 s.
	Force time.Duration

	mu          sync.Mutex // guards following
	transcripts map[string]*transcript
	mine        []string // names of the VMs that Start may have created
}

func (g *Guests) logf(format string, args ...any) {
	if g.Fleet.Logf != nil {
		g.Fleet.Logf(format, args...)
	}
}

func (g *Guests) now() time.Time {
	if g.Fleet.Now != nil {
		return g.Fleet.Now()
	}
	return time.Now()
}

func (g *Guests) poll() time.Duration { return cmp.Or(g.Poll, time.Second) }

func (g *Guests) vmis() kvcorev1.VirtualMachineInstanceInterface {
	return g.VMs.VirtualMachineInstances(g.Fleet.Namespace)
}

// nameOf is the name of a VM of the worksheet.
func (g *Guests) nameOf(w *checkup.Worksheet, vm int) string {
	return checkup.ObjectName(g.Fleet.RunUID, w.Check, checkup.RoleGuest, w.Sources[vm].Name())
}

// deniedFor is how long a console may be denied until the denial counts: an API server
// that has just started denies everything for a second or two.
const deniedFor = 15 * time.Second

// console returns the console of a VM of the worksheet.
func (g *Guests) console(w *checkup.Worksheet, vm int) *console.Guest {
	name := g.nameOf(w, vm)
	var denied time.Time
	return &console.Guest{
		Dial: func(ctx context.Context) (io.ReadWriteCloser, error) {
			conn, err := g.Console(ctx, name)
			switch code := statusCode(err); {
			case code == http.StatusNotFound:
				return nil, fmt.Errorf("%w: %w", console.ErrGone, err)
			case code != http.StatusForbidden:
				denied = time.Time{}
			case denied.IsZero():
				denied = g.now()
			case g.now().Sub(denied) > deniedFor:
				return nil, fmt.Errorf("%w: %w", console.ErrGone, err)
			}
			return conn, err
		},
		Login:      w.Guests.Guest.Login,
		Transcript: g.transcript(w, vm),
		Logf: func(format string, args ...any) {
			g.logf("%s: "+format, append([]any{w.Sources[vm].Name()}, args...)...)
		},
	}
}

// statusCode is the HTTP status of an error; 0 if it has none.
func statusCode(err error) int {
	var async *kvcorev1.AsyncSubresourceError
	if errors.As(err, &async) {
		return async.GetStatusCode()
	}
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return int(status.Status().Code)
	}
	return 0
}

// setupCause is a Cause of the stage in which VMs are set up.
func setupCause(format string, args ...any) *checkup.Cause {
	return &checkup.Cause{Stage: checkup.StageSetup, Message: fmt.Sprintf(format, args...)}
}

// peer is the index of the other VM of a pair.
func peer(vm int) int { return vm ^ 1 }

// condition returns the condition of that type, or one without status.
func condition(
	vmi *kubevirtv1.VirtualMachineInstance,
	of kubevirtv1.VirtualMachineInstanceConditionType,
) kubevirtv1.VirtualMachineInstanceCondition {
	for _, c := range vmi.Status.Conditions {
		if c.Type == of {
			return c
		}
	}
	return kubevirtv1.VirtualMachineInstanceCondition{}
}

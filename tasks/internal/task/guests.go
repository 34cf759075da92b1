// SPDX-License-Identifier: Apache-2.0

package task

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"sync"

	"k8s.io/client-go/rest"
	kvcorev1 "kubevirt.io/client-go/kubevirt/typed/core/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/fleet"
	"github.com/checkplan/checkplan/pkg/guest"
	"github.com/checkplan/checkplan/pkg/record"
)

// Guests is the VMs of the run.
func (t *Task) Guests(plan string) *guest.Guests {
	return &guest.Guests{Fleet: t.Fleet(plan), VMs: t.KubeVirt, Image: t.GuestImage, Console: t.Console}
}

// Remove deletes every fixture of the run and waits until they are gone, or ctx is
// done. It returns the names of what is left, as kind/name.
func (t *Task) Remove(ctx context.Context, plan *checkup.Plan) (left []string, err error) {
	var (
		vms     []string
		problem error
		wg      sync.WaitGroup
	)
	if plan.Starts(checkup.RoleGuest) {
		wg.Go(func() { vms, problem = t.Guests(plan.Name).Remove(ctx) })
	}
	left, err = t.fleet(plan).Remove(ctx)
	wg.Wait()
	return append(vms, left...), errors.Join(problem, err)
}

// Left returns the names of the fixtures of the run that still exist, as kind/name.
func (t *Task) Left(ctx context.Context, plan *checkup.Plan) ([]string, error) {
	left, err := t.fleet(plan).Left(ctx)
	if !plan.Starts(checkup.RoleGuest) {
		return left, err
	}
	vms, problem := t.Guests(plan.Name).Left(ctx)
	return append(vms, left...), errors.Join(problem, err)
}

// KeepTranscripts records the output of the consoles in a phase of the check. Transcripts
// are informational: an error is logged and ignored.
func (t *Task) KeepTranscripts(ctx context.Context, store *record.Store, g *guest.Guests, phase checkup.Phase) {
	transcripts := g.Transcripts()
	if len(transcripts) == 0 {
		return
	}
	if err := store.Save(ctx, record.Consoles(t.Check, phase), transcripts); err != nil {
		t.Logf("::warning::cannot record the output of the consoles: %v", err)
	}
}

// fleet returns the fixtures of the run, with Services if the plan may have some.
func (t *Task) fleet(plan *checkup.Plan) *fleet.Fleet {
	f := t.Fleet(plan.Name)
	f.Services = plan.Starts(checkup.RoleService)
	return f
}

// consoles connects to consoles of VMs through the API server. KubeVirt's client does
// not support contexts: a connection that is no longer waited for is closed when it is
// established.
func consoles(config *rest.Config, namespace string) func(context.Context, string) (io.ReadWriteCloser, error) {
	type dialed struct {
		conn io.ReadWriteCloser
		err  error
	}
	return func(ctx context.Context, name string) (io.ReadWriteCloser, error) {
		done := make(chan dialed, 1)
		go func() {
			stream, err := kvcorev1.AsyncSubresourceHelper(
				config,
				"virtualmachineinstances",
				namespace,
				name,
				"console",
				url.Values{},
			)
			if err != nil {
				done <- dialed{err: fmt.Errorf("console of VM %s: %w", name, err)}
				return
			}
			done <- dialed{conn: stream.AsConn()}
		}()
		select {
		case d := <-done:
			return d.conn, d.err
		case <-ctx.Done():
			go func() {
				if d := <-done; d.conn != nil {
					d.conn.Close()
				}
			}()
			return nil, fmt.Errorf("console of VM %s: %w", name, context.Cause(ctx))
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/console"
	"github.com/checkplan/checkplan/pkg/fleet"
	"github.com/checkplan/checkplan/pkg/retry"
)

// Start starts the VMs of the worksheet and waits until each answers on its console,
// for at most the worksheet's setup timeout. It fills in the roster, one entry per
// VM; a VM that did not start has a Cause there (stage setup). Before a VM is created,
// a preflight pod attaches to its network. VMs wait for all preflight pods, for at most
// half of the timeout. After that, pairs do not wait for each other, and a VM is not
// waited for if the other of its pair failed.
//
// progress, if not nil, is called whenever the number of VMs that answer changes.
func (g *Guests) Start(
	ctx context.Context,
	w *checkup.Worksheet,
	roster *checkup.Roster,
	progress func(ready, of int),
) error {
	deadline, cancel := context.WithTimeout(ctx, time.Duration(w.Timeouts.Setup))
	defer cancel()
	s := &starting{Guests: g, w: w, roster: roster, tried: map[int]string{}}
	for vm, e := range w.Sources {
		if e.Cause != nil {
			roster.Targets[vm].Cause = e.Cause
		}
	}
	s.excuse()
	if err := s.preflight(ctx); err != nil {
		return err
	}
	err := s.create(deadline)
	if err == nil && len(s.vms) > 0 {
		err = s.await(ctx, deadline, progress)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("wait for VMs: %w", context.Cause(ctx))
	}
	if err != nil {
		return err
	}
	for vm, e := range roster.Targets {
		if e.Cause != nil {
			g.logf("::warning::VM %s: %s", w.Sources[vm].Name(), e.Cause.Message)
		}
	}
	return nil
}

// starting is one run of Start.
type starting struct {
	*Guests
	w      *checkup.Worksheet
	roster *checkup.Roster
	vms    []*vm // that were created
	// tried are the nodes on which the preflight pods of VMs without a node ran.
	tried map[int]string
	// Warnings of the last look that read them.
	vmiWarnings, podWarnings map[string]fleet.Warning
}

// vm is a VM that is waited for.
type vm struct {
	index   int
	name    string
	created time.Time
	booting func()    // ends the wait for its console; nil before there is one
	ready   bool      // it answers
	stage   string    // how far it had come at the last look
	trouble string    // what keeps it from starting, at the last look
	since   time.Time // since when there is trouble
}

// cause gives a VM a cause, and with it the other one of its pair.
func (s *starting) cause(vm int, cause *checkup.Cause) {
	s.roster.Targets[vm].Cause = cause
	s.excuse()
}

// excuse gives a cause to each VM that has not started and whose other VM failed.
func (s *starting) excuse() {
	for vm := range s.roster.Targets {
		other := s.roster.Targets[peer(vm)].Cause
		if entry := &s.roster.Targets[vm]; entry.Cause == nil && entry.Pod == "" && other != nil {
			entry.Cause = &checkup.Cause{
				Stage: other.Stage, Reason: checkup.ReasonOtherVM,
				Message: fmt.Sprintf("not waited for, because of VM %s: %s", s.w.Sources[peer(vm)].Name(), other.Message),
			}
		}
	}
}

// preflight finds out whether pods can be attached to the networks. SR-IOV devices are
// left to the VMs: a pod that takes one unbinds it from its driver.
func (s *starting) preflight(ctx context.Context) error {
	var vms []int
	for vm, e := range s.w.Sources {
		if s.roster.Targets[vm].Cause == nil && e.VM.Binding != checkup.BindingSRIOV {
			vms = append(vms, vm)
		}
	}
	if len(vms) == 0 || s.NoPods {
		return nil
	}
	s.logf("attaching %d preflight pods", len(vms))
	found, err := s.Fleet.Preflight(ctx, s.w, vms)
	if err != nil {
		return err
	}
	for _, vm := range vms {
		if cause := found[vm].Cause; cause != nil {
			s.roster.Targets[vm].Cause = cause
		}
		if s.w.Sources[vm].Node == "" {
			s.tried[vm] = found[vm].Node
		}
	}
	s.excuse()
	return nil
}

// create creates the VMs that have no cause, and before them the anchor.
func (s *starting) create(ctx context.Context) error {
	var vmis []*kubevirtv1.VirtualMachineInstance
	var indexes []int
	for i := range s.w.Sources {
		if s.roster.Targets[i].Cause != nil {
			continue
		}
		vmi, err := s.VMI(s.w, i)
		if err != nil {
			return fmt.Errorf("VM %s: %w", s.w.Sources[i].Name(), err)
		}
		if node := s.tried[i]; node != "" {
			// Preferably where its network is known to work.
			vmi.Spec.Affinity.NodeAffinity = &corev1.NodeAffinity{
				PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{
					Weight: 100, Preference: fleet.NodeTerm(node),
				}},
			}
		}
		vmis, indexes = append(vmis, vmi), append(indexes, i)
	}
	if len(vmis) == 0 {
		return nil
	}
	owners := s.Fleet.Owners()
	if !s.Fleet.Alone {
		anchor, err := s.writeAnchor(ctx, s.w)
		if err != nil {
			return err
		}
		owners = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: anchor.Name, UID: anchor.UID}}
	}
	s.expect(vmis)
	s.logf("starting %s", checkup.Count(len(vmis), "VM"))
	errs := fleet.Each(len(vmis), func(i int) error {
		vmis[i].OwnerReferences = owners
		return s.createVMI(ctx, vmis[i])
	})
	for i, err := range errs {
		if err != nil {
			s.cause(indexes[i], setupCause("it was not created: %s", fleet.OneLine(err.Error())))
			continue
		}
		s.vms = append(s.vms, &vm{index: indexes[i], name: vmis[i].Name, created: time.Now()})
	}
	if err := fleet.EveryOne(errs); err != nil {
		return fmt.Errorf("none of %d VMs could be created: %w", len(vmis), err)
	}
	return nil
}

// tries is how often a request that failed for a passing reason is made.
const tries = 5

// createVMI creates a VM, or adopts the one that an earlier try of the task created. A
// VM that has ended is replaced.
func (g *Guests) createVMI(ctx context.Context, vmi *kubevirtv1.VirtualMachineInstance) error {
	for try := 1; ; {
		_, err := g.vmis().Create(ctx, vmi, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			var old *kubevirtv1.VirtualMachineInstance
			old, err = g.vmis().Get(ctx, vmi.Name, metav1.GetOptions{})
			switch {
			case apierrors.IsNotFound(err): // it was deleted between the two requests
				continue
			case err != nil:
			case old.Labels[checkup.LabelRun] != g.Fleet.RunUID:
				return fmt.Errorf("create VM %s: a VM of that name belongs to another run; delete it", vmi.Name)
			case old.DeletionTimestamp == nil && !old.IsFinal():
				return nil
			default:
				if old.DeletionTimestamp == nil {
					err = g.deleteVMI(ctx, old)
				}
				if err != nil {
					return fmt.Errorf("replace VM %s of an earlier try: %w", vmi.Name, err)
				}
				if !fleet.Sleep(ctx, g.poll()) {
					return fmt.Errorf("create VM %s: one of an earlier try is still being deleted: %w", vmi.Name, context.Cause(ctx))
				}
				continue
			}
		}
		if err == nil {
			return nil
		}
		if try++; try > tries || !retry.Passing(err) || !fleet.Sleep(ctx, g.poll()) {
			return fmt.Errorf("create VM %s: %w", vmi.Name, err)
		}
	}
}

// writeAnchor makes this task's pod the owner of the ConfigMap that owns the VMs of
// the check, and creates the ConfigMap if it does not exist.
func (g *Guests) writeAnchor(ctx context.Context, w *checkup.Worksheet) (*corev1.ConfigMap, error) {
	anchor := g.anchor(w)
	client := g.Fleet.Client.CoreV1().ConfigMaps(g.Fleet.Namespace)
	for try := 1; ; try++ {
		written, err := client.Update(ctx, anchor, metav1.UpdateOptions{})
		if apierrors.IsNotFound(err) {
			written, err = client.Create(ctx, anchor, metav1.CreateOptions{})
		}
		if err == nil {
			return written, nil
		}
		again := retry.Passing(err) || apierrors.IsAlreadyExists(err) // somebody was faster
		if try == tries || !again || !fleet.Sleep(ctx, g.poll()) {
			return nil, fmt.Errorf("write the owner of the VMs, ConfigMap %s: %w", anchor.Name, err)
		}
	}
}

// TakeOver makes this task's pod the owner of the VMs of a check: they are deleted with
// this pod, and no longer with setup's.
func (g *Guests) TakeOver(ctx context.Context, w *checkup.Worksheet) error {
	for _, e := range w.Sources {
		if e.Cause == nil { // there may be VMs
			_, err := g.writeAnchor(ctx, w)
			return err
		}
	}
	return nil
}

// booted is how the wait for a console ended.
type booted struct {
	*vm
	err error
}

// await looks at the VMs from time to time until each has started or has a cause.
func (s *starting) await(ctx, deadline context.Context, progress func(ready, of int)) error {
	consoles := make(chan booted)
	pending := 0 // consoles that are waited for
	report := func() {
		if progress != nil {
			n := 0
			for _, v := range s.vms {
				if v.ready {
					n++
				}
			}
			progress(n, len(s.vms))
		}
	}
	boot := func(v *vm) {
		booting, cancel := context.WithCancel(deadline)
		v.booting = cancel
		pending++
		go func() {
			guest := s.console(s.w, v.index)
			err := guest.Ready(booting)
			cancel()
			guest.Close()
			consoles <- booted{v, err}
		}()
	}
	defer func() { // no goroutine outlives the call
		for _, v := range s.vms {
			if v.booting != nil {
				v.booting()
			}
		}
		for ; pending > 0; pending-- {
			<-consoles
		}
	}()
	report()
	tick := time.NewTicker(s.poll())
	defer tick.Stop()
	for {
		if err := s.look(deadline, boot); err != nil && ctx.Err() == nil && deadline.Err() == nil {
			return err
		}
		if !s.waits() {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil // Start says why
		case <-deadline.Done():
			s.giveUp(consoles, &pending)
			return nil
		case b := <-consoles:
			pending--
			s.take(b, deadline.Err() != nil)
			report()
		case <-tick.C:
		}
	}
}

// waits reports whether a VM has neither started nor been given up.
func (s *starting) waits() bool {
	for _, v := range s.vms {
		if !v.ready && s.roster.Targets[v.index].Cause == nil {
			return true
		}
	}
	return false
}

// take notes how the wait for a console ended. over says that the time is over.
func (s *starting) take(b booted, over bool) {
	switch {
	case s.roster.Targets[b.index].Cause != nil: // given up before
	case b.err == nil:
		b.ready = true
		s.roster.Targets[b.index].Pod = s.Fleet.Namespace + "/" + b.name
		s.roster.Targets[b.index].Addresses = addresses(s.w.Sources[b.index].VM.Addresses)
		s.logf(
			"%s answers on its console, %s after it was created",
			s.w.Sources[b.index].Name(),
			time.Since(b.created).Round(100*time.Millisecond),
		)
	case over:
		s.late(b.vm, bothEnds(b.err))
	default:
		s.cause(b.index, setupCause("the guest did not start: %s", bothEnds(b.err)))
	}
}

// late gives a VM up because the time is over.
func (s *starting) late(v *vm, why string) {
	s.roster.Targets[v.index].Cause = setupCause("it did not start within %s: %s", s.w.Timeouts.Setup, why)
}

// giveUp gives up each VM that is still waited for: the time is over.
func (s *starting) giveUp(consoles <-chan booted, pending *int) {
	for ; *pending > 0; *pending-- { // deadline has ended their waits
		s.take(<-consoles, true)
	}
	for _, v := range s.vms {
		if !v.ready && s.roster.Targets[v.index].Cause == nil {
			s.late(v, cmp.Or(v.trouble, v.stage, "it was not seen"))
		}
	}
	s.excuse()
}

// look reads the state of all VMs that are waited for, gives up those that will not
// start, and connects to the consoles of those that run.
func (s *starting) look(ctx context.Context, boot func(*vm)) error {
	seen, err := s.see(ctx, s.w.Check)
	if err != nil {
		if retry.Passing(err) {
			return nil
		}
		return err
	}
	// If warnings cannot be read, such as at the deadline, those of the last look still say why a VM does not start.
	if seen.vmiWarnings == nil {
		seen.vmiWarnings = s.vmiWarnings
	}
	if seen.podWarnings == nil {
		seen.podWarnings = s.podWarnings
	}
	s.vmiWarnings, s.podWarnings = seen.vmiWarnings, seen.podWarnings
	for _, v := range s.vms {
		if s.roster.Targets[v.index].Cause != nil {
			if v.booting != nil {
				v.booting()
			}
			continue
		}
		if v.ready {
			continue
		}
		vmi := seen.vmis[v.name]
		if vmi == nil || vmi.DeletionTimestamp != nil {
			s.stop(v, "it was deleted before the guest started")
			continue
		}
		v.stage = seen.stage(vmi)
		s.roster.Targets[v.index].Node = vmi.Status.NodeName
		if vmi.IsFinal() {
			s.stop(v, seen.ended(vmi))
			continue
		}
		if vmi.IsRunning() {
			v.trouble, v.since = "", time.Time{}
			if v.booting == nil {
				boot(v)
			}
			continue
		}
		trouble := seen.trouble(vmi, s.w.Sources[v.index].VM, cmp.Or(s.Patience, 20*time.Second))
		v.trouble = trouble.message
		switch {
		case trouble.message == "":
			v.since = time.Time{}
		case v.since.IsZero():
			v.since = time.Now()
		}
		if trouble.message != "" && trouble.patience >= 0 && time.Since(v.since) >= trouble.patience {
			s.stop(v, trouble.message)
		}
	}
	return nil
}

// stop gives a VM up.
func (s *starting) stop(v *vm, why string) {
	if v.booting != nil {
		v.booting()
	}
	s.cause(v.index, setupCause("%s", why))
}

// addresses without their prefix lengths.
func addresses(of map[checkup.IPFamily]string) map[checkup.IPFamily]string {
	plain := map[checkup.IPFamily]string{}
	for family, a := range of {
		plain[family] = a
		if p, err := netip.ParsePrefix(a); err == nil {
			plain[family] = p.Addr().String()
		}
	}
	return plain
}

// bothEnds is an error in one line. Beginning and end are kept: the last lines of a
// console are at the end.
func bothEnds(err error) string {
	const most = 700
	s := checkup.OneLine(err.Error())
	if errors.Is(err, console.ErrGone) || len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most/2], "") + " ... " + strings.ToValidUTF8(s[len(s)-most/2:], "")
}

// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/console"
	"github.com/checkplan/checkplan/pkg/fleet"
	"github.com/checkplan/checkplan/pkg/ingest"
)

// answerTime is how long Measure waits for the console of a VM that did not answer
// everything, to find out whether the VM still runs.
const answerTime = 10 * time.Second

// Measure makes the VMs of the worksheet measure, all pairs at once: first the target
// whether it reaches the source, then the source for the whole duration. It hands
// what they report to the sink as it arrives, and each source once when nothing more
// will arrive from it. It takes at most the worksheet's probe timeout. progress, if
// not nil, is called with every change, one call at a time.
//
// A VM that did not answer because it no longer ran or (checkplan's own guest) had
// restarted, or that was migrated, gets a Cause in the roster: that is no fact about the
// network. When ctx is done earlier, Measure calls the sink with
// every source as it is then, and returns nil. An error means that there is no right
// to any console.
func (g *Guests) Measure(
	ctx context.Context,
	w *checkup.Worksheet,
	roster *checkup.Roster,
	sink ingest.Sink,
	progress func(fleet.Progress),
) error {
	deadline, cancel := context.WithTimeout(ctx, time.Duration(w.ProbeTimeout()))
	defer cancel()
	m := &measuring{
		Guests:  g,
		w:       w,
		roster:  roster,
		sink:    sink,
		changed: progress,
		until:   time.Now().Add(time.Duration(w.AgentDeadline())),
	}
	m.progress.Pairs = w.CountPairs()
	var sources []int // of pairs that can be measured
	for source := 0; source+1 < len(w.Sources); source += 2 {
		up := true
		for _, vm := range []int{source, peer(source)} {
			if cause := m.absent(vm); cause != nil {
				up = false
				sink.Source(checkup.Source{Source: vm, Pod: roster.Targets[vm].Pod, Cause: cause})
			}
		}
		if up {
			sources = append(sources, source)
		}
	}
	m.progress.Agents = 2 * len(sources)
	var wg sync.WaitGroup
	for _, source := range sources {
		wg.Go(func() { m.pair(ctx, deadline, source) })
	}
	wg.Wait()
	if len(m.denied) > 0 && len(m.denied) == 2*len(sources) {
		return fmt.Errorf("cannot connect to any console of %d VMs: %w", len(m.denied), m.denied[0])
	}
	return nil
}

// measuring is one run of Measure.
type measuring struct {
	*Guests
	w      *checkup.Worksheet
	roster *checkup.Roster // each pair's goroutine uses its own entries
	sink   ingest.Sink
	until  time.Time // when VMs must have reported everything

	mu       sync.Mutex // guards following, and serialises changed
	progress fleet.Progress
	changed  func(fleet.Progress)
	denied   []error // of consoles that there is no right to
}

// advance changes the progress and reports it.
func (m *measuring) advance(change func(*fleet.Progress)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(&m.progress)
	if m.changed != nil {
		m.changed(m.progress)
	}
}

// absent says why nothing can be measured from a VM: it, or the other of its pair, does
// not run. nil if both run.
func (m *measuring) absent(vm int) *checkup.Cause {
	if cause := m.roster.Targets[vm].Cause; cause != nil {
		return cause
	}
	if cause := m.roster.Targets[peer(vm)].Cause; cause != nil {
		return &checkup.Cause{
			Stage:   cause.Stage,
			Reason:  checkup.ReasonOtherVM,
			Message: fmt.Sprintf("VM %s: %s", m.w.Sources[peer(vm)].Name(), cause.Message),
		}
	}
	return nil
}

// speaker is a VM that measures.
type speaker struct {
	*console.Guest
	vm       int
	name     string
	reported *ingest.Source
	lossy    bool  // not everything was answered
	err      error // of its console
}

// pair measures one pair of VMs.
func (m *measuring) pair(ctx, deadline context.Context, source int) {
	var speakers [2]*speaker
	var wg sync.WaitGroup
	for i, vm := range []int{source, peer(source)} {
		s := &speaker{Guest: m.console(m.w, vm), vm: vm, name: m.nameOf(m.w, vm), reported: ingest.NewSource(m.w, vm)}
		defer s.Close()
		speakers[i] = s
		wg.Go(func() {
			if s.err = s.Ready(deadline); s.err == nil {
				m.advance(func(p *fleet.Progress) { p.Started++ })
			}
		})
	}
	wg.Wait()
	from, to := speakers[0], speakers[1]
	if from.err == nil && to.err == nil {
		for _, s := range []*speaker{to, from} { // one that fails does not keep the other from measuring
			s.err = s.Measure(deadline, m.order(s), func(message checkup.Message) { m.take(s, message) })
		}
	}
	m.conclude(ctx, from, to)
}

// order is what a VM is to measure. A target leaves the source its time.
func (m *measuring) order(s *speaker) checkup.Order {
	w, vm := m.w, m.w.Sources[s.vm].VM
	left := time.Until(m.until)
	if vm.Target {
		left -= time.Duration(w.Guests.Duration)
	}
	order := checkup.Order{
		Source:     s.vm,
		Seed:       w.Seed + uint64(w.Round)<<32 + uint64(s.vm),
		Limits:     w.Limits,
		IPFamilies: w.IPFamilies,
		Deadline:   checkup.Duration(max(time.Second, left)),
		Own:        addresses(vm.Addresses),
		Unused:     addresses(vm.Unused),
	}
	for _, t := range w.Assignments[s.vm] {
		order.Targets = append(order.Targets, checkup.OrderTarget{Target: t, Addresses: m.roster.Targets[t].Addresses})
	}
	for _, p := range w.Probes {
		if vm.Target {
			p.Count, p.Interval = checkup.VMConnectivity(p.Count, p.Interval)
		}
		order.Probes = append(order.Probes, p)
	}
	return order
}

// take takes one message of a VM. The console has made sure that it arrived undamaged.
func (m *measuring) take(s *speaker, message checkup.Message) {
	fresh, _ := s.reported.Take(message)
	fresh.To(m.sink)
	if o := fresh.Observation; o != nil {
		s.lossy = s.lossy || o.Unmeasured == nil && o.Received < o.Sent
		m.advance(func(p *fleet.Progress) { p.Measured++ })
	}
}

// conclude calls the sink with what became of the two VMs of a pair.
func (m *measuring) conclude(ctx context.Context, from, to *speaker) {
	stopped := ctx.Err() != nil
	// The deadline of measuring is over, but not the time to find out what went wrong.
	after, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*answerTime)
	defer cancel()
	for s, other := range map[*speaker]*speaker{from: to, to: from} {
		if s.lossy && other.err == nil && !stopped {
			asking, done := context.WithTimeout(after, answerTime)
			other.err = other.Ready(asking)
			done()
		}
	}
	var seen *sight
	if !stopped {
		var err error
		if seen, err = m.see(after, m.w.Check); err != nil {
			m.logf("::warning::cannot read whether VMs were lost or migrated: %v", err)
		}
	}
	for s, other := range map[*speaker]*speaker{from: to, to: from} {
		if !stopped && (s.err != nil && other.lossy || m.moved(s, seen) != "") {
			m.roster.Targets[s.vm].Cause = m.why(s, other, seen, stopped)
		}
	}
	for _, s := range []*speaker{from, to} {
		other := from
		if s == from {
			other = to
		}
		source := s.reported.Report()
		source.Pod = m.roster.Targets[s.vm].Pod
		if !s.reported.Complete() || m.roster.Targets[s.vm].Cause != nil {
			source.Cause = m.why(s, other, seen, stopped)
			if statusCode(s.err) == http.StatusForbidden {
				m.mu.Lock()
				m.denied = append(m.denied, s.err)
				m.mu.Unlock()
			}
			m.logf("::warning::VM %s: %s", m.w.Sources[s.vm].Name(), source.Cause.Message)
		}
		m.Fleet.LogDistrust("VM", m.w.Sources[s.vm].Name(), source)
		m.sink.Source(source)
	}
}

// moved says how a VM left the node on which it started; empty if it did not.
func (m *measuring) moved(s *speaker, seen *sight) string {
	return seen.moved(s.name, m.roster.Targets[s.vm].Node)
}

// why says why a VM did not report everything, or no longer runs.
func (m *measuring) why(s, other *speaker, seen *sight, stopped bool) *checkup.Cause {
	cause := &checkup.Cause{Stage: checkup.StageCollect}
	switch lost, final := seen.lost(s.name); {
	case stopped:
		cause.Message = "the probe task was stopped before the VM ended"
	case m.moved(s, seen) != "":
		cause.Message = m.moved(s, seen)
	case s.err != nil && final: // the console may have the reason: a panic
		cause.Message = "lost while measuring: " + lost + s.LastWords()
	case s.err != nil && lost != "":
		cause.Message = "lost while measuring: " + lost
	case s.err != nil:
		cause.Message = "lost while measuring: " + bothEnds(s.err)
	case other.err != nil && s.reported.Observed() == 0:
		cause.Reason = checkup.ReasonOtherVM
		cause.Message = fmt.Sprintf("VM %s: %s", m.w.Sources[other.vm].Name(), m.why(other, s, seen, stopped).Message)
	case s.reported.End() == nil:
		cause.Message = "the VM did not report its end"
	default:
		cause.Message = fmt.Sprintf(
			"the VM reported %d observations, but not all of them arrived",
			s.reported.End().Observations,
		)
	}
	return cause
}

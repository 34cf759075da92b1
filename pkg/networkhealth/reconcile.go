// SPDX-License-Identifier: Apache-2.0

package networkhealth

import (
	"cmp"
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Run is the run that writes objects.
type Run struct {
	Name, UID         string
	Started, Finished time.Time
}

func (r Run) by() ObservedBy {
	return ObservedBy{Run: clip(r.Name, maxName), RunUID: clip(r.UID, maxUID)}
}

// Input is everything that decides which objects there are after a run.
type Input struct {
	Plan   string
	Config checkup.PodNetworkHealth
	Run    Run
	// Checks that were set up in this run. The objects of other checks only age.
	Checks []Measured
	// Existing objects of checkplan in the namespace, of all plans.
	Existing []*Health
}

// Changes are what to do, so that the objects are those of Reconcile's comment.
type Changes struct {
	// Delete first.
	Delete []*Health
	// Write then, worst first.
	Write []Write
	// Objects is the number of the plan's objects after that, and Omitted the number of its pairs without one.
	Objects, Omitted int
}

// Write is one object to write.
type Write struct {
	Name   string
	Labels map[string]string
	Spec   Spec
	Status Status
	// Before is the object as it was read; nil if it does not exist.
	Before *Health
	// Aged says that only time has changed the object. It must not be written if someone has written it since.
	Aged bool
}

// bare is how old an object without a status is when it is deleted: someone is writing a younger one.
const bare = time.Hour

// Reconcile computes which objects there are after a run. It is pure.
//
//   - Each pair that the run expected has its result: what was measured, or that it could not be.
//   - Other objects age: Unknown from their staleTime on, deleted from their expireTime on.
//   - The objects of a pod that the worksheet of their check lacks become Unknown, and are deleted after PodGoneGrace.
//   - Of all these, the plan keeps the first MaxObjects: Unreachable before Unknown before Reachable, more loss before
//     less, longer not observed before shorter, existing objects before new ones, and then by name.
//
// Of objects of other plans, it only ages those whose time has come: their plan may never run again.
func Reconcile(in Input) Changes {
	mine, others := map[Spec]*Health{}, []*Health{}
	for _, h := range in.Existing {
		if h.Spec.Observer.Plan == in.Plan && h.Name == NameOf(h.Spec) {
			mine[h.Spec] = h
		} else {
			others = append(others, h)
		}
	}
	r := &reconciling{in: &in, now: second(in.Run.Finished), mine: mine, kept: map[Spec]bool{}}
	missing := map[string]func(Spec) string{}
	for _, m := range in.Checks {
		if c := index(in.Plan, m); c != nil {
			missing[c.Worksheet.Check] = c.missing()
			r.measured(c)
		}
	}
	for _, h := range in.Existing { // in their order
		if mine[h.Spec] != h || r.kept[h.Spec] {
			continue
		}
		var gone *string
		if lacks := missing[h.Spec.Observer.Check]; lacks != nil {
			gone = new(lacks(h.Spec))
		}
		r.age(h, gone, true)
	}
	r.cut(in.Config.MaxObjects)
	for _, c := range r.candidates {
		if w := r.write(c); w != nil {
			r.changes.Write = append(r.changes.Write, *w)
		}
	}
	r.changes.Objects, r.changes.Omitted = len(r.candidates), r.omitted
	for _, h := range others {
		r.age(h, nil, false)
	}
	return r.changes
}

// reconciling is one call of Reconcile.
type reconciling struct {
	in   *Input
	now  time.Time
	mine map[Spec]*Health
	// kept are the objects whose pairs this run expected.
	kept       map[Spec]bool
	candidates []candidate
	omitted    int
	changes    Changes
}

// candidate is a pair that may have an object. Its status is computed when it has one.
type candidate struct {
	spec     Spec
	reach    Reachability
	loss     float64
	observed time.Time
	before   *Health
	// of a pair that the run expected
	check          *check
	source, target int
	// of another one
	aged    *Status
	changed bool
}

func (a *candidate) compare(b *candidate) int {
	existing := func(c *candidate) int {
		if c.before != nil {
			return 0
		}
		return 1
	}
	return cmp.Or(
		cmp.Compare(rank(a.reach), rank(b.reach)),
		cmp.Compare(b.loss, a.loss),
		a.observed.Compare(b.observed),
		cmp.Compare(existing(a), existing(b)),
		compareSpecs(a.spec, b.spec),
	)
}

func compareSpecs(a, b Spec) int {
	return slices.Compare(a.parts(), b.parts())
}

// parts are everything that identifies a pair and its observer.
func (s Spec) parts() []string {
	return []string{
		s.Observer.Name, s.Observer.Plan, s.Observer.Check,
		string(s.Source.Kind), s.Source.Node, s.Source.Namespace, s.Source.Name, s.Source.UID,
		string(s.Target.Kind), s.Target.Node, s.Target.Namespace, s.Target.Name, s.Target.UID,
	}
}

// measured adds the pairs that a check expected.
func (r *reconciling) measured(c *check) {
	for source, targets := range c.Worksheet.Assignments {
		for _, target := range targets {
			if target < 0 || target >= len(c.ends[1]) {
				continue
			}
			spec, ok := c.spec(source, target)
			results := c.results(source, target)
			if !ok || len(results) == 0 {
				continue
			}
			before := r.mine[spec]
			sent, lost := sum(results)
			one := candidate{spec: spec, reach: worst(results), before: before, check: c, source: source, target: target}
			if sent > 0 {
				one.loss, one.observed = float64(lost)/float64(sent), c.window(r.in.Run, source, results).End
			}
			if before != nil {
				if last := before.Status; last != nil && last.LastObservationTime.After(one.observed) {
					if sent > 0 {
						continue // a later run has observed it since: it only ages
					}
					one.observed = last.LastObservationTime
				}
				r.kept[spec] = true
			}
			r.add(one)
		}
	}
}

// age adds an object whose pair this run did not expect, unless its time is over. gone is that of aged.
func (r *reconciling) age(h *Health, gone *string, own bool) {
	if h.Status == nil {
		if r.now.Sub(h.CreationTimestamp.Time) >= bare {
			r.changes.Delete = append(r.changes.Delete, h)
		} else if own {
			r.add(candidate{spec: h.Spec, reach: Unknown, before: h})
		}
		return
	}
	st, changed, over := aged(*h.Status, gone, time.Duration(r.in.Config.PodGoneGrace), r.now)
	switch {
	case over:
		r.changes.Delete = append(r.changes.Delete, h)
	case own:
		one := candidate{
			spec: h.Spec, reach: st.Reachability, observed: st.LastObservationTime, before: h, aged: &st, changed: changed,
		}
		if st.Loss != nil && st.Loss.Sent > 0 {
			one.loss = float64(st.Loss.Lost) / float64(st.Loss.Sent)
		}
		r.add(one)
	case changed:
		r.changes.Write = append(r.changes.Write, Write{
			Name: h.Name, Labels: h.Labels, Spec: h.Spec, Status: st, Before: h, Aged: true,
		})
	}
}

// aged is a status at a later time: whether it has changed, and whether its time is over. gone is the reason if a pod
// of the pair is gone, and empty if none is; nil if this run did not look for the pods.
func aged(st Status, gone *string, grace time.Duration, now time.Time) (next Status, changed, over bool) {
	if !now.Before(st.ExpireTime) {
		return st, false, true
	}
	become := func(reason, message string) {
		if st.Reachability != Unknown {
			st.LastTransitionTime = now
		}
		st.Reachability, st.Reason, st.Message, changed = Unknown, reason, clip(message, maxMessage), true
	}
	last := "never observed"
	if !st.LastObservationTime.IsZero() {
		last = fmt.Sprintf("%s when it was last observed at %s",
			st.Reachability, second(st.LastObservationTime).Format(time.RFC3339))
	}
	switch {
	case gone != nil && *gone != "" && st.PodGoneTime.IsZero():
		st.PodGoneTime = now
		what := map[string]string{ReasonSourceGone: "source", ReasonTargetGone: "target"}[*gone]
		become(*gone, fmt.Sprintf("the %s is gone, or no longer selected; %s", what, last))
		return st, true, grace <= 0
	case gone != nil && *gone != "":
		return st, false, now.Sub(st.PodGoneTime) >= grace
	case gone != nil && !st.PodGoneTime.IsZero(): // it came back, but was not measured yet
		st.PodGoneTime = time.Time{}
		become(ReasonStale, "not observed since the pod is back")
	case st.Reachability != Unknown && !now.Before(st.StaleTime):
		become(ReasonStale, last+", which is too long ago")
	}
	return st, changed, false
}

// trimAt is how many candidates more than wanted are kept before the surplus is dropped: a mesh has millions of pairs.
const trimAt = 10_000

func (r *reconciling) add(c candidate) {
	r.candidates = append(r.candidates, c)
	if len(r.candidates) >= r.in.Config.MaxObjects+trimAt {
		r.cut(r.in.Config.MaxObjects)
	}
}

// cut sorts the candidates, and drops those that are too many, with their objects.
func (r *reconciling) cut(most int) {
	slices.SortFunc(r.candidates, func(a, b candidate) int { return a.compare(&b) })
	for _, c := range r.candidates[min(most, len(r.candidates)):] {
		r.omitted++
		if c.before != nil {
			r.changes.Delete = append(r.changes.Delete, c.before)
		}
	}
	r.candidates = slices.Clip(r.candidates[:min(most, len(r.candidates))])
}

// write returns what to write of a candidate; nil if its object is right.
func (r *reconciling) write(c candidate) *Write {
	w := &Write{
		Name: NameOf(c.spec), Spec: c.spec, Before: c.before,
		Labels: map[string]string{
			checkup.LabelManagedBy: checkup.ManagedBy, checkup.LabelPlan: c.spec.Observer.Plan,
			checkup.LabelCheck: c.spec.Observer.Check,
		},
	}
	if c.check == nil {
		if !c.changed {
			return nil
		}
		w.Status, w.Aged = *c.aged, true
		return w
	}
	var before *Status
	if c.before != nil {
		before = c.before.Status
	}
	w.Status = *c.check.status(r.in, c.source, c.target, before)
	w.Status.Coverage.ObjectsOmitted = int64(r.omitted)
	return w
}

// NameOf returns the name of the object of a pair: "<source>-to-<target>-<hash of the spec>", a DNS label. The same
// spec has the same name in every run.
func NameOf(s Spec) string {
	sum := sha256.Sum256([]byte(strings.Join(s.parts(), "\x00")))
	hash := strings.ToLower(base32.StdEncoding.EncodeToString(sum[:])[:10])
	return label(cmp.Or(s.Source.Name, s.Source.Node)) + "-to-" + label(cmp.Or(s.Target.Name, s.Target.Node)) + "-" + hash
}

// label makes a part of a DNS label, of at most 24 characters, so that a name has at most 63.
func label(s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		}
		return '-'
	}, s)
	s = strings.Trim(s, "-")
	return cmp.Or(strings.Trim(s[:min(len(s), 24)], "-"), "x")
}

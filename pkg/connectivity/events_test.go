// SPDX-License-Identifier: Apache-2.0

package connectivity

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Start and end of an outage are recorded as events of the source's node.
func TestEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		b := s.book(t, worksheet())
		b.Results(all(good))
		time.Sleep(time.Second)
		began := time.Now()
		b.Results(all(good)[:4])
		b.Results(all(bad)[4:])
		time.Sleep(1500 * time.Millisecond)
		b.Results(all(silent)[4:])
		b.Results(all(bad)[:1])
		time.Sleep(time.Second)
		ended := time.Now()
		b.Results(all(good)[4:])
		synctest.Wait()
		want := []string{
			"Normal ConnectivityRestored b: Connectivity restored after 2.5s: etcd-server-b: tcp connection to 10.0.0.2:2379 succeeded",
			"Warning ConnectivityOutageDetected a: Connectivity outage detected: etcd-server-a: failed to establish a TCP connection to 10.0.0.1:2379: connection refused",
			"Warning ConnectivityOutageDetected b: Connectivity outage detected: etcd-server-b: failed to establish a TCP connection to 10.0.0.2:2379: connection refused",
		}
		if diff := cmp.Diff(want, s.recorded(t)); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}

		list, err := s.events.CoreV1().Events(corev1.NamespaceDefault).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range list.Items {
			if e.InvolvedObject.Name != "b" {
				continue
			}
			at := began
			if e.Reason == EventRestored {
				at = ended
			}
			wantEvent := corev1.Event{
				ObjectMeta:          metav1.ObjectMeta{Name: e.Name, Namespace: "default"},
				InvolvedObject:      corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: "b", UID: types.UID("b")},
				Type:                e.Type,
				Reason:              e.Reason,
				Message:             e.Message,
				Source:              corev1.EventSource{Component: "checkplan"},
				ReportingController: "checkplan.dev/connectivity",
				ReportingInstance:   "run-1",
				FirstTimestamp:      metav1.NewTime(at),
				LastTimestamp:       metav1.NewTime(at),
				Count:               1,
			}
			e.TypeMeta, e.ManagedFields = metav1.TypeMeta{}, nil
			if diff := cmp.Diff(wantEvent, e); diff != "" {
				t.Errorf("event (-want +got):\n%s", diff)
			}
		}

		// No event is repeated: neither by a later run nor at the end.
		if err := b.close(t); err != nil {
			t.Fatal(err)
		}
		b = s.book(t, worksheet())
		time.Sleep(time.Second)
		b.Results(all(bad)[:1]) // the outage continues
		if err := b.close(t); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, s.recorded(t)); diff != "" {
			t.Errorf("events after another run (-want +got):\n%s", diff)
		}
		b = s.book(t, worksheet())
		time.Sleep(time.Second)
		b.Results(all(good)[:1])
		synctest.Wait()
		if recorded := s.recorded(t); len(recorded) != len(want)+1 || !slices.ContainsFunc(recorded, func(e string) bool {
			return strings.HasPrefix(e, "Normal ConnectivityRestored a: Connectivity restored after ")
		}) {
			t.Errorf("end of an outage of an earlier run: got events %q", recorded)
		}
		creates := 0
		for _, a := range s.events.Actions() {
			if a.GetVerb() == "create" {
				creates++
			}
		}
		if creates != len(want)+1 {
			t.Errorf("got %d requests to create events, want no retries", creates)
		}
	})
}

// A late failure extends an outage and starts no second one; a late success splits it in two.
func TestEventsOfLateResults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		b := s.book(t, worksheet())
		time.Sleep(time.Minute)
		now := time.Now()
		// seconds are the times of the results, in this order; a negative one is a failure.
		at := func(seconds ...int) {
			for _, n := range seconds {
				body := good
				if n < 0 {
					body, n = bad, -n
				}
				res := of(0, 0, body)
				res.At = now.Add(time.Duration(n-20) * time.Second)
				b.Results([]checkup.Result{res})
			}
		}
		for _, step := range []struct {
			seconds  []int
			recorded int
		}{
			{[]int{1, -5, -6, -9, 10}, 2},
			{[]int{7}, 4},  // splits it in two outages
			{[]int{-4}, 4}, // the first one was longer
		} {
			at(step.seconds...)
			synctest.Wait()
			if recorded := s.recorded(t); len(recorded) != step.recorded {
				t.Errorf("after %v: %d events, want %d: %q", step.seconds, len(recorded), step.recorded, recorded)
			}
		}
		status := s.status(t, nameAA)
		if len(status.Outages) != 2 {
			t.Errorf("outages %+v", status.Outages)
		}
	})
}

// collect returns what a recorder would send.
func collect(r *recorder) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for _, e := range r.waiting {
		out = append(out, fmt.Sprintf("%s %s: %s", e.reason, e.node, e.message))
	}
	r.waiting = nil
	return out
}

func TestEventLimits(t *testing.T) {
	s := newServer(t)
	recorder := func() *recorder {
		return &recorder{events: s.events.CoreV1().Events("default"), logf: t.Logf}
	}
	one := func(at time.Time, node, reason string) event {
		return event{node: node, kind: corev1.EventTypeWarning, reason: reason, message: "it happened", at: at, key: at.String()}
	}

	t.Run("burst", func(t *testing.T) {
		r := recorder()
		for i := range 30 {
			at := start.Add(time.Duration(i) * time.Second / 2)
			r.add(at, one(at, "a", EventOutageDetected))
		}
		if got := collect(r); len(got) != 30 {
			t.Fatalf("%d events, want 30", len(got))
		}
		// The 31st within 30 s, and all of the next half hour.
		begin := after(20)
		r.add(begin, one(begin, "a", EventOutageDetected))
		r.add(after(21), one(after(21), "b", EventOutageDetected))
		r.add(after(1200), one(after(1200), "a", EventRestored))
		r.add(after(1819), one(after(1819), "a", EventOutageDetected))
		if got := collect(r); got != nil {
			t.Errorf("got events %q above the limit, want none", got)
		}
		r.send(t.Context(), after(1819.9))
		if got := s.recorded(t); len(got) != 0 {
			t.Errorf("got events %q too early, want none", got)
		}
		r.send(t.Context(), after(1820))
		want := []string{
			"Warning ConnectivityOutageDetected a: 2026-11-21T06:00:20Z: it happened\n2026-11-21T06:30:19Z: it happened",
			"Warning ConnectivityOutageDetected b: it happened",
			"Warning ConnectivityRestored a: it happened",
		}
		if diff := cmp.Diff(want, s.recorded(t)); diff != "" {
			t.Errorf("summaries (-want +got):\n%s", diff)
		}
		list, err := s.events.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range list.Items {
			if e.InvolvedObject.Name == "a" && e.Reason == EventOutageDetected && (e.Count != 2 || !e.FirstTimestamp.Time.Equal(begin) || !e.LastTimestamp.Time.Equal(after(1819))) {
				t.Errorf("%d from %v to %v", e.Count, e.FirstTimestamp, e.LastTimestamp)
			}
		}
		r.add(after(1821), one(after(1821), "a", EventRestored)) // as before the limit
		if got := collect(r); len(got) != 1 {
			t.Errorf("got events %q", got)
		}
	})

	t.Run("never more", func(t *testing.T) {
		eachSeed(t, 20, func(t *testing.T, random *rand.Rand) {
			r := recorder()
			var recorded []time.Time
			at := start
			for range 3000 {
				at = at.Add(time.Duration(random.Int64N(int64(2200 * time.Millisecond))))
				r.add(at, one(at, "a", EventOutageDetected))
				for range collect(r) {
					recorded = append(recorded, at)
				}
			}
			within := func(d time.Duration) (most int) {
				for i := range recorded {
					n := 0
					for n < len(recorded)-i && recorded[i+n].Sub(recorded[i]) < d {
						n++
					}
					most = max(most, n)
				}
				return most
			}
			// A summary is one more.
			if burst, total := within(30*time.Second), within(10*time.Minute); burst > 31 || total > 601 {
				t.Errorf("%d events in 30 s, %d in 10 min", burst, total)
			}
		})
	})

	t.Run("at the end", func(t *testing.T) {
		r := recorder()
		for i := range 1000 {
			r.add(start, one(start.Add(time.Duration(i)*time.Second), "a", EventOutageDetected))
		}
		if got := collect(r); len(got) != 30 {
			t.Errorf("%d events", len(got))
		}
		if len(r.held) != 1 || r.held[0].text.Len() > maxEventText { // of 970 events
			t.Errorf("%d summaries are held, want 1 of at most %d bytes", len(r.held), maxEventText)
		}
		r.flush()
		got := collect(r)
		if len(got) != 1 {
			t.Fatalf("%d summaries", len(got))
		}
		if len(got[0]) > maxEventText+200 || !strings.Contains(got[0], "\nand ") || !strings.HasSuffix(got[0], " more") {
			t.Errorf("summary of %d bytes ends with %q", len(got[0]), got[0][len(got[0])-40:])
		}
		omitted, text := 0, got[0][strings.LastIndex(got[0], "\n")+1:]
		if _, err := fmt.Sscanf(text, "and %d more", &omitted); err != nil || strings.Count(got[0], "\n")+omitted != 970 {
			t.Errorf("%d lines, %q; want 970 events in all", strings.Count(got[0], "\n"), text)
		}
	})

	t.Run("a book's end", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newServer(t)
			b := s.book(t, worksheet())
			for range 4 { // each 5 outages, and their end
				b.Results(all(bad))
				time.Sleep(time.Second)
				b.Results(all(good))
				time.Sleep(time.Second)
			}
			if recorded := s.recorded(t); len(recorded) != 30 {
				t.Errorf("%d events", len(recorded))
			}
			if err := b.close(t); err != nil {
				t.Fatal(err)
			}
			recorded := s.recorded(t)
			lines := strings.Count(strings.Join(recorded, "\n"), "\n") + 1
			if len(recorded) != 34 || lines != 40 { // of two nodes, began and ended
				t.Errorf("%d events with %d lines: %q", len(recorded), lines, recorded)
			}
		})
	})

	t.Run("no limit", func(t *testing.T) {
		r := recorder()
		for i := range 2000 { // 29 in each 30 s
			at := start.Add(time.Duration(i) * 1035 * time.Millisecond)
			r.add(at, one(at, "a", EventOutageDetected))
		}
		if got := collect(r); len(got) != 2000 {
			t.Errorf("got %d events, want 2000", len(got))
		}
	})
}

// An event that the API server created in spite of an error is not created twice. Without the right to create events,
// the error reports that, and the objects are still written.
func TestEventTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		lost := 2
		s.refuse = func(verb, resource, _, _ string) error {
			if resource == "events" && lost > 0 {
				lost--
				return errors.New("http2: server sent GOAWAY")
			}
			return nil
		}
		b := s.book(t, worksheet())
		b.Results(all(bad))
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if recorded := s.recorded(t); len(recorded) != len(allNames) {
			t.Errorf("events: %q", recorded)
		}
		outage := s.status(t, nameAA).Outages[0]
		id := identify(worksheet().Sources[0], worksheet().Targets[0])
		b.events.add(time.Now(), id.detected(outage))
		if !b.events.send(t.Context(), time.Now()) {
			t.Error("an event that already exists is still waiting")
		}
		if recorded := s.recorded(t); len(recorded) != len(allNames) {
			t.Errorf("events: %q", recorded)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		s.refuse = func(verb, resource, _, name string) error {
			if resource == "events" {
				return apierrors.NewForbidden(corev1.Resource("events"), "", errors.New("User \"probe\" cannot "+verb))
			}
			return nil
		}
		b := s.book(t, worksheet())
		b.Results(all(bad))
		time.Sleep(time.Second)
		b.Results(all(good))
		begin := time.Now()
		if err := b.close(t); err == nil || !strings.HasPrefix(err.Error(), "10 events of outages could not be created: create event ") || !apierrors.IsForbidden(err) {
			t.Errorf("error %v", err)
		}
		if took := time.Since(begin); took > 0 {
			t.Errorf("waited %v for a right", took)
		}
		if log := b.log.take(); len(log) != 1 || !strings.HasSuffix(log[0], `User "probe" cannot create; retrying`) {
			t.Errorf("log: %q", log)
		}
		wantReachable(t, s, nameAA, "True TCPConnectSuccess")
	})
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		b, err := Open(t.Context(), Options{Dynamic: s, Namespace: testNamespace, Worksheet: worksheet()})
		if err != nil {
			t.Fatal(err)
		}
		b.Results(all(bad))
		if err := b.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// SPDX-License-Identifier: Apache-2.0

package connectivity

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/crd"
)

// Bodies of results without a time.
var (
	good   = checkup.Result{Delays: checkup.StageDelays{Connect: 241}}
	bad    = checkup.Result{Failure: &checkup.Cause{Stage: checkup.StageConnect, Message: "connection refused"}}
	silent = checkup.Result{Delays: checkup.StageDelays{Connect: 241}, Failure: &checkup.Cause{Stage: checkup.StageHandshake, Message: "accepted, then silent for 5s"}}
)

var errAway = errors.New("dial tcp 10.0.0.1:6443: connect: connection refused")

// opened is a Book that runs.
type opened struct {
	*Book
	log  *lines
	stop func() // ends Run
}

type lines struct {
	mu    sync.Mutex // guards following
	lines []string
}

func (l *lines) logf(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, fmt.Sprintf(format, args...))
}

func (l *lines) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer func() { l.lines = nil }()
	return l.lines
}

// book opens a Book and runs it, until the test ends or it is stopped.
func (s *server) book(t *testing.T, w *checkup.Worksheet) *opened {
	t.Helper()
	log := &lines{}
	b, err := Open(t.Context(), Options{Dynamic: s, Kubernetes: s.events, Namespace: testNamespace, RunUID: "run-1", Worksheet: w, Logf: log.logf})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() { b.Run(ctx) })
	stop := func() { cancel(); group.Wait() }
	t.Cleanup(stop)
	return &opened{Book: b, log: log, stop: stop}
}

// close ends Run and closes the book, with 20 s.
func (b *opened) close(t *testing.T) error {
	t.Helper()
	b.stop()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	return b.Close(ctx)
}

// all returns a result for every pair with a known target.
func all(r checkup.Result) []checkup.Result {
	return []checkup.Result{of(0, 0, r), of(0, 1, r), of(0, 2, r), of(1, 0, r), of(1, 1, r)}
}

func wantReachable(t *testing.T, s *server, name, want string) {
	t.Helper()
	synctest.Wait()
	if got := s.reachable(t, name); got != want {
		t.Errorf("%s: got condition %q, want %q", name, got, want)
	}
}

// Objects, first results and changes are written at once.
func TestTransitionsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		b := s.book(t, worksheet())
		synctest.Wait()
		if diff := cmp.Diff(allNames, s.names(t)); diff != "" {
			t.Errorf("objects (-want +got):\n%s", diff)
		}
		object := s.object(nameAB)
		if diff := cmp.Diff(map[string]any{"sourcePod": "kube-apiserver-a", "targetEndpoint": "10.0.0.2:2379", "tlsClientCert": map[string]any{"name": "etcd-client"}}, object.Object["spec"]); diff != "" {
			t.Errorf("spec (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(ownLabels("day-2", "api"), object.GetLabels()); diff != "" {
			t.Errorf("labels (-want +got):\n%s", diff)
		}
		if owners := object.GetOwnerReferences(); owners != nil {
			t.Errorf("got owners %v, want none: the garbage collector would delete the history", owners)
		}
		if _, ok := s.object(nameAL).Object["spec"].(map[string]any)["tlsClientCert"]; ok {
			t.Error("got a tlsClientCert, want none")
		}

		for _, step := range []struct {
			result checkup.Result
			want   string
		}{
			{good, "True TCPConnectSuccess"},
			{silent, "False TLSHandshakeError"},
			{good, "True TCPConnectSuccess"},
			{bad, "False TCPConnectError"},
		} {
			time.Sleep(300 * time.Millisecond)
			b.Results(all(step.result))
			for _, name := range allNames {
				wantReachable(t, s, name, step.want)
			}
		}
		if got := b.log.take(); len(got) > 0 {
			t.Errorf("got log %q, want none", got)
		}
	})
}

// Results that change no condition are written after 30 s or 20 results.
func TestSteadyState(t *testing.T) {
	for _, test := range []struct {
		interval time.Duration
		want     []int // seconds at which the object is written, of the first 100
	}{
		{time.Second, []int{0, 20, 40, 60, 80}},
		{10 * time.Second, []int{0, 30, 60, 90}},
	} {
		t.Run(test.interval.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServer(t)
				b := s.book(t, worksheet())
				begin := time.Now()
				var got []int
				for time.Since(begin) < 100*time.Second {
					if time.Since(begin)%test.interval == 0 {
						b.Results([]checkup.Result{of(0, 0, good)})
					}
					synctest.Wait()
					if slices.Contains(s.take(), "status "+nameAA) {
						got = append(got, int(time.Since(begin).Seconds()))
					}
					time.Sleep(time.Second)
				}
				if diff := cmp.Diff(test.want, got); diff != "" {
					t.Errorf("written at (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// While the API server is unavailable, no result is lost; each is written once when it is available again.
func TestAPIServerAway(t *testing.T) {
	for name, trouble := range map[string]error{
		"no connection":  errAway,
		"starting":       apierrors.NewNotFound(Resource.GroupResource(), ""), // the CRD is not served yet
		"without roles":  apierrors.NewForbidden(Resource.GroupResource(), "", errors.New("RBAC: role.rbac.authorization.k8s.io \"probe\" not found")),
		"too many":       apierrors.NewTooManyRequests("slow down", 1),
		"shutting down":  apierrors.NewServiceUnavailable("apiserver is shutting down"),
		"etcd times out": apierrors.NewInternalError(errors.New("etcdserver: request timed out")),
		"expired token":  apierrors.NewUnauthorized("token has expired"), // and is renewed
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServer(t)
				b := s.book(t, worksheet())
				b.Results(all(good))
				synctest.Wait()
				s.take()

				s.setTrouble(trouble)
				var outages []time.Time
				for i := range 120 {
					time.Sleep(time.Second)
					switch {
					case i%40 == 10:
						outages = append(outages, time.Now())
						b.Results(all(bad))
					case i%40 > 10 && i%40 < 20:
						b.Results(all(bad))
					default:
						b.Results(all(good))
					}
				}
				synctest.Wait()
				if writes := s.take(); len(writes) > 0 {
					t.Fatalf("got writes %q, want none", writes)
				}
				s.setTrouble(nil)
				time.Sleep(retryMost)
				synctest.Wait()

				for _, name := range allNames {
					status := s.status(t, name)
					var got []time.Time
					for _, o := range slices.Backward(status.Outages) {
						got = append(got, o.Start.UTC())
						if d := o.End.Sub(o.Start.Time); d != 10*time.Second {
							t.Errorf("got an outage of %v", d)
						}
					}
					if diff := cmp.Diff(outages, got); diff != "" {
						t.Errorf("%s: outages (-want +got):\n%s", name, diff)
					}
				}
				writes := slices.DeleteFunc(s.take(), func(w string) bool { return strings.HasPrefix(w, "apply ") })
				if len(writes) != len(allNames) {
					t.Errorf("%d writes for %d objects: %q", len(writes), len(allNames), writes)
				}
				if recorded, want := s.recorded(t), 2*3*len(allNames); len(recorded) != want {
					t.Errorf("%d events, want %d: %q", len(recorded), want, recorded)
				}
				log := b.log.take()
				log = slices.DeleteFunc(log, func(l string) bool { return strings.HasPrefix(l, "create event ") })
				if len(log) != 2 || !strings.Contains(log[0], "results are kept and written when the API server is available again") || log[1] != "writing PodNetworkConnectivityChecks succeeds again" {
					t.Errorf("log: %q", log)
				}
			})
		})
	}
}

// Close writes all unwritten results. It waits for an unavailable API server until its context ends.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		b := s.book(t, worksheet())
		b.Results(all(good))
		synctest.Wait()
		time.Sleep(3 * time.Second)
		last := time.Now()
		b.Results(all(good))
		if err := b.close(t); err != nil {
			t.Fatal(err)
		}
		for _, name := range allNames {
			status := s.status(t, name)
			if got := newest(&status); !got.Equal(last) {
				t.Errorf("%s: got last result at %v, want %v", name, got, last)
			}
		}

		b = s.book(t, worksheet())
		s.setTrouble(errAway)
		b.Results(all(bad))
		time.Sleep(time.Second)
		begin := time.Now()
		err := b.close(t)
		if want := "5 of 5 PodNetworkConnectivityChecks could not be written: write the status of PodNetworkConnectivityCheck "; err == nil || !strings.HasPrefix(err.Error(), want) || !errors.Is(err, errAway) {
			t.Errorf("got error %v, want %q...", err, want)
		}
		if took := time.Since(begin); took != 20*time.Second {
			t.Errorf("gave up after %v", took)
		}

		b = s.book2(t) // the API server comes back in time
		b.Results(all(bad))
		go func() { time.Sleep(10 * time.Second); s.setTrouble(nil) }()
		if err := b.close(t); err != nil {
			t.Fatal(err)
		}
		wantReachable(t, s, nameBB, "False TCPConnectError")
	})
}

// book2 opens a book on a server on which only writes fail.
func (s *server) book2(t *testing.T) *opened {
	t.Helper()
	s.setTrouble(nil)
	b := s.book(t, worksheet())
	b.stop()
	s.setTrouble(errAway)
	return b
}

// A pair without results becomes Unknown, with the known cause.
func TestUnknown(t *testing.T) {
	condition := func(t *testing.T, s *server, name string) string {
		status := s.status(t, name)
		c := reachable(&status)
		return fmt.Sprintf("%s %s %s", c.Status, c.Reason, c.Message)
	}
	cause := func(stage checkup.Stage, message string) *checkup.Cause {
		return &checkup.Cause{Stage: stage, Message: message}
	}
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		w := worksheet()
		b := s.book(t, w)
		first := time.Now()
		b.Results([]checkup.Result{of(0, 0, good), of(0, 1, bad), of(0, 2, good)})

		// At once, if the source has failed.
		b.Source(checkup.Source{Source: 1, Cause: cause(checkup.StageSchedule, "0/3 nodes are available")})
		time.Sleep(time.Second)
		synctest.Wait()
		if want, got := "Unknown SourceNotReporting etcd-server-a: no result: schedule: 0/3 nodes are available", condition(t, s, nameBA); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}

		// After staleAfter without a result.
		time.Sleep(9 * time.Minute)
		b.Results([]checkup.Result{of(0, 2, good)})
		b.Results([]checkup.Result{{Pair: checkup.Pair{Source: 0, Target: 1}, At: time.Now(), Unmeasured: cause(checkup.StageSelf, "held up")}})
		time.Sleep(58 * time.Second)
		wantReachable(t, s, nameAA, "True TCPConnectSuccess")
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if want, got := "Unknown NoRecentResult etcd-server-a: no result for 10m0s", condition(t, s, nameAA); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		if want, got := "Unknown NotMeasured etcd-server-b: no result for 10m0s: self: held up", condition(t, s, nameAB); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		wantReachable(t, s, nameAL, "True TCPConnectSuccess")
		if status := s.status(t, nameAA); !reachable(&status).LastTransitionTime.Time.Equal(first.Add(10 * time.Minute)) {
			t.Errorf("got Unknown since %v", reachable(&status).LastTransitionTime)
		}

		// The condition does not change until the next result. An outage continues meanwhile.
		s.take()
		time.Sleep(5 * time.Minute)
		if writes := s.take(); len(writes) > 0 {
			t.Errorf("wrote %q", writes)
		}
		b.Results([]checkup.Result{of(0, 0, good), of(0, 1, good)})
		wantReachable(t, s, nameAA, "True TCPConnectSuccess")
		wantReachable(t, s, nameAB, "True TCPConnectSuccess")
		if status := s.status(t, nameAB); len(status.Outages) != 1 || !status.Outages[0].End.Time.Equal(time.Now()) {
			t.Errorf("outages %+v", status.Outages)
		}
		if err := b.close(t); err != nil {
			t.Fatal(err)
		}

		// At the end of a run, pairs without a result.
		time.Sleep(6 * time.Hour)
		b = s.book(t, w)
		b.Observation(checkup.Observation{Pair: checkup.Pair{Source: 0, Target: 1}, Unmeasured: cause(checkup.StageSetup, "Secret etcd-client has no tls.key")})
		b.Observation(checkup.Observation{Pair: checkup.Pair{Source: 0, Target: 0}, Sent: 1, Received: 1}) // says nothing
		b.Results([]checkup.Result{of(0, 2, good)})
		synctest.Wait()
		wantReachable(t, s, nameAA, "True TCPConnectSuccess")
		wantReachable(t, s, nameAB, "Unknown NotMeasured")
		time.Sleep(time.Minute)
		if err := b.close(t); err != nil {
			t.Fatal(err)
		}
		if want, got := "Unknown NoRecentResult etcd-server-a: no result since this run began to measure at 2000-01-01T06:15:01Z; the last result is from 2000-01-01T00:15:01Z", condition(t, s, nameAA); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		if want, got := "Unknown NotMeasured etcd-server-b: no result since this run began to measure at 2000-01-01T06:15:01Z; the last result is from 2000-01-01T00:15:01Z: setup: Secret etcd-client has no tls.key", condition(t, s, nameAB); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		if want, got := "Unknown NoRecentResult etcd-server-a: no result", condition(t, s, nameBA); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		wantReachable(t, s, nameAL, "True TCPConnectSuccess")
	})
}

// A source that is not scheduled is known before anything is measured.
func TestSourceWithoutNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		w := worksheet()
		w.Sources[1].Node = ""
		w.Sources[1].Cause = &checkup.Cause{Stage: checkup.StageSetup, Message: "the pod has no node"}
		b := s.book(t, w)
		b.Results(all(good)[:3])
		if err := b.close(t); err != nil {
			t.Fatal(err)
		}
		status := s.status(t, nameBA)
		if c := reachable(&status); c.Reason != ReasonSourceNotReporting || c.Message != "etcd-server-a: no result: setup: the pod has no node" {
			t.Errorf("condition %+v", c)
		}
	})
}

// If the interval is longer than staleAfter, a pair becomes Unknown after three intervals.
func TestStaleAfterIntervals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		w := worksheet()
		w.Probes[0].Interval = checkup.Duration(5 * time.Minute)
		b := s.book(t, w)
		b.Results(all(good))
		time.Sleep(15*time.Minute - time.Second)
		wantReachable(t, s, nameAA, "True TCPConnectSuccess")
		time.Sleep(2 * time.Second)
		wantReachable(t, s, nameAA, "Unknown NoRecentResult")
	})
}

// Changes by others to our objects are corrected; objects of others are not changed.
func TestOthers(t *testing.T) {
	t.Run("deleted", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newServer(t)
			b := s.book(t, worksheet())
			b.Results(all(bad))
			synctest.Wait()
			if err := s.Resource(Resource).Namespace(testNamespace).Delete(t.Context(), nameAB, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			b.Results(all(good))
			wantReachable(t, s, nameAB, "True TCPConnectSuccess")
			if status := s.status(t, nameAB); len(status.Outages) != 1 {
				t.Errorf("the history is lost: %+v", status)
			}
		})
	})
	t.Run("changed", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newServer(t)
			b := s.book(t, worksheet())
			b.Results(all(bad))
			synctest.Wait()
			other := metav1.ApplyOptions{FieldManager: "other", Force: true}
			objects := s.Resource(Resource).Namespace(testNamespace)
			changed := etcd.object(testNamespace, map[string]string{"team": "net", checkup.LabelCheck: "mine"}, nil)
			changed.SetName(nameAB)
			changed.Object["spec"].(map[string]any)["targetEndpoint"] = "10.9.9.9:2379"
			if _, err := objects.Apply(t.Context(), nameAB, changed, other); err != nil {
				t.Fatal(err)
			}
			status := foldAll(etcd, passed(0))
			if _, err := objects.ApplyStatus(t.Context(), nameAB, statusConfiguration(testNamespace, nameAB, status), other); err != nil {
				t.Fatal(err)
			}
			for range 60 {
				time.Sleep(time.Second)
				b.Results(all(bad))
			}
			wantReachable(t, s, nameAB, "False TCPConnectError")
			object := s.object(nameAB)
			if endpoint, _, _ := unstructured.NestedString(object.Object, "spec", "targetEndpoint"); endpoint != "10.0.0.2:2379" {
				t.Errorf("endpoint %s", endpoint)
			}
			want := ownLabels("day-2", "api")
			want["team"] = "net" // not ours to remove
			if diff := cmp.Diff(want, object.GetLabels()); diff != "" {
				t.Errorf("labels (-want +got):\n%s", diff)
			}
		})
	})
	t.Run("of others", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newServer(t)
			objects := s.Resource(Resource).Namespace(testNamespace)
			for name, labels := range map[string]map[string]string{
				nameAA: {"networking.openshift.io/managedBy": "oc-connectivity-check-controller"},
				nameAB: {checkup.LabelManagedBy: "another"},
				nameAL: {},
			} {
				foreign := etcd.object(testNamespace, labels, nil)
				foreign.SetName(name)
				if _, err := objects.Apply(t.Context(), name, foreign, metav1.ApplyOptions{FieldManager: "other"}); err != nil {
					t.Fatal(err)
				}
			}
			s.take()
			b := s.book(t, worksheet())
			b.Results(all(good))
			if err := b.close(t); err != nil {
				t.Fatal(err)
			}
			for _, w := range s.take() {
				if !strings.HasSuffix(w, nameBA) && !strings.HasSuffix(w, nameBB) {
					t.Errorf("wrote %q", w)
				}
			}
			want := []string{
				"PodNetworkConnectivityCheck for kube-apiserver-a to etcd-server-a is not written: the object " + nameAA + " belongs to oc-connectivity-check-controller",
				"PodNetworkConnectivityCheck for kube-apiserver-a to etcd-server-b is not written: the object " + nameAB + " belongs to another",
				"PodNetworkConnectivityCheck for kube-apiserver-a to load-balancer-api-external is not written: the object " + nameAL + " belongs to someone else",
			}
			if diff := cmp.Diff(want, b.log.take()); diff != "" {
				t.Errorf("log (-want +got):\n%s", diff)
			}
		})
	})
	t.Run("of another check", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newServer(t)
			first := s.book(t, worksheet())
			first.Results(all(bad))
			if err := first.close(t); err != nil {
				t.Fatal(err)
			}
			w := worksheet()
			w.Plan = "other-plan"
			second := s.book(t, w)
			second.Results(all(good))
			if err := second.close(t); err != nil {
				t.Fatal(err)
			}
			status, err := statusOf(s.object(nameAA))
			if err != nil {
				t.Fatal(err)
			}
			if s.object(nameAA).GetLabels()[checkup.LabelPlan] != "other-plan" || len(status.Failures) == 0 || len(status.Successes) == 0 {
				t.Errorf("the pair's history does not continue under the other plan: %+v", s.object(nameAA))
			}
		})
	})
	t.Run("of the same name", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newServer(t)
			w := worksheet()
			w.Targets[1] = w.Targets[0]
			b := s.book(t, w)
			b.Results(all(good))
			synctest.Wait()
			if diff := cmp.Diff([]string{nameAA, nameAL, nameBA}, s.names(t)); diff != "" {
				t.Errorf("objects (-want +got):\n%s", diff)
			}
			if log := b.log.take(); len(log) != 2 {
				t.Errorf("log: %q", log)
			}
		})
	})
	t.Run("unreadable", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newServer(t)
			objects := s.Resource(Resource).Namespace(testNamespace)
			object := etcd.object(testNamespace, ownLabels("day-2", "api"), nil)
			object.SetName(nameAA)
			if _, err := objects.Apply(t.Context(), nameAA, object, metav1.ApplyOptions{FieldManager: "checkplan"}); err != nil {
				t.Fatal(err)
			}
			broken := apply(testNamespace, nameAA)
			broken.Object["status"] = map[string]any{"successes": []any{map[string]any{"time": "yesterday", "success": true}}}
			if _, err := objects.ApplyStatus(t.Context(), nameAA, broken, metav1.ApplyOptions{FieldManager: "checkplan"}); err != nil {
				t.Fatal(err)
			}
			b := s.book(t, worksheet())
			b.Results(all(good))
			wantReachable(t, s, nameAA, "True TCPConnectSuccess")
			if log := b.log.take(); len(log) != 1 || !strings.HasPrefix(log[0], "cannot read the history of "+nameAA+", which starts again: ") {
				t.Errorf("log: %q", log)
			}
		})
	})
}

// The object of a pair continues when its target gets another address, or its source another pod.
func TestAddressAndPodChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		b := s.book(t, worksheet())
		b.Results(all(bad))
		if err := b.close(t); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		w := worksheet()
		w.Targets[1].Peer.Host = "10.0.0.22"
		w.Sources[0].Pod = "kube-system/apiserver-7d9f-x2x4k"
		b = s.book(t, w)
		b.Results(all(good))
		synctest.Wait()
		if spec := s.object(nameAB).Object["spec"].(map[string]any); spec["targetEndpoint"] != "10.0.0.22:2379" || spec["sourcePod"] != "apiserver-7d9f-x2x4k" {
			t.Errorf("spec %v", spec)
		}
		if status := s.status(t, nameAB); len(status.Outages) != 1 || status.Outages[0].End.Sub(status.Outages[0].Start.Time) != time.Hour {
			t.Errorf("outages %+v", status.Outages)
		}
	})
}

// A retried probe task receives all results again; objects and events are as if it had received them once.
func TestRetryOfTheTask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		var results []checkup.Result
		send := func(b *opened, n int) {
			for range n {
				r := good
				if len(results)%30 > 20 {
					r = bad
				}
				results = append(results, of(0, 1, r))
				b.Results(results[len(results)-1:])
				time.Sleep(time.Second)
			}
		}
		b := s.book(t, worksheet())
		send(b, 100)
		b.stop() // killed: nothing more is written
		b = s.book(t, worksheet())
		b.Results(results)
		send(b, 50)
		if err := b.close(t); err != nil {
			t.Fatal(err)
		}
		id := identify(worksheet().Sources[0], worksheet().Targets[1])
		want, got := foldAll(id, results...), s.status(t, nameAB)
		if diff := cmp.Diff(*want, got); diff != "" {
			t.Errorf("(-one try +two tries):\n%s", diff)
		}
		outages := checkup.Outages(results)
		events := 0
		for _, o := range outages {
			events++
			if !o.End.IsZero() {
				events++
			}
		}
		if recorded := s.recorded(t); len(recorded) != events {
			t.Errorf("got %d events for %d outages: %q", len(recorded), len(outages), recorded)
		}
	})
}

// An object that the API server rejects does not delay the others. It is retried, and once more at the end.
func TestRefused(t *testing.T) {
	refuse := func(_, _, _, name string) error {
		if name == nameBA || name == nameBB {
			return apierrors.NewInvalid(schema.GroupKind{Group: Group, Kind: Kind}, name, nil)
		}
		return nil
	}
	synctest.Test(t, func(t *testing.T) { // forbidden may be a starting API server: Close waits for it
		s := newServer(t)
		b := s.book(t, worksheet())
		b.Results(all(good))
		synctest.Wait()
		s.setTrouble(apierrors.NewForbidden(Resource.GroupResource(), "", errors.New("no role")))
		time.Sleep(time.Second)
		b.Results(all(bad))
		begin := time.Now()
		if err := b.close(t); !apierrors.IsForbidden(err) {
			t.Errorf("error %v", err)
		}
		if took := time.Since(begin); took < forbidden || took > 2*forbidden {
			t.Errorf("waited %v", took)
		}
	})
	for _, mended := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			s := newServer(t)
			s.refuse = refuse
			b := s.book(t, worksheet())
			b.Results(all(good))
			wantReachable(t, s, nameAA, "True TCPConnectSuccess")
			time.Sleep(5*time.Minute + time.Second)
			if log := b.log.take(); len(log) != 2 || !strings.Contains(log[0], "is invalid") || !strings.HasSuffix(log[0], "; retried every 1m0s") {
				t.Errorf("log: %q", log)
			}
			if mended {
				s.mu.Lock()
				s.refuse = nil
				s.mu.Unlock()
			}
			err := b.close(t)
			switch {
			case mended && err != nil:
				t.Error(err)
			case mended:
				wantReachable(t, s, nameBB, "True TCPConnectSuccess")
			case err == nil || !strings.HasPrefix(err.Error(), "2 of 5 PodNetworkConnectivityChecks could not be written: "):
				t.Errorf("error %v", err)
			}
		})
	}
}

// One object that cannot be written, for a reason that may pass, does not keep the others from being written.
func TestOneObjectFails(t *testing.T) {
	resource := Resource.GroupResource()
	for name, failure := range map[string]error{
		"quota":     apierrors.NewForbidden(resource, nameAA, errors.New("exceeded quota: objects")),
		"forbidden": apierrors.NewForbidden(resource, nameAA, errors.New("no role")),
		"internal":  apierrors.NewInternalError(errors.New("webhook: no endpoints available")),
		"timeout":   context.DeadlineExceeded,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServer(t)
				s.refuse = func(_, _, _, name string) error {
					if name == nameAA {
						return failure
					}
					return nil
				}
				b := s.book(t, worksheet())
				for i := range 180 { // three minutes; the condition changes every minute
					r := good
					if i/60%2 == 1 {
						r = bad
					}
					b.Results(all(r))
					time.Sleep(time.Second)
					if want := s.reachable(t, nameAB); i%60 == 59 && want != s.reachable(t, nameBB) {
						t.Errorf("after %d s: %s and %s differ", i, nameAB, nameBB)
					}
				}
				for _, name := range allNames[1:] {
					wantReachable(t, s, name, "True TCPConnectSuccess")
				}
				b.Results(all(bad))
				err := b.close(t)
				if err == nil || !strings.HasPrefix(err.Error(), "1 of 5 PodNetworkConnectivityChecks could not be written: ") {
					t.Errorf("error %v", err)
				}
				for _, name := range allNames[1:] {
					wantReachable(t, s, name, "False TCPConnectError")
				}
			})
		})
	}
}

// The results of a node whose clock is wrong get the time of their arrival: a clock that went back hides no outage, and
// one that is ahead does not displace the results after it.
func TestWrongClock(t *testing.T) {
	for name, by := range map[string]time.Duration{"two hours behind": -2 * time.Hour, "years ahead": 73 * 365 * 24 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServer(t)
				first := s.book(t, worksheet())
				send := func(b *opened, r checkup.Result, by time.Duration) {
					for range 30 {
						r := of(0, 0, r)
						r.At = r.At.Add(by)
						b.Results([]checkup.Result{r})
						time.Sleep(time.Second)
					}
				}
				send(first, good, 0)
				if err := first.close(t); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Hour)

				b := s.book(t, worksheet())
				send(b, bad, by)
				wantReachable(t, s, nameAA, "False TCPConnectError")
				if log := b.log.take(); len(log) != 1 || !strings.Contains(log[0], "the clock of source 0 is wrong by ") {
					t.Errorf("log: %q", log)
				}
				send(b, good, 0) // the clock is set right
				wantReachable(t, s, nameAA, "True TCPConnectSuccess")
				status := s.status(t, nameAA)
				if last := newest(&status); last.After(time.Now()) || time.Since(last) > time.Minute {
					t.Errorf("the newest result is from %v, now is %v", last, time.Now())
				}
				if len(status.Outages) != 1 || status.Outages[0].End.IsZero() {
					t.Errorf("outages: %v, want one that has ended", status.Outages)
				}
				time.Sleep(11 * time.Minute)
				wantReachable(t, s, nameAA, "Unknown NoRecentResult")
			})
		})
	}
}

// A history that a clock from the future wrote ages like any other.
func TestHistoryFromTheFuture(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		status := foldAll(identify(worksheet().Sources[0], worksheet().Targets[0]), checkup.Result{
			At: time.Now().AddDate(73, 0, 0), Delays: good.Delays,
		})
		upTo(time.Now(), status)
		if last := newest(status); last.After(time.Now()) {
			t.Errorf("the newest entry is from %v", last)
		}
		if at := reachable(status).LastTransitionTime; at.After(time.Now()) {
			t.Errorf("the condition is from %v", at)
		}
	})
}

func TestOpenErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		options := Options{Dynamic: s, Namespace: testNamespace, Worksheet: worksheet()}
		s.refuse = func(verb, _, _, _ string) error {
			return apierrors.NewForbidden(Resource.GroupResource(), "", errors.New("User \"probe\" cannot "+verb))
		}
		begin := time.Now()
		if _, err := Open(t.Context(), options); err == nil || !strings.HasPrefix(err.Error(), "list PodNetworkConnectivityChecks in namespace checks: ") || !apierrors.IsForbidden(err) {
			t.Errorf("error %v", err)
		}
		if took := time.Since(begin); took > 5*time.Second {
			t.Errorf("got a wait of %v for a missing right", took)
		}

		s.refuse = nil
		s.setTrouble(errAway)
		if _, err := Open(t.Context(), options); !errors.Is(err, errAway) {
			t.Errorf("error %v", err)
		}
		if took := time.Since(begin); took > 2*time.Minute {
			t.Errorf("gave up after %v", took)
		}
		go func() { time.Sleep(5 * time.Second); s.setTrouble(nil) }()
		if _, err := Open(t.Context(), options); err != nil {
			t.Error(err)
		}

		options.Worksheet.Connections = nil
		if _, err := Open(t.Context(), options); err == nil || err.Error() != "check api has no connections: cannot write PodNetworkConnectivityChecks" {
			t.Errorf("error %v", err)
		}
	})
}

// many has n targets for one source.
func many(n int) *checkup.Worksheet {
	w := worksheet()
	w.Sources, w.Targets, w.Assignments = w.Sources[:1], nil, [][]int{nil}
	for i := range n {
		w.Targets = append(w.Targets, checkup.Endpoint{Label: fmt.Sprintf("kubelet-%d", i), Peer: &checkup.Peer{Host: fmt.Sprintf("10.1.%d.%d", i/250, i%250), Port: 10250, Family: checkup.IPv4, Transport: checkup.TLS}})
		w.Assignments[0] = append(w.Assignments[0], i)
	}
	return w
}

// With any number of pairs, the limit on requests holds, and changed pairs do not wait behind unchanged ones.
func TestRate(t *testing.T) {
	const pairs = 1000
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		s.plain = map[string]*unstructured.Unstructured{}
		b := s.book(t, many(pairs))
		every := func(r checkup.Result) {
			results := make([]checkup.Result, pairs)
			for i := range results {
				results[i] = of(0, i, r)
			}
			b.Results(results)
		}
		// second returns the writes of a status of the second that it lasts.
		second := func() (n int) {
			time.Sleep(time.Second)
			for _, w := range s.take() {
				if strings.HasPrefix(w, "status ") {
					n++
				}
			}
			return n
		}

		every(good)
		most, sum := 0, 0
		for range pairs/crd.PerSecond + 1 {
			n := second()
			most, sum = max(most, n), sum+n
		}
		if most > crd.Burst+crd.PerSecond || sum != pairs {
			t.Errorf("first results: got up to %d writes per second, %d in total", most, sum)
		}

		const seconds, cycle = 100, pairs / steadyPerSecond
		changed := "kube-apiserver-a-to-kubelet-7-10250"
		most, sum = 0, 0
		for i := range seconds {
			every(good) // which ends an outage
			want := "True TCPConnectSuccess"
			if i%10 == 5 {
				time.Sleep(time.Millisecond)
				b.Results([]checkup.Result{of(0, 7, bad)})
				want = "False TCPConnectError"
			}
			n := second()
			most, sum = max(most, n), sum+n
			if got := s.reachable(t, changed); got != want {
				t.Errorf("a second after it changed, %s is still %q", changed, got)
			}
		}
		if limit := pairs*(seconds/cycle+1) + 2*seconds/10; most > crd.Burst+crd.PerSecond || sum > limit {
			t.Errorf("steady: got up to %d writes per second, %d in %d s, want at most %d", most, sum, seconds, limit)
		}
		for i := range pairs {
			status := s.status(t, fmt.Sprintf("kube-apiserver-a-to-kubelet-%d-10250", i))
			if age := time.Since(newest(&status)); age > (cycle+2)*time.Second {
				t.Fatalf("the newest result of pair %d that was written is %v old", i, age)
			}
		}
	})
}

// A result with a delay that cannot be is not entered: it would be written as -1µs.
func TestImpossibleDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		b := s.book(t, worksheet())
		r := of(0, 0, good)
		r.Delays.Connect = math.MaxInt64
		b.Results([]checkup.Result{r})
		if err := b.close(t); err != nil {
			t.Fatal(err)
		}
		wantReachable(t, s, nameAA, "Unknown NotMeasured")
		if status := s.status(t, nameAA); len(status.Successes) > 0 {
			t.Errorf("entered: %v", status.Successes)
		}
	})
}

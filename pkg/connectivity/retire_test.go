// SPDX-License-Identifier: Apache-2.0

package connectivity

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// The object of a pair that is no longer expected keeps its history, becomes Unknown after staleAfter, and is deleted
// after retention. The object of an expected pair is never deleted.
func TestRetire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		w := worksheet()
		b := s.book(t, w)
		b.Results(all(bad)[:4]) // none for the pair BB
		time.Sleep(time.Second)
		b.Results(all(good)[:4])
		if err := b.close(t); err != nil {
			t.Fatal(err)
		}
		foreign := etcd.object(testNamespace, ownLabels("other-plan", "api"), nil)
		foreign.SetName("foreign")
		foreign.Object["spec"].(map[string]any)["targetEndpoint"] = "10.0.0.2:9999"
		if _, err := s.Resource(Resource).Namespace(testNamespace).Apply(t.Context(), "foreign", foreign, metav1.ApplyOptions{FieldManager: "other"}); err != nil {
			t.Fatal(err)
		}
		last := time.Now()
		gone := worksheet()
		gone.Targets[1].Peer = nil // etcd b was removed
		retire := func(started time.Time) int {
			t.Helper()
			n, err := Retire(t.Context(), RetireOptions{Dynamic: s, Namespace: testNamespace, Worksheets: []*checkup.Worksheet{gone}, Started: started})
			if err != nil {
				t.Error(err)
			}
			return n
		}
		everything := []string{"foreign", nameAA, nameAB, nameAL, nameBA, nameBB}

		time.Sleep(5 * time.Minute) // too early for anything
		s.take()
		if n := retire(time.Now()); n != 0 || len(s.take()) != 0 {
			t.Errorf("deleted %d, wrote %q", n, s.take())
		}

		time.Sleep(5 * time.Minute) // staleAfter: unexpected pairs, and pairs that this run did not measure
		if n := retire(last); n != 0 {
			t.Errorf("deleted %d", n)
		}
		if diff := cmp.Diff([]string{"status " + nameAB}, s.take()); diff != "" {
			t.Errorf("writes (-want +got):\n%s", diff)
		}
		wantReachable(t, s, nameAA, "True TCPConnectSuccess")
		wantReachable(t, s, nameAB, "Unknown NoRecentResult")
		status := s.status(t, nameAB)
		if want, got := "etcd-server-b: no result since 2000-01-01T00:00:01Z; the pair is no longer expected", reachable(&status).Message; got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		if len(status.Outages) != 1 || len(status.Successes) != 1 || len(status.Failures) != 1 {
			t.Errorf("history is lost: %+v", status)
		}
		retire(last)
		if writes := s.take(); len(writes) != 0 {
			t.Errorf("got repeated writes %q, want none", writes)
		}

		time.Sleep(time.Hour) // a run whose probe task never ran
		if n := retire(time.Now()); n != 0 {
			t.Errorf("deleted %d", n)
		}
		wantReachable(t, s, nameAA, "Unknown NoRecentResult")
		wantReachable(t, s, nameBA, "Unknown NoRecentResult")
		if diff := cmp.Diff(everything, s.names(t)); diff != "" {
			t.Errorf("objects (-want +got):\n%s", diff)
		}

		time.Sleep(time.Hour) // retention
		if n := retire(time.Now()); n != 2 {
			t.Errorf("deleted %d, want 2", n)
		}
		if diff := cmp.Diff([]string{"foreign", nameAA, nameAL, nameBA}, s.names(t)); diff != "" {
			t.Errorf("objects (-want +got):\n%s", diff)
		}

		time.Sleep(240 * time.Hour)
		if n := retire(time.Now()); n != 0 {
			t.Errorf("deleted %d", n)
		}
	})
}

// The objects of a plan that no longer runs age by their own annotations, in the next run of any plan. They are deleted
// late, because that plan may run again.
func TestRetireOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		old := worksheet()
		old.Plan = "weekly"
		old.Connections.Checks.StaleAfter = checkup.Duration(20 * time.Minute)
		old.Connections.Checks.Retention = checkup.Duration(24 * time.Hour)
		b := s.book(t, old)
		b.Results(all(good))
		if err := b.close(t); err != nil {
			t.Fatal(err)
		}
		w := worksheet()
		w.Assignments = [][]int{{0}, {}}
		for _, step := range []struct {
			after   time.Duration
			want    string
			deleted int
		}{
			{15 * time.Minute, "True TCPConnectSuccess", 0},
			{10 * time.Minute, "Unknown NoRecentResult", 0},
			{22 * time.Hour, "Unknown NoRecentResult", 0},
			{3 * time.Hour, "Unknown NoRecentResult", 0}, // its retention
			{34 * 24 * time.Hour, "", 4},
		} {
			time.Sleep(step.after)
			n, err := Retire(t.Context(), RetireOptions{Dynamic: s, Namespace: testNamespace, Worksheets: []*checkup.Worksheet{w}, Started: time.Now()})
			if err != nil {
				t.Fatal(err)
			}
			if n != step.deleted {
				t.Errorf("after %v: deleted %d, want %d", step.after, n, step.deleted)
			}
			if step.want != "" {
				wantReachable(t, s, nameAB, step.want)
			}
		}
	})
}

// A pair is expected if any check of the plan expects it: two checks keep the objects of each other.
func TestRetireTwoChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		b := s.book(t, worksheet())
		b.Results(all(good))
		if err := b.close(t); err != nil {
			t.Fatal(err)
		}
		other := worksheet()
		other.Check, other.Assignments = "db", [][]int{{0}, {}}
		api := worksheet()
		api.Assignments = [][]int{{1, 2}, {0, 1}} // what db expects is not listed here
		time.Sleep(3 * time.Hour)
		for _, sheets := range [][]*checkup.Worksheet{{other, api}, {other}} { // the second: the worksheet of api cannot be read
			n, err := Retire(t.Context(), RetireOptions{Dynamic: s, Namespace: testNamespace, Worksheets: sheets, Started: time.Now()})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(allNames, s.names(t)); diff != "" || n != 0 {
				t.Errorf("deleted %d, objects (-want +got):\n%s", n, diff)
			}
			wantReachable(t, s, nameBA, "Unknown NoRecentResult")
		}
	})
}

// An object that a run wrote in the meantime is neither deleted nor overwritten.
func TestRetireRaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		b := s.book(t, worksheet())
		b.Results(all(good))
		if err := b.close(t); err != nil {
			t.Fatal(err)
		}
		objects := s.Resource(Resource).Namespace(testNamespace)
		stale, err := objects.Get(t.Context(), nameAA, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Minute)
		b = s.book(t, worksheet())
		b.Results(all(good))
		if err := b.close(t); err != nil {
			t.Fatal(err)
		}
		s.take()
		for _, retention := range []time.Duration{time.Minute, time.Hour} { // to delete, and to be Unknown
			checks := checkup.ConnectivityChecks{Retention: checkup.Duration(retention), StaleAfter: checkup.Duration(time.Minute)}
			deleted, err := retire(t.Context(), objects, stale, unexpected, checks, time.Now(), time.Now())
			if deleted || err != nil {
				t.Errorf("deleted %v, error %v", deleted, err)
			}
		}
		if writes := s.take(); len(writes) != 0 {
			t.Errorf("wrote %q", writes)
		}
		wantReachable(t, s, nameAA, "True TCPConnectSuccess")
	})
}

// An error with one object does not stop the others.
func TestRetireErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		b := s.book(t, worksheet())
		b.Results(all(good))
		if err := b.close(t); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Hour)
		w := worksheet()
		w.Assignments = [][]int{nil, nil} // nothing is expected
		o := RetireOptions{Dynamic: s, Namespace: testNamespace, Worksheets: []*checkup.Worksheet{w}, Started: time.Now()}
		s.refuse = func(verb, _, _, name string) error {
			if verb == "delete" && name == nameAB {
				return apierrors.NewForbidden(Resource.GroupResource(), name, errors.New("User \"conclude\" cannot delete"))
			}
			return nil
		}
		n, err := Retire(t.Context(), o)
		if n != len(allNames)-1 || err == nil || !strings.HasPrefix(err.Error(), "delete PodNetworkConnectivityCheck "+nameAB+": ") {
			t.Errorf("deleted %d, error %v", n, err)
		}
		s.setTrouble(errAway)
		if n, err := Retire(t.Context(), o); n != 0 || !errors.Is(err, errAway) || !strings.HasPrefix(err.Error(), "list PodNetworkConnectivityChecks in namespace checks: ") {
			t.Errorf("deleted %d, error %v", n, err)
		}
		o.Worksheets = []*checkup.Worksheet{{}} // of another kind
		if n, err := Retire(t.Context(), o); n != 0 || err != nil {
			t.Errorf("deleted %d, error %v", n, err)
		}
	})
}

func TestTargetLabel(t *testing.T) {
	u := etcd.object(testNamespace, nil, nil)
	if got := targetLabel(u); got != etcd.label {
		t.Errorf("annotated: got %q, want %q", got, etcd.label)
	}
	u.SetAnnotations(nil) // written by an older checkplan
	if got := targetLabel(u); got != etcd.endpoint {
		t.Errorf("not annotated: got %q, want %q", got, etcd.endpoint)
	}
}

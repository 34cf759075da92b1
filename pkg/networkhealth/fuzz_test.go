// SPDX-License-Identifier: Apache-2.0

package networkhealth

import (
	"encoding/json"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// FuzzExisting: whatever objects exist that the API server accepts, a run reads them without a panic, and writes and
// ages only objects that the API server accepts.
func FuzzExisting(f *testing.F) {
	m := newMesh("a", "b")
	m.dead[[2]int{0, 1}] = true
	for _, w := range Reconcile(m.input()).Write {
		b, err := json.Marshal(objectOf(&w))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, int64(10))
		f.Add(b, int64(100))
		f.Add(b, int64(10_000))
	}
	f.Add([]byte(`{"spec":{}}`), int64(0))
	a := newAPI(f)
	f.Fuzz(func(t *testing.T, object []byte, minutes int64) {
		u := &unstructured.Unstructured{}
		if u.UnmarshalJSON(object) != nil || a.refuses(u.Object, nil) != "" {
			return
		}
		h, err := read(u)
		if err != nil {
			return
		}
		m := newMesh("a", "b", "c")
		m.at = start.Add(time.Duration(minutes%1_000_000) * time.Minute)
		m.existing = []*Health{h}
		in := m.input()
		in.Config.MaxObjects = 6
		c := Reconcile(in)
		for _, w := range c.Write {
			o := objectOf(&w)
			var before map[string]any
			if w.Before != nil {
				before = u.Object
			}
			if refused := a.refuses(o, before); refused != "" {
				t.Errorf("%s: %s", w.Name, refused)
			}
		}
		if c.Objects > 6 {
			t.Errorf("%d objects", c.Objects)
		}
	})
}

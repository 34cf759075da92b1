// SPDX-License-Identifier: Apache-2.0

package servicerules

import (
	"bytes"
	"compress/gzip"
	"testing"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// FuzzCompare: whatever an agent reports, what is recorded of it is bounded, and each expected unit is judged once.
func FuzzCompare(f *testing.F) {
	l := labOf(f, "nftables", specOf())
	tables := Tables(f.Context(), l.client, l.w)
	packed := func(text []byte) []byte {
		var b bytes.Buffer
		zip := gzip.NewWriter(&b)
		_, _ = zip.Write(text) // a bytes.Buffer does not fail
		zip.Close()
		return b.Bytes()
	}
	var real bytes.Buffer
	if err := l.sides[0].looks[0].Write(&real); err != nil {
		f.Fatal(err)
	}
	f.Add(real.Bytes(), real.Bytes(), true)
	f.Add([]byte(`{"proxy":{"none":true}}`), []byte(`{"proxy":{"others":["Cilium"],"reason":"seen"}}`), true)
	f.Add(real.Bytes(), []byte("hello"), false)
	f.Fuzz(func(t *testing.T, first, second []byte, compressed bool) {
		if compressed {
			first, second = packed(first), packed(second)
		}
		fact := tables.Compare(checkup.TableReading{
			Family: checkup.IPv4, Looks: [checkup.TableLooks]checkup.TableLook{{Data: first}, {Data: second}},
		})
		if most := 100 << 10; len(fact.Content) > most {
			t.Errorf("%d bytes, want at most %d", len(fact.Content), most)
		}
		record := &checkup.Record{Facts: []checkup.Fact{fact, tables.After(t.Context())}}
		c := Judge(l.w, nil, record, checkup.Gate{}).Counts
		if c.Expected != 126 || c.Pass+c.Fail+c.Unmeasured != c.Expected || c.Pass+c.Fail > 21 {
			t.Errorf("counts %+v, want 126 units, of which 21 are of this node and family", c)
		}
	})
}

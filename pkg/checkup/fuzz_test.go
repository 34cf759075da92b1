// SPDX-License-Identifier: Apache-2.0

package checkup

import "testing"

// FuzzDuration: a duration that is read prints as one that reads the same.
func FuzzDuration(f *testing.F) {
	for _, s := range []string{"1s", "2h45m", "-1ns", "1000000h", ".5s", "9223372036854775807ns", "1e3s"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var d, again Duration
		if d.UnmarshalText([]byte(s)) != nil {
			return
		}
		if err := again.UnmarshalText([]byte(d.String())); err != nil || again != d {
			t.Fatalf("%q is %v, which reads as %v (%v)", s, d, again, err)
		}
	})
}

// FuzzPercent: a percentage that is read is from 0 to 100, and prints as one that reads the same.
func FuzzPercent(f *testing.F) {
	for _, s := range []string{"0%", "100%", "0.5%", "NaN%", "+Inf%", "1e1%", "-0%", "0x1p-2%", "1_0%"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var p, again Percent
		if p.UnmarshalText([]byte(s)) != nil {
			return
		}
		text, err := p.MarshalText()
		if err != nil || !(p >= 0 && p <= 100) {
			t.Fatalf("%q is %v (%v)", s, p, err)
		}
		if err := again.UnmarshalText(text); err != nil || again != p {
			t.Fatalf("%q is %s, which reads as %v (%v)", s, text, again, err)
		}
	})
}

// SPDX-License-Identifier: Apache-2.0

package checkup

// HashString is a hash of a text with a seed. It and HashInts do not use a library (but FNV-1a and the finalizer of
// splitmix64), because a sample must be the same with every version of Go: it is rebuilt from its seed to check a
// report.
func HashString(seed uint64, s string) uint64 {
	h := 14695981039346656037 ^ finalize(seed)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return finalize(h)
}

// HashInts is a hash of numbers; see HashString.
func HashInts(seed uint64, numbers ...int) uint64 {
	h := finalize(seed)
	for _, n := range numbers {
		h = finalize(h + 0x9e3779b97f4a7c15 + uint64(n))
	}
	return h
}

func finalize(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

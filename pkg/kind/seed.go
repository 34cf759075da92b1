// SPDX-License-Identifier: Apache-2.0

package kind

import (
	"crypto/sha256"
	"encoding/binary"
)

// Seed is that of the random choices of a check that has none of its own: the same
// from run to run. It has 53 bits, because every reader of JSON keeps those.
func Seed(plan, check string) uint64 {
	sum := sha256.Sum256([]byte(plan + "\x00" + check))
	return binary.BigEndian.Uint64(sum[:]) >> 11
}

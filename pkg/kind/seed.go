// SPDX-License-Identifier: Apache-2.0

package kind

import (
	"crypto/sha256"
	"encoding/binary"
)

// Seed is the seed of the random choices of a check whose plan sets none. It is the
// same in every run. It has 53 bits: JSON readers that use float64 keep them.
func Seed(plan, check string) uint64 {
	sum := sha256.Sum256([]byte(plan + "\x00" + check))
	return binary.BigEndian.Uint64(sum[:]) >> 11
}

// SPDX-License-Identifier: Apache-2.0

package checkup

import "fmt"

// Count prints a number with its noun, in the plural where it is: "1 pair",
// "2 pairs".
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// SPDX-License-Identifier: Apache-2.0

package checkup

import "fmt"

// Guarded calls a parser that is not ours and reads what may be hostile. If it panics, that is an error of its input.
func Guarded(parse func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the parser panicked: %s", Clean(fmt.Sprint(r)))
		}
	}()
	return parse()
}

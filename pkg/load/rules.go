// SPDX-License-Identifier: Apache-2.0

package load

import "github.com/checkplan/checkplan/pkg/checkup"

func check(p *checkup.Plan) []finding { return nil }
func tooDeep(b []byte) error { return nil }

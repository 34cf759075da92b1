// SPDX-License-Identifier: Apache-2.0

package judge

import "github.com/checkplan/checkplan/pkg/checkup"

// spec is a check of the kind of that name, without parameters.
type spec checkup.Kind

func (s spec) Kind() checkup.Kind              { return checkup.Kind(s) }
func (s spec) Params() []checkup.Param         { return nil }
func (s spec) PhaseTimeouts() checkup.Timeouts { return checkup.Timeouts{} }
func (s spec) Fixtures() []checkup.Role        { return nil }

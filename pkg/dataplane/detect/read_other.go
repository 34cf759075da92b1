// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package detect

import (
	"errors"

	"github.com/checkplan/checkplan/pkg/dataplane"
)

// ErrForbidden means that the process may not read the node's rules.
var ErrForbidden = errors.New("no right to read the node's rules")

// Read always fails: only Linux has rules that are read.
func Read(dataplane.Family) (dataplane.Proxy, *dataplane.Table, error) {
	return dataplane.Proxy{}, nil, errors.New("rules are read on Linux only")
}

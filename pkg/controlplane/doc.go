// SPDX-License-Identifier: Apache-2.0

// Package controlplane is the kind controlPlane: which connections of the control
// plane a check probes, and from where.
package controlplane

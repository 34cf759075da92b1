// SPDX-License-Identifier: Apache-2.0

// Package judge
package judge

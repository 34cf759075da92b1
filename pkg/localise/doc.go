// SPDX-License-Identifier: Apache-2.0

// Package localise
package localise

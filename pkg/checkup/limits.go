// SPDX-License-Identifier: Apache-2.0

package checkup

import "time"

// Limits on payload sizes, in bytes.
const (
	// MinUDPSize is the smallest payload of a udp probe: it holds the header by which
	// the responder counts, and in which it writes how long it took.
	MinUDPSize = 32
	// MaxDatagramSize is the largest payload of a udp or icmp probe: what an IPv4
	// packet of 65535 bytes leaves behind the headers (RFC 791, RFC 768, RFC 792).
	MaxDatagramSize = 65535 - 20 - 8
	// MaxStreamSize is the largest payload of a tcp or http probe, and the most that
	// a responder's /bytes returns.
	MaxStreamSize = 16 << 20
)

// MaxCount is the most measurements of one pair: every round-trip delay is kept,
// and one observation must stay a line of log.
const MaxCount = 1000

// MaxTimeout is the longest duration in a plan.
const MaxTimeout = Duration(24 * time.Hour)

// MaxPlanSize is the most bytes that a plan may have as indented JSON: it
// reaches the steps in an environment variable, and Linux takes at most 128 KiB
// of name, value and a zero byte as one (MAX_ARG_STRLEN, execve(2)).
const MaxPlanSize = 128<<10 - len("PLAN=") - 1

// MaxWatch is the most measurements of one pair that is watched: each is kept, with
// its time.
const MaxWatch = 50_000

// MaxResults is the most Results of all pairs of a check: they take about 15 bytes
// each in the record's ConfigMaps, and conclude reads them all.
const MaxResults = 1_000_000

// SPDX-License-Identifier: Apache-2.0

package checkup

import "time"

// Limits on payload sizes, in bytes.
const (
	// MinUDPSize is the smallest payload of a udp probe: the size of the header. The
	// responder counts requests by this header, and writes its own delay into it.
	MinUDPSize = 32
	// MinWitnessSize is the smallest payload of a udp probe whose answer has room for the
	// source address that the responder saw.
	MinWitnessSize = 48
	// MinIdentifySize is the smallest payload of a udp probe whose answer has room for the responder's own address, too.
	MinIdentifySize = 64
	// MaxDatagramSize is the largest payload of a udp or icmp probe: an IPv4 packet of
	// 65535 bytes without its headers (RFC 791, RFC 768, RFC 792).
	MaxDatagramSize = 65535 - 20 - 8
	// MaxStreamSize is the largest payload of a tcp or http probe, and the largest
	// body that a responder's /bytes returns.
	MaxStreamSize = 16 << 20
)

// MaxCount is the largest number of measurements of one pair. An observation holds
// every round-trip delay, and must fit in one line of a pod's log.
const MaxCount = 1000

// MaxEchoes is the largest number of echo requests of one pair of VMs: one a second for an hour. An observation with so
// many delays is one line on a serial console, of about 30 KB.
const MaxEchoes = 3600

// UDPFlows is the largest number of source ports of a udp pair that may use any.
const UDPFlows = 4

// MaxFlows is the largest number of source ports of one pair that an observation lists. With
// MaxCount delays it still fits in one line of a pod's log.
const MaxFlows = 40

// MaxInside is the largest number of ephemeral containers of a pod that gets an agent: of all that it ever had, because
// Kubernetes keeps them in its spec. Each has its order there, of at most MaxInsideOrder bytes as JSON. Together they
// must leave room for the rest of the pod in etcd, whose default limit is 1.5 MiB.
const (
	MaxInside      = 30
	MaxInsideOrder = 16 << 10
)

// MaxTimeout is the longest duration in a plan.
const MaxTimeout = Duration(24 * time.Hour)

// MaxPlanSize is the largest size of a plan as indented JSON, in bytes. The steps get
// the plan in an environment variable. Linux limits a variable (name, "=", value and a
// zero byte) to 128 KiB (MAX_ARG_STRLEN, execve(2)).
const MaxPlanSize = 128<<10 - len("PLAN=") - 1

// MaxWatch is the largest number of measurements of one watched pair. The record holds
// each of them with its time.
const MaxWatch = 50_000

// MaxResults is the largest number of Results of all pairs of a check. A Result takes
// about 15 bytes in the record's ConfigMaps, and conclude reads all of them.
const MaxResults = 1_000_000

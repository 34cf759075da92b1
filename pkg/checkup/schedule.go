// SPDX-License-Identifier: Apache-2.0

package checkup

// Schedule says when runs of a plan start by themselves.
type Schedule struct {
	// Cron is five fields of cron, or a name such as @hourly.
	Cron string `json:"cron"`
	// TimeZone of Cron, a name of the IANA database.
	TimeZone string `json:"timeZone"`
	// ConcurrencyPolicy decides what happens if another run of the plan has not finished.
	ConcurrencyPolicy ConcurrencyPolicy `json:"concurrencyPolicy"`
	// StartingDeadlineSeconds is how late a run may start, at least 10.
	StartingDeadlineSeconds int64 `json:"startingDeadlineSeconds"`
	// Suspend says that no runs start.
	Suspend bool `json:"suspend"`
	// Jitter is the longest random delay of a start.
	Jitter Duration `json:"jitter"`
}

// ConcurrencyPolicy decides about a run that is due while another run of its plan has not finished. The names are
// those of Kubernetes' CronJob.
type ConcurrencyPolicy string

const (
	ConcurrencyForbid  ConcurrencyPolicy = "Forbid"  // it does not start (the default)
	ConcurrencyAllow   ConcurrencyPolicy = "Allow"   // it starts beside the other
	ConcurrencyReplace ConcurrencyPolicy = "Replace" // the other is cancelled, and its finally tasks run
)

// ConcurrencyPolicies lists every ConcurrencyPolicy.
var ConcurrencyPolicies = []ConcurrencyPolicy{ConcurrencyForbid, ConcurrencyAllow, ConcurrencyReplace}

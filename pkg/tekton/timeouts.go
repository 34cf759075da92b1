// SPDX-License-Identifier: Apache-2.0

package tekton

import (
	"time"

	pipelinev1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Deadlines nest: process < step < task < run. A step that its timeout stops keeps its
// log and its results. A task that its timeout stops loses its pod, and log and
// results with it (Tekton issue 5251).
const (
	// Overhead is the time of a process beside the plan's timeout for its phase: for
	// survey, sweep and writing the worksheet in setup, for collecting in probe.
	Overhead = 2 * time.Minute
	// stepGrace is how long a process may take to exit after its deadline.
	stepGrace = time.Minute
	// taskGrace is how long a pod may take until its first step starts (scheduling,
	// volumes, image pull): the timeout of the TaskRun includes this time, the timeout
	// of the step does not.
	taskGrace = 2 * time.Minute
	// startDelay is how long Tekton may take to start a task after the previous one.
	startDelay = 30 * time.Second
	// runGrace is the time of the run beyond the timeouts of all its tasks.
	runGrace = 5 * time.Minute

	// shortestStep is the step timeout of the generic setup and probe Tasks.
	shortestStep = 10 * time.Minute

	// Deadlines of the processes of conclude, and the timeout of its task.
	teardownDeadline = 4 * time.Minute
	reportDeadline   = 2 * time.Minute
	concludeTimeout  = teardownDeadline + stepGrace + reportDeadline + stepGrace + taskGrace
)

// stepTimeout is the timeout of the step whose process has the given deadline.
// A step's timeout cannot be a param: there is a generic Task for each. To keep these
// few, it is one of 10m, 20m, 40m, ...
func stepTimeout(deadline time.Duration) time.Duration {
	timeout := shortestStep
	for timeout < deadline+stepGrace {
		timeout *= 2
	}
	return timeout
}

// checkDeadlines are the deadlines of the setup and probe processes of a check.
func checkDeadlines(check checkup.Check) (setup, probe time.Duration) {
	timeouts := check.PhaseTimeouts()
	return time.Duration(timeouts.Setup) + Overhead, time.Duration(timeouts.Probe) + Overhead
}

// Timeouts are what a PipelineRun of the plan needs, in every release from 1.12:
//
//   - tasks includes the time of finally, because in 1.13 to 1.15 its clock does not
//     stop while finally runs, and would fail a run whose tasks ended in time (Tekton
//     issue 10512);
//   - each task ends by its own timeout before tasks is over, because up to 1.12
//     finally does not run after that.
func Timeouts(plan *checkup.Plan) pipelinev1.TimeoutFields {
	tasks := criticalPath(plan) + concludeTimeout
	return pipelinev1.TimeoutFields{
		Tasks:    &metav1.Duration{Duration: tasks},
		Finally:  &metav1.Duration{Duration: concludeTimeout},
		Pipeline: &metav1.Duration{Duration: tasks + concludeTimeout + runGrace},
	}
}

// criticalPath is how long it can take until the last setup or probe task has ended.
func criticalPath(plan *checkup.Plan) time.Duration {
	var longest time.Duration
	end := map[string]time.Duration{}
	for _, name := range plan.CheckNames() {
		check := plan.Checks[name]
		var start time.Duration
		for _, after := range check.After {
			start = max(start, end[after])
		}
		setup, probe := checkDeadlines(check)
		end[name] = start + stepTimeout(setup) + stepTimeout(probe) + 2*(taskGrace+startDelay)
		longest = max(longest, end[name])
	}
	return longest
}

// SPDX-License-Identifier: Apache-2.0

package tekton

import (
	"time"

	pipelinev1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Deadlines nest: in process < step < task < run. A step that is stopped by its
// timeout keeps its log and its results; a task that is stopped by its timeout
// loses its pod and with it both (Tekton issue 5251).
const (
	// Overhead is what a process may take beside the time that the plan gives to
	// its phase: to survey, sweep and freeze in setup, to collect in probe.
	Overhead = 2 * time.Minute
	// stepGrace is how long a process may take to come to its end at its deadline.
	stepGrace = time.Minute
	// taskGrace is how long a pod may take until its first step starts (volume,
	// image pull, scheduling): the TaskRun's clock runs meanwhile, the step's not.
	taskGrace = 2 * time.Minute
	// startDelay is what Tekton takes to start a task after the one before it.
	startDelay = 30 * time.Second
	// runGrace is what is left of the run's time when every task took all of its.
	runGrace = 5 * time.Minute

	// shortestStep is the step timeout of the generic setup and probe Tasks.
	shortestStep = 10 * time.Minute

	// Deadlines of the processes of conclude, and of it all.
	teardownDeadline = 4 * time.Minute
	reportDeadline   = 2 * time.Minute
	concludeTimeout  = teardownDeadline + stepGrace + reportDeadline + stepGrace + taskGrace
)

// stepTimeout is the timeout of the step whose process has the given deadline.
// A step's timeout cannot be a param, so that a generic Task must hold it; to
// keep them few, it is one of 10m, 20m, 40m, ...
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
//   - tasks holds finally too, because in 1.13 to 1.15 its clock runs on while
//     finally does, and would fail a run whose tasks were all done in time (Tekton
//     issue 10512);
//   - the tasks end by themselves, each by its own timeout, before tasks does,
//     because up to 1.12 finally is not run after that.
func Timeouts(plan *checkup.Plan) pipelinev1.TimeoutFields {
	tasks := criticalPath(plan) + concludeTimeout
	return pipelinev1.TimeoutFields{
		Tasks:    &metav1.Duration{Duration: tasks},
		Finally:  &metav1.Duration{Duration: concludeTimeout},
		Pipeline: &metav1.Duration{Duration: tasks + concludeTimeout + runGrace},
	}
}

// criticalPath is how long setup and probe tasks can take until the last of them
// is over.
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

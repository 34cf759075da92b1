// SPDX-License-Identifier: Apache-2.0

// Package tekton compiles a checkup.Plan into the Kubernetes objects that run it:
// Tekton Tasks, a Pipeline, the rights of each phase, and a sample PipelineRun. It
// is pure: it reads no clock and no cluster, and returns the same bytes for the
// same input. Tekton's own code has defaulted and validated what it returns.
//
// # The contract with the task images
//
// One Task per phase serves every plan and every check. The steps have an explicit
// command and no script. The mains in tasks/ read their environment and their
// arguments, and nothing else.
//
//	step      command           environment                                 arguments
//	setup     /ko-app/setup     PLAN, AGENT_IMAGE, GUEST_IMAGE, who         --check NAME --timeout D --results DIR SETTING...
//	probe     /ko-app/probe     AGENT_IMAGE, GUEST_IMAGE, who               --check NAME --timeout D
//	teardown  /ko-app/teardown  PLAN, who                                   --timeout D SETTING...
//	report    /ko-app/report    PLAN, TEARDOWN_EXIT_CODE_FILE, who          --timeout D --results DIR --task=TASK... SETTING...
//
// where
//
//   - who is RUN_NAME and RUN_UID, those of the PipelineRun; NAMESPACE, POD_NAME
//     and POD_UID, those of the step's pod, from the downward API. HOME is set in
//     every step, to the only writable directory beside /tekton/results.
//   - PLAN is the plan as JSON, as kinds.Decode reads it. Every dollar sign in it is
//     written \u0024, because Tekton, Kubernetes and Flux each expand a notation
//     that starts with one.
//   - AGENT_IMAGE is the image of agents and responders, and of the preflight pods
//     of VMs.
//   - GUEST_IMAGE is the image of VMs whose check names no image.
//   - SETTING is "name=value", one of the plan's params. Every param is passed, with
//     the plan's value where nobody set another. kinds.Apply reads them. The value
//     may be empty.
//   - TASK is "NAME=STATUS/REASON", one for each setup and probe task, such as
//     "setup-mesh=Succeeded/Succeeded", "probe-mesh=Failed/TaskRunTimeout" or
//     "probe-mesh=None/" for one that never started. STATUS is Succeeded, Failed
//     or None; REASON is that of the TaskRun's condition and may be empty.
//   - D is the time limit of the process, counted from its start, as
//     time.ParseDuration reads it. For setup and probe it is the check's
//     timeouts.setup or timeouts.probe (with the time of a watch) and Overhead; for
//     teardown and report it is fixed. The process ends before the step's timeout,
//     and the step before the task's. Settings cannot lengthen D: Run and setup
//     refuse settings that need more.
//   - TEARDOWN_EXIT_CODE_FILE holds the exit code of step teardown, in decimal,
//     with or without a newline. It is missing if that step did not end.
//   - DIR holds one file per result. Those of report are ConcludeResults. That of
//     setup is "measurable": "true", or "false" if setup knows that nothing of the
//     check can be measured. On "false" the probe task is not started, and the
//     report shows the causes that setup found. Each file must be written, without
//     a trailing newline, before the process exits with code 0: a missing result of
//     a successful task fails the run.
//
// Exit code 0 means that the step did its work. Only report turns a verdict into
// another exit code (3 for fail, 4 for inconclusive), and only if the plan's gate says
// so. 5 means that the account lacks a right, 1 any other error.
package tekton

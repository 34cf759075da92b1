// SPDX-License-Identifier: Apache-2.0

// Package tekton compiles a checkup.Plan into the Kubernetes objects that run
// it: Tekton Tasks, a Pipeline, the rights of each phase, and a PipelineRun to
// start from. It is pure: it reads no clock and no cluster, and gives the same
// bytes for the same input. What it returns was defaulted and validated by
// Tekton's own code.
//
// # The contract with the task images
//
// One Task per phase serves every plan and every check. The steps have an
// explicit command and no script; the mains in tasks/ are told what to do by
// the environment and by arguments alone.
//
//	step      command           environment                                 arguments
//	setup     /ko-app/setup     PLAN, AGENT_IMAGE, GUEST_IMAGE, who         --check NAME --timeout D --results DIR SETTING...
//	probe     /ko-app/probe     AGENT_IMAGE, GUEST_IMAGE, who               --check NAME --timeout D
//	teardown  /ko-app/teardown  PLAN, who                                   --timeout D SETTING...
//	report    /ko-app/report    PLAN, TEARDOWN_EXIT_CODE_FILE, who          --timeout D --results DIR --task=TASK... SETTING...
//
// where
//
//   - who is RUN_NAME and RUN_UID, the PipelineRun's; NAMESPACE, POD_NAME and
//     POD_UID, the step's own pod's, from the downward API. HOME is set in every
//     step, to the one directory beside /tekton/results that is writable.
//   - PLAN is the plan as JSON, as checkup.Plan reads it. In it every dollar sign
//     is written \u0024, because Tekton, Kubernetes and Flux each expand a
//     notation that starts with one.
//   - AGENT_IMAGE is the image of agents and responders, and of pods that try a
//     network out before VMs are started on it.
//   - GUEST_IMAGE is the image that VMs boot from whose check names none.
//   - SETTING is "name=value", one of the plan's params; all of them are given,
//     those that nobody set with the plan's own value. kinds.Apply reads
//     them. The value may be empty.
//   - TASK is "NAME=STATUS/REASON", one for each setup and probe task, such as
//     "setup-mesh=Succeeded/Succeeded", "probe-mesh=Failed/TaskRunTimeout" or
//     "probe-mesh=None/" for one that never started. STATUS is Succeeded, Failed
//     or None; REASON is that of the TaskRun's condition and may be empty.
//   - D is the deadline of the whole process, counted from its start, as
//     time.ParseDuration reads it: timeouts.setup or timeouts.probe of the check
//     (with the time for which it is to watch) and Overhead, or a fixed one for
//     teardown and report. It always ends before the step's timeout, and that
//     before the task's. Settings cannot lengthen it: Run and setup refuse those
//     that would need more.
//   - TEARDOWN_EXIT_CODE_FILE holds the exit code of step teardown, in decimal,
//     with or without a newline. It is missing when that step never ended.
//   - DIR holds one file per result: of report those of ConcludeResults, of setup
//     "measurable", which is "true", or "false" if it is known by then that nothing
//     of the check can be measured. Then the probe task is not started, and what
//     setup knows is what the report tells. Each must be written, without a
//     trailing newline, before the process ends with exit code 0: a missing result
//     of a successful task fails the run.
//
// Exit code 0 means that the step did what it is for. Only report turns a
// verdict into exit code 1, and only if the plan's gate says so.
package tekton

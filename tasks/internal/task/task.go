// SPDX-License-Identifier: Apache-2.0

// Package task is what the steps of a run's tasks have in common: identity, input, and
// exit.
//
// The input of a step is flags, its environment (RUN_NAME, RUN_UID, NAMESPACE,
// POD_NAME, POD_UID, SERVICE_ACCOUNT, and where it needs them PLAN, AGENT_IMAGE and GUEST_IMAGE), and
// settings of the plan as "name=value" arguments. It prints to standard output,
// which is the log that the dashboard shows, in lines of a width that it shows whole.
//
// Exit codes, which Tekton writes into the message of the TaskRun ("exited with code 3"):
//
//	0  the step did its work
//	1  the tool failed; one line that begins with "::error::" says how
//	3  report: the verdict is fail, and the plan's gate does not allow it
//	4  report: the run is inconclusive, and the plan's gate does not allow it
//	5  the step's service account lacks a right
//
// 2 is that of a panic. 0, 1 and 3 are also those of planner.
package task

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	kvcorev1 "kubevirt.io/client-go/kubevirt/typed/core/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/fleet"
	"github.com/checkplan/checkplan/pkg/kinds"
	"github.com/checkplan/checkplan/pkg/record"
)

// Task is one step as it was started.
type Task struct {
	Kubernetes kubernetes.Interface
	Metadata   metadata.Interface
	Dynamic    dynamic.Interface
	// KubeVirt's API, which may not be installed, and the function that connects to the
	// console of a VM of the namespace.
	KubeVirt  kvcorev1.KubevirtV1Interface
	Console   func(ctx context.Context, name string) (io.ReadWriteCloser, error)
	Namespace string
	RunName   string
	RunUID    string
	PodName   string
	PodUID    string
	// Account is the service account of the pod.
	Account    string
	AgentImage string
	GuestImage string
	// PlanJSON is the plan as it was compiled, Settings the changes to it.
	PlanJSON string
	Settings []string

	// Check is the check that setup and probe are for.
	Check string
	// Timeout of the whole step.
	Timeout time.Duration
	// Results is the directory that report writes Tekton results to.
	Results string
	// Outcomes of the run's other tasks, by name, for report.
	Outcomes map[string]Outcome
	// TeardownExitCode is the path of a file with the exit code of teardown; empty
	// means that there is none.
	TeardownExitCode string

	Stdout io.Writer

	logging sync.Mutex // serialises writes of Logf to Stdout
}

// Outcome is how a task ended: Tekton's $(tasks.NAME.status) and .reason.
type Outcome struct {
	Status string // Succeeded, Failed or None
	Reason string
}

// String reads "failed (TaskRunTimeout)".
func (o Outcome) String() string {
	what := map[string]string{"Succeeded": "succeeded", "Failed": "failed", "None": "did not run"}[o.Status]
	if what == "" {
		what = "ended in an unknown way"
	}
	if o.Reason != "" && o.Reason != "None" && o.Reason != o.Status {
		what += " (" + o.Reason + ")"
	}
	return what
}

// ErrSaid makes Main return the exit code without printing the error: the log says why. The others are ErrSaid, with
// exit codes of their own.
var (
	ErrSaid         = errors.New("the log says why")
	ErrFailed       = fmt.Errorf("verdict fail: %w", ErrSaid)
	ErrInconclusive = fmt.Errorf("verdict inconclusive: %w", ErrSaid)
	ErrAccount      = fmt.Errorf("the account lacks a right: %w", ErrSaid)
)

// exitCode is the exit code of a step that ends with err; the comment of the package lists them.
func exitCode(err error) int {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, ErrFailed):
		return 3
	case errors.Is(err, ErrInconclusive):
		return 4
	case errors.Is(err, ErrAccount), apierrors.IsForbidden(err):
		return 5
	default:
		return 1
	}
}

// Main runs a step and returns its exit code. SIGTERM ends the context that run
// gets, and so does the deadline of --timeout.
func Main(run func(context.Context, *Task) error) int {
	signals, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	log := &wrapper{to: os.Stdout}
	defer log.Close()
	t, err := New(os.Args[1:], os.Getenv, log)
	if err == nil {
		err = t.Connect()
	}
	if err == nil {
		ctx, cancel := context.WithTimeoutCause(
			signals,
			t.Timeout,
			fmt.Errorf("the step's deadline of %s is over", t.Timeout),
		)
		defer cancel()
		err = run(ctx, t)
	}
	if err != nil && !errors.Is(err, ErrSaid) {
		fmt.Fprintf(log, "::error::%s\n", checkup.Clean(err.Error()))
	}
	return exitCode(err)
}

// New reads arguments and environment. The error names everything that is missing or
// wrong at once.
func New(args []string, getenv func(string) string, stdout io.Writer) (*Task, error) {
	t := &Task{
		Namespace: getenv("NAMESPACE"), RunName: getenv("RUN_NAME"), RunUID: getenv("RUN_UID"),
		PodName: getenv("POD_NAME"), PodUID: getenv("POD_UID"), Account: getenv("SERVICE_ACCOUNT"),
		AgentImage: getenv("AGENT_IMAGE"), GuestImage: getenv("GUEST_IMAGE"), PlanJSON: getenv("PLAN"),
		TeardownExitCode: getenv("TEARDOWN_EXIT_CODE_FILE"),
		Outcomes:         map[string]Outcome{}, Stdout: stdout,
	}
	flags := flag.NewFlagSet("", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // the error says it
	flags.StringVar(&t.Check, "check", "", "")
	flags.DurationVar(&t.Timeout, "timeout", 0, "")
	flags.StringVar(&t.Results, "results", "/tekton/results", "")
	flags.Func("task", "", func(s string) error {
		name, outcome, ok := strings.Cut(s, "=")
		status, reason, slash := strings.Cut(outcome, "/")
		if !ok || !slash {
			return errors.New("want TASK=STATUS/REASON")
		}
		t.Outcomes[name] = Outcome{status, reason}
		return nil
	})
	var problems []error
	if err := flags.Parse(args); err != nil {
		problems = append(problems, err)
	}
	t.Settings = flags.Args()
	if t.Timeout <= 0 {
		problems = append(problems, errors.New("--timeout: want a duration, such as 4m"))
	}
	for _, v := range []struct{ name, value string }{
		{"NAMESPACE", t.Namespace}, {"RUN_NAME", t.RunName}, {"RUN_UID", t.RunUID},
		{"POD_NAME", t.PodName}, {"POD_UID", t.PodUID},
	} {
		if v.value == "" {
			problems = append(
				problems,
				fmt.Errorf("environment variable %s is not set: this is a step of a Tekton task, made by planner compile", v.name),
			)
		}
	}
	return t, errors.Join(problems...)
}

// Connect creates the clients from the pod's service account.
func (t *Task) Connect() error {
	config, err := rest.InClusterConfig()
	if err != nil {
		return fmt.Errorf("connect to the API server as the pod's service account: %w", err)
	}
	config = fleet.Config(config)
	if t.Kubernetes, err = kubernetes.NewForConfig(config); err != nil {
		return fmt.Errorf("connect to the API server: %w", err)
	}
	if t.Metadata, err = metadata.NewForConfig(config); err != nil {
		return fmt.Errorf("connect to the API server: %w", err)
	}
	if t.Dynamic, err = dynamic.NewForConfig(config); err != nil {
		return fmt.Errorf("connect to the API server: %w", err)
	}
	if t.KubeVirt, err = kvcorev1.NewForConfig(config); err != nil {
		return fmt.Errorf("connect to the API server: %w", err)
	}
	t.Console = consoles(config, t.Namespace)
	return nil
}

// Plan returns the plan with the settings applied. When these are bad, it is
// returned as it was compiled, with the error: teardown and report can still use it. It
// is nil if there is no plan.
func (t *Task) Plan() (*checkup.Plan, error) {
	plan, err := t.compiled()
	if err != nil {
		return nil, err
	}
	have := plan.Checks[t.Check].PhaseTimeouts().Probe
	err = kinds.Apply(plan, t.Settings)
	if err == nil {
		// The tasks' own timeouts were compiled from the plan without the settings.
		if want := plan.Checks[t.Check].PhaseTimeouts().Probe; want > have {
			err = fmt.Errorf("check %s would take up to %s with these settings, but its Pipeline gives it %s: "+
				"write the settings into the plan, and compile it again", t.Check, want, have)
		}
	}
	if err != nil {
		compiled, _ := t.compiled() // without what Apply has changed
		return compiled, err
	}
	return plan, nil
}

// compiled is the plan as it was compiled.
func (t *Task) compiled() (*checkup.Plan, error) {
	plan, err := kinds.Decode([]byte(t.PlanJSON))
	if err != nil {
		return nil, fmt.Errorf("environment variable PLAN: not a plan as planner compile writes it: %w", err)
	}
	return plan, nil
}

// Store returns the store of the run's values.
func (t *Task) Store(plan string) *record.Store {
	return &record.Store{
		ConfigMaps: t.Kubernetes.CoreV1().ConfigMaps(t.Namespace),
		Plan:       plan,
		Run:        t.RunName,
		RunUID:     t.RunUID,
	}
}

// Fleet returns the fixtures of the run.
func (t *Task) Fleet(plan string) *fleet.Fleet {
	return &fleet.Fleet{
		Client: t.Kubernetes, Namespace: t.Namespace, Plan: plan, RunUID: t.RunUID,
		Image: t.AgentImage, Owner: t.PodName, OwnerUID: types.UID(t.PodUID), Logf: t.Logf,
	}
}

// Logf prints one line, or as many as the format has. Only the format can make it a command to log viewers (::error::),
// not an argument. It may be called from several goroutines.
func (t *Task) Logf(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	switch {
	case strings.HasPrefix(format, "::"):
		text = checkup.Clean(text)
	case strings.Contains(format, "\n"):
		text = checkup.NoCommand(checkup.CleanLines(text))
	default:
		text = checkup.NoCommand(checkup.Clean(text))
	}
	t.logging.Lock()
	defer t.logging.Unlock()
	fmt.Fprintln(t.Stdout, text)
}

// TeardownTrouble reports how the teardown step ended, if not well.
func (t *Task) TeardownTrouble() error {
	if t.TeardownExitCode == "" {
		return nil
	}
	b, err := os.ReadFile(t.TeardownExitCode)
	if err != nil {
		return fmt.Errorf("teardown did not finish: %w", err)
	}
	if code := strings.TrimSpace(string(b)); code != "0" {
		return fmt.Errorf("teardown ended with exit code %s: its log says why", code)
	}
	return nil
}

// failure is the key of the Cause of a failed phase of a check.
func failure(check string, phase string) record.Key {
	return record.Key{Role: checkup.RoleRecord, Check: check, Part: phase + "-failure"}
}

// Explain records why a phase ("setup", "probe") of the check failed, for the report, and
// returns err. A nil err is not recorded.
func (t *Task) Explain(ctx context.Context, phase string, stage checkup.Stage, plan string, err error) error {
	if err == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	cause := checkup.Cause{Stage: stage, Message: strings.Join(strings.Fields(err.Error()), " ")}
	if saving := t.Store(plan).Save(ctx, failure(t.Check, phase), cause); saving != nil {
		t.Logf("::warning::cannot record the error, which the report will lack: %v", saving)
	}
	return err
}

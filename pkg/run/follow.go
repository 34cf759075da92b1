// SPDX-License-Identifier: Apache-2.0

package run

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	pipelinev1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"knative.dev/pkg/apis"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/record"
)

// Progress is the state of an unfinished run.
type Progress struct {
	// Tasks of the run that exist, in the order in which they were created.
	Tasks []TaskProgress
	// Reason of the run's condition, as Tekton puts it, such as ResolvingPipelineRef; empty if there is none yet.
	Reason string
	// Lost is the time for which the API server has not answered; 0 if it does.
	Lost time.Duration
}

// TaskProgress is the state of one task of the run.
type TaskProgress struct {
	Name string // as in the Pipeline: "setup-mesh"
	Done bool
	// Failed says that the task is done and did not succeed.
	Failed bool
	// Progress is the progress that the task recorded; empty if it recorded none.
	Progress string
	// Reason and Message of the task's condition, as Tekton puts them.
	Reason, Message string
}

// Follower follows a run to its end.
type Follower struct {
	Cluster *Cluster
	// Interval between two polls. 0 means a second.
	Interval time.Duration
	// Patience is how long the API server may fail to answer before Follow returns an
	// error. The run continues. 0 means two minutes.
	Patience time.Duration
	// Report is called after every poll; nil means that it is not called.
	Report func(Progress)
}

// deniedFor is how long 403s are tolerated: an API server that has just started denies
// every request.
const deniedFor = 15 * time.Second

// Follow returns the run when it is done, with any outcome. An error means that following
// failed, not that the run failed. The run may still continue.
func (f *Follower) Follow(ctx context.Context, name string) (*pipelinev1.PipelineRun, error) {
	interval := cmp.Or(f.Interval, time.Second)
	patience := cmp.Or(f.Patience, 2*time.Minute)
	tick := time.NewTicker(interval)
	defer tick.Stop()
	answered := time.Now()
	for {
		run, progress, err := f.Cluster.look(ctx, name)
		switch {
		case err == nil:
			answered = time.Now()
			if f.Report != nil {
				f.Report(progress)
			}
			if run.IsDone() {
				return run, nil
			}
		case apierrors.IsNotFound(err):
			return nil, fmt.Errorf("follow PipelineRun %s: it was deleted: %w", name, err)
		// An API server that has just started denies every request for a second or two.
		case apierrors.IsForbidden(err) && time.Since(answered) > deniedFor:
			return nil, fmt.Errorf("follow PipelineRun %s: %w%s", name, err, hint(err))
		case ctx.Err() != nil:
			return nil, fmt.Errorf("follow PipelineRun %s: %w", name, context.Cause(ctx))
		case time.Since(answered) > patience:
			return nil, fmt.Errorf(
				"follow PipelineRun %s: the API server has not answered for %s; the run may still continue: %w",
				name,
				patience,
				err,
			)
		case f.Report != nil:
			f.Report(Progress{Lost: time.Since(answered)})
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("follow PipelineRun %s: %w", name, context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// look reads the run, its tasks, and the progress of its checks.
func (c *Cluster) look(ctx context.Context, name string) (*pipelinev1.PipelineRun, Progress, error) {
	run, err := c.Tekton.TektonV1().PipelineRuns(c.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, Progress{}, err
	}
	tasks, err := c.Tekton.TektonV1().
		TaskRuns(c.Namespace).
		List(ctx, metav1.ListOptions{LabelSelector: labels.Set{"tekton.dev/pipelineRun": name}.String()})
	if err != nil {
		return nil, Progress{}, err
	}
	slices.SortFunc(tasks.Items, func(a, b pipelinev1.TaskRun) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	store := record.Store{ConfigMaps: c.Kube.CoreV1().ConfigMaps(c.Namespace), RunUID: string(run.UID)}
	var progress Progress
	if condition := run.Status.GetCondition(apis.ConditionSucceeded); condition != nil {
		progress.Reason = condition.Reason
	}
	for _, task := range tasks.Items {
		condition := task.Status.GetCondition(apis.ConditionSucceeded)
		p := TaskProgress{
			Name:   task.Labels["tekton.dev/pipelineTask"],
			Done:   task.IsDone(),
			Failed: task.IsFailure(),
			Reason: "Pending",
		}
		if condition != nil {
			p.Reason, p.Message = condition.Reason, condition.Message
		}
		// setup-<check> and probe-<check> write the progress of their check. The
		// unfinished one of them wrote it last.
		if _, check, ok := strings.Cut(p.Name, "-"); ok && !p.Done {
			if recorded, err := store.LoadProgress(ctx, check); err == nil && strings.HasPrefix(p.Name, recorded.Phase) {
				p.Progress = recorded.String()
			}
		}
		progress.Tasks = append(progress.Tasks, p)
	}
	return run, progress, nil
}

// Remaining returns the fixtures of a run that still exist, as kind/name.
func (c *Cluster) Remaining(ctx context.Context, runUID string) ([]string, error) {
	fixtures, err := labels.NewRequirement(checkup.LabelRole, selection.In, fixtureRoles())
	if err != nil {
		return nil, err
	}
	selector := labels.SelectorFromSet(labels.Set{checkup.LabelRun: runUID}).Add(*fixtures).String()
	var left []string
	for _, resource := range []string{"pods", "configmaps"} {
		list, err := c.Metadata.Resource(corev1.SchemeGroupVersion.WithResource(resource)).
			Namespace(c.Namespace).
			List(ctx, metav1.ListOptions{LabelSelector: selector})
		if err != nil {
			return nil, fmt.Errorf("list the remaining objects of run %s: %w%s", runUID, err, hint(err))
		}
		for _, item := range list.Items {
			left = append(left, strings.TrimSuffix(resource, "s")+"/"+item.Name)
		}
	}
	return left, nil
}

func fixtureRoles() []string {
	roles := make([]string, len(checkup.FixtureRoles))
	for i, role := range checkup.FixtureRoles {
		roles[i] = string(role)
	}
	return roles
}

// RemoveCommand returns the command that removes the remaining objects of a run. VMs are
// deleted with the ConfigMap that owns them, Services with the responders that own them.
func (c *Cluster) RemoveCommand(runUID string) string {
	return fmt.Sprintf("kubectl -n %s delete pod,configmap -l '%s=%s,%s in (%s)'",
		c.Namespace, checkup.LabelRun, runUID, checkup.LabelRole, strings.Join(fixtureRoles(), ","))
}

// SPDX-License-Identifier: Apache-2.0

package record

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/history"
	"github.com/checkplan/checkplan/pkg/retry"
)

// annotationFinished holds when the run of a report finished, RFC 3339.
const annotationFinished = "checkplan.dev/finished"

var reportKey = Key{Role: checkup.RoleReport}

// ReportName is the name of the first ConfigMap of the report of a run: what the
// result `report` of the PipelineRun names.
func (s *Store) ReportName() string { return s.name(reportKey, 0) }

// SaveReport writes the report. Its ConfigMaps have the round of each check
// that has one (history.RoundAnnotations), from which the next run continues; the first
// also has verdict and summary as plain text.
func (s *Store) SaveReport(ctx context.Context, r *checkup.Report) error {
	raw, digest, err := encode(reportKey, r)
	if err != nil {
		return err
	}
	return s.put(ctx, reportKey, 0, compress(raw, chunkBytes), func(cm *corev1.ConfigMap, chunk int) {
		cm.Labels[LabelRunName] = r.Run
		cm.Annotations = map[string]string{annotationFinished: r.Finished.UTC().Format(time.RFC3339)}
		maps.Copy(cm.Annotations, history.RoundAnnotations(r))
		if chunk == 0 {
			cm.Data[digestKey] = digest
			cm.Data["verdict"] = string(r.Verdict)
			cm.Data["summary"] = r.Summary
		}
	})
}

// PruneReports deletes the oldest reports of the plan until keep are left; keep below 1 keeps all. The report of this
// run counts as the newest.
func (s *Store) PruneReports(ctx context.Context, keep int) error {
	if keep < 1 {
		return nil
	}
	runs, err := listReports(ctx, s.ConfigMaps, labels.Set{checkup.LabelPlan: s.Plan})
	if err != nil {
		return err
	}
	i := slices.IndexFunc(runs, func(r storedReport) bool { return r.runUID == s.RunUID })
	if i >= 0 {
		runs = slices.Delete(runs, i, i+1)
		keep--
	}
	for _, run := range runs[min(keep, len(runs)):] {
		for _, name := range run.names {
			err := retry.Until(ctx, func() error { return s.ConfigMaps.Delete(ctx, name, metav1.DeleteOptions{}) })
			if err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("delete ConfigMap %s of the old report of run %s: %w", name, run.run, err)
			}
		}
	}
	return nil
}

// FindReport reads the report of a run, by the PipelineRun's name or UID; of several
// runs of one name, the newest. If there is none, the error satisfies
// apierrors.IsNotFound.
func FindReport(ctx context.Context, configMaps corev1client.ConfigMapInterface, run string) (*checkup.Report, error) {
	for _, label := range []string{LabelRunName, checkup.LabelRun} {
		runs, err := listReports(ctx, configMaps, labels.Set{label: run})
		if err != nil {
			return nil, err
		}
		if len(runs) > 0 {
			s := Store{ConfigMaps: configMaps, RunUID: runs[0].runUID}
			r := &checkup.Report{}
			return r, s.Load(ctx, reportKey, r)
		}
	}
	return nil, apierrors.NewNotFound(corev1.Resource("report"), run)
}

// storedReport is a report in the cluster.
type storedReport struct {
	run, runUID string
	finished    string   // RFC 3339 in UTC, and so in order as text
	names       []string // of its ConfigMaps
}

// reportsPage is how many ConfigMaps of reports are read at a time, each of up to a megabyte: only their names stay.
const reportsPage = 20

// listReports lists reports, newest first.
func listReports(
	ctx context.Context,
	configMaps corev1client.ConfigMapInterface,
	of labels.Set,
) ([]storedReport, error) {
	selector := labels.Set{checkup.LabelRole: string(checkup.RoleReport)}
	maps.Copy(selector, of)
	if _, err := labels.ValidatedSelectorFromSet(selector); err != nil {
		return nil, nil // no label can have that value
	}
	byUID := map[string]*storedReport{}
	o := metav1.ListOptions{LabelSelector: selector.String(), Limit: reportsPage}
	err := everyPage(ctx, o, configMaps.List, func(page *corev1.ConfigMapList) error {
		for i := range page.Items {
			cm := &page.Items[i]
			uid := cm.Labels[checkup.LabelRun]
			if byUID[uid] == nil {
				byUID[uid] = &storedReport{
					run: cm.Labels[LabelRunName], runUID: uid, finished: cm.Annotations[annotationFinished],
				}
			}
			byUID[uid].names = append(byUID[uid].names, cm.Name)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list reports: %w", err)
	}
	var reports []storedReport
	for _, r := range byUID {
		reports = append(reports, *r)
	}
	slices.SortFunc(reports, func(a, b storedReport) int {
		return cmp.Or(cmp.Compare(b.finished, a.finished), cmp.Compare(a.runUID, b.runUID))
	})
	return reports, nil
}

// SPDX-License-Identifier: Apache-2.0

package record

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/retry"
)

// Lister lists the metadata of the ConfigMaps of a namespace, as metadata.ResourceInterface does.
type Lister interface {
	List(ctx context.Context, o metav1.ListOptions) (*metav1.PartialObjectMetadataList, error)
}

// StoredReport is a report in the cluster, by its metadata.
type StoredReport struct {
	Plan, Run, RunUID string
	// Finished is when its run ended; zero if unknown.
	Finished time.Time
}

// Limits of Reports: of one page of the list, and of what is listed.
const (
	listPage = 500
	listMost = 50_000
)

// Reports lists the reports of a namespace, newest first, and the names of the plans that have a report or a history,
// sorted. It reads metadata only: the reports themselves may be gigabytes.
func Reports(ctx context.Context, maps Lister) (reports []StoredReport, plans []string, err error) {
	o := metav1.ListOptions{
		LabelSelector: fmt.Sprintf("%s in (%s,%s)", checkup.LabelRole, checkup.RoleReport, checkup.RoleHistory), Limit: listPage,
	}
	byUID, known := map[string]bool{}, map[string]bool{}
	for n := 0; ; {
		page, err := retry.Get(ctx, func() (*metav1.PartialObjectMetadataList, error) { return maps.List(ctx, o) })
		if err != nil {
			return nil, nil, fmt.Errorf("list reports: %w", err)
		}
		for i := range page.Items {
			cm := &page.Items[i]
			plan, uid := cm.Labels[checkup.LabelPlan], cm.Labels[checkup.LabelRun]
			if plan != "" && !known[plan] {
				known[plan] = true
				plans = append(plans, plan)
			}
			if cm.Labels[checkup.LabelRole] != string(checkup.RoleReport) || uid == "" || byUID[uid] {
				continue
			}
			byUID[uid] = true
			finished, _ := time.Parse(time.RFC3339, cm.Annotations[annotationFinished]) // else zero
			reports = append(reports, StoredReport{Plan: plan, Run: cm.Labels[LabelRunName], RunUID: uid, Finished: finished})
		}
		n += len(page.Items)
		if o.Continue = page.Continue; o.Continue == "" {
			break
		}
		if n >= listMost {
			return nil, nil, fmt.Errorf("list reports: more than %d ConfigMaps: lower the retention of the plans", listMost)
		}
	}
	slices.Sort(plans)
	slices.SortFunc(reports, func(a, b StoredReport) int {
		return cmp.Or(b.Finished.Compare(a.Finished), cmp.Compare(a.RunUID, b.RunUID))
	})
	return reports, plans, nil
}

// LoadReport reads the report of a run by its UID, if it has at most so many bytes of JSON; 0 means 1 GiB. If there is
// none, the error satisfies apierrors.IsNotFound.
func LoadReport(
	ctx context.Context, configMaps corev1client.ConfigMapInterface, runUID string, most int,
) (*checkup.Report, error) {
	s := Store{ConfigMaps: configMaps, RunUID: runUID, most: most}
	r := &checkup.Report{}
	return r, s.Load(ctx, reportKey, r)
}

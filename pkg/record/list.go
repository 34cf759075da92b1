// SPDX-License-Identifier: Apache-2.0

package record

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/retry"
)

// Lister lists the metadata of the ConfigMaps of a namespace, or of all, as metadata.ResourceInterface does.
type Lister interface {
	List(ctx context.Context, o metav1.ListOptions) (*metav1.PartialObjectMetadataList, error)
}

// StoredReport is a report in the cluster, by its metadata.
type StoredReport struct {
	Namespace, Plan, Run, RunUID string
	// Finished is when its run ended; zero if unknown.
	Finished time.Time
}

// StoredPlan is a plan that has a report or a history in the cluster.
type StoredPlan struct {
	Namespace, Plan string
	// Newest is its newest report; nil if it only has a history.
	Newest *StoredReport
}

// Limits of Reports: of one page of the list, and of what is listed. A page is small, because the metadata of an object
// may have a megabyte.
const (
	listPage = 100
	listMost = 50_000
)

// Reports lists the reports of a namespace, or of all if the lister does, newest first, and the plans that have a
// report or a history, by namespace and name. It reads metadata only: the reports themselves may be gigabytes. More
// than listMost ConfigMaps are an error, which names the namespace that has most of them.
func Reports(ctx context.Context, configMaps Lister) ([]StoredReport, []StoredPlan, error) {
	o := metav1.ListOptions{
		LabelSelector: fmt.Sprintf("%s in (%s,%s)", checkup.LabelRole, checkup.RoleReport, checkup.RoleHistory),
		Limit:         listPage,
	}
	type key struct{ namespace, name string }
	listed, byUID, known := map[string]int{}, map[key]bool{}, map[key]int{}
	var reports []StoredReport
	var plans []StoredPlan
	n := 0
	err := everyPage(ctx, o, configMaps.List, func(page *metav1.PartialObjectMetadataList) error {
		for i := range page.Items {
			cm := &page.Items[i]
			listed[cm.Namespace]++
			plan := StoredPlan{Namespace: cm.Namespace, Plan: cm.Labels[checkup.LabelPlan]}
			if _, ok := known[key{plan.Namespace, plan.Plan}]; !ok && plan.Plan != "" {
				known[key{plan.Namespace, plan.Plan}] = 0
				plans = append(plans, plan)
			}
			uid := key{cm.Namespace, cm.Labels[checkup.LabelRun]}
			if cm.Labels[checkup.LabelRole] != string(checkup.RoleReport) || uid.name == "" || byUID[uid] {
				continue
			}
			byUID[uid] = true
			finished, _ := time.Parse(time.RFC3339, cm.Annotations[annotationFinished]) // else zero
			reports = append(reports, StoredReport{
				Namespace: cm.Namespace, Plan: plan.Plan, Run: cm.Labels[LabelRunName], RunUID: uid.name, Finished: finished,
			})
		}
		if n += len(page.Items); n > listMost {
			most := slices.MaxFunc(slices.Sorted(maps.Keys(listed)), func(a, b string) int {
				return cmp.Compare(listed[a], listed[b])
			})
			return fmt.Errorf("more than %d ConfigMaps, %d of them in namespace %s: lower the retention of the plans",
				listMost, listed[most], most)
		}
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("list reports: %w", err)
	}
	slices.SortFunc(plans, func(a, b StoredPlan) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Plan, b.Plan))
	})
	slices.SortFunc(reports, func(a, b StoredReport) int {
		return cmp.Or(b.Finished.Compare(a.Finished), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.RunUID, b.RunUID))
	})
	for i, p := range plans {
		known[key{p.Namespace, p.Plan}] = i
	}
	for i, r := range reports {
		if at, ok := known[key{r.Namespace, r.Plan}]; ok && plans[at].Newest == nil {
			plans[at].Newest = &reports[i]
		}
	}
	return reports, plans, nil
}

// everyPage lists objects in pages of o.Limit, and calls use with each page, until use returns an error. It asks again
// after errors that may pass.
func everyPage[L interface{ GetContinue() string }](
	ctx context.Context,
	o metav1.ListOptions,
	list func(context.Context, metav1.ListOptions) (L, error),
	use func(L) error,
) error {
	for {
		page, err := retry.Get(ctx, func() (L, error) { return list(ctx, o) })
		if err != nil {
			return err
		}
		if err := use(page); err != nil {
			return err
		}
		if o.Continue = page.GetContinue(); o.Continue == "" {
			return nil
		}
	}
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

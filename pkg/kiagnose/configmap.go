// SPDX-License-Identifier: Apache-2.0

package kiagnose

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	conflict "k8s.io/client-go/util/retry"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/retry"
)

// ConfigMap is the one that a checkup writes its outcome to. Start and Write change its
// status keys only. They need the rights to get and to update it.
type ConfigMap struct {
	Client    kubernetes.Interface
	Namespace string
	Name      string
}

// Of returns the ConfigMap that the outcome of a check is written to. namespace is that
// of the run, and the default of ref. It returns false if ref is nil: the check has no
// ConfigMap.
func Of(client kubernetes.Interface, ref *checkup.ConfigMapRef, namespace string) (ConfigMap, bool) {
	if ref == nil {
		return ConfigMap{}, false
	}
	return ConfigMap{client, cmp.Or(ref.Namespace, namespace), ref.Name}, true
}

// String is "ConfigMap namespace/name".
func (c ConfigMap) String() string { return "ConfigMap " + c.Namespace + "/" + c.Name }

// Read returns the ConfigMap's data.
func (c ConfigMap) Read(ctx context.Context) (map[string]string, error) {
	cm, err := retry.Get(ctx, func() (*corev1.ConfigMap, error) {
		return c.Client.CoreV1().ConfigMaps(c.Namespace).Get(ctx, c.Name, metav1.GetOptions{})
	})
	if err != nil {
		return nil, c.explain("read", "get", err)
	}
	return cm.Data, nil
}

// Start records that a checkup started: it deletes the status keys of an earlier run, and
// writes the time of the start as the only status key.
func (c ConfigMap) Start(ctx context.Context, at time.Time) error {
	return c.update(ctx, func(data map[string]string) {
		deleteStatus(data)
		data[KeyStartTimestamp] = timestamp(at)
	})
}

// Write records how the checkup ended. It replaces all status keys, but keeps the time of
// the start if Start wrote it for this run.
func (c ConfigMap) Write(ctx context.Context, o Outcome) error {
	return c.update(ctx, func(data map[string]string) {
		start, begun := data[KeyStartTimestamp]
		// Start deletes all other status keys: a time of completion is of an earlier run.
		if _, ended := data[KeyCompletionTimestamp]; ended {
			begun = false
		}
		deleteStatus(data)
		maps.Copy(data, o.Status())
		if begun {
			data[KeyStartTimestamp] = start
		}
	})
}

// Ensure creates the ConfigMap with the data if it does not exist. created is true if it
// did.
func (c ConfigMap) Ensure(ctx context.Context, data map[string]string) (created bool, err error) {
	_, err = c.Read(ctx)
	if !apierrors.IsNotFound(err) {
		return false, err
	}
	_, err = c.Client.CoreV1().ConfigMaps(c.Namespace).Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: c.Name, Labels: map[string]string{LabelCheckupType: CheckupType}},
		Data:       data,
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return false, nil
	}
	if err != nil {
		return false, c.explain("create", "create", err)
	}
	return true, nil
}

func deleteStatus(data map[string]string) {
	maps.DeleteFunc(data, func(key, _ string) bool { return strings.HasPrefix(key, StatusPrefix) })
}

// patience is how often, and for how long, an update is tried again after a conflict: ten
// times within about 6 s.
var patience = wait.Backoff{Steps: 10, Duration: 50 * time.Millisecond, Factor: 1.5, Jitter: 0.2}

// update changes the newest data of the ConfigMap: after a conflict it reads the ConfigMap
// again, because changes of others must not be lost.
func (c ConfigMap) update(ctx context.Context, change func(map[string]string)) error {
	client := c.Client.CoreV1().ConfigMaps(c.Namespace)
	once := func() error {
		cm, err := client.Get(ctx, c.Name, metav1.GetOptions{})
		if err != nil {
			return c.explain("read", "get", err)
		}
		if cm.Data == nil {
			cm.Data = map[string]string{}
		}
		change(cm.Data)
		if _, err := client.Update(ctx, cm, metav1.UpdateOptions{}); err != nil {
			return c.explain("update", "update", err)
		}
		return nil
	}
	return retry.Until(ctx, func() error { return conflict.RetryOnConflict(patience, once) })
}

// explain adds to an error what the user can do about it.
func (c ConfigMap) explain(what, verb string, err error) error {
	hint := ""
	switch {
	case apierrors.IsNotFound(err):
		hint = "; it does not exist: create it, and run the checkup again"
	case apierrors.IsForbidden(err):
		hint = fmt.Sprintf("; missing right: %s configmaps %s in namespace %s", verb, c.Name, c.Namespace)
	case apierrors.IsInvalid(err):
		hint = "; if it is immutable, delete it and create it again without immutable: true"
	}
	return fmt.Errorf("%s %s of the checkup: %w%s", what, c, err, hint)
}

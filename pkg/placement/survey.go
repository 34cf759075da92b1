// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
)

// requestedResources is what Snapshot.Unseen calls what Reader.Requests reads.
const requestedResources = "what pods request on the nodes"

// Survey adds to a snapshot that has the nodes what Expand needs for the
// placement checks of a plan: what is requested on the nodes, and, where a check
// takes its placements from the cluster, its network.config.openshift.io and
// network.operator.openshift.io. What there is no right or no API to look at is
// noted as unseen; an object that is malformed, and an API server that does not
// answer, are errors.
func Survey(ctx context.Context, r cluster.Reader, p *checkup.Plan, s *cluster.Snapshot) error {
	var asked, networkConfig bool
	for _, c := range p.Checks {
		spec, ok := c.Spec.(*Spec)
		asked = asked || ok
		networkConfig = networkConfig || ok && spec.NetworkConfig
	}
	if !asked {
		return nil
	}
	var problems []error
	if err := r.Requests(ctx, s); apierrors.IsForbidden(err) {
		s.AddUnseen(requestedResources, err)
	} else if err != nil {
		problems = append(problems, err)
	}
	if networkConfig {
		if err := surveyNetworkConfig(ctx, r, s); err != nil {
			problems = append(problems, err)
		}
	}
	return errors.Join(problems...)
}

// surveyNetworkConfig reads both objects, the second also where the first could
// not be read.
func surveyNetworkConfig(ctx context.Context, r cluster.Reader, s *cluster.Snapshot) error {
	if r.Dynamic == nil {
		return fmt.Errorf("read %s: no dynamic client", configObject)
	}
	var config cluster.NetworkConfig
	var problems []error
	object, seen, err := get(ctx, r, s, configs, configObject)
	problems = append(problems, err)
	if seen {
		var unknown []string
		config.Diagnostics, unknown, err = readDiagnostics(object)
		problems = append(problems, err)
		for _, path := range unknown {
			s.AddUnseen(configObject+": "+path, errors.New("no field that is known here: it is not taken into account"))
		}
	}
	legacy, legacySeen, err := get(ctx, r, s, operators, operatorObject)
	problems = append(problems, err)
	if legacySeen {
		config.DisableNetworkDiagnostics, err = readLegacyFlag(legacy)
		problems = append(problems, err)
	}
	if err := errors.Join(problems...); err != nil {
		return err
	}
	if seen {
		s.NetworkConfig = &config
	}
	return nil
}

// get reads one of the two objects. One that is not there, or not to be seen, is
// noted as unseen, but for an operator's object that is not there: it disables
// nothing then.
func get(ctx context.Context, r cluster.Reader, s *cluster.Snapshot, resource schema.GroupVersionResource, what string) (object map[string]any, seen bool, err error) {
	o, err := r.Dynamic.Resource(resource).Get(ctx, objectName, metav1.GetOptions{})
	switch {
	case err == nil:
		return o.Object, true, nil
	case apierrors.IsForbidden(err):
		s.AddUnseen(what, cluster.MissingRight(err, "read "+what, "get", resource.GroupResource().String(), ""))
	case apierrors.IsNotFound(err) && resource == operators:
	case apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse):
		s.AddUnseen(what, fmt.Errorf("the cluster has no API %s, as only OpenShift has it", resource.GroupVersion()))
	case apierrors.IsNotFound(err):
		s.AddUnseen(what, errors.New("there is no such object"))
	default:
		return nil, false, fmt.Errorf("read %s: %w", what, err)
	}
	return nil, false, nil
}

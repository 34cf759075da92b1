// SPDX-License-Identifier: Apache-2.0

package run

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/tektoncd/pipeline/pkg/client/clientset/versioned"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Cluster has the clients of one user for one namespace of a cluster.
type Cluster struct {
	Kube      kubernetes.Interface
	Tekton    versioned.Interface
	Dynamic   dynamic.Interface
	Metadata  metadata.Interface
	Namespace string
	// Server is the API server's URL, for messages.
	Server string
}

// Access selects the cluster, like kubectl's flags of the same names. The zero value
// selects the current context of the default kubeconfig or, inside a pod, the pod's
// service account.
type Access struct {
	Kubeconfig string
	Context    string
	Namespace  string
	// As and AsGroups are the user and the groups to impersonate; empty: none.
	As       string
	AsGroups []string
}

// ErrNoCluster says that no kubeconfig names a cluster.
var ErrNoCluster = errors.New(
	"no cluster: neither --kubeconfig, $KUBECONFIG nor ~/.kube/config names one, and this is not a pod; " +
		"set KUBECONFIG to a kubeconfig file",
)

func rulesOf(access Access) *clientcmd.ClientConfigLoadingRules {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = access.Kubeconfig
	return rules
}

// Contexts lists the contexts of the kubeconfig, sorted; nil if it cannot be read.
func Contexts(access Access) []string {
	config, err := rulesOf(access).Load()
	if err != nil {
		return nil
	}
	return slices.Sorted(maps.Keys(config.Contexts))
}

// Connect reads the kubeconfig and makes the clients. It sends no request to the
// cluster.
func Connect(access Access) (*Cluster, error) {
	rules := rulesOf(access)
	overrides := &clientcmd.ConfigOverrides{CurrentContext: access.Context}
	overrides.Context.Namespace = access.Namespace
	overrides.AuthInfo.Impersonate, overrides.AuthInfo.ImpersonateGroups = access.As, access.AsGroups
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides)
	config, err := loader.ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, ErrNoCluster
	}
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	namespace, _, err := loader.Namespace()
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig's namespace: %w", err)
	}
	return newCluster(config, namespace)
}

func newCluster(config *rest.Config, namespace string) (*Cluster, error) {
	config = rest.CopyConfig(config)
	config.UserAgent = "checkplan-planner"
	// client-go's defaults (5 per second) make an apply of 20 objects take seconds.
	config.QPS, config.Burst = 50, 100
	// Warnings of the API server (deprecations, pod security audits) are for the author
	// of the objects, not for the user, and would break the progress line.
	config.WarningHandler = rest.NoWarnings{}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client for %s: %w", config.Host, err)
	}
	tekton, err := versioned.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a Tekton client for %s: %w", config.Host, err)
	}
	dyn, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a dynamic client for %s: %w", config.Host, err)
	}
	meta, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a metadata client for %s: %w", config.Host, err)
	}
	return &Cluster{
		Kube:      kube,
		Tekton:    tekton,
		Dynamic:   dyn,
		Metadata:  meta,
		Namespace: namespace,
		Server:    config.Host,
	}, nil
}

// reach returns an error if the API server does not answer.
func (c *Cluster) reach(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if _, err := c.Kube.Discovery().ServerVersion(); err != nil {
		return fmt.Errorf("cannot reach the API server at %s: %w", c.Server, err)
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

// Command resolvers is Tekton's cmd/resolvers with two of its resolvers, bundles and cluster: the others ask servers
// outside the sandbox. In the same process, an OCI registry in memory listens on 127.0.0.1. A port forward to the same
// port of the host gives a bundle one name on both sides.
package main

import (
	"log"
	"net/http"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/tektoncd/pipeline/pkg/apis/resolution/v1alpha1"
	"github.com/tektoncd/pipeline/pkg/remoteresolution/resolver/bundle"
	"github.com/tektoncd/pipeline/pkg/remoteresolution/resolver/cluster"
	"github.com/tektoncd/pipeline/pkg/remoteresolution/resolver/framework"
	filteredinformerfactory "knative.dev/pkg/client/injection/kube/informers/factory/filtered"
	"knative.dev/pkg/injection"
	"knative.dev/pkg/injection/sharedmain"
	"knative.dev/pkg/signals"
)

// address of the registry.
const address = "127.0.0.1:15000"

func main() {
	go func() { log.Fatal(http.ListenAndServe(address, registry.New())) }()
	ctx := filteredinformerfactory.WithSelectors(signals.NewContext(), v1alpha1.ManagedByLabelKey)
	config := injection.ParseAndGetRESTConfigOrDie()
	config.QPS, config.Burst = 50, 50
	sharedmain.MainWithConfig(ctx, "controller", config,
		framework.NewController(ctx, &bundle.Resolver{}), framework.NewController(ctx, &cluster.Resolver{}))
}

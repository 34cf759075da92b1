// SPDX-License-Identifier: Apache-2.0

package connectivity

import (
	"context"
	_ "embed"

	"k8s.io/client-go/dynamic"

	"github.com/checkplan/checkplan/pkg/crd"
)

//go:embed crd.yaml
var crdYAML []byte

// definition of PodNetworkConnectivityChecks.
var definition = crd.Definition{
	YAML: crdYAML, Name: "podnetworkconnectivitychecks." + Group, Version: Version,
	Setting: "connectivityChecks.installCRD", Whose: "OpenShift's",
}

// CRD is the CustomResourceDefinition of PodNetworkConnectivityChecks, as YAML.
func CRD() []byte { return crdYAML }

// EnsureCRD makes sure that PodNetworkConnectivityChecks can be written, as crd.Definition.Ensure says.
func EnsureCRD(ctx context.Context, client dynamic.Interface, install bool) (unwritten string, err error) {
	return definition.Ensure(ctx, client, install)
}

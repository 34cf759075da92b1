// SPDX-License-Identifier: Apache-2.0

// Package kubeproxy compares pkg/nodestate of the main module with kube-proxy's own code. It has tests only, and is in
// this module because this one has k8s.io/kubernetes.
//
// The main module is not a requirement of this one: then each change of its go.mod could change what Kubernetes is built
// from. The folder internal/nodestate is a symbolic link to pkg/nodestate, which imports nothing of the main module. Go
// follows the link when it is imported, and not when it looks for packages ("./...").
package kubeproxy

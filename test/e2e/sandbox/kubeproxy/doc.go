// SPDX-License-Identifier: Apache-2.0

// Package kubeproxy compares pkg/nodestate of the main module with kube-proxy's own code. It has tests only, and is in
// this module because this one has k8s.io/kubernetes.
//
// The main module is not a requirement of this one: then each change of its go.mod could change what Kubernetes is
// built from. The files of internal/nodestate are symbolic links to those of pkg/nodestate, which import nothing of the
// main module. Its tests do, so they are not among them: go mod tidy would look for what they import.
package kubeproxy

// SPDX-License-Identifier: Apache-2.0

package scheduling

import corev1 "k8s.io/api/core/v1"

// Restrict makes a pod one that the pod security standard "restricted" admits, and
// whose containers neither write to their file systems nor get an API token. A pod on
// the host network is still refused.
//
// It sets no UID and no GID: they are those of the image, which has a numeric user, or the
// platform sets them. OpenShift's restricted-v2 refuses a UID outside the namespace's range.
func Restrict(spec *corev1.PodSpec) {
	yes, no := true, false
	spec.AutomountServiceAccountToken, spec.EnableServiceLinks = &no, &no
	spec.SecurityContext = &corev1.PodSecurityContext{
		RunAsNonRoot:   &yes,
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
	for i := range spec.Containers {
		spec.Containers[i].SecurityContext = RestrictedContainer()
	}
}

// RestrictedContainer returns the security context that Restrict gives to containers.
func RestrictedContainer() *corev1.SecurityContext {
	yes, no := true, false
	return &corev1.SecurityContext{
		AllowPrivilegeEscalation: &no,
		ReadOnlyRootFilesystem:   &yes,
		RunAsNonRoot:             &yes,
		Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		SeccompProfile:           &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
}

// SPDX-License-Identifier: Apache-2.0

package podmesh

import (
	"slices"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
)

// Roster returns the addresses of the existing pods among a worksheet's targets, from the snapshot: one entry per
// target. Entries of fixtures are empty; setup sets them. A pod that is not ready counts as missing, because its
// silence would say nothing about the network.
func Roster(mesh *Spec, w *checkup.Worksheet, s *cluster.Snapshot) checkup.Roster {
	roster := checkup.Roster{Targets: make([]checkup.RosterEntry, len(w.Targets))}
	if mesh.Targets.Pods == nil {
		return roster
	}
	pods := map[string]cluster.Pod{}
	if want, err := mesh.Targets.Pods.existing().selection(); err == nil {
		selected, _ := s.Selection(want)
		for _, pod := range selected.Pods {
			pods[pod.Name] = pod
		}
	}
	for i, target := range w.Targets {
		if target.Pod != "" {
			pod, found := pods[target.Pod]
			roster.Targets[i] = entryOf(target.Pod, pod, found, mesh.Targets.Pods.Port)
		}
	}
	return roster
}

// entryOf returns the entry of one existing pod.
func entryOf(name string, pod cluster.Pod, found bool, port int) checkup.RosterEntry {
	entry := checkup.RosterEntry{Pod: name, UID: pod.UID} // no UID if not found
	missing := func(message string) checkup.RosterEntry {
		entry.Cause = &checkup.Cause{Stage: checkup.StageSetup, Message: message}
		return entry
	}
	switch {
	case !found:
		return missing("the pod was not found")
	case pod.Node == "":
		return missing("the pod is not scheduled to a known node")
	case len(pod.IPs) == 0:
		return missing("the pod has no address yet")
	case !pod.Ready:
		return missing("the pod is not ready")
	}
	entry.Addresses = map[checkup.IPFamily]string{}
	for _, ip := range slices.Backward(pod.IPs) { // the first address of each family is used
		if family, ok := cluster.FamilyOf(ip); ok {
			entry.Addresses[family] = ip
		}
	}
	entry.Ports = map[checkup.Transport]int{checkup.TCP: port, checkup.HTTP: port}
	return entry
}

// SPDX-License-Identifier: Apache-2.0

package print

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Evidence prints what a run kept of its pods and VMs that went wrong, without their manifests. A bar is before each
// line of a log. Its error is the writer's.
func Evidence(w io.Writer, e *checkup.Evidence, o TextOptions) error {
	p := newPrinter(w, o)
	about := fmt.Sprintf("Evidence of run %s in namespace %s", e.Run, e.Namespace)
	if len(e.Pods)+len(e.VMs)+len(e.Consoles) == 0 {
		p.line("%s", checkup.Clean(about+": none: no pod and no VM went wrong"))
		return p.w.Flush()
	}
	consoles := 0
	for _, c := range e.Consoles {
		consoles += len(c.Transcripts)
	}
	p.line("%s", p.bold(checkup.Clean(fmt.Sprintf("%s: %s, %s, %s", about,
		checkup.Count(len(e.Pods), "pod"), checkup.Count(len(e.VMs), "VM"), checkup.Count(consoles, "console")))))
	for i := range e.Pods {
		pod := &e.Pods[i]
		p.heading(0, fmt.Sprintf("pod %s of check %s%s: %s", pod.Pod, pod.Check, onNode(pod.Node), pod.Problem))
		if pod.Warning != "" {
			p.line("  %s", checkup.Clean("event: "+pod.Warning))
		}
		p.kept("log", pod.Log)
	}
	for i := range e.VMs {
		vm := &e.VMs[i]
		p.heading(0, fmt.Sprintf("VM %s of check %s%s: phase %s", vm.VM, vm.Check, onNode(vm.Node), vm.Phase))
		p.kept("events", strings.Join(vm.Events, "\n"))
		for _, container := range slices.Sorted(maps.Keys(vm.Logs)) {
			p.kept("log of container "+container, vm.Logs[container])
		}
	}
	for _, c := range e.Consoles {
		for _, t := range c.Transcripts {
			p.heading(0, fmt.Sprintf("console of VM %s (%s) of check %s in %s", t.VM, t.Name, c.Check, c.Phase))
			p.kept("received", t.Text)
		}
	}
	p.line("")
	p.line("manifests: --output json")
	return p.w.Flush()
}

func onNode(name string) string {
	if name == "" {
		return ", not scheduled"
	}
	return " on node " + name
}

// kept prints a text that somebody else wrote, if there is one, each line behind a bar.
func (p *printer) kept(title, text string) {
	text = strings.TrimRight(strings.ReplaceAll(text, "\r\n", "\n"), "\n")
	if text == "" {
		return
	}
	p.line("  %s", checkup.Clean(title))
	for line := range strings.SplitSeq(text, "\n") {
		p.line("%s", strings.TrimRight("    | "+checkup.Clean(line), " "))
	}
}

// SPDX-License-Identifier: Apache-2.0

package vmlatency

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/kind"
)

// Explain shows which VMs will start, and how they are measured.
func Explain(e kind.Explained) kind.Explanation {
	w, c := e.Worksheet, e.Cost
	guest := w.Guests.Guest
	x := kind.Explanation{Images: []string{cmp.Or(guest.Image, e.GuestImage)}}
	x.Field("pairs", fmt.Sprintf("%d, of %s", c.Pairs, checkup.Count(len(w.Sources), "VM")))
	if len(w.Probes) > 0 {
		p := w.Probes[0]
		back, _ := checkup.VMConnectivity(p.Count, p.Interval)
		x.Field(
			"measured",
			fmt.Sprintf("each from its source %d times, every %s; back from its target %d times", p.Count, p.Interval, back),
		)
	}
	if c.VMs == 0 {
		x.Field("VMs", "none can start")
	} else {
		x.Field("VMs", describe(c.VMs, guest))
		if c.Preflights > 0 {
			x.Field(
				"before",
				fmt.Sprintf(
					"%s on the networks of the VMs, to test that they can be attached",
					checkup.Count(c.Preflights, "short pod"),
				),
			)
		}
	}
	var seen []checkup.NetworkRef
	for _, s := range w.Sources {
		if !slices.Contains(seen, s.VM.Network) {
			seen = append(seen, s.VM.Network)
			x.Field("network", s.VM.Network.String()+plugged(s.VM))
		}
	}
	if c.VMs > 0 {
		x.Field(
			"addresses",
			"examples: each run has its own, from ranges that the survey did not find in the cluster or the network",
		)
	}
	if n, causes := unmeasurable(w); n > 0 {
		x.Unmeasured = n
		x.Field("unmeasured", fmt.Sprintf("%s will not be measured:", checkup.Count(n, "pair")), causes...)
	}
	if spec, ok := e.Spec.(*Spec); ok && spec.Kiagnose != nil {
		where := spec.Kiagnose.Name
		if spec.Kiagnose.Namespace != "" {
			where = spec.Kiagnose.Namespace + "/" + where
		}
		x.Field("outcome", fmt.Sprintf("also written to ConfigMap %s, in kiagnose's keys", where))
	}
	if t := table(w); len(t.Rows) > 0 {
		x.Blocks = []checkup.Block{{Table: t}}
	}
	return x
}

// describe says how many VMs start, their memory, and how the task logs in to them.
func describe(n int, guest checkup.Guest) string {
	memory := guest.Memory
	if q, err := resource.ParseQuantity(guest.Memory); err == nil {
		q.Mul(int64(n))
		memory += " each, " + q.String() + " in all, and what KubeVirt adds"
	}
	login := "checkplan's own guest, which needs no login"
	if guest.Login != nil {
		login = "logged in to on the console as " + guest.Login.User
	}
	return fmt.Sprintf("%d with a memory of %s; %s", n, memory, login)
}

// plugged says how VMs are attached to their network; empty if its config is unknown.
func plugged(vm *checkup.VM) string {
	if vm.NetworkType == "" {
		return ""
	}
	text := ": type " + vm.NetworkType
	if vm.Bridge != "" {
		text += ", bridge " + vm.Bridge
	}
	text += ", VMs bound by " + string(vm.Binding)
	if vm.Resource != "" {
		text += ", each takes one " + vm.Resource
	}
	return text
}

// unmeasurable counts the pairs whose VMs cannot start, and lists the causes, each
// with its pairs of VMs.
func unmeasurable(w *checkup.Worksheet) (pairs int, causes []checkup.Item) {
	for pair := range w.Pairs() {
		if w.Sources[pair.Source].Cause != nil || w.Targets[pair.Target].Cause != nil {
			pairs++
		}
	}
	var order []string
	of := map[string][]string{}
	for i := 0; i+1 < len(w.Sources); i += 2 {
		if cause := w.Sources[i].Cause; cause != nil {
			if of[cause.Message] == nil {
				order = append(order, cause.Message)
			}
			of[cause.Message] = append(of[cause.Message], w.Sources[i].Name()+" to "+w.Sources[i+1].Name())
		}
	}
	for _, cause := range order {
		causes = append(causes, checkup.Item{Text: fmt.Sprintf("%s: %s", checkup.Some(of[cause]), cause)})
	}
	return pairs, causes
}

// table shows the VMs that start.
func table(w *checkup.Worksheet) *checkup.Table {
	t := &checkup.Table{
		Noun:    "VM",
		Columns: []checkup.Column{{Name: "VM"}, {Name: "NODE"}, {Name: "MAC", Priority: 1}, {Name: "ADDRESSES"}},
	}
	for _, s := range w.Sources {
		if s.Cause != nil {
			continue
		}
		var addresses []string
		for _, family := range checkup.IPFamilies {
			if a, ok := s.VM.Addresses[family]; ok {
				addresses = append(addresses, a)
			}
		}
		t.Rows = append(t.Rows, []checkup.Cell{
			checkup.Text(
				s.Name(),
			),
			checkup.Text(cmp.Or(s.Node, "any")),
			checkup.Text(s.VM.MAC),
			checkup.Text(strings.Join(addresses, " ")),
		})
	}
	return t
}

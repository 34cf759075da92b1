// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	kubevirtv1 "kubevirt.io/api/core/v1"
	kubevirtfake "kubevirt.io/client-go/kubevirt/fake"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/console"
	"github.com/checkplan/checkplan/pkg/fleet"
	"github.com/checkplan/checkplan/pkg/vmlatency"
)

// world is a fake cluster with KubeVirt, whose VMs run as soon as they are created
// and are checkplan's own guests, unless a test has it otherwise.
type world struct {
	*Guests
	kube *fake.Clientset
	virt *kubevirtfake.Clientset
	log  strings.Builder

	mu sync.Mutex // guards following and log
	// becomes changes a VM that is created, launcher its pod, which is made if it is
	// set; by the VM's name that people call it.
	becomes  map[string]func(*kubevirtv1.VirtualMachineInstance)
	launcher map[string]func(*corev1.Pod)
	// preflight changes a preflight pod, by its pair and node.
	preflight map[string]func(*corev1.Pod)
	// guests are what VMs say; nil of one is a guest that says nothing.
	guests map[string]*guest
	names  map[string]string         // of VMs, by the name of the object
	open   map[string]net.Conn       // its end of the console's last connection
	lines  map[string]*io.PipeWriter // what is typed on it
}

// hangUp closes a VM's console, as KubeVirt does when another client comes.
func (x *world) hangUp(people string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if c := x.open[people]; c != nil {
		c.Close()
	}
}

// guest is one VM's agent.
type guest struct {
	boot string                       // what its console says first
	mute bool                         // it never answers
	dial func() error                 // asked before each connection; nil lets them pass
	run  func(o checkup.Order) []line // what it reports of an order; nil is that all is well
}

// line is what a guest reports, after doing something.
type line struct {
	do func()
	checkup.Message
}

// worksheet is that of a check with one pair of VMs on n1 and n2, and one on n3 and
// n4 if there are to be two.
func worksheet(t *testing.T, pairs int) *checkup.Worksheet {
	w := worksheetOf(t, bridgeConfig, func(v *vmlatency.Spec) {
		for i := range pairs {
			v.Pairs = append(v.Pairs, checkup.NodePair{Source: fmt.Sprintf("n%d", 2*i+1), Target: fmt.Sprintf("n%d", 2*i+2)})
		}
		v.Timeouts.Setup = checkup.Duration(100 * time.Second)
	})
	return w
}

func newWorld(t *testing.T, w *checkup.Worksheet) *world {
	x := &world{
		kube: fake.NewSimpleClientset(), virt: kubevirtfake.NewSimpleClientset(),
		becomes: map[string]func(*kubevirtv1.VirtualMachineInstance){}, launcher: map[string]func(*corev1.Pod){},
		preflight: map[string]func(*corev1.Pod){}, guests: map[string]*guest{}, names: map[string]string{}, open: map[string]net.Conn{}, lines: map[string]*io.PipeWriter{},
	}
	x.Guests = &Guests{
		Fleet: &fleet.Fleet{
			Client: x.kube, Namespace: "ns", Plan: w.Plan, RunUID: "run-uid", Image: "registry.example/agent:v1",
			Owner: "task-pod", OwnerUID: "uid-of-task-pod",
			Patience: 30 * time.Millisecond, Retry: 200 * time.Millisecond,
			Logf: func(format string, args ...any) {
				x.mu.Lock()
				defer x.mu.Unlock()
				fmt.Fprintf(&x.log, format+"\n", args...)
			},
		},
		VMs: x.virt.KubevirtV1(), Image: "registry.example/guest:v1",
		Poll: 100 * time.Millisecond, Patience: 30 * time.Millisecond, Force: time.Millisecond,
	}
	for vm, e := range w.Sources {
		name := x.nameOf(w, vm)
		x.names[name] = e.Name()
		x.guests[e.Name()] = &guest{}
	}
	x.Console = x.connect
	x.kube.PrependReactor("create", "*", func(a k8stesting.Action) (bool, runtime.Object, error) {
		x.mu.Lock()
		defer x.mu.Unlock()
		switch o := a.(k8stesting.CreateAction).GetObject().(type) {
		case *corev1.Pod:
			x.created(o)
		case *corev1.ConfigMap:
			o.UID = types.UID("uid-of-" + o.Name)
		}
		return false, nil, nil
	})
	x.virt.PrependReactor("create", "virtualmachineinstances", func(a k8stesting.Action) (bool, runtime.Object, error) {
		x.mu.Lock()
		defer x.mu.Unlock()
		vmi := a.(k8stesting.CreateAction).GetObject().(*kubevirtv1.VirtualMachineInstance)
		vmi.UID = types.UID("uid-of-" + vmi.Name)
		people := x.names[vmi.Name]
		vmi.Status.Phase, vmi.Status.NodeName = kubevirtv1.Running, people
		if change := x.becomes[people]; change != nil {
			change(vmi)
		}
		if change := x.launcher[people]; change != nil {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "virt-launcher-" + people, Namespace: "ns", UID: "uid-of-launcher", Labels: map[string]string{kubevirtv1.CreatedByLabel: string(vmi.UID)}}}
			for k, v := range vmi.Labels {
				pod.Labels[k] = v
			}
			pod.Spec.NodeName = people
			pod.Status.Phase = corev1.PodPending
			change(pod)
			if err := x.kube.Tracker().Add(pod); err != nil {
				t.Error(err)
			}
		}
		return false, nil, nil
	})
	return x
}

// created is what becomes of a preflight pod: it is attached, and ends.
func (x *world) created(pod *corev1.Pod) {
	node := ""
	if a := pod.Spec.Affinity.NodeAffinity; a != nil {
		node = a.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchFields[0].Values[0]
	}
	pod.UID = "uid-of-pod"
	pod.Spec.NodeName = node
	pod.Status.Phase = corev1.PodSucceeded
	pod.Annotations["k8s.v1.cni.cncf.io/network-status"] = `[{"name":"cbr0","interface":"eth0","default":true},{"name":"default/net","interface":"net1"}]`
	if change := x.preflight[node]; change != nil {
		change(pod)
	}
}

// warn adds a warning event.
func (x *world) warn(t *testing.T, kind, name, reason, message string) {
	t.Helper()
	if err := x.kube.Tracker().Add(&corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: name + "." + reason, Namespace: "ns"},
		InvolvedObject: corev1.ObjectReference{Kind: kind, Name: name}, Type: corev1.EventTypeWarning, Reason: reason, Message: message,
		LastTimestamp: metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)),
	}); err != nil {
		t.Fatal(err)
	}
}

// vmi changes a VM in the cluster.
func (x *world) vmi(t *testing.T, people string, change func(*kubevirtv1.VirtualMachineInstance)) {
	t.Helper()
	for name, p := range x.names {
		if p != people {
			continue
		}
		vmi, err := x.vmis().Get(context.Background(), name, metav1.GetOptions{})
		if err != nil {
			t.Error(err)
			return
		}
		change(vmi)
		if _, err := x.vmis().Update(context.Background(), vmi, metav1.UpdateOptions{}); err != nil {
			t.Error(err)
		}
	}
}

// gone deletes a VM behind everybody's back.
func (x *world) gone(t *testing.T, people string) {
	t.Helper()
	for name, p := range x.names {
		if p == people {
			gvr := kubevirtv1.SchemeGroupVersion.WithResource("virtualmachineinstances")
			if err := x.virt.Tracker().Delete(gvr, "ns", name); err != nil {
				t.Error(err)
			}
		}
	}
}

// connect is a console in memory. As a real one it goes on when nobody is connected,
// and what it says then is lost.
func (x *world) connect(ctx context.Context, name string) (io.ReadWriteCloser, error) {
	people := x.names[name]
	g := x.guests[people]
	if _, err := x.vmis().Get(ctx, name, metav1.GetOptions{}); err != nil {
		return nil, err
	}
	if g.dial != nil {
		if err := g.dial(); err != nil {
			return nil, err
		}
	}
	host, own := net.Pipe()
	x.mu.Lock()
	defer x.mu.Unlock()
	x.open[people] = own
	if x.lines[people] == nil {
		in, typed := io.Pipe()
		x.lines[people] = typed
		go g.serve(struct {
			io.Reader
			io.Writer
		}{in, writerFunc(func(b []byte) (int, error) {
			x.mu.Lock()
			conn := x.open[people]
			x.mu.Unlock()
			_, _ = conn.Write(b) // nobody may be there
			return len(b), nil
		})})
	}
	typed := x.lines[people]
	go func() { _, _ = io.Copy(typed, own) }()
	if g.boot != "" {
		go func() { _, _ = io.WriteString(own, g.boot) }()
	}
	return host, nil
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// end ends all guests.
func (x *world) end() {
	x.mu.Lock()
	defer x.mu.Unlock()
	for people, typed := range x.lines {
		typed.Close()
		x.open[people].Close()
	}
}

// serve is what runs in the VM.
func (g *guest) serve(rw io.ReadWriter) {
	if g.mute {
		_, _ = io.Copy(io.Discard, rw)
		return
	}
	server := console.Server{
		State: func() console.State { return console.State{Version: "test"} },
		Run: func(_ context.Context, in io.Reader, out io.Writer) error {
			var o checkup.Order
			if err := json.NewDecoder(in).Decode(&o); err != nil {
				return err
			}
			report := g.run
			if report == nil {
				report = well
			}
			for _, l := range report(o) {
				if l.do != nil {
					l.do()
					continue
				}
				b, err := json.Marshal(l.Message)
				if err != nil {
					return err
				}
				if _, err := out.Write(append(b, '\n')); err != nil {
					return err
				}
			}
			return nil
		},
	}
	_ = server.Serve(context.Background(), rw)
}

// well is what a guest reports of which all is well.
func well(o checkup.Order) []line { return reported(o, 0) }

// reported is what a guest reports that loses so many answers of each pair.
func reported(o checkup.Order, lost int) []line {
	lines := []line{{Message: checkup.Message{Start: &checkup.AgentStart{Source: o.Source, Version: "test", Pairs: len(o.IPFamilies)}}}}
	for _, f := range o.IPFamilies {
		for _, name := range []string{"self", "closed"} {
			lines = append(lines, line{Message: checkup.Message{Control: &checkup.Control{Family: f, Name: name, OK: o.Own[f] != "" && o.Unused[f] != ""}}})
		}
	}
	n := 0
	for _, target := range o.Targets {
		for f := range target.Addresses {
			for _, p := range o.Probes {
				n++
				lost := min(lost, p.Count)
				lines = append(lines, line{Message: checkup.Message{Observation: &checkup.Observation{
					Pair: checkup.Pair{Source: o.Source, Target: target.Target, Family: f, Transport: p.Transport, Size: p.Sizes[0]},
					Sent: p.Count, Received: p.Count - lost, RTTs: slices.Repeat([]int64{1000}, p.Count-lost),
				}}})
			}
		}
	}
	return append(lines, line{Message: checkup.Message{End: &checkup.AgentEnd{Observations: n}}})
}

func rosterOf(w *checkup.Worksheet) *checkup.Roster {
	return &checkup.Roster{Targets: make([]checkup.RosterEntry, len(w.Targets))}
}

// forbidden is how the API server refuses.
func forbidden(resource string) error {
	return apierrors.NewForbidden(corev1.Resource(resource), "", fmt.Errorf("no right to"))
}

// refused is how a console is refused.
func refused() error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: "no right to the console"}}
}

// SPDX-License-Identifier: Apache-2.0

package write

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/checkplan/checkplan/pkg/dataplane"
	"github.com/checkplan/checkplan/pkg/dataplane/ipvs"
	"github.com/checkplan/checkplan/pkg/dataplane/proxy"
)

// Kernel is IPVS. Each function is called by one goroutine at a time.
type Kernel struct {
	// Load loads the module. It is called if Servers answers ipvs.ErrNone.
	Load func(context.Context) error
	// Servers returns all virtual servers of a family, sorted: without their destinations, if bare.
	Servers func(family dataplane.Family, bare bool) ([]ipvs.VirtualServer, error)
	// Destinations returns those of one.
	Destinations func(dataplane.Family, *ipvs.VirtualServer) ([]ipvs.Destination, error)
	// Do does one Step.
	Do func(dataplane.Family, Step) error
	// Set sets a sysctl of IPVS.
	Set func(name, value string) error
}

// Writer keeps virtual servers, the interface and the table: it is a proxy.Writer.
type Writer struct {
	Kernel Kernel
	Device proxy.Device
	// Rules keeps the table.
	Rules Rules
	// Now is the clock of Tidy.
	Now func() time.Time

	families []*keeper
	// assigned are the addresses that the interface has since the last Write.
	assigned []netip.Addr
	looked   time.Time // at the connections of destinations
}

// Rules is a Writer of rules that can remove them all.
type Rules interface {
	proxy.Writer
	Cleanup(ctx context.Context) error
}

// keeper keeps the virtual servers of one family.
type keeper struct {
	family dataplane.Family
	have   []ipvs.VirtualServer
	known  bool
}

// New returns a Writer of the kernel's IPVS, which runs nft, and modprobe if the module is not loaded. It looks for
// both in PATH.
func New(log *slog.Logger) *Writer {
	return &Writer{
		Kernel: Kernel{
			Load: load, Do: do, Destinations: ipvs.Destinations,
			Servers: func(family dataplane.Family, bare bool) ([]ipvs.VirtualServer, error) {
				if bare {
					return ipvs.Bare(family)
				}
				return ipvs.Servers(family)
			},
			Set: func(name, value string) error { return os.WriteFile(sysctls+name, []byte(value), 0o644) },
		},
		Device: proxy.NewDevice(dataplane.IPVSDevice), Rules: table.Writer(log), Now: time.Now,
	}
}

func load(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, "modprobe", "ip_vs")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("modprobe ip_vs: %w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

func do(family dataplane.Family, s Step) error {
	switch s.Do {
	case AddServer:
		return ipvs.Add(family, &s.Server)
	case SetServer:
		return ipvs.Update(family, &s.Server)
	case DeleteServer:
		return ipvs.Delete(family, &s.Server)
	case AddDestination:
		return ipvs.AddDestination(family, &s.Server, s.Destination)
	case SetDestination:
		return ipvs.UpdateDestination(family, &s.Server, s.Destination)
	default:
		return ipvs.DeleteDestination(family, &s.Server, s.Destination)
	}
}

const sysctls = "/proc/sys/net/ipv4/vs/"

// settings are kube-proxy's, for both families.
var settings = []struct{ name, value string }{
	{"conntrack", "1"},                 // rules see connections, and rewrite their sources
	{"expire_nodest_conn", "1"},        // a connection whose destination is deleted gets another one
	{"expire_quiescent_template", "1"}, // so does a client with affinity to a destination without new connections
}

// Write is proxy.Writer's. What cannot be served costs nothing else: it is a proxy.Unserved.
func (w *Writer) Write(ctx context.Context, state *proxy.State, node proxy.Node) error {
	if err := w.find(ctx); err != nil {
		return err
	}
	if err := w.Device.Create(); err != nil {
		return err
	}
	has, err := w.Device.Addresses()
	if err != nil {
		return err
	}
	var unserved, failures proxy.Unserved
	var want []netip.Addr
	changes := make([]Change, len(w.families))
	for i, k := range w.families {
		layout := Want(state, node, k.family, &unserved)
		want = append(want, layout.Addresses...)
		changes[i] = Difference(k.have, layout.Servers)
		for _, s := range changes[i].Taken {
			k.known = false
			failures.Add("%s is not served: somebody else has this virtual server of IPVS", &s)
		}
	}
	add, remove := proxy.Assign(has, want)
	// A port is served before packets get to it, and an address that is nobody's is no longer the node's before its
	// ports are open to programs that listen at all of its addresses.
	for i, k := range w.families {
		w.do(k, changes[i].First, &failures)
	}
	for _, a := range remove {
		if err := w.Device.Remove(a); err != nil {
			failures.Add("address %s is no longer needed, but cannot be removed from interface %s: %v", a, w.Device.Name, err)
		}
	}
	if err := w.Rules.Write(ctx, state, node); err != nil {
		w.forget()
		return err
	}
	missing := map[netip.Addr]bool{}
	for _, a := range add {
		if err := w.Device.Add(a); err != nil {
			missing[a] = true
			failures.Add("address %s is not served: add it to interface %s: %v", a, w.Device.Name, err)
		}
	}
	w.assigned = slices.DeleteFunc(want, func(a netip.Addr) bool { return missing[a] })
	for i, k := range w.families {
		w.do(k, changes[i].Last, &failures)
		k.have = changes[i].After
	}
	return unserved.With(failures)
}

// find reads what is there, if it is not known. Then, too, the kernel gets its settings.
func (w *Writer) find(ctx context.Context) error {
	if w.families == nil {
		for _, family := range proxy.Families {
			w.families = append(w.families, &keeper{family: family})
		}
	}
	for _, k := range w.families {
		if k.known {
			continue
		}
		have, err := w.Kernel.Servers(k.family, false)
		if errors.Is(err, ipvs.ErrNone) {
			if failed := w.Kernel.Load(ctx); failed != nil {
				return fmt.Errorf("%w: %w", err, failed)
			}
			have, err = w.Kernel.Servers(k.family, false)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", k.family, err)
		}
		for _, s := range settings {
			if err := w.Kernel.Set(s.name, s.value); err != nil {
				return fmt.Errorf("set net.ipv4.vs.%s to %s: %w", s.name, s.value, err)
			}
		}
		k.have, k.known = have, true
	}
	return nil
}

// forget: what is there is not known any more.
func (w *Writer) forget() {
	for _, k := range w.families {
		k.have, k.known = nil, false
	}
}

// do does steps. After one that fails, it is not known what the family has.
func (w *Writer) do(k *keeper, steps []Step, failures *proxy.Unserved) {
	for _, s := range steps {
		if err := w.Kernel.Do(k.family, s); err != nil {
			k.known = false
			failures.Add("%v", err)
		}
	}
}

// lookInterval is the time between two looks whether connections to removed endpoints have ended.
const lookInterval = 10 * time.Second

// Tidy is proxy.Writer's: it deletes destinations that get no new connections and have no open ones.
func (w *Writer) Tidy(ctx context.Context) (more bool, err error) {
	more, err = w.Rules.Tidy(ctx)
	errs := []error{err}
	waits := w.Now().Sub(w.looked) < lookInterval
	if !waits {
		w.looked = w.Now()
	}
	for _, k := range w.families {
		for i := range k.have {
			s := &k.have[i]
			if !k.known || !draining(s) {
				continue
			}
			if waits {
				more = true
				continue
			}
			list, err := w.Kernel.Destinations(k.family, s)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			steps, after := Drained(*s, list)
			var failures proxy.Unserved
			if w.do(k, steps, &failures); len(failures.Problems) > 0 {
				return true, errors.Join(append(errs, failures)...)
			}
			k.have[i] = after
			more = more || draining(&after)
		}
	}
	return more, errors.Join(errs...)
}

// Present is proxy.Writer's: it looks whether the interface has its addresses, the table is there, and each virtual
// server, without a look at its destinations.
func (w *Writer) Present(ctx context.Context) error {
	errs := []error{w.Device.Missing(w.assigned), w.Rules.Present(ctx)}
	for _, k := range w.families {
		if !k.known {
			continue
		}
		have, err := w.Kernel.Servers(k.family, true)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		have = slices.DeleteFunc(have, func(s ipvs.VirtualServer) bool { return !own(&s) })
		if !slices.EqualFunc(have, k.have, func(a, b ipvs.VirtualServer) bool { return a.Compare(&b) == 0 }) {
			errs = append(errs, fmt.Errorf("%s: IPVS has %d virtual servers, not those %d that were written",
				k.family, len(have), len(k.have)))
		}
	}
	err := errors.Join(errs...)
	if err != nil {
		w.forget()
	}
	return err
}

// Cleanup removes what a Writer, this one or a predecessor, has: the interface, the virtual servers and the table.
func (w *Writer) Cleanup(ctx context.Context) error {
	errs := []error{w.Device.Delete()}
	for _, family := range proxy.Families {
		have, err := w.Kernel.Servers(family, true)
		if errors.Is(err, ipvs.ErrNone) {
			continue
		}
		errs = append(errs, err)
		k, failures := &keeper{family: family}, proxy.Unserved{}
		w.do(k, Difference(have, nil).Last, &failures)
		if len(failures.Problems) > 0 {
			errs = append(errs, errors.New(strings.Join(failures.Problems, "; ")))
		}
	}
	w.families, w.assigned = nil, nil
	return errors.Join(append(errs, w.Rules.Cleanup(ctx))...)
}

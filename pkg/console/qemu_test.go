// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package console

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// TestRealGuests boots dist/guest.tar (make guest-image) in QEMU, without KVM, and
// measures between two of it:
//
//	go test -tags e2e -run RealGuests -v ./pkg/console
//
// It needs Debian's qemu-system-x86.
func TestRealGuests(t *testing.T) {
	kernel, initrd := unpackGuest(t)
	dir := t.TempDir()
	family := func(n int) map[checkup.IPFamily]string {
		return map[checkup.IPFamily]string{checkup.IPv4: fmt.Sprintf("10.77.0.%d", n), checkup.IPv6: fmt.Sprintf("fd77::%d", n)}
	}
	vm := func(n int) checkup.VM {
		vm := checkup.VM{MAC: fmt.Sprintf("02:77:00:00:00:%02x", n), Addresses: map[checkup.IPFamily]string{}}
		for f, a := range family(n) {
			vm.Addresses[f] = a + map[checkup.IPFamily]string{checkup.IPv4: "/29", checkup.IPv6: "/64"}[f]
		}
		return vm
	}
	order := func(source, target, count int) checkup.Order {
		return checkup.Order{
			Source: source, Limits: checkup.Limits{PacketsPerSecond: 1000, Concurrency: 16},
			Probes: []checkup.TransportProbe{{Transport: checkup.ICMP, Probe: checkup.Probe{
				Sizes: []int{checkup.VMEchoSize}, Count: count, Interval: checkup.Duration(100 * time.Millisecond), Timeout: checkup.Duration(5 * time.Second)}}},
			Targets:    []checkup.OrderTarget{{Target: target, Addresses: family(target)}},
			IPFamilies: checkup.IPFamilies, Own: family(source), Unused: family(6),
			Deadline: checkup.Duration(time.Minute),
		}
	}
	boot := func(t *testing.T, n, link, peer int, vm checkup.VM) *qemu {
		return start(t, dir, n, kernel, initrd, KernelArgs(vm, 2*time.Minute),
			"-netdev", fmt.Sprintf("dgram,id=n0,local.type=unix,local.path=%s/net%d,remote.type=unix,remote.path=%s/net%d", dir, link, dir, peer),
			"-device", "virtio-net-pci,netdev=n0,romfile=,mac="+vm.MAC)
	}
	t.Run("measure", func(t *testing.T) {
		one, two := boot(t, 1, 1, 2, vm(1)), boot(t, 2, 2, 1, vm(2))
		var wg sync.WaitGroup
		for _, q := range []*qemu{one, two} {
			wg.Go(func() { q.ready(t) })
		}
		wg.Wait()
		// A cut after each kilobyte or so: the order goes on.
		one.cut = 1000
		for _, tt := range []struct {
			q     *qemu
			order checkup.Order
		}{{two, order(2, 1, 3)}, {one, order(1, 2, 50)}} {
			began := time.Now()
			ms := tt.q.measure(t, tt.order)
			t.Logf("%d echo requests per family: %s, %d connections", tt.order.Probes[0].Count, time.Since(began).Round(time.Millisecond), tt.q.dials)
			checkMessages(t, ms, tt.order)
		}
		one.cut = 0
	})
	t.Run("no peer", func(t *testing.T) {
		q := boot(t, 3, 3, 4, vm(3))
		q.ready(t)
		for _, m := range q.measure(t, order(3, 2, 3)) {
			if m.Observation != nil && (m.Observation.Unmeasured != nil || m.Observation.Received != 0 || m.Observation.Sent != 3) {
				t.Errorf("%+v", m.Observation)
			}
			if m.Control != nil && !m.Control.OK {
				t.Errorf("%+v", m.Control)
			}
		}
	})
	t.Run("wrong MAC", func(t *testing.T) {
		v := vm(5)
		args := KernelArgs(v, time.Minute)
		q := start(t, dir, 5, kernel, initrd, args, "-netdev", "user,id=n0", "-device", "virtio-net-pci,netdev=n0,romfile=,mac=02:ff:00:00:00:01")
		err := q.tryReady(t)
		if err == nil || !strings.Contains(err.Error(), "no interface with the MAC address 02:77:00:00:00:05; it has eth0 (02:ff:00:00:00:01)") {
			t.Errorf("%v", err)
		}
	})
	t.Run("unknown device", func(t *testing.T) {
		q := start(t, dir, 6, kernel, initrd, KernelArgs(vm(6), time.Minute), "-netdev", "user,id=n0", "-device", "e1000,netdev=n0,romfile=,mac="+vm(6).MAC)
		err := q.tryReady(t)
		if err == nil || !strings.Contains(err.Error(), "no driver for pci:v00008086d0000100E") {
			t.Errorf("%v", err)
		}
	})
	t.Run("address conflict", func(t *testing.T) {
		thief := vm(7)
		thief.MAC = "02:77:00:00:00:77"
		one := boot(t, 7, 7, 8, vm(7))
		one.ready(t)
		two := boot(t, 8, 8, 7, thief)
		if err := two.tryReady(t); err == nil {
			err = two.guest.Measure(t.Context(), order(7, 1, 3), func(m checkup.Message) {
				if m.Observation != nil {
					t.Errorf("observed %+v", m.Observation)
				}
			})
			if err == nil || !strings.Contains(err.Error(), "address conflict") {
				t.Errorf("%v, want an address conflict", err)
			}
		} else if !strings.Contains(err.Error(), "address conflict") {
			t.Error(err)
		}
	})
	t.Run("deadline", func(t *testing.T) {
		q := start(t, dir, 9, kernel, initrd, KernelArgs(vm(9), 5*time.Second), "-netdev", "user,id=n0", "-device", "virtio-net-pci,netdev=n0,romfile=,mac="+vm(9).MAC)
		select {
		case <-q.ended:
		case <-time.After(90 * time.Second): // its deadline, and its boot on a busy machine
			t.Error("still running after its deadline")
		}
	})
}

func checkMessages(t *testing.T, ms []checkup.Message, o checkup.Order) {
	t.Helper()
	controls, observations, ends := 0, 0, 0
	for _, m := range ms {
		switch {
		case m.Control != nil:
			controls++
			t.Logf("%s %s: %s", m.Control.Family, m.Control.Name, m.Control.Message)
			if !m.Control.OK {
				t.Errorf("control pair %s %s: %s", m.Control.Family, m.Control.Name, m.Control.Message)
			}
		case m.Observation != nil:
			observations++
			t.Logf("%s: %d of %d, kernel %v, %v", m.Observation.Family, m.Observation.Received, m.Observation.Sent, m.Observation.Kernel, m.Observation.RTTs)
			if ob := m.Observation; ob.Unmeasured != nil || ob.Sent != o.Probes[0].Count || ob.Received != ob.Sent {
				t.Errorf("%+v", ob)
			}
		case m.End != nil:
			ends++
			t.Logf("held up by at most %d µs", m.End.SelfDoubt.SchedulingDelayMax)
		}
	}
	if controls != 4 || observations != 2 || ends != 1 || ms[0].Start == nil {
		t.Errorf("%d control pairs, %d observations, %d ends, first %+v", controls, observations, ends, ms[0])
	}
}

// qemu is a running VM.
type qemu struct {
	guest   *Guest
	started time.Time
	ended   chan struct{}
	socket  string
	dials   int
	// hpet says that the guest reported this clock, which QEMU emulates.
	hpet bool
	// cut ends each connection after so many bytes; 0 never.
	cut int
}

func start(t *testing.T, dir string, n int, kernel, initrd, args string, more ...string) *qemu {
	t.Helper()
	q := &qemu{socket: fmt.Sprintf("%s/serial%d", dir, n), started: time.Now(), ended: make(chan struct{})}
	cmd := exec.Command("qemu-system-x86_64", append([]string{"-machine", "q35,accel=tcg", "-m", "128", "-nodefaults", "-display", "none",
		"-kernel", kernel, "-initrd", initrd, "-append", args, "-serial", "unix:" + q.socket + ",server=on,wait=off"}, more...)...)
	var said, transcript bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(q.ended)
		cmd.Wait() // killed, or powered off
	}()
	q.guest = &Guest{Dial: q.dial, Transcript: &transcript, Logf: func(format string, args ...any) {
		t.Logf(format, args...)
		q.hpet = q.hpet || strings.Contains(fmt.Sprintf(format, args...), "its clock is hpet")
	}}
	t.Cleanup(func() {
		q.guest.Close()
		cmd.Process.Kill()
		<-q.ended
		if t.Failed() {
			t.Logf("%s\n%s", said.String(), plain(transcript.String()))
		}
	})
	return q
}

func (q *qemu) dial(ctx context.Context) (io.ReadWriteCloser, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", q.socket)
	if err != nil {
		return nil, err
	}
	q.dials++
	if q.cut > 0 {
		return &cutConn{conn, q.cut}, nil
	}
	return conn, nil
}

// cutConn ends after so many bytes.
type cutConn struct {
	net.Conn
	left int
}

func (c *cutConn) Read(b []byte) (int, error) {
	if c.left <= 0 {
		c.Conn.Close()
		return 0, io.ErrUnexpectedEOF
	}
	n, err := c.Conn.Read(b[:min(len(b), c.left)])
	c.left -= n
	return n, err
}

// tryReady waits for at most two minutes, because the guest may boot on a busy machine: nobody answers any more if the
// guest ended before it was connected to.
func (q *qemu) tryReady(t *testing.T) error {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	return q.guest.Ready(ctx)
}

func (q *qemu) ready(t *testing.T) {
	if err := q.tryReady(t); err != nil {
		t.Error(err)
		return
	}
	t.Logf("ready %s after QEMU's start", time.Since(q.started).Round(10*time.Millisecond))
	if !q.hpet {
		t.Error("its clock is not hpet, although it runs without KVM")
	}
}

func (q *qemu) measure(t *testing.T, o checkup.Order) []checkup.Message {
	t.Helper()
	if q.cut > 0 {
		q.guest.hangUp(q.guest.conn)
	}
	var ms []checkup.Message
	if err := q.guest.Measure(t.Context(), o, func(m checkup.Message) { ms = append(ms, m) }); err != nil {
		t.Fatal(err)
	}
	return ms
}

// unpackGuest takes kernel and initramfs out of the image.
func unpackGuest(t *testing.T) (kernel, initrd string) {
	t.Helper()
	f, err := os.Open("../../dist/guest.tar")
	if err != nil {
		t.Fatalf("%v: run make guest-image", err)
	}
	defer f.Close()
	dir := t.TempDir()
	for archive := tar.NewReader(f); ; {
		h, err := archive.Next()
		if err != nil {
			t.Fatalf("dist/guest.tar has no layer: %v", err)
		}
		if !strings.HasSuffix(h.Name, ".tar.gz") {
			continue
		}
		z, err := gzip.NewReader(archive)
		if err != nil {
			t.Fatal(err)
		}
		for layer := tar.NewReader(z); ; {
			h, err := layer.Next()
			if errors.Is(err, io.EOF) {
				return filepath.Join(dir, "vmlinuz"), filepath.Join(dir, "initrd")
			} else if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(layer)
			if err != nil {
				t.Fatal(err)
			}
			if h.Typeflag == tar.TypeReg {
				if err := os.WriteFile(filepath.Join(dir, filepath.Base(h.Name)), b, 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/hex"
	"net"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const moduleList = `virtio - 
virtio_ring virtio
virtio_pci virtio,virtio_ring pci:v00001AF4d*sv*sd*bc*sc*i*
failover -
virtio_net virtio,failover virtio:d00000001v*
mlx5_core - pci:v000015B3d0000101Esv*sd*bc*sc*i*
mlx5_other mlx5_core pci:v000015B3d0000FFFFsv*sd*bc*sc*i*

broken`

func TestWanted(t *testing.T) {
	ms := readModules(moduleList)
	for _, tt := range []struct {
		devices []string
		want    string
	}{
		{nil, ""},
		{[]string{"acpi:PNP0501:"}, ""},
		{[]string{"pci:v00001AF4d00001041sv00001AF4sd00001100bc02sc00i00"}, "virtio virtio_ring virtio_pci"},
		{[]string{"pci:v00001AF4d00001041sv00001AF4sd00001100bc02sc00i00", "virtio:d00000001v00001AF4"}, "virtio virtio_ring virtio_pci failover virtio_net"},
		{[]string{"pci:v000015B3d0000101Esv000015B3sd00000000bc02sc00i00"}, "mlx5_core"},
	} {
		var names []string
		for _, m := range wanted(ms, tt.devices) {
			names = append(names, m.name)
		}
		if got := strings.Join(names, " "); got != tt.want {
			t.Errorf("%v: %q, want %q", tt.devices, got, tt.want)
		}
	}
}

func TestSteadiest(t *testing.T) {
	for _, tt := range []struct{ available, current, want string }{
		{"tsc hpet acpi_pm", "tsc", "hpet"},
		{"tsc-early hpet acpi_pm", "tsc-early", "hpet"},
		{"tsc acpi_pm", "tsc", "acpi_pm"},
		{"tsc", "tsc", "tsc"},
		{"hpet acpi_pm", "hpet", "hpet"},
		{"kvm-clock tsc hpet acpi_pm", "tsc", "tsc"},
		{"kvm-clock tsc hpet acpi_pm", "kvm-clock", "kvm-clock"},
		{"arch_sys_counter", "arch_sys_counter", "arch_sys_counter"},
	} {
		if got := steadiest(strings.Fields(tt.available), tt.current); got != tt.want {
			t.Errorf("%s of %s: %s, want %s", tt.current, tt.available, got, tt.want)
		}
	}
}

func TestNoInterface(t *testing.T) {
	mac, err := net.ParseMAC("02:00:00:00:00:01")
	if err != nil {
		t.Fatal(err)
	}
	const want = "the guest has no interface with the MAC address 02:00:00:00:00:01; it has eth0 (02:00:00:00:00:02); its kernel has no driver for pci:v00008086d0000154C"
	if got := noInterface(mac, []string{"eth0 (02:00:00:00:00:02)"}, []string{"pci:v00008086d0000154C"}).Error(); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestFlaggedAddress(t *testing.T) {
	const table = `00000000000000000000000000000001 01 80 10 80       lo
fe800000000000000000000000000001 02 40 20 88     eth1
fd770000000000000000000000000001 02 40 00 c0     eth0
fd770000000000000000000000000002 02 40 00 88     eth0
nonsense 02 40 00 ff     eth0
`
	for _, tt := range []struct {
		name string
		flag uint64
		want string
	}{
		{"eth0", flagDADFailed, "fd77::2"}, {"eth0", flagTentative, "fd77::1"}, {"eth1", flagDADFailed, "fe80::1"},
		{"eth1", flagTentative, ""}, {"lo", flagDADFailed, ""}, {"eth9", flagDADFailed, ""},
	} {
		a, ok := flaggedAddress(table, tt.name, tt.flag)
		if ok != (tt.want != "") || ok && a.String() != tt.want {
			t.Errorf("%s, flag %#x: %s, %v; want %q", tt.name, tt.flag, a, ok, tt.want)
		}
	}
}

func TestARPThief(t *testing.T) {
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	address := [4]byte{10, 0, 0, 1}
	packet := func(s string) []byte {
		b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for _, tt := range []struct {
		name, packet, want string
	}{
		{"an answer from the address", "0001 0800 06 04 0002 020000000002 0a000001 020000000001 0a000001", "02:00:00:00:00:02"},
		{"an announcement of the address", "0001 0800 06 04 0001 020000000002 0a000001 000000000000 0a000001", "02:00:00:00:00:02"},
		{"another probes for it at the same time", "0001 0800 06 04 0001 020000000002 00000000 000000000000 0a000001", "02:00:00:00:00:02"},
		{"our own probe, sent back", "0001 0800 06 04 0001 020000000001 00000000 000000000000 0a000001", ""},
		{"a request for it", "0001 0800 06 04 0001 020000000002 0a000002 000000000000 0a000001", ""},
		{"a probe for another", "0001 0800 06 04 0001 020000000002 00000000 000000000000 0a000002", ""},
		{"of another protocol", "0001 86dd 06 04 0002 020000000002 0a000001 020000000001 0a000001", ""},
		{"cut off", "0001 0800 06 04 0002 020000000002 0a0000", ""},
		{"nothing", "", ""},
	} {
		if got := arpThief(packet(tt.packet), mac, address).String(); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
	probe := arpProbe(mac, address)
	if diff := cmp.Diff(packet("0001 0800 06 04 0001 020000000001 00000000 000000000000 0a000001"), probe); diff != "" {
		t.Errorf("a probe of ours (-want +got):\n%s", diff)
	}
}

// The guest reports nothing while another machine uses the address.
func TestUnlessTaken(t *testing.T) {
	own := &ownAddresses{ipv4: [4]byte{10, 0, 0, 1}}
	var b strings.Builder
	w := unlessTaken{own, &b}
	if _, err := w.Write([]byte("one")); err != nil {
		t.Fatal(err)
	}
	own.thief.Store(&net.HardwareAddr{2, 0, 0, 0, 0, 2})
	_, err := w.Write([]byte("two"))
	const want = "address conflict: 02:00:00:00:00:02 also uses the address 10.0.0.1"
	if err == nil || err.Error() != want || b.String() != "one" {
		t.Errorf("got output %q and error %v, want %q", b.String(), err, want)
	}
}

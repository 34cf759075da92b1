// SPDX-License-Identifier: Apache-2.0

package initramfs

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// moduleFile is the smallest ELF file with a section .modinfo.
func moduleFile(t testing.TB, info string) []byte {
	t.Helper()
	info = strings.ReplaceAll(info, "\n", "\x00")
	names := "\x00.modinfo\x00.shstrtab\x00"
	const header, section = 64, 64
	var b bytes.Buffer
	write := func(v any) {
		if err := binary.Write(&b, binary.LittleEndian, v); err != nil {
			t.Fatal(err)
		}
	}
	write(elf.Header64{
		Ident: [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_REL), Machine: uint16(elf.EM_X86_64), Version: 1, Shoff: uint64(header + len(info) + len(names)),
		Ehsize: header, Shentsize: section, Shnum: 3, Shstrndx: 2,
	})
	b.WriteString(info + names)
	write(elf.Section64{})
	write(elf.Section64{Name: 1, Type: uint32(elf.SHT_PROGBITS), Off: header, Size: uint64(len(info))})
	write(elf.Section64{Name: 10, Type: uint32(elf.SHT_STRTAB), Off: uint64(header + len(info)), Size: uint64(len(names))})
	return b.Bytes()
}

func TestClosure(t *testing.T) {
	files := map[string][]byte{
		"virtio":      moduleFile(t, "license=GPL\ndepends=\n"),
		"virtio_pci":  moduleFile(t, "alias=pci:v00001AF4d*sv*sd*bc*sc*i*\ndepends=virtio,virtio-ring\n"),
		"virtio_ring": moduleFile(t, "depends=virtio\nparm=event_idx:bool\n"),
		"mlx4_core":   moduleFile(t, "alias=pci:v000015B3d00001004sv*sd*bc*sc*i*\nalias=devname:x y\ndepends="),
		"mlx4_en":     moduleFile(t, "alias=mlx4_en\ndepends=mlx4_core\n"),
		"lonely":      moduleFile(t, "depends=nobody\n"),
		"text":        []byte("#!/bin/sh"),
	}
	var modules []Module
	for _, name := range []string{"virtio_pci", "mlx4_en"} {
		var err error
		if modules, err = closure(modules, files, name); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for _, m := range modules {
		got = append(got, fmt.Sprint(m.Name, m.Needs, m.Aliases))
	}
	want := []string{"virtio[] []", "virtio_ring[virtio] []", "virtio_pci[virtio virtio_ring] [pci:v00001AF4d*sv*sd*bc*sc*i*]",
		"mlx4_core[] [pci:v000015B3d00001004sv*sd*bc*sc*i*]", "mlx4_en[mlx4_core] []"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for name, want := range map[string]string{"lonely": "needs nobody", "text": "module text: "} {
		if _, err := closure(nil, files, name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got error %v, want %q in it", name, err, want)
		}
	}
}

// cpio can read the archive, and its bytes are the same each time.
func TestArchive(t *testing.T) {
	modules := []Module{{Name: "virtio", Content: []byte("123")}, {Name: "virtio_net", Content: []byte("4567"), Needs: []string{"virtio"}, Aliases: []string{"virtio:d00000001v*"}}}
	write := func() ([]byte, error) {
		a := NewArchive([]byte("agent"), modules)
		a.File("usr/bin/ipset", 0o755, []byte("x"))
		a.Link("usr/bin/iptables", "iptables-nft")
		return a.Bytes()
	}
	b, err := write()
	if err != nil {
		t.Fatal(err)
	}
	again, err := write()
	if err != nil || !bytes.Equal(b, again) {
		t.Errorf("got different bytes from the same content (%v)", err)
	}
	files := readCPIO(t, b)
	for name, want := range map[string]string{"init": "agent", "modules/virtio.ko": "123", "modules/virtio_net.ko": "4567",
		"modules/list": "virtio -\nvirtio_net virtio virtio:d00000001v*\n", "dev/console": "", "dev": "", "usr": "",
		"usr/bin": "", "usr/bin/ipset": "x", "usr/bin/iptables": "iptables-nft"} {
		if got, ok := files[name]; !ok || got != want {
			t.Errorf("%s holds %q (%v), want %q", name, got, ok, want)
		}
	}
	if _, err := exec.LookPath("cpio"); err != nil {
		return
	}
	cmd := exec.Command("cpio", "-itv", "--quiet", "--numeric-uid-gid")
	cmd.Stdin = bytes.NewReader(b)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "crw-------   1 0        0          5,   1 Jan  1  1970 dev/console") || !strings.Contains(string(out), "-rwxr-xr-x   1 0        0               5 Jan  1  1970 init") {
		t.Errorf("cpio reads it as\n%s%v", out, err)
	}
}

// readCPIO reads the files of an archive.
func readCPIO(t *testing.T, b []byte) map[string]string {
	t.Helper()
	files := map[string]string{}
	for at := 0; ; {
		var fields [13]int
		for i := range fields {
			if _, err := fmt.Sscanf(string(b[at+6+8*i:at+14+8*i]), "%08X", &fields[i]); err != nil || string(b[at:at+6]) != "070701" {
				t.Fatalf("no header at %d: %q", at, b[at:at+6])
			}
		}
		align := func(n int) int { return (n + 3) / 4 * 4 }
		size, nameSize := fields[6], fields[11]
		name := string(b[at+110 : at+110+nameSize-1])
		content := align(at + 110 + nameSize)
		if name == "TRAILER!!!" {
			return files
		}
		files[name] = string(b[content : content+size])
		at = align(content + size)
	}
}

func TestImagePackage(t *testing.T) {
	const shown = "Package: linux-image-cloud-amd64\nDepends: linux-image-6.1.0-56-cloud-amd64 (= 6.1.192-2)\nFilename: pool/x.deb\n"
	if m := imagePackage.FindStringSubmatch(shown); m == nil || m[1] != "linux-image-6.1.0-56-cloud-amd64" {
		t.Errorf("%q", m)
	}
	if m := imagePackage.FindStringSubmatch("Package: linux-image-6.1.0-56-cloud-amd64\nDepends: kmod, linux-base (>= 4.3~)\n"); m != nil {
		t.Errorf("%q", m)
	}
}

// Without apt, the error names what is missing.
func TestDownloadWithoutApt(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := Download("linux-image-cloud-amd64", t.TempDir())
	const want = "cannot download the guest's kernel, a Debian package: this machine has no apt-cache: use Debian"
	if err == nil || err.Error() != want {
		t.Errorf("got error %v, want %q", err, want)
	}
}

// TestModules: what is built in is left out, and what is nowhere is an error.
func TestModules(t *testing.T) {
	k, err := UnpackTar(bytes.NewReader(packed(t, map[string][]byte{
		"./boot/vmlinuz-6.1": []byte("kernel"), "./lib/modules/6.1/modules.builtin": []byte("kernel/net/ipv6/ipv6.ko\nkernel/a-b.ko\n"),
		"./lib/modules/6.1/kernel/ip_vs.ko": moduleFile(t, "depends=nf-conntrack"), "./lib/modules/6.1/kernel/nf_conntrack.ko": moduleFile(t, "depends="),
	})))
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct{ names, want string }{
		{"ipv6 ip_vs a_b", "nf_conntrack ip_vs"},
		{"ipv6", ""},
		{"ip_vs dummy", "module dummy is missing"},
	} {
		var got []string
		modules, err := k.Modules(strings.Fields(row.names)...)
		for _, m := range modules {
			got = append(got, m.Name)
		}
		if err != nil {
			got = []string{err.Error()}
		}
		if strings.Join(got, " ") != row.want || string(k.Image) != "kernel" || !k.Has("ip_vs") || k.Has("ipv6") {
			t.Errorf("%s: %q, want %q", row.names, got, row.want)
		}
	}
}

// packed is a tar archive.
func packed(t testing.TB, files map[string][]byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for name, content := range files {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

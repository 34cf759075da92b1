// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// moduleFile is the smallest ELF file with a section .modinfo.
func moduleFile(t *testing.T, info string) []byte {
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
	var modules []module
	for _, name := range []string{"virtio_pci", "mlx4_en"} {
		var err error
		if modules, err = closure(modules, files, name); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for _, m := range modules {
		got = append(got, fmt.Sprint(m.name, m.needs, m.aliases))
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
func TestInitramfs(t *testing.T) {
	modules := []module{{name: "virtio", content: []byte("123")}, {name: "virtio_net", content: []byte("4567"), needs: []string{"virtio"}, aliases: []string{"virtio:d00000001v*"}}}
	b, err := initramfs([]byte("agent"), modules)
	if err != nil {
		t.Fatal(err)
	}
	again, err := initramfs([]byte("agent"), modules)
	if err != nil || !bytes.Equal(b, again) {
		t.Errorf("got different bytes from the same content (%v)", err)
	}
	files := readCPIO(t, b)
	for name, want := range map[string]string{"init": "agent", "modules/virtio.ko": "123", "modules/virtio_net.ko": "4567",
		"modules/list": "virtio -\nvirtio_net virtio virtio:d00000001v*\n", "dev/console": "", "dev": ""} {
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

// KubeVirt runs the image as user 107, who must be able to read its files.
func TestImage(t *testing.T) {
	i, err := image([]byte("kernel"), []byte("initrd"))
	if err != nil {
		t.Fatal(err)
	}
	again, err := image([]byte("kernel"), []byte("initrd"))
	if err != nil {
		t.Fatal(err)
	}
	one, err := i.Digest()
	if err != nil {
		t.Fatal(err)
	}
	if two, err := again.Digest(); err != nil || one != two {
		t.Errorf("got digests %s and %s from the same content (%v)", one, two, err)
	}
	config, err := i.ConfigFile()
	if err != nil || config.Config.User != "107" || config.OS != "linux" || config.Architecture == "" {
		t.Errorf("%+v, %v", config, err)
	}
	files := mutate.Extract(i)
	defer files.Close()
	got := map[string]string{}
	for r := tar.NewReader(files); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		got[h.Name] = fmt.Sprintf("%o %s", h.Mode, content)
	}
	if diff := cmp.Diff(map[string]string{"boot": "755 ", "boot/vmlinuz": "444 kernel", "boot/initrd": "444 initrd"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestPublish: the file of references gets a line that names what the registry has.
func TestPublish(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	reference, err := name.NewTag(strings.TrimPrefix(server.URL, "http://") + "/team/guest:v0.1.0")
	if err != nil {
		t.Fatal(err)
	}
	i, err := image([]byte("kernel"), []byte("initrd"))
	if err != nil {
		t.Fatal(err)
	}
	refs := filepath.Join(t.TempDir(), "images.txt")
	if err := os.WriteFile(refs, []byte("r.io/setup:v0.1.0@sha256:0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := publish(reference, i, refs); err != nil {
		t.Fatal(err)
	}
	pushed, err := remote.Head(reference)
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("r.io/setup:v0.1.0@sha256:0\n%s@%s\n", reference, pushed.Digest)
	if got, err := os.ReadFile(refs); err != nil || string(got) != want {
		t.Errorf("got %q and error %v, want %q", got, err, want)
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
	_, err := download("linux-image-cloud-amd64", t.TempDir())
	const want = "cannot download the guest's kernel, a Debian package: this machine has no apt-cache: use Debian"
	if err == nil || err.Error() != want {
		t.Errorf("got error %v, want %q", err, want)
	}
}

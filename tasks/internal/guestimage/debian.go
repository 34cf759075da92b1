// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// drivers of the network interfaces of VMs: virtio, and virtual functions. A kernel may lack some of them.
var drivers = []string{"virtio_pci", "virtio_net", "ixgbevf", "iavf", "igbvf", "mlx4_en", "mlx5_core", "bnxt_en"}

// needed are the drivers that a kernel must have.
var needed = []string{"virtio_pci", "virtio_net"}

// likeParent are drivers that are loaded together with another one, for the same devices; with modprobe, the other
// driver requests them itself.
var likeParent = map[string]string{"mlx4_en": "mlx4_core"}

var imagePackage = regexp.MustCompile(`(?m)^Depends:.*?\b(linux-image-[0-9][^ ,]*)`)

// download downloads the kernel package (the given one, or the one that it depends on) unless it is in the cache, and
// returns its path.
func download(kernel, cache string) (string, error) {
	for _, program := range []string{"apt-cache", "apt-get", "dpkg-deb"} {
		if _, err := exec.LookPath(program); err != nil {
			return "", fmt.Errorf(
				"cannot download the guest's kernel, a Debian package: this machine has no %s: use Debian",
				program,
			)
		}
	}
	shown, err := output(os.Environ(), "apt-cache", "show", "--no-all-versions", kernel)
	if err != nil {
		return "", fmt.Errorf("%w\napt does not know the package %s: run apt-get update on Debian", err, kernel)
	}
	if m := imagePackage.FindSubmatch(shown); m != nil {
		kernel = string(m[1])
		if shown, err = output(os.Environ(), "apt-cache", "show", "--no-all-versions", kernel); err != nil {
			return "", err
		}
	}
	// Filename: pool/.../linux-image-6.1.0-56-cloud-amd64_6.1.192-2_amd64.deb
	_, file, ok := bytes.Cut(shown, []byte("\nFilename: "))
	if !ok {
		return "", fmt.Errorf("apt-cache show %s: no file name in the output", kernel)
	}
	file, _, _ = bytes.Cut(file, []byte("\n"))
	deb := filepath.Join(cache, path.Base(string(file)))
	if _, err := os.Stat(deb); err == nil {
		return deb, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	directory, err := os.MkdirTemp(cache, "download")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(directory)
	// By default, apt downloads as a user who may not write here.
	cmd := exec.Command("apt-get", "download", "-q", "-o", "APT::Sandbox::User=root", kernel)
	cmd.Dir, cmd.Stdout, cmd.Stderr = directory, os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w", cmd, err)
	}
	found, err := filepath.Glob(filepath.Join(directory, "*.deb"))
	if err != nil || len(found) != 1 {
		return "", fmt.Errorf("%s: left %d packages, want 1", cmd, len(found))
	}
	// apt writes an epoch's colon as %3a in the local file's name; a kernel has no epoch.
	return deb, os.Rename(found[0], deb)
}

// module is a kernel module, as listed for the agent.
type module struct {
	name    string
	content []byte
	needs   []string
	aliases []string
}

// unpack reads the kernel and the modules of a package: the drivers that it has and their dependencies, dependencies
// first.
func unpack(deb string) (vmlinuz []byte, modules []module, err error) {
	archive, err := output(os.Environ(), "dpkg-deb", "--fsys-tarfile", deb)
	if err != nil {
		return nil, nil, err
	}
	return unpackTar(bytes.NewReader(archive))
}

// unpackTar is unpack for the files of the package.
func unpackTar(archive io.Reader) (vmlinuz []byte, modules []module, err error) {
	files := map[string][]byte{} // modules by name
	r := tar.NewReader(archive)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, nil, err
		}
		base := path.Base(h.Name)
		switch stem, compression, isModule := strings.Cut(base, ".ko"); {
		case h.Typeflag != tar.TypeReg:
		case strings.HasPrefix(base, "vmlinuz-") && path.Dir(path.Clean("/"+h.Name)) == "/boot":
			if vmlinuz, err = io.ReadAll(r); err != nil {
				return nil, nil, err
			}
		case isModule && (compression == "" || compression == ".xz"):
			content, err := io.ReadAll(r)
			if err != nil {
				return nil, nil, err
			}
			files[strings.ReplaceAll(stem, "-", "_")] = content
		}
	}
	if vmlinuz == nil {
		return nil, nil, errors.New("no /boot/vmlinuz: not a kernel package")
	}
	for _, name := range drivers {
		if files[name] == nil && slices.Contains(needed, name) {
			return nil, nil, fmt.Errorf("module %s is missing", name)
		}
		if files[name] != nil {
			if modules, err = closure(modules, files, name); err != nil {
				return nil, nil, err
			}
		}
	}
	for i, m := range modules {
		if parent := slices.IndexFunc(modules, func(p module) bool { return p.name == likeParent[m.name] }); parent >= 0 {
			modules[i].aliases = modules[parent].aliases
		}
	}
	return vmlinuz, modules, nil
}

// closure appends a module after the modules that it needs.
func closure(modules []module, files map[string][]byte, name string) ([]module, error) {
	if slices.ContainsFunc(modules, func(m module) bool { return m.name == name }) {
		return modules, nil
	}
	m, err := readModule(name, files[name])
	if err != nil {
		return nil, fmt.Errorf("module %s: %w", name, err)
	}
	others := maps.Clone(files)
	delete(others, name) // modules that need one another cannot be loaded
	for _, need := range m.needs {
		if others[need] == nil {
			return nil, fmt.Errorf("module %s: needs %s, which the package lacks, or which needs it", name, need)
		}
		if modules, err = closure(modules, others, need); err != nil {
			return nil, err
		}
	}
	return append(modules, m), nil
}

var xz = []byte{0xfd, '7', 'z', 'X', 'Z', 0}

// readModule reads the section .modinfo of a module.
func readModule(name string, content []byte) (module, error) {
	m := module{name: name, content: content}
	if bytes.HasPrefix(content, xz) {
		cmd := exec.Command("xz", "-dc")
		cmd.Stdin = bytes.NewReader(content)
		var err error
		if m.content, err = cmd.Output(); err != nil {
			return m, fmt.Errorf("%s: %w", cmd, err)
		}
	}
	f, err := elf.NewFile(bytes.NewReader(m.content))
	if err != nil {
		return m, err
	}
	section := f.Section(".modinfo")
	if section == nil {
		return m, errors.New("section .modinfo is missing")
	}
	info, err := section.Data()
	if err != nil {
		return m, err
	}
	for entry := range bytes.SplitSeq(info, []byte{0}) {
		key, value, _ := strings.Cut(string(entry), "=")
		switch {
		case key == "alias" && strings.ContainsRune(value, ':') && !strings.ContainsAny(value, " \n"): // of a device
			m.aliases = append(m.aliases, value)
		case key == "depends" && value != "":
			m.needs = strings.Split(strings.ReplaceAll(value, "-", "_"), ",")
		}
	}
	return m, nil
}

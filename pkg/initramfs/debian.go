// SPDX-License-Identifier: Apache-2.0

package initramfs

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

var imagePackage = regexp.MustCompile(`(?m)^Depends:.*?\b(linux-image-[0-9][^ ,]*)`)

// Download downloads a package of a kernel (the given one, or the one that it depends on) unless it is in the cache, a
// directory, and returns its path.
func Download(kernel, cache string) (string, error) {
	for _, program := range []string{"apt-cache", "apt-get", "dpkg-deb"} {
		if _, err := exec.LookPath(program); err != nil {
			return "", fmt.Errorf(
				"cannot download the guest's kernel, a Debian package: this machine has no %s: use Debian",
				program,
			)
		}
	}
	shown, err := output("apt-cache", "show", "--no-all-versions", kernel)
	if err != nil {
		return "", fmt.Errorf("%w\napt does not know the package %s: run apt-get update on Debian", err, kernel)
	}
	if m := imagePackage.FindSubmatch(shown); m != nil {
		kernel = string(m[1])
		if shown, err = output("apt-cache", "show", "--no-all-versions", kernel); err != nil {
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

// output runs a program and returns its standard output. The error contains its standard error.
func output(program string, args ...string) ([]byte, error) {
	cmd := exec.Command(program, args...)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", cmd, err, bytes.TrimSpace(said.Bytes()))
	}
	return out, nil
}

// Kernel is what a package of a kernel has.
type Kernel struct {
	// Image is the kernel itself, vmlinuz.
	Image []byte
	// files are the modules by name, compressed or not.
	files map[string][]byte
	// builtIn are the names of those that are in Image.
	builtIn map[string]bool
}

// Module is a kernel module.
type Module struct {
	Name    string
	Content []byte
	Needs   []string // names of modules
	Aliases []string // of the devices that it is for
}

// Unpack reads a package of a kernel.
func Unpack(deb string) (*Kernel, error) {
	archive, err := output("dpkg-deb", "--fsys-tarfile", deb)
	if err != nil {
		return nil, err
	}
	k, err := UnpackTar(bytes.NewReader(archive))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", deb, err)
	}
	return k, nil
}

// UnpackTar is Unpack for the files of a package.
func UnpackTar(archive io.Reader) (*Kernel, error) {
	k := &Kernel{files: map[string][]byte{}, builtIn: map[string]bool{}}
	r := tar.NewReader(archive)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		base := path.Base(h.Name)
		name, compression, isModule := moduleName(base)
		switch {
		case h.Typeflag != tar.TypeReg:
		case strings.HasPrefix(base, "vmlinuz-") && path.Dir(path.Clean("/"+h.Name)) == "/boot":
			if k.Image, err = io.ReadAll(r); err != nil {
				return nil, err
			}
		case base == "modules.builtin":
			list, err := io.ReadAll(r)
			if err != nil {
				return nil, err
			}
			for file := range strings.FieldsSeq(string(list)) {
				name, _, _ := moduleName(path.Base(file))
				k.builtIn[name] = true
			}
		case isModule && (compression == "" || compression == ".xz"):
			if k.files[name], err = io.ReadAll(r); err != nil {
				return nil, err
			}
		}
	}
	if k.Image == nil {
		return nil, errors.New("no /boot/vmlinuz: not a kernel package")
	}
	return k, nil
}

// moduleName returns what the kernel calls the module of a file: a dash is an underscore.
func moduleName(file string) (name, compression string, ok bool) {
	stem, compression, ok := strings.Cut(file, ".ko")
	return strings.ReplaceAll(stem, "-", "_"), compression, ok
}

// Has reports whether the package has the module, as a file.
func (k *Kernel) Has(name string) bool { return k.files[name] != nil }

// Modules returns modules and those that they need, dependencies first. What is built into the kernel is left out; a
// module that the package does not have is an error.
func (k *Kernel) Modules(names ...string) ([]Module, error) {
	var all []Module
	for _, name := range names {
		if k.files[name] == nil && k.builtIn[name] {
			continue
		}
		if k.files[name] == nil {
			return nil, fmt.Errorf("module %s is missing", name)
		}
		var err error
		if all, err = closure(all, k.files, name); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// closure appends a module after the modules that it needs.
func closure(modules []Module, files map[string][]byte, name string) ([]Module, error) {
	if slices.ContainsFunc(modules, func(m Module) bool { return m.Name == name }) {
		return modules, nil
	}
	m, err := readModule(name, files[name])
	if err != nil {
		return nil, fmt.Errorf("module %s: %w", name, err)
	}
	others := maps.Clone(files)
	delete(others, name) // modules that need one another cannot be loaded
	for _, need := range m.Needs {
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
func readModule(name string, content []byte) (Module, error) {
	m := Module{Name: name, Content: content}
	if bytes.HasPrefix(content, xz) {
		cmd := exec.Command("xz", "-dc")
		cmd.Stdin = bytes.NewReader(content)
		var err error
		if m.Content, err = cmd.Output(); err != nil {
			return m, fmt.Errorf("%s: %w", cmd, err)
		}
	}
	f, err := elf.NewFile(bytes.NewReader(m.Content))
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
			m.Aliases = append(m.Aliases, value)
		case key == "depends" && value != "":
			m.Needs = strings.Split(strings.ReplaceAll(value, "-", "_"), ",")
		}
	}
	return m, nil
}

// SPDX-License-Identifier: Apache-2.0

package initramfs

import (
	"bytes"
	"fmt"
	"path"
	"strings"
)

// Types of files in an initramfs (stat(2)).
const (
	typeDirectory = 0o040000
	typeDevice    = 0o020000 // of characters
	typeFile      = 0o100000
	typeLink      = 0o120000
)

// Archive is a cpio archive in the format newc, which the kernel unpacks at its start
// (Documentation/driver-api/early-userspace/buffer-format.rst). It is not compressed, because QEMU copies it into the
// guest faster than the guest can decompress it.
//
// Paths are relative to the root. Directories of files are made when they are needed.
type Archive struct {
	b     bytes.Buffer
	files int
	there map[string]bool // directories
	err   error
}

// NewArchive has the directories dev, proc, sys and modules, and the devices that a first process needs before it
// mounts dev. Init is that process; modules are files of the directory modules, and its file list has a line for each:
// name, the names of those that it needs with commas between them or -, and its aliases.
func NewArchive(init []byte, modules []Module) *Archive {
	a := &Archive{}
	for _, directory := range []string{"dev", "proc", "sys", "modules"} {
		a.Directory(directory)
	}
	a.add("dev/console", typeDevice|0o600, nil, 5, 1)
	a.add("dev/null", typeDevice|0o666, nil, 1, 3)
	a.File("init", 0o755, init)
	var list strings.Builder
	for _, m := range modules {
		a.File("modules/"+m.Name+".ko", 0o644, m.Content)
		needs := "-"
		if len(m.Needs) > 0 {
			needs = strings.Join(m.Needs, ",")
		}
		fmt.Fprintln(&list, strings.Join(append([]string{m.Name, needs}, m.Aliases...), " "))
	}
	a.File("modules/list", 0o644, []byte(list.String()))
	return a
}

// Directory adds a directory, and those that it is in.
func (a *Archive) Directory(name string) {
	name = path.Clean(name)
	if name == "." || a.there[name] {
		return
	}
	a.Directory(path.Dir(name))
	if a.there == nil {
		a.there = map[string]bool{}
	}
	a.there[name] = true
	a.add(name, typeDirectory|0o755, nil, 0, 0)
}

// File adds a file with the permissions of mode.
func (a *Archive) File(name string, mode int, content []byte) {
	a.Directory(path.Dir(path.Clean(name)))
	a.add(path.Clean(name), typeFile|mode&0o777, content, 0, 0)
}

// Link adds a symbolic link.
func (a *Archive) Link(name, target string) {
	a.Directory(path.Dir(path.Clean(name)))
	a.add(path.Clean(name), typeLink|0o777, []byte(target), 0, 0)
}

// Bytes ends the archive, and returns it.
func (a *Archive) Bytes() ([]byte, error) {
	a.add("TRAILER!!!", 0, nil, 0, 0)
	return a.b.Bytes(), a.err
}

// add adds a file; major and minor are the numbers of a device.
func (a *Archive) add(name string, mode int, content []byte, major, minor int) {
	a.files++
	if int64(len(content)) > 1<<32-1 && a.err == nil {
		a.err = fmt.Errorf("%s is too large for an initramfs", name)
	}
	// magic, inode, mode, uid, gid, links, mtime, size, device of the archive (2),
	// device (2), size of the name with its 0, checksum
	fmt.Fprintf(&a.b, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X",
		a.files, mode, 0, 0, 1, 0, len(content), 0, 0, major, minor, len(name)+1, 0)
	a.b.WriteString(name + "\x00")
	a.pad()
	a.b.Write(content)
	a.pad()
}

func (a *Archive) pad() {
	for a.b.Len()%4 != 0 {
		a.b.WriteByte(0)
	}
}

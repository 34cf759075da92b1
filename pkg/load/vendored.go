// SPDX-License-Identifier: Apache-2.0

package load

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// VendorDir is the slash-separated directory of a CUE module in which cue looks for the schema before it asks a
// registry: external packages are in cue.mod/pkg. planner then reads this copy, too.
const VendorDir = "cue.mod/pkg/" + schemaPath

// Module are the files of a new CUE module, by their slash-separated paths: its module file, and a copy of the schema
// of this program in VendorDir. There, plans import the schema without any registry, with planner and with the cue
// command.
func Module(modulePath string) map[string][]byte {
	files := map[string][]byte{
		"cue.mod/module.cue": []byte("module: \"" + modulePath + "\"\nlanguage: version: \"" + schemaLanguage + "\"\n"),
	}
	for name, text := range schemaFiles() {
		files[path.Join(VendorDir, name)] = text
	}
	return files
}

// vendored is the directory of the copy of the schema in the module at root, in which CUE finds external packages;
// empty if it has none.
func vendored(root string) string {
	for _, d := range []string{"pkg", "gen", "usr"} {
		dir := filepath.Join(root, "cue.mod", d, filepath.FromSlash(schemaPath))
		if _, err := os.Stat(dir); err == nil {
			return dir
		}
	}
	return ""
}

// checkVendored warns of a copy of the schema in the module around dir that differs from that of this program: plans
// are read with the copy, which may lack fields and have other defaults.
func (l *loader) checkVendored(dir string) {
	root := moduleRoot(dir)
	if root == "" {
		return
	}
	copied := vendored(root)
	if copied == "" {
		return
	}
	want := schemaFiles()
	var differ []string
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if have, err := readFile(filepath.Join(copied, name)); err != nil || !bytes.Equal(have, want[name]) {
			differ = append(differ, name)
		}
	}
	also, _ := filepath.Glob(filepath.Join(copied, "*.cue")) // the only error is a bad pattern
	for _, name := range also {
		if name = filepath.Base(name); want[name] == nil {
			differ = append(differ, name)
		}
	}
	if len(differ) == 0 {
		return
	}
	do := ""
	if copied != filepath.Join(root, filepath.FromSlash(VendorDir)) {
		do = "delete it, and "
	}
	l.warnings = append(l.warnings, Problem{
		File: l.rel(copied), Warning: true,
		Message: fmt.Sprintf("plans are read with this copy of the schema, which differs from that of this planner (%s): %swrite it "+
			"again with planner init %s, or use the planner that wrote it", checkup.Some(differ), do, l.rel(root)),
	})
}

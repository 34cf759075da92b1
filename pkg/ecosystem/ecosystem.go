// SPDX-License-Identifier: Apache-2.0

// Package ecosystem is for tests that run tools of others: each keeps a row of the tables in docs/ecosystem.md.
package ecosystem

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// Row fails the test unless docs/ecosystem.md has, below the heading "## section", a row of this tool whose cells are
// the version, what was run, and its output. No cell may contain "|" or a line break. With UPDATE=1 it writes the row
// instead: in place of the tool's old row, or as the last one of the section's table.
func Row(t testing.TB, section, tool, version, ran, output string) {
	t.Helper()
	row := fmt.Sprintf("| %s | %s | %s | %s |", tool, version, ran, output)
	f, err := os.OpenFile(inModule(t, "docs/ecosystem.md"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	// Tests of several packages update the file at the same time. The lock ends with the file.
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	updated, err := set(string(text), section, tool, row)
	switch {
	case err != nil:
		t.Fatal(err)
	case updated == string(text):
	case os.Getenv("UPDATE") != "1":
		t.Errorf("docs/ecosystem.md, section %s does not have this row; UPDATE=1 writes it:\n%s", section, row)
	default:
		if err := errors.Join(f.Truncate(0), write(f, updated)); err != nil {
			t.Fatal(err)
		}
	}
}

func write(f *os.File, text string) error {
	_, err := f.WriteAt([]byte(text), 0)
	return err
}

// set puts the row of a tool into the table of a section.
func set(text, section, tool, row string) (string, error) {
	lines := strings.Split(text, "\n")
	in, last := false, -1
	for i, line := range lines {
		switch {
		case strings.HasPrefix(line, "## "):
			in = line == "## "+section
		case in && strings.HasPrefix(line, "| "+tool+" |"):
			lines[i] = row
			return strings.Join(lines, "\n"), nil
		case in && strings.HasPrefix(line, "|"):
			last = i
		}
	}
	if last < 0 {
		return "", fmt.Errorf("docs/ecosystem.md has no table below the heading %q", "## "+section)
	}
	lines[last] += "\n" + row
	return strings.Join(lines, "\n"), nil
}

// Version returns the version of a Go module that this module requires.
func Version(t testing.TB, module string) string {
	t.Helper()
	text, err := os.ReadFile(inModule(t, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^\s+` + regexp.QuoteMeta(module) + ` (v\S+)`).FindSubmatch(text)
	if m == nil {
		t.Fatalf("go.mod does not require %s", module)
	}
	return string(m[1])
}

// inModule returns the path of a file of the module that the working directory is in.
func inModule(t testing.TB, name string) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err == nil {
			return path
		}
		if filepath.Dir(dir) == dir {
			t.Fatalf("%s: %v", name, fs.ErrNotExist)
		}
		dir = filepath.Dir(dir)
	}
}

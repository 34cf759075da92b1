// SPDX-License-Identifier: Apache-2.0

package judgetest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Saved compares reports with those that the tests of pkg/print read, by name of the
// file without ".json": what is printed there is what a kind judges. UPDATE=1 writes
// the files.
func Saved(t *testing.T, reports map[string]checkup.Report) {
	t.Helper()
	const dir = "../print/testdata"
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		t.Skip("pkg/print is not here")
	}
	for name, r := range reports {
		var got bytes.Buffer
		e := json.NewEncoder(&got)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		if err := e.Encode(r); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, name+".json")
		if os.Getenv("UPDATE") == "1" {
			if err := os.WriteFile(path, got.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(want, got.Bytes()) {
			t.Errorf("%s is not the report that is judged: UPDATE=1 writes it, then update the tests of pkg/print", path)
		}
	}
}

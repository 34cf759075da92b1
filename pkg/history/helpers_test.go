// SPDX-License-Identifier: Apache-2.0

package history

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"testing"
)

func raw(t testing.TB, d *document) []byte {
	t.Helper()
	b, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func gzipped(b []byte) []byte {
	var buf bytes.Buffer
	w := gzip.NewWriter(&buf)
	_, _ = w.Write(b)
	_ = w.Close()
	return buf.Bytes()
}

func compressed(t testing.TB, d *document) []byte { return gzipped(raw(t, d)) }

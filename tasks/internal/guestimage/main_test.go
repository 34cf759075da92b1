// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

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

// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	pipelinev1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"github.com/tektoncd/pipeline/pkg/remote/oci"

	"github.com/checkplan/checkplan/pkg/ecosystem"
)

func entry(kind, name string) Entry {
	return Entry{APIVersion: "tekton.dev/v1", Kind: kind, Name: name, Content: []byte(fmt.Sprintf(
		"apiVersion: tekton.dev/v1\nkind: %s\nmetadata:\n  name: %s\n", map[string]string{"task": "Task", "pipeline": "Pipeline"}[kind], name))}
}

func entries(n int) []Entry {
	var all []Entry
	for i := range n {
		all = append(all, entry("task", fmt.Sprintf("task-%d", i)))
	}
	return all
}

// local serves a registry in memory, and returns its address.
func local(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

func push(t *testing.T, reference string, image v1.Image) string {
	t.Helper()
	tag, err := ParseTag(reference)
	if err != nil {
		t.Fatal(err)
	}
	pinned, err := Registry{}.Push(t.Context(), tag, image)
	if err != nil {
		t.Fatal(err)
	}
	return pinned
}

// What is pushed is what is read, by tag and by digest; and Tekton's own code finds every object in it.
func TestPush(t *testing.T) {
	reference := local(t) + "/team/catalog:v1"
	var all []Entry
	for i := range MaxEntries {
		all = append(all, entry([]string{"task", "pipeline"}[i%2], fmt.Sprintf("name-%d", i/2)))
	}
	image, err := Image(all)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Image(image); err != nil {
		t.Errorf("the image is not valid: %v", err)
	}
	pinned := push(t, reference, image)
	again, _ := Image(all)
	if tag, _ := ParseTag(reference); !strings.HasPrefix(pinned, reference+"@sha256:") {
		t.Errorf("reference %q", pinned)
	} else if same, err := Pinned(tag, again); err != nil || same != pinned {
		t.Errorf("the same entries again: %s, %v; want %s", same, err, pinned)
	}
	for _, from := range []string{reference, pinned} {
		tekton := oci.NewResolver(from, authn.DefaultKeychain)
		listed, err := tekton.List(t.Context())
		if err != nil || len(listed) != len(all) {
			t.Fatalf("Tekton lists %d objects of %s, want %d: %v", len(listed), from, len(all), err)
		}
		for _, want := range all {
			got, digest, err := Registry{}.Read(t.Context(), from, want.Kind, want.Name)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" || digest != pinned {
				t.Errorf("%s of %s, want %s:\n%s", digest, from, pinned, diff)
			}
			object, _, err := tekton.Get(t.Context(), want.Kind, want.Name)
			if err != nil {
				t.Fatalf("Tekton does not find %s: %v", want, err)
			}
			var found string
			switch object := object.(type) {
			case *pipelinev1.Task:
				found = "task/" + object.Name
			case *pipelinev1.Pipeline:
				found = "pipeline/" + object.Name
			}
			if found != want.String() {
				t.Errorf("Tekton finds %q for %s", found, want)
			}
		}
	}
	ecosystem.Row(t, "Tekton bundles", "Tekton's reader of bundles (`pkg/remote/oci`)",
		ecosystem.Version(t, "github.com/tektoncd/pipeline"),
		fmt.Sprintf("a bundle of %d objects, pushed by planner's code to a registry in memory, by tag and by digest", len(all)),
		"every object found")
}

func TestImageRefuses(t *testing.T) {
	nameless := entry("task", "x")
	nameless.Name = ""
	for _, tt := range []struct {
		name    string
		entries []Entry
		want    string // empty: no error
	}{
		{"20", entries(MaxEntries), ""},
		{"none", nil, "0 objects; Tekton accepts 1 to 20"},
		{"21", entries(MaxEntries + 1), "21 objects; Tekton accepts 1 to 20: push the plans as several bundles"},
		{"duplicate", []Entry{entry("task", "x"), entry("task", "x")}, "task/x"},
		{"of two kinds", []Entry{entry("task", "x"), entry("pipeline", "x")}, ""},
		{"nameless", []Entry{nameless}, "incomplete"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Image(tt.entries)
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
}

// raw is an image with layers that somebody else made.
func raw(t *testing.T, annotations map[string]string, layers ...[]byte) v1.Image {
	t.Helper()
	image := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	for _, content := range layers {
		var err error
		image, err = mutate.Append(image, mutate.Addendum{
			Layer: static.NewLayer(content, types.OCIUncompressedLayer), Annotations: annotations,
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return image
}

func TestReadRefuses(t *testing.T) {
	host := local(t)
	annotations := map[string]string{annotationKind: "pipeline", annotationName: "x", annotationAPIVersion: "tekton.dev/v1"}
	var large bytes.Buffer
	if err := tar.NewWriter(&large).WriteHeader(&tar.Header{Name: "x", Typeflag: tar.TypeReg, Size: maxEntry + 1}); err != nil {
		t.Fatal(err)
	}
	many := make([][]byte, MaxEntries+1)
	for i := range many {
		many[i] = []byte{byte(i)}
	}
	good, err := Image([]Entry{entry("pipeline", "y"), entry("pipeline", "w"), entry("task", "x")})
	if err != nil {
		t.Fatal(err)
	}
	push(t, host+"/good:v1", good)
	push(t, host+"/large:v1", raw(t, annotations, large.Bytes()))
	push(t, host+"/junk:v1", raw(t, annotations, []byte("junk")))
	push(t, host+"/many:v1", raw(t, annotations, many...))
	for reference, want := range map[string]string{
		host + "/good:v1":  `the bundle has no such object; of kind pipeline it has: ["w" "y"]`,
		host + "/large:v1": "it has 2097153 bytes; want at most 2097152",
		host + "/junk:v1":  "the layer is no archive",
		host + "/many:v1":  "it has 21 layers; a bundle has at most 20",
		host + "/none:v1":  "read pipeline/x of bundle " + host + "/none:v1",
		host + "/good@sha256:" + strings.Repeat("0", 64): "read pipeline/x",
		"good":            `bundle "good"`,
		host + "/good":    "bundle",
		"../etc/x:passwd": "bundle",
	} {
		if _, _, err := (Registry{}).Read(t.Context(), reference, "pipeline", "x"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", reference, err, want)
		}
	}
}

// TestReadForged: a registry that serves another content for the digest of a layer is refused.
func TestReadForged(t *testing.T) {
	good, err := Image([]Entry{entry("pipeline", "x")})
	if err != nil {
		t.Fatal(err)
	}
	layers, err := good.Layers()
	if err != nil {
		t.Fatal(err)
	}
	digest, err := layers[0].Digest()
	if err != nil {
		t.Fatal(err)
	}
	other, err := Image([]Entry{entry("pipeline", "y")})
	if err != nil {
		t.Fatal(err)
	}
	layers, err = other.Layers()
	if err != nil {
		t.Fatal(err)
	}
	content, err := layers[0].Compressed()
	if err != nil {
		t.Fatal(err)
	}
	forged, err := io.ReadAll(content)
	if err != nil {
		t.Fatal(err)
	}
	honest := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, digest.String()) {
			w.(http.Flusher).Flush() // without a Content-Length, which would be another one
			w.Write(forged)
			return
		}
		honest.ServeHTTP(w, r)
	}))
	defer server.Close()
	reference := strings.TrimPrefix(server.URL, "http://") + "/forged:v1"
	push(t, reference, good)
	e, _, err := Registry{}.Read(t.Context(), reference, "pipeline", "x")
	if err == nil || !strings.Contains(err.Error(), "error verifying sha256 checksum") {
		t.Errorf("read %q, %v; want that the digest is another one", e.Content, err)
	}
}

func TestParseTag(t *testing.T) {
	for reference, ok := range map[string]bool{
		"registry.example.com/checkplan/catalog:v0.1.0":               true,
		"localhost:5000/aa:b":                                         true,
		"registry.example.com/checkplan/catalog":                      false, // no tag
		"checkplan/catalog:v1":                                        false, // no registry
		"registry.example.com/Catalog:v1":                             false,
		"registry.example.com/a:v1@sha256:" + strings.Repeat("0", 64): false, // the digest is not the user's to choose
		"user:secret@registry.example.com/a:v1":                       false,
		"":                                                            false,
	} {
		if _, err := ParseTag(reference); (err == nil) != ok {
			t.Errorf("%q: %v", reference, err)
		}
	}
}

// Without TLS, requests go to this machine only, whatever the library would do.
func TestPlainHTTP(t *testing.T) {
	for host, ok := range map[string]bool{
		"localhost:5000": true, "127.0.0.1:5000": true, "127.8.8.8": true, "[::1]:5000": true,
		"10.0.0.1:5000": false, "192.168.1.1": false, "registry.local": false, "registry.localhost": false, "example.com": false,
		"localhost.example.com": false, "127.0.0.1.example.com": false,
	} {
		for _, scheme := range []string{"http", "https"} {
			sent := false
			next := roundTripper(func(*http.Request) (*http.Response, error) {
				sent = true
				return &http.Response{Body: http.NoBody}, nil
			})
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, scheme+"://"+host+"/v2/", nil)
			if err != nil {
				t.Fatal(err)
			}
			response, err := encrypted{next}.RoundTrip(request)
			if err == nil {
				response.Body.Close()
			}
			if want := ok || scheme == "https"; sent != want || (err == nil) != want {
				t.Errorf("%s://%s: sent is %v, error %v", scheme, host, sent, err)
			}
		}
	}
	// The library asks by HTTPS first, then by HTTP. The error says why there is no second request.
	down := roundTripper(func(*http.Request) (*http.Response, error) { return nil, context.DeadlineExceeded })
	image, err := Image(entries(1))
	if err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag("10.0.0.1:5000/team/a:v1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := (Registry{Transport: down}).Push(t.Context(), tag, image); err == nil || !strings.Contains(err.Error(), "want HTTPS") {
		t.Errorf("push to %s: %v", tag, err)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// SPDX-License-Identifier: Apache-2.0

// Package bundle writes and reads Tekton bundles: OCI images with one Task or Pipeline per layer, as
// docs/tekton-bundle-contracts.md of tektoncd/pipeline demands. It knows no Tekton type: an Entry has what the contract
// asks for. Files, which no bundle may hold, are an image of their own (Manifests).
package bundle

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"path"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const (
	// MaxEntries is how many layers Tekton accepts in a bundle.
	MaxEntries = 20
	// maxEntry limits the content of a layer that is read, in bytes: planner writes objects of at most 1 MiB.
	maxEntry = 2 << 20
)

// Annotations of a layer: those of Tekton's contract, and the one by which oras names a file (OCI image specification,
// annotations).
const (
	annotationName       = "dev.tekton.image.name"
	annotationKind       = "dev.tekton.image.kind"
	annotationAPIVersion = "dev.tekton.image.apiVersion"
	annotationTitle      = "org.opencontainers.image.title"
)

// Archive is the name of the file with the archive of Manifests.
const Archive = "manifests.tar.gz"

// Entry is an object in a bundle.
type Entry struct {
	APIVersion string
	// Kind in lower case, such as "task".
	Kind string
	Name string
	// Content is the object as YAML or JSON.
	Content []byte
}

func (e Entry) String() string { return e.Kind + "/" + e.Name }

// Image is a bundle of the entries, in their order. The same entries give the same bytes. The error says which limit of
// Tekton's contract they break.
func Image(entries []Entry) (v1.Image, error) {
	if n := len(entries); n == 0 || n > MaxEntries {
		return nil, fmt.Errorf("bundle: %d objects; Tekton accepts 1 to %d: push the plans as several bundles", n, MaxEntries)
	}
	layers := make([]mutate.Addendum, len(entries))
	seen := map[string]bool{}
	for i, e := range entries {
		if e.APIVersion == "" || e.Kind == "" || e.Name == "" || seen[e.String()] {
			return nil, fmt.Errorf("bundle: %s of %q is incomplete or a duplicate", e, e.APIVersion)
		}
		seen[e.String()] = true
		layer, err := layerOf(map[string][]byte{e.Name: e.Content})
		if err != nil {
			return nil, fmt.Errorf("bundle: write %s: %w", e, err)
		}
		layers[i] = mutate.Addendum{Layer: layer, Annotations: map[string]string{
			annotationName: e.Name, annotationKind: e.Kind, annotationAPIVersion: e.APIVersion,
		}}
	}
	return imageOf(layers...)
}

// Manifests is an image whose only layer is an archive of the files, by slash-separated path. The same files give the
// same bytes. An OCIRepository of Flux, a source oci:// of Argo CD and `crane export` unpack it; `oras pull` writes the
// archive to the file Archive.
func Manifests(files map[string][]byte) (v1.Image, error) {
	layer, err := layerOf(files)
	if err != nil {
		return nil, fmt.Errorf("manifests: %w", err)
	}
	return imageOf(mutate.Addendum{Layer: layer, Annotations: map[string]string{annotationTitle: Archive}})
}

// imageOf is an OCI image of the layers.
func imageOf(layers ...mutate.Addendum) (v1.Image, error) {
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	return mutate.Append(image, layers...)
}

// layerOf is a layer with an archive of the files, and of the directories above them, sorted by path.
func layerOf(files map[string][]byte) (v1.Layer, error) {
	all := maps.Clone(files) // paths of directories end in a slash
	for name := range files {
		for dir := path.Dir(name); dir != "." && dir != "/"; dir = path.Dir(dir) {
			all[dir+"/"] = nil
		}
	}
	var archive bytes.Buffer
	out := tar.NewWriter(&archive)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		header := &tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(all[name]))}
		if strings.HasSuffix(name, "/") {
			header.Typeflag, header.Mode = tar.TypeDir, 0o755
		}
		if err := out.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := out.Write(all[name]); err != nil {
			return nil, err
		}
	}
	if err := out.Close(); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive.Bytes())), nil }
	return tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer))
}

// ParseTag reads the reference that a bundle is pushed to: registry, repository and tag.
func ParseTag(reference string) (name.Tag, error) {
	tag, err := name.NewTag(reference, name.StrictValidation)
	if err != nil {
		return name.Tag{}, fmt.Errorf("bundle %q: want registry, repository and tag, such as "+
			"registry.example.com/checkplan/catalog:v0.1.0: %w", reference, err)
	}
	return tag, nil
}

// Registry reads and writes bundles with the credentials of the keychain of docker, podman and cloud helpers
// (~/.docker/config.json). It uses plain HTTP for registries on a loopback address only.
type Registry struct {
	// UserAgent of its requests.
	UserAgent string
	// Transport of its requests; nil means http's default.
	Transport http.RoundTripper
}

func (r Registry) options(ctx context.Context) []remote.Option {
	next := r.Transport
	if next == nil {
		next = remote.DefaultTransport
	}
	return []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain),
		remote.WithTransport(encrypted{next}), remote.WithUserAgent(r.UserAgent)}
}

// encrypted refuses requests without TLS, unless they stay on this machine. The library would also send them, with
// credentials, to private addresses and names that end in .local.
type encrypted struct{ next http.RoundTripper }

func (e encrypted) RoundTrip(request *http.Request) (*http.Response, error) {
	host := request.URL.Hostname()
	ip := net.ParseIP(host)
	if request.URL.Scheme != "https" && host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return nil, fmt.Errorf("%s: plain HTTP is for registries on this machine only: want HTTPS", request.URL.Host)
	}
	return e.next.RoundTrip(request)
}

// Push writes an image, and returns its reference by digest. The reference has the tag, too: it says to people which
// version it is.
func (r Registry) Push(ctx context.Context, tag name.Tag, image v1.Image) (string, error) {
	if err := remote.Write(tag, image, r.options(ctx)...); err != nil {
		return "", fmt.Errorf("push bundle %s: %w", tag, err)
	}
	return Pinned(tag, image)
}

// Pinned is the reference of an image by tag and digest, such as registry.example.com/catalog:v1@sha256:HEX.
func Pinned(tag name.Tag, image v1.Image) (string, error) {
	digest, err := image.Digest()
	if err != nil {
		return "", fmt.Errorf("bundle %s: %w", tag, err)
	}
	return tag.String() + "@" + digest.String(), nil
}

// Read reads an entry of a bundle. pinned is the reference by digest of the image that it was in. If the bundle has no
// such entry, the error lists those of its kind.
func (r Registry) Read(ctx context.Context, reference, kind, entry string) (found Entry, pinned string, err error) {
	ref, err := name.ParseReference(reference, name.StrictValidation)
	if err != nil {
		return Entry{}, "", fmt.Errorf("bundle %q: %w", reference, err)
	}
	fail := func(err error) (Entry, string, error) {
		return Entry{}, "", fmt.Errorf("read %s/%s of bundle %s: %w", kind, entry, reference, err)
	}
	image, err := remote.Image(ref, r.options(ctx)...)
	if err != nil {
		return fail(err)
	}
	manifest, err := image.Manifest()
	if err != nil {
		return fail(err)
	}
	if len(manifest.Layers) > MaxEntries {
		return fail(fmt.Errorf("it has %d layers; a bundle has at most %d", len(manifest.Layers), MaxEntries))
	}
	pinned = reference
	if tag, ok := ref.(name.Tag); ok {
		if pinned, err = Pinned(tag, image); err != nil {
			return fail(err)
		}
	}
	var names []string
	for _, layer := range manifest.Layers {
		a := layer.Annotations
		if a[annotationKind] != kind {
			continue
		}
		if a[annotationName] != entry {
			names = append(names, a[annotationName])
			continue
		}
		l, err := image.LayerByDigest(layer.Digest)
		if err != nil {
			return fail(err)
		}
		content, err := unpack(l)
		if err != nil {
			return fail(err)
		}
		return Entry{APIVersion: a[annotationAPIVersion], Kind: kind, Name: entry, Content: content}, pinned, nil
	}
	slices.Sort(names)
	return fail(fmt.Errorf("the bundle has no such object; of kind %s it has: %q", kind, names))
}

// unpack reads the only file of a layer.
func unpack(layer v1.Layer) ([]byte, error) {
	in, err := layer.Uncompressed()
	if err != nil {
		return nil, err
	}
	defer in.Close()
	files := tar.NewReader(in)
	header, err := files.Next()
	if err != nil {
		return nil, fmt.Errorf("the layer is no archive: %w", err)
	}
	if header.Size > maxEntry {
		return nil, fmt.Errorf("it has %d bytes; want at most %d", header.Size, maxEntry)
	}
	content, err := io.ReadAll(io.LimitReader(files, maxEntry))
	if err != nil {
		return nil, err
	}
	// The digest of the layer is compared at its end only. What follows the file are zeros.
	if rest, err := io.Copy(io.Discard, io.LimitReader(in, maxEntry)); err != nil {
		return nil, err
	} else if rest == maxEntry {
		return nil, fmt.Errorf("more than %d bytes follow its file", maxEntry)
	}
	return content, nil
}

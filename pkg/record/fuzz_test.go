// SPDX-License-Identifier: Apache-2.0

package record

import (
	"bytes"
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
)

// chunks has the ConfigMaps of one value.
type chunks struct {
	corev1client.ConfigMapInterface
	byName map[string]*corev1.ConfigMap
}

func (c chunks) Get(_ context.Context, name string, _ metav1.GetOptions) (*corev1.ConfigMap, error) {
	if cm := c.byName[name]; cm != nil {
		return cm, nil
	}
	return nil, apierrors.NewNotFound(corev1.Resource("configmaps"), name)
}

// FuzzRecord: a record of any lines, in two chunks that are cut anywhere, is read the same as in one, or is an error.
func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"source":{"source":1}}`+"\n"+`{"counted":{"target":0,"receptions":[{"source":0,"packets":-5}]}}`+"\n"), 9)
	f.Add([]byte(`{"results":[{"at":"2099-01-01T00:00:00Z"},{}]}`+"\n"+`{"fact":{"unit":"u","content":[]}}`+"\n"), 50)
	f.Add([]byte("{}\nnull\n[]\n"), 0)
	f.Fuzz(func(t *testing.T, raw []byte, cut int) {
		if cut < 0 || cut > len(raw) {
			return
		}
		load := func(parts ...[]byte) (any, error) {
			s := &Store{RunUID: "uid"}
			c := chunks{byName: map[string]*corev1.ConfigMap{}}
			s.ConfigMaps = c
			for i, part := range parts {
				cm := s.configMap(observations("mesh", 0), i)
				cm.BinaryData = map[string][]byte{dataKey: compress(part, chunkBytes)[0].compressed}
				if i < len(parts)-1 {
					cm.Data[moreKey] = "true"
				}
				c.byName[cm.Name] = cm
			}
			r, err := s.LoadRecord(t.Context(), "mesh")
			if (r == nil) != (err != nil) {
				t.Fatalf("record %v, error %v: want one of them", r, err)
			}
			if err != nil {
				return nil, err
			}
			b, _, err := encode(Key{}, r)
			return string(b), err
		}
		one, problem := load(raw)
		two, problems := load(raw[:cut], raw[cut:])
		if (problem != nil) != (problems != nil) || one != two {
			t.Fatalf("in one chunk %v (%v), in two %v (%v)", one, problem, two, problems)
		}
	})
}

// FuzzChunk: any bytes of a chunk are read or are an error, and never take more than their bound.
func FuzzChunk(f *testing.F) {
	f.Add(compress([]byte("{}\n"), chunkBytes)[0].compressed)
	f.Add(compress(bytes.Repeat([]byte{0}, 1<<20), chunkBytes)[0].compressed)
	f.Add([]byte("\x1f\x8b\b\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if raw, err := decompress(b); err == nil && len(raw) > chunkRaw {
			t.Fatalf("%d bytes", len(raw))
		}
	})
}

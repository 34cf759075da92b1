// SPDX-License-Identifier: Apache-2.0

// Package record keeps the values of a run in ConfigMaps: frozen worksheets,
// observations as they arrive, evidence, and reports.
//
// A value is a stream of bytes (JSON, or a line of JSON for each thing that was
// appended), cut into chunks. Each chunk is a separate gzip member in
// binaryData["json.gz"] of one ConfigMap: gzip's checksum detects a corrupt chunk, and
// people can read one:
//
//	kubectl get configmap NAME -o go-template='{{index .binaryData "json.gz"}}' | base64 -d | zcat
//
// data["chunk"] counts chunks from 0, and data["more"] is "true" in each but the last.
// Chunks are written last to first: if chunk 0 exists, the whole value can be read.
// Names are checkup.ObjectName's: a retry overwrites what an earlier try wrote.
package record

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/history"
	"github.com/checkplan/checkplan/pkg/retry"
)

// LabelRunName is on reports and has the name of the PipelineRun, by which a report is
// found. Tekton allows at most 63 characters, as labels do.
const LabelRunName = "checkplan.dev/run-name"

const (
	dataKey   = "json.gz" // binaryData
	chunkKey  = "chunk"   // data
	moreKey   = "more"    // data
	digestKey = "sha256"  // data, of a whole value in its chunk 0
)

// chunkBytes is the compressed size at which a new chunk begins. The compressor buffers
// up to about 100 KiB more, and a ConfigMap's limit is 1 MiB.
const chunkBytes = 512 << 10

// appendedBytes is chunkBytes for values that grow while a check runs: their newest
// chunk is written again every two seconds.
const appendedBytes = 128 << 10

// Bounds on what is read: anyone who may write a ConfigMap may write one whose 1 MiB is a gigabyte of zeros when it is
// decompressed. A chunk has at most chunkRaw bytes before compression, a value that is read as a whole valueRaw.
const (
	chunkRaw = 16 << 20
	valueRaw = 1 << 30
	// memoryFactor is how much more memory a value with a limit (Store.most) may take than its JSON may have bytes, with
	// the JSON itself. Reports of many failed pairs take 3 to 5 times as much.
	memoryFactor = 4
	// chunkLeast is the least number of bytes before compression of each chunk but the last, on average: half of
	// chunkBytes, because gzip makes nothing much larger.
	chunkLeast = chunkBytes / 2
)

// Store saves and loads the values of one run.
type Store struct {
	// ConfigMaps of the run's namespace. Saving needs create and update, loading
	// get; SaveReport needs list and delete too. Each request is tried until the deadline of its
	// context (package retry); without a deadline, once.
	ConfigMaps corev1client.ConfigMapInterface
	// Plan's name, and name and UID of the PipelineRun. To load, RunUID is enough.
	Plan   string
	Run    string
	RunUID string
	// most is the largest value that is read as a whole, in bytes; 0 means valueRaw.
	most int
}

// Key names one value of a run.
type Key struct {
	Role checkup.Role
	// Check is empty for what concerns the whole run.
	Check string
	// Part distinguishes values of one role; often empty.
	Part string
}

// String reads "worksheet of check mesh".
func (k Key) String() string {
	s := string(k.Role)
	if k.Part != "" {
		s += " " + k.Part
	}
	if k.Check != "" {
		s += " of check " + k.Check
	}
	return s
}

// Frozen is what setup freezes for a check: what to measure, and where.
type Frozen struct {
	// Started is when setup began.
	Started   time.Time         `json:"started"`
	Gate      checkup.Gate      `json:"gate"`
	Worksheet checkup.Worksheet `json:"worksheet"`
	Roster    checkup.Roster    `json:"roster"`
}

// Worksheet is the key of a check's Frozen value.
func Worksheet(check string) Key { return Key{Role: checkup.RoleWorksheet, Check: check} }

// look distinguishes the values of a further look; empty for the first.
func look(n int) string {
	if n == 0 {
		return ""
	}
	return "look-" + strconv.Itoa(n)
}

// Roster is the key of a check's checkup.Roster at the end of probe, which names
// responders that were lost since the worksheet was frozen.
func Roster(check string) Key { return Key{Role: checkup.RoleRecord, Check: check, Part: "roster"} }

// name of the ConfigMap of a chunk.
func (s *Store) name(k Key, chunk int) string {
	return checkup.ObjectName(s.RunUID, k.Check, k.Role, k.Part+"."+strconv.Itoa(chunk))
}

// Save writes a value as JSON, over an earlier one of the same key.
func (s *Store) Save(ctx context.Context, k Key, value any) error {
	raw, digest, err := encode(k, value)
	if err != nil {
		return err
	}
	return s.put(ctx, k, 0, compress(raw, chunkBytes), func(cm *corev1.ConfigMap, chunk int) {
		if chunk == 0 {
			cm.Data[digestKey] = digest
		}
	})
}

// encode returns the value as JSON and its digest.
func encode(k Key, value any) (raw []byte, digest string, err error) {
	raw, err = json.Marshal(value)
	if err != nil {
		return nil, "", fmt.Errorf("encode %s: %w", k, err)
	}
	return raw, digestOf(raw), nil
}

func digestOf(raw []byte) string {
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:])
}

// Load reads a value that Save wrote. If the value was never written, the error
// satisfies apierrors.IsNotFound; if a part of it is missing or corrupt, the error names
// the ConfigMap and does not.
func (s *Store) Load(ctx context.Context, k Key, value any) error {
	raw, first, err := s.get(ctx, k)
	if err != nil {
		return err
	}
	if digestOf(raw) != first.Data[digestKey] {
		return fmt.Errorf("load %s: the chunks of ConfigMap %s do not belong together: their sha256 differs", k, first.Name)
	}
	if s.most > 0 {
		left := memoryFactor*s.most - len(raw)
		err = history.Unmarshal(raw, value, &left)
	} else {
		err = json.Unmarshal(raw, value)
	}
	if err != nil {
		return fmt.Errorf("load %s: ConfigMap %s: %w", k, first.Name, err)
	}
	return nil
}

// put writes chunks first, first+1, ... in the opposite order. adorn, if not nil,
// completes each ConfigMap.
func (s *Store) put(ctx context.Context, k Key, first int, chunks []chunk, adorn func(*corev1.ConfigMap, int)) error {
	for i := len(chunks) - 1; i >= 0; i-- {
		cm := s.configMap(k, first+i)
		cm.BinaryData = map[string][]byte{dataKey: chunks[i].compressed}
		cm.Data[chunkKey] = strconv.Itoa(first + i)
		if i < len(chunks)-1 {
			cm.Data[moreKey] = "true"
		}
		if adorn != nil {
			adorn(cm, first+i)
		}
		if err := s.write(ctx, cm); err != nil {
			return fmt.Errorf("save %s: %w", k, err)
		}
	}
	return nil
}

// write creates the ConfigMap or overwrites the one of its name.
func (s *Store) write(ctx context.Context, cm *corev1.ConfigMap) error {
	err := retry.Until(ctx, func() error {
		_, err := s.ConfigMaps.Create(ctx, cm, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			_, err = s.ConfigMaps.Update(ctx, cm, metav1.UpdateOptions{})
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("write ConfigMap %s: %w", cm.Name, err)
	}
	return nil
}

// configMap is an empty ConfigMap with the name and labels of the key. It
// belongs to the PipelineRun, except for reports, which outlive it.
func (s *Store) configMap(k Key, chunk int) *corev1.ConfigMap {
	cm := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Name: s.name(k, chunk),
			Labels: map[string]string{
				checkup.LabelManagedBy: checkup.ManagedBy,
				checkup.LabelPlan:      s.Plan,
				checkup.LabelRun:       s.RunUID,
				checkup.LabelRole:      string(k.Role),
			},
		},
		Data: map[string]string{},
	}
	if k.Check != "" {
		cm.Labels[checkup.LabelCheck] = k.Check
	}
	if k.Role != checkup.RoleReport {
		cm.OwnerReferences = []metav1.OwnerReference{
			{APIVersion: "tekton.dev/v1", Kind: "PipelineRun", Name: s.Run, UID: types.UID(s.RunUID)},
		}
	}
	return cm
}

// get reads the stream of all chunks, and returns the ConfigMap of chunk 0, too.
func (s *Store) get(ctx context.Context, k Key) (raw []byte, first *corev1.ConfigMap, err error) {
	most := cmp.Or(s.most, valueRaw)
	n := 0
	err = s.each(ctx, k, func(cm *corev1.ConfigMap, part []byte) error {
		if first == nil {
			first = cm
		}
		if n++; n > 2+most/chunkLeast {
			return fmt.Errorf("the value has more than %d chunks", 2+most/chunkLeast)
		}
		if len(raw)+len(part) > most {
			return fmt.Errorf("the value is larger than %d MiB", most>>20)
		}
		raw = append(raw, part...)
		return nil
	})
	return raw, first, err
}

// each reads chunk by chunk, and calls got with the part of the stream in each.
func (s *Store) each(ctx context.Context, k Key, got func(*corev1.ConfigMap, []byte) error) error {
	for i := 0; ; i++ {
		cm, err := retry.Get(ctx, func() (*corev1.ConfigMap, error) {
			return s.ConfigMaps.Get(ctx, s.name(k, i), metav1.GetOptions{})
		})
		switch {
		case apierrors.IsNotFound(err) && i > 0:
			return fmt.Errorf("load %s: chunk %d is missing: no ConfigMap %s", k, i, s.name(k, i))
		case err != nil:
			return fmt.Errorf("load %s: %w", k, err)
		}
		part, err := decompress(cm.BinaryData[dataKey])
		if err != nil {
			return fmt.Errorf("load %s: ConfigMap %s is corrupt: binaryData[%q]: %w", k, cm.Name, dataKey, err)
		}
		if err := got(cm, part); err != nil {
			return fmt.Errorf("load %s: ConfigMap %s: %w", k, cm.Name, err)
		}
		if cm.Data[moreKey] != "true" {
			return nil
		}
	}
}

// chunk is a part of a stream.
type chunk struct {
	compressed []byte // one gzip member
	raw        int    // bytes before compression
}

// compress cuts the stream into chunks of that size; at least one.
func compress(raw []byte, size int) []chunk {
	var chunks []chunk
	for {
		var buf bytes.Buffer
		w := gzip.NewWriter(&buf)
		n := 0
		for n < len(raw) && buf.Len() < size && n+32<<10 <= chunkRaw {
			m, _ := w.Write(raw[n:min(n+32<<10, len(raw))]) // a bytes.Buffer does not fail
			n += m
		}
		w.Close()
		chunks = append(chunks, chunk{buf.Bytes(), n})
		raw = raw[n:]
		if len(raw) == 0 {
			return chunks
		}
	}
}

// decompress reads one gzip member of at most chunkRaw bytes and checks its checksum.
func decompress(b []byte) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	raw, err := io.ReadAll(io.LimitReader(r, chunkRaw+1))
	if err == nil && len(raw) > chunkRaw {
		err = fmt.Errorf("more than %d MiB when decompressed", chunkRaw>>20)
	}
	return raw, err
}

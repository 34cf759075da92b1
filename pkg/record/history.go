// SPDX-License-Identifier: Apache-2.0

package record

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/history"
	"github.com/checkplan/checkplan/pkg/retry"
)

// A plan's history is one index and its pieces, each a ConfigMap. A piece is named after its content and never changes.
// The index lists the pieces of each part in their order. Saving creates the new pieces first, then updates the index
// at the resourceVersion that was read, and deletes the pieces that the index no longer lists last. So a reader finds
// the old history or the new one, a part that did not change is not written again, and of two runs that end at once
// the second reads again what the first has written, and merges into it.

const (
	indexKey = "index"    // data of the index: JSON of []indexed
	pieceKey = "piece.gz" // binaryData of a piece
	// pieceBytes is the largest piece; a ConfigMap's limit is 1 MiB.
	pieceBytes = 768 << 10
	// maxPieces bounds what is read for a hostile index.
	maxPieces = 512
	// saveTries is how often a history is merged again, because another run was faster.
	saveTries = 10
	// orphanAge is the age from which a piece that the index does not list is deleted: a younger one may be that of a
	// run that is about to list it.
	orphanAge = time.Hour
)

// indexed is a part of the history, with the names of the ConfigMaps of its pieces.
type indexed struct {
	Part   string   `json:"part"`
	Pieces []string `json:"pieces"`
}

// HistoryName is the name of the ConfigMap of the index of a plan's history.
func HistoryName(plan string) string { return plan + "-history" }

// ErrNewer is the error of a history that another version of checkplan wrote. It must not be overwritten.
var ErrNewer = errors.New("another version of checkplan wrote the history")

// errGone is the error of pieces that were deleted while they were read: another run has saved a newer history.
var errGone = errors.New("pieces of the history are missing")

// LoadHistory reads the history of a plan. A plan without one has an empty history. What cannot be understood is left
// out, with a note in History.SetAside. If a newer checkplan wrote it, the error is ErrNewer, and the history has what
// could be read.
func LoadHistory(ctx context.Context, c corev1client.ConfigMapInterface, plan string) (*history.History, error) {
	h, _, err := loadHistory(ctx, c, plan)
	return h, err
}

// ReadHistory reads a history from the ConfigMaps of one plan, as kubectl prints them: a List in YAML or JSON.
func ReadHistory(ctx context.Context, text []byte) (*history.History, error) {
	var list corev1.ConfigMapList
	if err := checkup.Guarded(func() error { return yaml.Unmarshal(text, &list) }); err != nil {
		return nil, fmt.Errorf("not a list of ConfigMaps: %w", err)
	}
	stored := map[string]*corev1.ConfigMap{}
	plan := ""
	for i := range list.Items {
		cm := &list.Items[i]
		stored[cm.Name] = cm
		p, role := cm.Labels[checkup.LabelPlan], cm.Labels[checkup.LabelRole]
		if role == string(checkup.RoleHistory) && cm.Name == HistoryName(p) {
			if plan != "" {
				return nil, fmt.Errorf("has the history of two plans, %s and %s: select one with the label %s",
					plan, p, checkup.LabelPlan)
			}
			plan = p
		}
	}
	if plan == "" {
		return nil, errors.New("has no ConfigMap PLAN-history: not a plan's history")
	}
	get := func(_ context.Context, name string) (*corev1.ConfigMap, error) {
		if cm := stored[name]; cm != nil {
			return cm, nil
		}
		return nil, apierrors.NewNotFound(corev1.Resource("configmaps"), name)
	}
	h, _, err := readHistory(ctx, get, plan)
	return h, err
}

// getter reads a ConfigMap by its name.
type getter func(ctx context.Context, name string) (*corev1.ConfigMap, error)

// loadHistory also returns the index; nil if there is none.
func loadHistory(
	ctx context.Context, c corev1client.ConfigMapInterface, plan string,
) (*history.History, *corev1.ConfigMap, error) {
	return readHistory(ctx, func(ctx context.Context, name string) (*corev1.ConfigMap, error) {
		return retry.Get(ctx, func() (*corev1.ConfigMap, error) { return c.Get(ctx, name, metav1.GetOptions{}) })
	}, plan)
}

func readHistory(ctx context.Context, get getter, plan string) (*history.History, *corev1.ConfigMap, error) {
	for try := 0; ; try++ {
		index, err := get(ctx, HistoryName(plan))
		if apierrors.IsNotFound(err) {
			return &history.History{Plan: plan}, nil, nil
		}
		if err != nil {
			return nil, nil, fmt.Errorf("load history: %w", err)
		}
		if index.Labels[checkup.LabelRole] != string(checkup.RoleHistory) || index.Labels[checkup.LabelPlan] != plan {
			return nil, nil, fmt.Errorf("load history: ConfigMap %s is not a history of plan %s: rename or delete it",
				index.Name, plan)
		}
		parts, notes, err := loadParts(ctx, get, index)
		if errors.Is(err, errGone) && try < saveTries {
			again, getting := get(ctx, index.Name)
			if getting == nil && again.ResourceVersion != index.ResourceVersion {
				continue
			}
			err = nil
		}
		if err != nil && !errors.Is(err, errGone) {
			return nil, nil, err
		}
		now := time.Now()
		h, newer := history.Decode(plan, parts, now)
		for _, n := range notes {
			h.Note(now, "%s", n)
		}
		if newer {
			return h, index, ErrNewer
		}
		return h, index, nil
	}
}

// loadParts reads all pieces. notes say which parts are incomplete; errGone says that a piece is missing.
func loadParts(
	ctx context.Context, get getter, index *corev1.ConfigMap,
) (parts []history.Part, notes []string, err error) {
	listed, problem := listedPieces(index)
	if problem != nil {
		return nil, []string{fmt.Sprintf("the history is ignored: ConfigMap %s: %v", index.Name, problem)}, nil
	}
	var gone error
	size := 0
	for _, part := range listed {
		var data []byte
		for _, name := range part.Pieces {
			cm, err := get(ctx, name)
			if err != nil && !apierrors.IsNotFound(err) {
				return nil, nil, fmt.Errorf("load history: part %s: %w", part.Part, err)
			}
			switch {
			case err != nil:
				gone = errGone
				problem = fmt.Errorf("ConfigMap %s does not exist", name)
			case pieceName(index.Name, cm.BinaryData[pieceKey]) != name:
				problem = fmt.Errorf("ConfigMap %s is corrupt: its content is not that of its name", name)
			case size+len(cm.BinaryData[pieceKey]) > history.MaxBytes:
				problem = fmt.Errorf("the history has more than %d MiB", history.MaxBytes>>20)
			}
			if problem != nil {
				break
			}
			size += len(cm.BinaryData[pieceKey])
			data = append(data, cm.BinaryData[pieceKey]...)
		}
		if problem != nil {
			notes = append(notes, fmt.Sprintf("part %s of the history is ignored: %v", part.Part, problem))
			problem = nil
			continue
		}
		parts = append(parts, history.Part{Name: part.Part, Data: data})
	}
	return parts, notes, gone
}

func listedPieces(index *corev1.ConfigMap) ([]indexed, error) {
	var listed []indexed
	if err := json.Unmarshal([]byte(index.Data[indexKey]), &listed); err != nil {
		return nil, fmt.Errorf("data[%q] is not an index: %w", indexKey, err)
	}
	n := 0
	known := map[string]bool{}
	for _, part := range listed {
		n += len(part.Pieces)
		for _, name := range part.Pieces {
			if known[name] {
				return nil, fmt.Errorf("data[%q] lists piece %s twice", indexKey, name)
			}
			known[name] = true
		}
	}
	if n > maxPieces {
		return nil, fmt.Errorf("data[%q] lists %d pieces, want at most %d", indexKey, n, maxPieces)
	}
	return listed, nil
}

func pieceName(index string, content []byte) string {
	sum := sha256.Sum256(content)
	return index + "-" + hex.EncodeToString(sum[:8])
}

// AddHistory merges an entry into the history of its plan. Another run that does the same at the same time is not lost,
// and neither is this one.
func (s *Store) AddHistory(ctx context.Context, e *history.Entry) error {
	for range saveTries {
		h, index, err := loadHistory(ctx, s.ConfigMaps, s.Plan)
		if err != nil {
			return err
		}
		err = s.saveHistory(ctx, history.Merge(h, e), index)
		if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	return fmt.Errorf("save history: other runs were faster %d times", saveTries)
}

// saveHistory writes a history over the one of the index; nil means that there was none. The error is a conflict if
// there is another one by now.
func (s *Store) saveHistory(ctx context.Context, h *history.History, index *corev1.ConfigMap) error {
	parts, err := history.Encode(h)
	if err != nil {
		return err
	}
	next := s.historyMap(HistoryName(s.Plan))
	old := map[string]bool{}
	if index != nil {
		next.ResourceVersion = index.ResourceVersion
		if listed, err := listedPieces(index); err == nil {
			for _, part := range listed {
				for _, name := range part.Pieces {
					old[name] = true
				}
			}
		}
	}
	var list []indexed
	used := map[string]bool{}
	for _, part := range parts {
		entry := indexed{Part: part.Name}
		for piece := range slices.Chunk(part.Data, pieceBytes) {
			name := pieceName(next.Name, piece)
			entry.Pieces = append(entry.Pieces, name)
			if used[name] = true; old[name] {
				continue
			}
			cm := s.historyMap(name)
			cm.BinaryData = map[string][]byte{pieceKey: piece}
			if err := s.write(ctx, cm); err != nil {
				return fmt.Errorf("save history: part %s: %w", part.Name, err)
			}
		}
		list = append(list, entry)
	}
	text, err := json.Marshal(list)
	if err != nil {
		return fmt.Errorf("save history: %w", err)
	}
	next.Data = map[string]string{indexKey: string(text)}
	// If the answer to a write is lost, the next try is a conflict: AddHistory then finds the run in the history.
	err = retry.Until(ctx, func() error {
		if index == nil {
			_, err := s.ConfigMaps.Create(ctx, next, metav1.CreateOptions{})
			return err
		}
		_, err := s.ConfigMaps.Update(ctx, next, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		return fmt.Errorf("save history: write ConfigMap %s: %w", next.Name, err)
	}
	return s.dropPieces(ctx, old, used)
}

// dropPieces deletes the pieces that the index before listed and the new one does not, and those that no index listed
// for long.
func (s *Store) dropPieces(ctx context.Context, old, used map[string]bool) error {
	selector := labels.Set{checkup.LabelRole: string(checkup.RoleHistory), checkup.LabelPlan: s.Plan}.String()
	all, err := retry.Get(ctx, func() (*corev1.ConfigMapList, error) {
		return s.ConfigMaps.List(ctx, metav1.ListOptions{LabelSelector: selector})
	})
	if err != nil {
		return fmt.Errorf("save history: list its pieces: %w", err)
	}
	for i := range all.Items {
		cm := &all.Items[i]
		if used[cm.Name] || cm.Name == HistoryName(s.Plan) ||
			!old[cm.Name] && time.Since(cm.CreationTimestamp.Time) < orphanAge {
			continue
		}
		err := retry.Until(ctx, func() error { return s.ConfigMaps.Delete(ctx, cm.Name, metav1.DeleteOptions{}) })
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("save history: delete ConfigMap %s: %w", cm.Name, err)
		}
	}
	return nil
}

// historyMap is an empty ConfigMap of the history. Nothing owns it: it outlives runs.
func (s *Store) historyMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Name: name,
		Labels: map[string]string{
			checkup.LabelManagedBy: checkup.ManagedBy,
			checkup.LabelPlan:      s.Plan,
			checkup.LabelRole:      string(checkup.RoleHistory),
		},
	}}
}

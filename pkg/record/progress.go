// SPDX-License-Identifier: Apache-2.0

package record

import (
	"context"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// SaveProgress writes how far a check is into the annotation
// checkup.AnnotationProgress of one ConfigMap without data of the check, where
// whoever follows the run reads it. Callers write it at most once a second.
func (s *Store) SaveProgress(ctx context.Context, check string, p checkup.Progress) error {
	cm := s.configMap(Key{Role: checkup.RoleRecord, Check: check, Part: "progress"}, 0)
	cm.Annotations = map[string]string{checkup.AnnotationProgress: p.String()}
	return s.write(ctx, cm)
}

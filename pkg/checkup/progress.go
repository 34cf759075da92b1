// SPDX-License-Identifier: Apache-2.0

package checkup

import (
	"fmt"
	"strings"
)

// AnnotationProgress is on the record ConfigMap of a check while it is probed,
// so that whoever follows the run reads how far it is from metadata alone.
const AnnotationProgress = "checkplan.dev/progress"

// Progress is how far the probing of a check is.
type Progress struct {
	// AgentsReady of AgentsExpected agents have started.
	AgentsReady, AgentsExpected int
	// PairsMeasured of PairsExpected pairs have been told of.
	PairsMeasured, PairsExpected int
}

const progressFormat = "agents %d/%d pairs %d/%d"

// String prints "agents 3/4 pairs 10/36", the value of AnnotationProgress.
func (p Progress) String() string {
	return fmt.Sprintf(progressFormat, p.AgentsReady, p.AgentsExpected, p.PairsMeasured, p.PairsExpected)
}

// ReadProgress finds the progress among an object's annotations.
func ReadProgress(annotations map[string]string) (Progress, bool) {
	var p Progress
	_, err := fmt.Fscanf(strings.NewReader(annotations[AnnotationProgress]), progressFormat,
		&p.AgentsReady, &p.AgentsExpected, &p.PairsMeasured, &p.PairsExpected)
	return p, err == nil
}

// SPDX-License-Identifier: Apache-2.0

package tekton

import (
	"bytes"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// Encode returns objects as one YAML stream: keys are sorted, fields that are always
// empty (creationTimestamp, status, computeResources: {}) are left out, and the same
// objects give the same bytes.
func Encode(objects ...runtime.Object) ([]byte, error) {
	var out bytes.Buffer
	for i, object := range objects {
		b, err := encode(object)
		if err != nil {
			return nil, fmt.Errorf("write %s as YAML: %w", describe(object), err)
		}
		if i > 0 {
			out.WriteString("---\n")
		}
		out.Write(b)
	}
	return out.Bytes(), nil
}

func encode(object runtime.Object) ([]byte, error) {
	b, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	// This decoder keeps integers; encoding/json would make floats of them.
	var tree map[string]any
	if err := utiljson.Unmarshal(b, &tree); err != nil {
		return nil, err
	}
	delete(tree, "status")
	dropEmpty(tree)
	b, err = yaml.Marshal(tree)
	return []byte(checkup.CleanLines(string(b))), err // YAML escapes control characters, but no others
}

// dropEmpty removes what Go's JSON writes for fields that are not set. It keeps empty
// strings, because an empty string may be the default of a param.
func dropEmpty(v any) {
	switch v := v.(type) {
	case map[string]any:
		for key, field := range v {
			dropEmpty(field)
			if m, ok := field.(map[string]any); field == nil || ok && len(m) == 0 && neverEmpty[key] {
				delete(v, key)
			}
		}
	case []any:
		for _, element := range v {
			dropEmpty(element)
		}
	}
}

// neverEmpty are the fields whose Go types are structs without omitempty. They have no
// meaning when they are empty.
var neverEmpty = map[string]bool{"computeResources": true, "metadata": true, "spec": true, "taskRunTemplate": true}

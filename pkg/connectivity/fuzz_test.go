// SPDX-License-Identifier: Apache-2.0

package connectivity

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// FuzzStatus: any object of the API is understood or is an error.
func FuzzStatus(f *testing.F) {
	f.Add([]byte(`{"apiVersion":"v1","kind":"X","metadata":{"name":"a","ownerReferences":[{}]},"status":{"successes":[{"time":null}],"outages":[{"start":"2099-01-01T00:00:00Z","end":null,"startLogs":[{}]}],"conditions":[{"type":"Reachable"}]}}`))
	f.Add([]byte(`{"apiVersion":"v1","kind":"X","metadata":{"annotations":{"a":1}},"status":{"failures":[{"time":"x"}]}}`))
	f.Fuzz(func(_ *testing.T, b []byte) {
		object := &unstructured.Unstructured{}
		if object.UnmarshalJSON(b) != nil {
			return
		}
		agesOf(object)
		owner(object)
		managed(object)
		identity{}.matches(object, nil, nil)
		status, err := statusOf(object)
		if err != nil {
			return
		}
		newest(&status)
		begun(&status)
	})
}

// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"encoding/json"
	"fmt"
	"io"
	"sync"

	"github.com/checkplan/checkplan/pkg/checkup"
)

// lineWriter writes messages, each as one line with one Write. If the writer is killed, at most the last line is
// incomplete.
type lineWriter struct {
	mu sync.Mutex // guards following
	w  io.Writer
}

func (l *lineWriter) write(m checkup.Message) error {
	line, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("cannot encode a message: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, err := l.w.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("cannot write a message: %w", err)
	}
	return nil
}

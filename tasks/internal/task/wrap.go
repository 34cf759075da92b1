// SPDX-License-Identifier: Apache-2.0

package task

import (
	"bytes"
	"io"
	"regexp"
	"strings"
	"sync"
	"unicode/utf8"
)

// logWidth is the number of columns of a step's log that the dashboard shows. It cuts longer lines, and only its
// horizontal scroll bar shows the rest (0.71: packages/components/src/components/Log, "white-space: pre"). With a
// window of 1280 pixels and its vertical scroll bar, the panel beside the list of tasks has 561 pixels: 77 columns of
// 7.2 pixels. The indent of a group takes 8 pixels. TestRealDashboard (test/e2e) measures that no line is cut.
const logWidth = 76

// levels are the commands that the dashboard shows as a badge before the line (packages/components, LogFormat). A badge
// takes the columns of its word and 17 pixels more: two columns, and some of those that logWidth leaves free.
var levels = regexp.MustCompile(`^::(error|warning|info|notice|debug|trace)::`)

// group is a command whose line is a title. What follows it is folded.
const group = "::group::"

// indent begins each further line of a long one.
const indent = "    "

// wrapper writes whole lines to a log. A line that is too long continues on lines of its own, at spaces, with the same
// level and an indent. A word that is longer than a line, such as a name to copy, stays whole. Several goroutines may
// write.
type wrapper struct {
	to   io.Writer
	mu   sync.Mutex
	part []byte // of a line without its end
}

// Write never reports an error: a step does not fail because nobody reads its log.
func (w *wrapper) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.part = append(w.part, b...)
	for {
		i := bytes.IndexByte(w.part, '\n')
		if i < 0 {
			return len(b), nil
		}
		_, _ = io.WriteString(w.to, wrap(string(w.part[:i])))
		w.part = w.part[i+1:]
	}
}

// Close writes a last line that has no end.
func (w *wrapper) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.part) > 0 {
		_, _ = io.WriteString(w.to, wrap(string(w.part)))
	}
	w.part = nil
	return nil
}

// wrap returns the line, or the lines in its place, each with its end.
func wrap(line string) string {
	command, width := "", logWidth
	if level := levels.FindStringSubmatch(line); level != nil {
		command, width = level[0], logWidth-len(level[1])-2
	} else if strings.HasPrefix(line, group) {
		command = group
	}
	text := line[len(command):]
	if utf8.RuneCountInString(text) <= width {
		return line + "\n"
	}
	text = strings.ReplaceAll(text, "\t", " ") // as wide as it was counted, and a place to cut
	// The indent of the line stays, for lists and tables.
	own := text[:len(text)-len(strings.TrimLeft(text, " "))]
	own = own[:min(len(own), width/2)]
	hanging := own + indent
	var b strings.Builder
	for rest := strings.Trim(text, " "); rest != ""; {
		part := cut(rest, width-len(own))
		b.WriteString(command + own + strings.TrimRight(part, " ") + "\n")
		rest = strings.TrimLeft(rest[len(part):], " ")
		own = hanging
		if command == group {
			command = ""
		}
	}
	return b.String()
}

// cut returns as many whole words of a text as a line of the width takes, at least one.
func cut(text string, width int) string {
	end, columns := 0, 0
	for i, r := range text {
		if r == ' ' && (columns <= width || end == 0) {
			end = i
		}
		if columns++; columns > width && end > 0 {
			return text[:end]
		}
	}
	return text
}

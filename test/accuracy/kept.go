// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
)

// kept is a file of cells, one JSON object per line, so that a table of many hours can be made in parts. A cell in it
// is not measured again; a new one is appended as soon as it is measured. A nil kept keeps nothing.
type kept struct {
	file    *os.File
	program string
	cells   map[keptKey]*cell
}

// keptKey says what a kept cell is of. Program is the SHA-256 sum of the executable that measured it: a cell of another
// program, whose judge may differ, does not count.
type keptKey struct {
	Program       string
	Case, Noise   string
	Nodes, Degree int
	Seeds         uint64
}

// keptLine is a line of the file.
type keptLine struct {
	keptKey
	Cell *cell
}

// keep opens a file of cells, or creates it. An unfinished last line, of a command that was killed, is cut off.
func keep(name string) (*kept, error) {
	executable, err := os.Executable()
	if err != nil {
		return nil, err
	}
	program, err := os.ReadFile(executable)
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(name)
	if err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	k := &kept{program: fmt.Sprintf("%x", sha256.Sum256(program)), cells: map[keptKey]*cell{}}
	whole := text[:bytes.LastIndexByte(text, '\n')+1]
	number := 0
	for line := range bytes.Lines(whole) {
		number++
		var l keptLine
		if err := json.Unmarshal(line, &l); err != nil || l.Cell == nil || !l.Cell.whole() {
			return nil, fmt.Errorf("%s:%d: not a cell of this table: %.60q", name, number, line)
		}
		k.cells[l.keptKey] = l.Cell
	}
	if k.file, err = os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644); err != nil {
		return nil, err
	}
	return k, k.file.Truncate(int64(len(whole)))
}

// whole reports whether a cell that was read has a score and a duel for each algorithm.
func (c *cell) whole() bool {
	return len(c.Baselines) == len(algorithms) && len(c.Duels) == len(algorithms)
}

// measure returns the kept cell of a setting, or else measures and keeps it.
func (k *kept) measure(s setting, seeds uint64) (*cell, error) {
	if k == nil {
		return s.measure(seeds)
	}
	key := keptKey{k.program, s.scenario.name, s.noise.name, s.nodes, s.degree, seeds}
	if c := k.cells[key]; c != nil {
		return c, nil
	}
	c, err := s.measure(seeds)
	if err != nil {
		return nil, err
	}
	line, err := json.Marshal(keptLine{key, c})
	if err != nil {
		return nil, err
	}
	_, err = k.file.Write(append(line, '\n'))
	return c, err
}

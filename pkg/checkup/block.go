// SPDX-License-Identifier: Apache-2.0

package checkup

import (
	"encoding/json"
	"fmt"
)

// Block is a part of a report, or of an explanation, that a kind of check adds to
// what all kinds have. A printer renders it without knowing the kind. One of Table,
// List, Grid and Note is set.
type Block struct {
	// Title is a heading; empty for none.
	Title string  `json:"title,omitempty"`
	Table *Table  `json:"table,omitempty"`
	List  *List   `json:"list,omitempty"`
	Grid  *Matrix `json:"grid,omitempty"`
	Note  string  `json:"note,omitempty"`
}

// Table is rows of cells, one for each column.
type Table struct {
	// Noun is what a row is, in the singular, for "and 3 more pairs".
	Noun    string   `json:"noun,omitempty"`
	Columns []Column `json:"columns"`
	Rows    [][]Cell `json:"rows"`
}

// Column is the head of a column. Measure says what its numbers are; it is empty
// for columns of text.
type Column struct {
	Name    string  `json:"name"`
	Measure Measure `json:"measure,omitempty"`
}

// Cell is a text, a number, or nothing: in JSON a string, a number, or null.
type Cell struct {
	Text   string
	Number *float64
}

// Text is a cell of text, empty if s is.
func Text(s string) Cell { return Cell{Text: s} }

// Number is a cell of a number, in the measure of its column.
func Number[T ~int | ~int64 | ~float64](n T) Cell { return Cell{Number: new(float64(n))} }

// MarshalJSON writes a string, a number, or null for an empty cell.
func (c Cell) MarshalJSON() ([]byte, error) {
	switch {
	case c.Number != nil:
		return json.Marshal(*c.Number)
	case c.Text != "":
		return json.Marshal(c.Text)
	}
	return []byte("null"), nil
}

// UnmarshalJSON reads what MarshalJSON writes.
func (c *Cell) UnmarshalJSON(b []byte) error {
	var v any
	if err := json.Unmarshal(b, &v); err != nil {
		return err
	}
	switch v := v.(type) {
	case nil:
		*c = Cell{}
	case string:
		*c = Cell{Text: v}
	case float64:
		*c = Cell{Number: &v}
	default:
		return fmt.Errorf("cell %s: want a string, a number or null", b)
	}
	return nil
}

// List is lines, each with what belongs to it.
type List struct {
	// Noun is what an item is, in the singular, for "and 3 more pairs".
	Noun  string `json:"noun,omitempty"`
	Items []Item `json:"items"`
}

// Item is one line of a list.
type Item struct {
	// Name stands before the text, such as a field's name; empty for none.
	Name string `json:"name,omitempty"`
	// Verdict stands before the text, coloured; empty for none.
	Verdict Verdict `json:"verdict,omitempty"`
	Text    string  `json:"text,omitempty"`
	// Items are indented below the line, and then Table.
	Items []Item `json:"items,omitempty"`
	Table *Table `json:"table,omitempty"`
}

// SPDX-License-Identifier: Apache-2.0

package checkup

import (
	"encoding/json"
	"fmt"
)

// Block is a part of a report or of an explanation that a kind of check adds to the
// parts that all kinds have. Printers render it without knowing the kind. One of
// Table, List, Grid and Note is set.
type Block struct {
	// Title is the heading; empty means no heading.
	Title string  `json:"title,omitempty"`
	Table *Table  `json:"table,omitempty"`
	List  *List   `json:"list,omitempty"`
	Grid  *Matrix `json:"grid,omitempty"`
	Note  string  `json:"note,omitempty"`
}

// Table is a list of rows. A row has one cell per column.
type Table struct {
	// Noun names a row, in the singular. Printers use it in "and 3 more pairs".
	Noun    string   `json:"noun,omitempty"`
	Columns []Column `json:"columns"`
	Rows    [][]Cell `json:"rows"`
}

// Column is the head of a column. Measure is the unit of measure of its numbers; it
// is empty for columns of text. Where a table is too wide, the columns with the highest
// Priority are left out first, as in Kubernetes' own tables; 0 keeps a column.
type Column struct {
	Name     string  `json:"name"`
	Measure  Measure `json:"measure,omitempty"`
	Priority int     `json:"priority,omitempty"`
}

// Cell is a text, a number, or empty. In JSON it is a string, a number, or null.
type Cell struct {
	Text   string
	Number *float64
}

// Text returns a cell with the text s. The cell is empty if s is empty.
func Text(s string) Cell { return Cell{Text: s} }

// Number returns a cell with the number n, in the unit of measure of its column.
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

// List is a list of lines, each with optional sub-items and an optional table.
type List struct {
	// Noun names an item, in the singular. Printers use it in "and 3 more pairs".
	Noun  string `json:"noun,omitempty"`
	Items []Item `json:"items"`
}

// Item is one line of a list.
type Item struct {
	// Name is printed before the text, for example the name of a field. Empty means
	// no name.
	Name string `json:"name,omitempty"`
	// Verdict is printed before the text, in color. Empty means no verdict.
	Verdict Verdict `json:"verdict,omitempty"`
	Text    string  `json:"text,omitempty"`
	// Items are printed below the line, indented. Table follows them.
	Items []Item `json:"items,omitempty"`
	Table *Table `json:"table,omitempty"`
}

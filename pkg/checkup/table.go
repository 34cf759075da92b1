// SPDX-License-Identifier: Apache-2.0

package checkup

// TableSheet is the part of a worksheet for agents that read what the service proxies of their nodes have programmed.
type TableSheet struct {
	// Interval is the time between the starts of the two looks.
	Interval Duration `json:"interval"`
}

// TableLooks is how often an agent reads the table of each family. Rules change while one looks: a difference counts
// only if it is in each look.
const TableLooks = 2

// TablePart is a part of what an agent found in one look at the table of one family.
type TablePart struct {
	// Look is from 0 to TableLooks-1.
	Look   int      `json:"look"`
	Family IPFamily `json:"family"`
	// Part counts the parts of a table from 0.
	Part int  `json:"part"`
	Last bool `json:"last,omitempty"`
	// Data is a piece of what pkg/dataplane's Look.Write writes, compressed by gzip.
	Data []byte `json:"data,omitempty"`
	// Same says instead of Data that this look found what the first one did.
	Same bool `json:"same,omitempty"`
	// Unmeasured says why nothing could be read; nil if it could. Data is then empty.
	Unmeasured *Cause `json:"unmeasured,omitempty"`
}

// TableReading is what an agent found of one family in all looks.
type TableReading struct {
	// Source is the index of the agent's node in the worksheet.
	Source int
	Family IPFamily
	Looks  [TableLooks]TableLook
}

// TableLook is what an agent found in one look: compressed Data, or why there is none.
type TableLook struct {
	Data       []byte
	Unmeasured *Cause
}

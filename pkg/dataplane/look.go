// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Proxy is what serves Services on a node.
type Proxy struct {
	// Mode is empty if its rules cannot be read; then Reason says why.
	Mode Mode `json:"mode,omitempty"`
	// Program wrote the rules. Empty: kube-proxy, if there is a Mode.
	Program Program `json:"program,omitempty"`
	// Legacy: iptables-legacy.
	Legacy bool `json:"legacy,omitempty"`
	// None: no Mode, because there are no rules of kube-proxy, and no other proxy that is known.
	None bool `json:"none,omitempty"`
	// Others are programs whose devices are there and that may serve Services themselves, sorted. With a Mode, they are
	// for people: a packet that one of them takes never meets the rules that were read.
	Others []string `json:"others,omitempty"`
	Reason string   `json:"reason,omitempty"`
}

// Decides is the mode whose decisions the rules have to follow: ServiceProxy does not decide in mode ipvs as kube-proxy
// does. Empty if Mode is.
func (p Proxy) Decides() Mode {
	if p.Mode == IPVS && p.Program == ServiceProxy {
		return OwnIPVS
	}
	return p.Mode
}

// Look is what was found on a node in one family.
type Look struct {
	Proxy Proxy `json:"proxy"`
	// Table is nil if Proxy.Mode is empty.
	Table *Table `json:"table,omitempty"`
}

// Limits on what ReadLook accepts. kube-proxy's own tests of scale have 10,000 Services with 100,000 endpoints
// (kubernetes/community, sig-scalability/configs-and-limits/thresholds.md): 30,000 frontends, as each is there from
// three origins, and 300,000 endpoints.
const (
	// MaxFrontends and MaxEndpoints are for a table; source ranges count as endpoints.
	MaxFrontends = 300_000
	MaxEndpoints = 1_000_000
	// MaxLook is the largest text of a look in bytes, and maxLine that of one of its lines: one frontend, with about
	// 70,000 endpoints.
	MaxLook = 256 << 20
	maxLine = 4 << 20
	// maxText is the longest text of a rule in bytes: longer ones are cut. A longer name is an error: namespace, name and
	// port name of a Service have 63 bytes each, and prefixes and devices less.
	maxText = 1 << 10
	maxName = 256
)

// Write writes the look as lines of JSON: what it is, and then one line for each frontend.
func (l Look) Write(w io.Writer) error {
	var frontends []Frontend
	if l.Table != nil {
		head := *l.Table
		frontends, head.Frontends = head.Frontends, nil
		l.Table = &head
	}
	e := json.NewEncoder(w)
	if err := e.Encode(l); err != nil {
		return fmt.Errorf("write a table: %w", err)
	}
	for i := range frontends {
		if err := e.Encode(&frontends[i]); err != nil {
			return fmt.Errorf("write a table: %w", err)
		}
	}
	return nil
}

// ReadLook reads what Write wrote, in one family. It does not trust the writer: what it returns is bounded, has a mode
// if it has a table, and only origins and actions that exist.
func ReadLook(r io.Reader, family Family) (Look, error) {
	var l Look
	limited := &io.LimitedReader{R: r, N: MaxLook + 1}
	lines := bufio.NewScanner(limited)
	lines.Buffer(nil, maxLine)
	if !lines.Scan() {
		return Look{}, errors.Join(errors.New("read a table: it is empty"), lines.Err())
	}
	if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
		return Look{}, fmt.Errorf("read a table: %w", err)
	}
	if err := l.check(family); err != nil {
		return Look{}, fmt.Errorf("read a table: %w", err)
	}
	endpoints := 0
	for lines.Scan() {
		var f Frontend
		if l.Table == nil {
			return Look{}, errors.New("read a table: frontends without a table")
		}
		if err := json.Unmarshal(lines.Bytes(), &f); err != nil {
			return Look{}, fmt.Errorf("read a frontend: %w", err)
		}
		if err := f.check(); err != nil {
			return Look{}, fmt.Errorf("read a frontend: %w", err)
		}
		endpoints += len(f.Endpoints) + len(f.Sources)
		l.Table.Frontends = append(l.Table.Frontends, f)
		if len(l.Table.Frontends) > MaxFrontends || endpoints > MaxEndpoints {
			return Look{}, fmt.Errorf("read a table: more than %d frontends or %d endpoints", MaxFrontends, MaxEndpoints)
		}
	}
	switch err := lines.Err(); {
	case err != nil:
		return Look{}, fmt.Errorf("read a table: %w", err)
	case limited.N <= 0:
		return Look{}, fmt.Errorf("read a table: more than %d bytes", MaxLook)
	}
	return l, nil
}

// check bounds what a look has but for frontends.
func (l *Look) check(family Family) error {
	p := &l.Proxy
	p.Reason, p.Others = cut(p.Reason), cutAll(p.Others)
	t := l.Table
	switch {
	case (t == nil) != (p.Mode == ""):
		return errors.New("a table without a mode, or a mode without a table")
	case p.Program != "" && p.Program != ServiceProxy:
		return fmt.Errorf("rules of %.20q", p.Program)
	case t == nil:
		return nil
	case p.None || p.Mode != NFTables && p.Mode != IPTables && p.Mode != IPVS:
		return fmt.Errorf("a table of mode %.20q", p.Mode)
	case t.Mode != p.Mode || t.Family != family:
		return fmt.Errorf("a table of mode %.20q and family %.20q, not %s and %s", t.Mode, t.Family, p.Mode, family)
	case len(t.Frontends) > 0 || len(t.PodsBy) > maxName:
		return errors.New("frontends in the first line, or a name that is too long")
	}
	t.NodePortAddresses = nil // not compared
	t.Unknown = cutAll(t.Unknown)
	return nil
}

// check bounds the texts of a frontend.
func (f *Frontend) check() error {
	switch {
	case !slices.Contains(Origins[:], f.From):
		return fmt.Errorf("origin %.20q", f.From)
	case !slices.Contains([]Action{Forward, Reject, Drop, Pass}, f.Action):
		return fmt.Errorf("action %.20q", f.Action)
	case f.Elsewhere != "" && !slices.Contains([]Action{Forward, Reject, Drop, Pass}, f.Elsewhere):
		return fmt.Errorf("action elsewhere %.20q", f.Elsewhere)
	case !slices.Contains([]Masquerade{Either, Rewritten, Preserved, Undecided}, f.Masquerade):
		return fmt.Errorf("masquerade %.20q", f.Masquerade)
	case !slices.Contains([]string{"TCP", "UDP", "SCTP"}, f.Protocol):
		return fmt.Errorf("protocol %.20q", f.Protocol)
	case len(f.Service) > maxName || len(f.PortName) > maxName:
		return errors.New("the name of a Service or a port is too long")
	case !slices.IsSortedFunc(f.Endpoints, Endpoint.compare):
		return errors.New("endpoints that are not sorted")
	case f.Address.Zone() != "" ||
		slices.ContainsFunc(f.Endpoints, func(e Endpoint) bool { return e.Address.Addr().Zone() != "" }):
		return errors.New("an address with a zone") // a text of any length
	}
	f.Unknown = cutAll(f.Unknown)
	return nil
}

// cut returns at most maxText bytes of a text.
func cut(text string) string {
	if len(text) <= maxText {
		return text
	}
	return strings.ToValidUTF8(text[:maxText], "") + "..."
}

// cutAll cuts each of at most MaxUnknown texts.
func cutAll(texts []string) []string {
	texts = texts[:min(len(texts), MaxUnknown)]
	for i := range texts {
		texts[i] = cut(texts[i])
	}
	return texts
}

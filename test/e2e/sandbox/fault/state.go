// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Status says whether a fault is in effect.
type Status string

const (
	Active     Status = "active"
	Incomplete Status = "incomplete"  // Add was killed before it finished: some nodes may have the fault
	HolderGone Status = "holder gone" // delay: the process that held the packets is dead, packets pass at once
	NodeGone   Status = "node gone"   // a namespace of the fault is gone, or its path is now another namespace
)

// Via is how a delay is made.
type Via string

const (
	Netem Via = "netem"   // qdiscs on the uplinks
	Queue Via = "nfqueue" // a netfilter queue and a process that holds the packets
)

// Record is one added fault, as stored in its file.
type Record struct {
	ID     string    `json:"id"` // a decimal number
	Fault  Fault     `json:"fault"`
	Added  time.Time `json:"added"`
	Places []Place   `json:"places"`

	Via    Via      `json:"via,omitempty"`    // delay only
	Holder *Process `json:"holder,omitempty"` // delay by Queue only; nil before the process has started

	// Complete is true when the fault is in effect on all nodes.
	Complete bool `json:"complete"`

	// Status is set by List, and not stored.
	Status Status `json:"-"`
}

// Place is a node's network namespace in which a fault acts.
type Place struct {
	Node   string `json:"node"`
	NetNS  string `json:"netns"`
	Inode  uint64 `json:"inode"` // of NetNS, to recognize the namespace
	Uplink string `json:"uplink,omitempty"`
}

// Process identifies a process, also after its PID is used again.
type Process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // field 22 of /proc/PID/stat: clock ticks since boot
}

// List returns the faults that were added to dir and not cleared, oldest first. A directory that
// does not exist has no faults.
func List(dir string) ([]Record, error) {
	records, err := readAll(dir)
	for i := range records {
		records[i].Status = records[i].status()
	}
	return records, err
}

func (r Record) status() Status {
	switch {
	case !r.Complete:
		return Incomplete
	case slices.ContainsFunc(r.Places, func(p Place) bool { return !p.exists() }):
		return NodeGone
	case r.Holder != nil && !r.Holder.alive():
		return HolderGone
	}
	return Active
}

func (p Place) exists() bool {
	inode, err := inodeOf(p.NetNS)
	return err == nil && inode == p.Inode
}

func inodeOf(path string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return st.Ino, nil
}

// alive reports whether the process still runs. A zombie does not.
func (p Process) alive() bool {
	state, start, err := procStat(p.PID)
	return err == nil && start == p.Start && state != "Z" && state != "X"
}

// procStat returns the state and the start time of a process, see proc_pid_stat(5).
func procStat(pid int) (state string, start uint64, err error) {
	path := fmt.Sprintf("/proc/%d/stat", pid)
	data, err := os.ReadFile(path)
	if err != nil {
		return "", 0, err
	}
	// Field 2, the name, is in parentheses and can contain anything.
	_, rest, _ := strings.Cut(string(data), "(")
	fields := strings.Fields(rest[strings.LastIndex(rest, ")")+1:])
	if len(fields) < 20 {
		return "", 0, fmt.Errorf("%s: only %d fields", path, len(fields))
	}
	start, err = strconv.ParseUint(fields[19], 10, 64)
	return fields[0], start, err
}

// readAll reads all records that it can. The error names the files that it could not read.
func readAll(dir string) ([]Record, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list faults: %w", err)
	}
	var (
		records  []Record
		problems []error
	)
	for _, e := range entries {
		id, ok := strings.CutSuffix(e.Name(), ".json")
		if !ok || !isID(id) {
			continue
		}
		r, err := readRecord(dir, id)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		records = append(records, r)
	}
	slices.SortFunc(records, func(a, b Record) int { return cmp.Compare(number(a.ID), number(b.ID)) })
	return records, errors.Join(problems...)
}

func readRecord(dir, id string) (Record, error) {
	path := recordPath(dir, id)
	data, err := os.ReadFile(path)
	if err != nil {
		return Record{}, fmt.Errorf("read fault %s: %w", id, err)
	}
	r := Record{}
	if err := json.Unmarshal(data, &r); err != nil {
		return Record{}, fmt.Errorf("read fault %s: %s: %w", id, path, err)
	}
	if r.ID != id {
		return Record{}, fmt.Errorf("read fault %s: %s is the record of fault %q", id, path, r.ID)
	}
	return r, nil
}

// write writes the record to its file, completely or not at all.
func (r Record) write(dir string) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	path := recordPath(dir, r.ID)
	if err := os.WriteFile(path+".new", append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("record fault %s: %w", r.ID, err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("record fault %s: %w", r.ID, err)
	}
	return nil
}

// forget removes all files of a fault.
func forget(dir, id string) error {
	var problems []error
	for _, path := range []string{recordPath(dir, id) + ".new", logPath(dir, id), recordPath(dir, id)} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			problems = append(problems, err)
		}
	}
	return errors.Join(problems...)
}

func recordPath(dir, id string) string { return filepath.Join(dir, id+".json") }

// logPath is the log file of a holder.
func logPath(dir, id string) string { return filepath.Join(dir, id+".log") }

func isID(s string) bool { return number(s) > 0 && strconv.Itoa(number(s)) == s }

// number converts an ID to a number, 0 if it is not an ID.
func number(id string) int {
	n, err := strconv.Atoi(id)
	if err != nil || n < 0 {
		return 0
	}
	return n
}

// lock prevents other processes from adding and clearing faults in dir until unlock.
func lock(dir string) (unlock func(), err error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("lock the directory of faults: %w", err)
	}
	for {
		err := unix.Flock(int(d.Fd()), unix.LOCK_EX)
		if err == nil {
			return func() { d.Close() }, nil
		}
		if !errors.Is(err, unix.EINTR) {
			d.Close()
			return nil, fmt.Errorf("lock the directory of faults %s: %w", dir, err)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"
)

// undoTime limits how long Add takes to undo what it has begun, also if its context is cancelled.
const undoTime = 20 * time.Second

// Add puts a fault into effect between nodes, records it in dir and returns its ID, a decimal
// number. It creates dir if it does not exist. IDs begin at 1 again after all faults are cleared:
// an ID is valid only until then. On error Add removes everything of the fault; the error names
// what it could not remove. Add needs root and the tool nft. A delay may start a process, see
// [Hold].
func Add(ctx context.Context, dir string, nodes []Node, f Fault) (id string, err error) {
	if err := f.Validate(); err != nil {
		return "", err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return "", fmt.Errorf("add fault: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("add fault: %w", err)
	}
	unlock, err := lock(dir)
	if err != nil {
		return "", err
	}
	defer unlock()
	records, err := readAll(dir)
	if err != nil {
		return "", fmt.Errorf("add fault: read existing faults (clear all faults to repair this): %w", err)
	}

	r := Record{Fault: f, Added: time.Now().UTC()}
	if r.ID, err = nextID(records); err != nil {
		return "", err
	}
	if f.Network != "" && f.Kind == Delay {
		for _, other := range records {
			if other.Fault.Network == f.Network && other.Via == Queue && markOf(other.ID) == markOf(r.ID) {
				return "", fmt.Errorf("add fault %s: it would use the packet mark of fault %s: clear that one first", f, other.ID)
			}
		}
	}
	if f.Kind == Delay {
		r.Via = Queue
		// A packet has one priority, so netem makes only one delay at a time. Another delay uses a
		// queue, and both add up.
		taken := slices.ContainsFunc(records, func(r Record) bool { return r.Via == Netem })
		unknown := slices.ContainsFunc(nodes, func(n Node) bool { return n.Uplink == "" })
		if f.Network == "" && !taken && !unknown && hasNetem(ctx) {
			r.Via = Netem
		}
	}
	sets, err := compile(r.ID, nodes, f, r.Via)
	if err != nil {
		return "", err
	}
	for _, s := range sets {
		p := Place{Node: s.Node.Name, NetNS: s.Node.NetNS, Uplink: s.Node.Uplink}
		if p.Inode, err = inodeOf(p.NetNS); err != nil {
			return "", fmt.Errorf("add fault: node %s: %w", p.Node, err)
		}
		r.Places = append(r.Places, p)
	}

	if err := r.write(dir); err != nil {
		return "", errors.Join(err, forget(dir, r.ID))
	}
	defer func() {
		if err != nil {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
			defer cancel()
			err = fmt.Errorf("add fault %s: %w", f, errors.Join(err, remove(ctx, dir, r, nil)))
			id = ""
		}
	}()
	if r.Via == Queue {
		if err := startHolder(ctx, dir, &r); err != nil {
			return "", err
		}
	}
	for _, s := range sets {
		if err := apply(ctx, r, s); err != nil {
			return "", fmt.Errorf("node %s: %w", s.Node.Name, err)
		}
	}
	r.Complete = true
	return r.ID, r.write(dir)
}

// apply puts one node's rules of a fault into effect.
func apply(ctx context.Context, r Record, s ruleset) error {
	if r.Via == Netem {
		err := inNetNS(s.Node.NetNS, func() error { return addNetem(ctx, s.Node.Uplink, r.Fault.Delay) })
		if err != nil {
			return err
		}
	}
	if r.Fault.Network != "" && r.Via == Queue {
		if err := passBridged(s.Node.NetNS); err != nil {
			return err
		}
	}
	if err := load(ctx, s.Node.NetNS, s.Text); err != nil {
		return err
	}
	if r.Via == Queue {
		return queueRule(s.Node.NetNS, r.ID, queueNumber(r.ID))
	}
	return nil
}

// Clear removes the faults with these IDs and returns them. Without IDs it removes all faults, and
// also tables and qdiscs of faults that have no record. Unknown IDs and nodes that no longer exist
// are not errors. If a fault could not be removed completely, its record stays: call Clear again.
func Clear(ctx context.Context, dir string, nodes []Node, ids ...string) ([]Record, error) {
	for _, id := range ids {
		if !isID(id) {
			return nil, fmt.Errorf("clear fault: %q is not a fault ID", id)
		}
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("clear faults: %w", err)
	}
	unlock, err := lock(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		unlock = func() {}
	case err != nil:
		return nil, err
	}
	defer unlock()

	records, unreadable := readAll(dir)
	var (
		cleared  []Record
		problems []error
	)
	for _, r := range records {
		if len(ids) > 0 && !slices.Contains(ids, r.ID) {
			continue
		}
		if err := remove(ctx, dir, r, nodes); err != nil {
			problems = append(problems, fmt.Errorf("clear fault %s: %w", r.ID, err))
			continue
		}
		cleared = append(cleared, r)
	}
	if len(ids) > 0 {
		return cleared, errors.Join(append(problems, unreadable)...)
	}
	for _, n := range nodes {
		if err := sweep(ctx, n); err != nil {
			problems = append(problems, fmt.Errorf("clear faults of node %s: %w", n.Name, err))
		}
	}
	if unreadable != nil && len(problems) == 0 {
		// Nodes hold nothing of the unreadable faults any more. Their holders exit when the records
		// are gone.
		problems = append(problems, forgetUnreadable(dir))
	}
	return cleared, errors.Join(problems...)
}

// remove removes one fault in this order: the queue rule, the packets in the queue, the tables, the
// record.
func remove(ctx context.Context, dir string, r Record, nodes []Node) error {
	places := slices.Clone(r.Places)
	for _, n := range nodes { // a node that was created again in another namespace
		i := slices.IndexFunc(r.Places, func(p Place) bool { return p.Node == n.Name })
		if i >= 0 && r.Places[i].NetNS != n.NetNS {
			places = append(places, Place{Node: n.Name, NetNS: n.NetNS, Uplink: n.Uplink})
		}
	}
	var problems []error
	if r.Via == Queue {
		for _, p := range places {
			if err := unqueue(p.NetNS, r.ID); err != nil {
				problems = append(problems, fmt.Errorf("node %s: %w", p.Node, err))
			}
		}
		if r.Holder != nil { // it releases the packets that it holds
			if err := r.Holder.stop(); err != nil {
				problems = append(problems, fmt.Errorf("stop process %d that holds packets: %w", r.Holder.PID, err))
			}
		}
	}
	for _, p := range places {
		if err := dropTables(p.NetNS, r.ID); err != nil {
			problems = append(problems, fmt.Errorf("node %s: %w", p.Node, err))
		}
		if r.Via == Netem {
			if err := dropNetem(ctx, p.NetNS, p.Uplink); err != nil {
				problems = append(problems, fmt.Errorf("node %s: %w", p.Node, err))
			}
		}
	}
	if len(problems) > 0 {
		return errors.Join(problems...)
	}
	return forget(dir, r.ID)
}

// sweep removes the tables and qdiscs of all faults from a node, recorded or not.
func sweep(ctx context.Context, n Node) error {
	err := dropTables(n.NetNS, "")
	if _, missing := exec.LookPath("tc"); n.Uplink != "" && missing == nil {
		err = errors.Join(err, dropNetem(ctx, n.NetNS, n.Uplink))
	}
	return err
}

func forgetUnreadable(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var problems []error
	for _, e := range entries {
		if id := e.Name()[:len(e.Name())-len(filepath.Ext(e.Name()))]; isID(id) {
			problems = append(problems, forget(dir, id))
		}
	}
	return errors.Join(problems...)
}

// nextID returns the greatest ID plus one.
func nextID(records []Record) (string, error) {
	n := 1
	for _, r := range records {
		n = max(n, number(r.ID)+1)
	}
	if n > maxID {
		return "", fmt.Errorf("no free fault ID after %d, the greatest: clear that fault", maxID)
	}
	return strconv.Itoa(n), nil
}

// SPDX-License-Identifier: Apache-2.0

// Command dataplane compares the rules of the network that it runs in with clusters, for the tests of the sandbox's
// module, which cannot import pkg/dataplane: a line of JSON is a Question, and the answer is a line, too.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/checkplan/checkplan/pkg/dataplane"
	"github.com/checkplan/checkplan/pkg/dataplane/iptables"
	"github.com/checkplan/checkplan/pkg/dataplane/ipvs"
	"github.com/checkplan/checkplan/pkg/dataplane/netfilter"
	"github.com/checkplan/checkplan/pkg/dataplane/nftables"
	"github.com/checkplan/checkplan/pkg/dataplane/want"
	"github.com/checkplan/checkplan/pkg/nodestate"
	"github.com/checkplan/checkplan/pkg/nodestate/nodestatetest"
)

// Question is a cluster, and which rules are to be compared with it.
type Question struct {
	Case   nodestatetest.Case `json:"case"`
	Family dataplane.Family   `json:"family"`
	Mode   dataplane.Mode     `json:"mode"`
	// Save is what iptables-save printed. Empty: the rules are read from the kernel.
	Save string `json:"save,omitempty"`
	// Legacy: the rules are read from the kernel as those of iptables-legacy.
	Legacy bool `json:"legacy,omitempty"`
	// Dump is whether the answer has the rules as they were read.
	Dump bool `json:"dump,omitempty"`
}

// Answer is what differs.
type Answer struct {
	Error       string                 `json:"error,omitempty"`
	Differences []dataplane.Difference `json:"differences,omitempty"`
	Unknown     []string               `json:"unknown,omitempty"`
	// Frontends counts what was compared, by origin and action.
	Frontends map[string]int `json:"frontends,omitempty"`
	Dump      any            `json:"dump,omitempty"`
}

func main() {
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 64<<20)
	out := json.NewEncoder(os.Stdout)
	for in.Scan() {
		var q Question
		var a Answer
		err := json.Unmarshal(in.Bytes(), &q)
		if err == nil {
			a, err = answer(q)
		}
		if err != nil {
			a.Error = err.Error()
		}
		if err := out.Encode(a); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

func answer(q Question) (Answer, error) {
	cluster, err := nodestate.New(nodestate.Options{NodePortAddresses: q.Case.NodePortAddresses})
	if err != nil {
		return Answer{}, err
	}
	if q.Case.Node != nil {
		cluster.SetNode(q.Case.Node)
	}
	for i := range q.Case.Services {
		cluster.SetService(&q.Case.Services[i])
	}
	for i := range q.Case.Slices {
		cluster.SetSlice(&q.Case.Slices[i])
	}
	var a Answer
	have, err := read(q, &a)
	if err != nil {
		return a, err
	}
	wanted := want.Table(cluster.State(q.Case.NodeName), q.Family, q.Mode)
	a.Differences, a.Unknown, a.Frontends = dataplane.Compare(wanted, have), have.Unknown, map[string]int{}
	for _, f := range wanted.Frontends {
		a.Frontends[fmt.Sprint(f.From, " ", f.Action)]++
	}
	return a, nil
}

func read(q Question, a *Answer) (dataplane.Table, error) {
	if q.Save != "" {
		have, ok := iptables.ParseSave(q.Save, q.Family)
		if !ok {
			return have, errors.New("no chains of kube-proxy")
		}
		return have, nil
	}
	if q.Mode == dataplane.IPVS {
		kernel, by, err := ipvs.ReadKernel(q.Family)
		if err == nil && len(by) == 0 {
			err = errors.New("no interface of kube-proxy's mode ipvs")
		}
		if err != nil {
			return dataplane.Table{}, err
		}
		if q.Dump {
			a.Dump = kernel
		}
		return ipvs.Parse(kernel)
	}
	if q.Legacy {
		tables, err := netfilter.ReadLegacy(q.Family == dataplane.IPv6, iptables.Tables...)
		if err != nil {
			return dataplane.Table{}, err
		}
		if q.Dump {
			a.Dump = tables
		}
		have, ok, err := iptables.ParseLegacy(tables, q.Family)
		if err == nil && !ok {
			err = errors.New("no rules of kube-proxy")
		}
		return have, err
	}
	tables := []string{nftables.Name}
	if q.Mode == dataplane.IPTables {
		tables = iptables.Tables
	}
	dump, err := netfilter.Read(q.Family == dataplane.IPv6, tables...)
	if err != nil {
		return dataplane.Table{}, err
	}
	if q.Dump {
		a.Dump = dump
	}
	parse := nftables.Parse
	if q.Mode == dataplane.IPTables {
		parse = iptables.Parse
	}
	have, ok := parse(dump)
	if !ok {
		return have, errors.New("no rules of kube-proxy")
	}
	return have, nil
}

// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/checkplan/checkplan/pkg/nodestate/api"
)

// Writer writes rules: pkg/dataplane/nftables/write and pkg/dataplane/iptables/write have one each. One goroutine uses
// it.
type Writer interface {
	// Write makes the rules those of the state, in each family at once or not at all. It knows what it wrote before,
	// and what is in the kernel if it wrote nothing yet, or failed. If the error is Unserved, it wrote all else.
	Write(ctx context.Context, state *State, node Node) error
	// Tidy removes what an earlier Write left behind because the kernel still used it. More means that some is left.
	Tidy(ctx context.Context) (more bool, err error)
	// Present returns an error if what was written is not in the kernel any more: somebody removed all rules, for
	// example. It is much cheaper than Write. After an error, Write writes everything.
	Present(ctx context.Context) error
}

// Unserved is an error of Writer.Write: parts of the state are not served. All others are.
type Unserved struct {
	// Problems are texts about these parts.
	Problems []string
	// Again: the next attempt may serve them.
	Again bool
}

func (u Unserved) Error() string { return strings.Join(u.Problems, "; ") }

// Add adds a problem, unless it is there already or there are too many.
func (u *Unserved) Add(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if len(u.Problems) < MaxProblems && !slices.Contains(u.Problems, text) {
		u.Problems = append(u.Problems, text)
	}
}

// With returns the error of a Write that met these problems and, in what it did, failures, which the next attempt may
// not meet; nil if there are none.
func (u Unserved) With(failures Unserved) error {
	for _, text := range failures.Problems {
		u.Add("%s", text)
		u.Again = true
	}
	if len(u.Problems) == 0 {
		return nil
	}
	return u
}

// NoTables reports whether an error of nft, or of iptables on top of nftables, says that the kernel has no nftables, or
// not for this family. Then it has no rules of theirs, either.
func NoTables(err error) bool {
	return slices.ContainsFunc([]string{
		"Operation not supported", "Protocol not supported", "Address family not supported by protocol",
		"Could not fetch rule set generation id: Invalid argument",
	}, func(text string) bool { return strings.Contains(err.Error(), text) })
}

// maxTried limits the memory for frontends of states that were perhaps written: some MB. Connections to further ones
// stay until their clients are silent.
const maxTried = 1 << 16

// Times of a Proxy.
const (
	// retryDelay is the time after which what failed is tried again.
	retryDelay = 5 * time.Second
	// tidyDelay is the time after which the kernel uses no removed chain any more: kube-proxy's.
	tidyDelay = time.Second
	// lookInterval is the time between two looks whether the rules are there, and which addresses the node has.
	lookInterval = 30 * time.Second
	// unhealthyAfter is the time for which writing may fail before health check ports answer 503: a load balancer that
	// sends its clients elsewhere at each hiccup does more harm.
	unhealthyAfter = time.Minute
	// lookTimeout is for one look at the rules, and for removing chains.
	lookTimeout = time.Minute
	// writeTimeout is for one Write. nft took 1.1 s for 10,000 endpoints on a busy machine, and much longer than ten times
	// that for 100,000.
	writeTimeout = 5 * time.Minute
)

// Proxy keeps the node's rules as the newest state wants them.
type Proxy struct {
	Writer Writer
	// Node returns what the node is now.
	Node func() (Node, error)
	// Forget is the function Forget; tests have another one.
	Forget func(Stale) (int, error)
	Health *HealthPorts
	Log    *slog.Logger

	mu     sync.Mutex
	status Status

	want     *State
	node     Node
	problems []string
	unserved Unserved // of the last Write
	written  bool     // want, at node
	served   bool     // rules of some state were written
	cleaned  *State   // whose connections were forgotten last; nil: unknown
	// unsure: since then, packets may have met other rules than those of cleaned and want, or none.
	unsure bool
	// tried are the UDP frontends of states since then that were perhaps written, and whose connections are not
	// forgotten.
	tried   map[Frontend]bool
	failing time.Time
	untidy  bool
	said    map[string]string
}

// Status is what a Proxy did, for metrics and for people.
type Status struct {
	// States, Writes and Failures count states that arrived, rules that were written, and attempts that failed in any
	// part.
	States, Writes, Failures int
	// Forgotten counts UDP connections.
	Forgotten int
	// Rewritten counts how often rules were found missing and written again.
	Rewritten int
	// Written is when the rules became those of the newest state; zero: they are not yet, Error says why.
	Written time.Time
	Error   string
	// Healthy: health check ports say what the state says. If not, they answer 503.
	Healthy bool
	// WriteTime is how long the last Write took that did not fail.
	WriteTime time.Duration
	// Ports and Endpoints are those of the newest state, of both families; Problems are its, and what the last Write could
	// not serve.
	Ports, Endpoints int
	Problems         []string
}

// Status may be called at any time.
func (p *Proxy) Status() Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.status
}

func (p *Proxy) update(change func(*Status)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(&p.status)
}

// Run writes the rules of each state until ctx ends. It does not fail: it logs, and tries again. While no states
// arrive, the rules stay as they are.
func (p *Proxy) Run(ctx context.Context, states <-chan []*api.ServiceEndpoints) {
	look := time.NewTicker(lookInterval)
	defer look.Stop()
	again := time.NewTimer(0)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case items := <-states:
			p.take(items)
		case <-look.C:
			p.look(ctx)
		case <-again.C:
		}
		switch done := p.sync(ctx); {
		case !done:
			again.Reset(retryDelay)
		case p.untidy:
			again.Reset(tidyDelay)
		}
	}
}

// take makes a state the one that is wanted.
func (p *Proxy) take(items []*api.ServiceEndpoints) {
	state := Check(items)
	endpoints := 0
	for i := range state.Ports {
		port := &state.Ports[i]
		used := slices.Concat(port.Internal.Endpoints, port.External.Endpoints, port.Inside.Endpoints)
		slices.SortFunc(used, netip.AddrPort.Compare)
		endpoints += len(slices.Compact(used))
	}
	p.want, p.written = state, false
	p.update(func(s *Status) {
		s.States++
		s.Ports, s.Endpoints, s.Written = len(state.Ports), endpoints, time.Time{}
	})
	p.problem()
}

// problem logs problems that are new: those of the state, and what the last Write could not serve.
func (p *Proxy) problem() {
	all := slices.Concat(p.want.Problems, p.unserved.Problems)
	for _, text := range all {
		if !slices.Contains(p.problems, text) {
			p.Log.Warn("cannot serve a part of the state", "problem", text)
		}
	}
	p.problems = all
	p.update(func(s *Status) { s.Problems = all })
}

// look notices what changed without a state.
func (p *Proxy) look(ctx context.Context) {
	if !p.written {
		return
	}
	bounded, cancel := context.WithTimeout(ctx, lookTimeout)
	err := p.Writer.Present(bounded)
	cancel()
	if err != nil && ctx.Err() == nil {
		p.Log.Warn("the rules are gone; writing them again", "error", err)
		p.written, p.unsure = false, true
		p.update(func(s *Status) { s.Rewritten++; s.Written = time.Time{} })
	}
	if node, err := p.Node(); err == nil && !slices.Equal(node.Addresses, p.node.Addresses) {
		p.written, p.unsure = false, true
		p.update(func(s *Status) { s.Written = time.Time{} })
	}
}

// sync does what is left to do, in the order in which clients notice the least: rules, then connections, then the
// health checks of load balancers. It reports whether all of it is done.
func (p *Proxy) sync(ctx context.Context) bool {
	if p.want == nil {
		return true
	}
	ok := p.written && !p.unserved.Again || p.write(ctx)
	if ok && (p.unsure || p.cleaned != p.want) {
		checks := StaleUDP(p.cleaned, p.want)
		if p.unsure {
			checks = append(checks, StaleUDP(nil, p.want)...)
			checks = append(checks, gone(p.tried, p.want)...)
		}
		n, err := p.Forget(NewStale(checks, p.node.Addresses))
		p.update(func(s *Status) { s.Forgotten += n })
		p.say("cannot make the kernel forget connections; trying again", err)
		if p.unsure = err != nil; p.unsure {
			p.try()
			ok = false
		} else {
			p.cleaned, p.tried = p.want, nil
		}
	}
	if p.written && p.untidy {
		bounded, cancel := context.WithTimeout(ctx, lookTimeout)
		more, err := p.Writer.Tidy(bounded)
		cancel()
		p.say("cannot remove unused chains; trying again", err)
		p.untidy = more || err != nil
	}
	healthy := p.healthy()
	p.update(func(s *Status) { s.Healthy = healthy })
	p.Health.SetHealthy(healthy)
	if !p.written {
		return false // load balancers hear nothing of endpoints that no rule serves yet
	}
	err := p.Health.Set(p.want, p.node.Addresses)
	p.say("cannot answer on a health check node port; trying again", err)
	return ok && err == nil && !p.unserved.Again
}

// say logs an error once, until it is another one or over.
func (p *Proxy) say(what string, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if p.said == nil {
		p.said = map[string]string{}
	}
	if text != "" && p.said[what] != text {
		p.Log.Warn(what, "error", err)
	}
	p.said[what] = text
}

func (p *Proxy) write(ctx context.Context) bool {
	start := time.Now()
	node, err := p.Node()
	if err == nil {
		bounded, cancel := context.WithTimeout(ctx, writeTimeout)
		err = p.Writer.Write(bounded, p.want, node)
		cancel()
	}
	if ctx.Err() != nil {
		return false
	}
	var unserved Unserved
	if errors.As(err, &unserved) {
		err = nil
	}
	p.say("cannot write the rules; trying again", err)
	if err != nil {
		p.unsure = true // one family may have the rules of this state
		p.try()
		if p.failing.IsZero() {
			p.failing = start
		}
		p.update(func(s *Status) { s.Failures++; s.Error = err.Error() })
		return false
	}
	p.node, p.written, p.untidy, p.failing, p.served, p.unserved = node, true, true, time.Time{}, true, unserved
	p.update(func(s *Status) {
		if s.Writes++; unserved.Again {
			s.Failures++
		}
		s.Written, s.WriteTime, s.Error = time.Now(), time.Since(start), ""
	})
	p.problem()
	return true
}

// try notes the UDP frontends of a state that was perhaps written, and whose connections are not forgotten yet.
func (p *Proxy) try() {
	if p.tried == nil {
		p.tried = map[Frontend]bool{}
	}
	for f := range frontends(p.want) {
		if len(p.tried) < maxTried {
			p.tried[f] = true
		}
	}
}

// healthy reports whether the rules serve some state, and have not been wrong for long.
func (p *Proxy) healthy() bool {
	return p.written || p.served && (p.failing.IsZero() || time.Since(p.failing) < unhealthyAfter)
}

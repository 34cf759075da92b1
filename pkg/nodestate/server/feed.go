// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"math/rand/v2"
	"strings"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"k8s.io/apimachinery/pkg/types"

	"github.com/checkplan/checkplan/pkg/nodestate"
)

// feed is the states of one node. All but the first two fields are guarded by the server's mutex.
type feed struct {
	node     string
	instance uint64 // not 0; one for each feed, because another one counts other revisions

	view    *nodestate.View // nil until everything was read
	now     published
	next    time.Time     // the earliest time for the next state
	timer   *time.Timer   // nil, or publishes then
	changed chan struct{} // closed when now changes
	clients int           // calls that have not left yet
	calls   int           // calls ever
}

// published is the state that clients get. Its revision is 0 before there is one.
type published struct {
	rev   uint64
	items []*nodestate.ServiceEndpoints // not written to
}

func newFeed(node string) *feed {
	return &feed{node: node, instance: 1 + rand.Uint64N(1<<64-1), changed: make(chan struct{})}
}

// idle is for how long the states of another node are computed without a client.
const idle = 5 * time.Minute

// enter returns the feed of a node for one call of a client, after which it leaves.
func (s *Server) enter(node string) *feed {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.feeds[node]
	if f == nil {
		f = newFeed(node)
		s.feeds[node] = f
		s.publish(f)
	}
	f.clients++
	f.calls++
	return f
}

func (s *Server) leave(f *feed) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f.clients--
	if f == s.own || f.clients > 0 {
		return
	}
	calls := f.calls
	time.AfterFunc(idle, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if f.calls == calls { // no client since then
			delete(s.feeds, f.node)
			if f.view != nil {
				f.view.Close()
			}
		}
	})
}

// known reports whether a Node exists. s.mu is locked.
func (s *Server) known(node string) bool {
	for _, r := range s.resources {
		if r.keys[types.NamespacedName{Name: node}] {
			return true // other resources have a namespace
		}
	}
	return false
}

// nodePrefix is what the common name of a node's certificate begins with, as in Kubernetes' own.
const nodePrefix = "system:node:"

// nodeOf is the node whose state a client gets: the one that its certificate names, or else the server's own.
func (s *Server) nodeOf(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok && s.options.AnyNode {
		if info, ok := p.AuthInfo.(credentials.TLSInfo); ok && len(info.State.VerifiedChains) > 0 {
			certificate := info.State.VerifiedChains[0][0]
			if node, is := strings.CutPrefix(certificate.Subject.CommonName, nodePrefix); is {
				return node
			}
		}
	}
	return s.options.Node
}

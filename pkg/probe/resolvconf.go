// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strconv"
	"strings"
)

// Limits of a resolv.conf, by resolv.conf(5) (MAXNS, ndots), and, for search, by Kubernetes
// (MaxDNSSearchPaths of k8s.io/kubernetes/pkg/apis/core/validation).
const (
	maxNameservers = 3
	maxSearch      = 32
	maxNdots       = 15
	maxResolvConf  = 64 << 10 // bytes
)

// resolvConf is what of a resolv.conf decides which servers are asked for which names.
type resolvConf struct {
	servers []netip.Addr
	search  []string
	ndots   int
}

// resolver reads the agent's /etc/resolv.conf.
func (s *Session) resolver() (resolvConf, error) {
	root := s.root
	if root == nil {
		root = os.DirFS("/")
	}
	f, err := root.Open("etc/resolv.conf")
	if err != nil {
		return resolvConf{}, fmt.Errorf("cannot read the pod's resolver configuration: %w", err)
	}
	defer f.Close()
	return readResolvConf(f)
}

// readResolvConf reads a resolv.conf: the last search line counts, and without a nameserver it is the local host.
func readResolvConf(r io.Reader) (resolvConf, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxResolvConf))
	if err != nil {
		return resolvConf{}, fmt.Errorf("cannot read the pod's resolver configuration: %w", err)
	}
	conf := resolvConf{ndots: 1}
	for lines := bufio.NewScanner(bytes.NewReader(b)); lines.Scan(); {
		words := strings.Fields(lines.Text())
		if len(words) < 2 {
			continue
		}
		switch words[0] {
		case "nameserver":
			if address, err := netip.ParseAddr(words[1]); err == nil && len(conf.servers) < maxNameservers {
				conf.servers = append(conf.servers, address.Unmap())
			}
		case "search", "domain":
			conf.search = words[1:min(len(words), 1+maxSearch)]
		case "options":
			for _, option := range words[1:] {
				if n, is := strings.CutPrefix(option, "ndots:"); is {
					if ndots, err := strconv.Atoi(n); err == nil {
						conf.ndots = min(max(ndots, 0), maxNdots)
					}
				}
			}
		}
	}
	if len(conf.servers) == 0 {
		conf.servers = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})}
	}
	return conf, nil
}

// names are the names to ask for, in their order: a name with a final dot, or with fewer than ndots dots, as
// resolv.conf(5) says. None is longer than a DNS name may be.
func (c resolvConf) names(name string) []string {
	if strings.HasSuffix(name, ".") {
		return []string{name}
	}
	var all []string
	add := func(name string) {
		if isName(name) {
			all = append(all, strings.TrimSuffix(name, ".")+".")
		}
	}
	first := strings.Count(name, ".") >= c.ndots
	if first {
		add(name)
	}
	for _, domain := range c.search {
		add(name + "." + strings.Trim(domain, "."))
	}
	if !first {
		add(name)
	}
	return all
}

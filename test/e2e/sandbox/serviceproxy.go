// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// The values of --service-proxy: what programs the Services of every node.
const (
	kubeProxyNFTables = "kube-proxy"          // kube-proxy in its mode nftables
	kubeProxyIPTables = "kube-proxy:iptables" // kube-proxy in its mode iptables
	ownNFTables       = "nftables"            // this project's service proxy in its mode nftables
	ownIPTables       = "iptables"            // this project's service proxy in its mode iptables
	ownUserspace      = "userspace"           // this project's service proxy in its mode userspace
)

// serviceProxies lists the values of --service-proxy, the default first.
func serviceProxies() []string {
	return []string{kubeProxyNFTables, kubeProxyIPTables, ownNFTables, ownIPTables, ownUserspace}
}

// own reports whether a service proxy is this project's.
func own(proxy string) bool {
	return proxy == ownNFTables || proxy == ownIPTables || proxy == ownUserspace
}

// ownPrograms are this project's programs that nodes run instead of kube-proxy.
var ownPrograms = []string{"node-state", "service-proxy"}

// ownProgram returns the path of one of them: beside this command, where make builds all three.
func ownProgram(name string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find the programs beside this command: %w", err)
	}
	return filepath.Join(filepath.Dir(self), name), nil
}

// lackingPrograms lists the programs that a service proxy needs and that are not built.
func lackingPrograms(proxy string) []lack {
	var missing []lack
	for _, name := range ownPrograms {
		if !own(proxy) {
			break
		}
		path, err := ownProgram(name)
		if err == nil {
			_, err = os.Stat(path)
		}
		if err != nil {
			missing = append(missing, lack{what: fmt.Sprintf("this project's program %[1]s (run make bin/%[1]s): %[2]v", name, err)})
		}
	}
	return missing
}

// copyPrograms copies this project's programs into the sandbox, where nodes run them, if its service proxy needs them.
func (c *cluster) copyPrograms() error {
	for _, name := range ownPrograms {
		if !own(c.ServiceProxy) {
			break
		}
		path, err := ownProgram(name)
		if err != nil {
			return err
		}
		b, err := os.ReadFile(path)
		if err == nil {
			err = writeFile(c.program(name), b, 0o755)
		}
		if err != nil {
			return fmt.Errorf("copy %s into the sandbox: %w", name, err)
		}
	}
	return nil
}

// program is the path of one of ownPrograms in the sandbox.
func (d dirs) program(name string) string { return d.file("bin", name) }

func checkServiceProxy(name string) error {
	if slices.Contains(serviceProxies(), name) {
		return nil
	}
	return fmt.Errorf("--service-proxy %q: must be one of %s", name, strings.Join(serviceProxies(), ", "))
}

// proxyNames lists the components that program Services, whichever runs.
func proxyNames() []string { return append([]string{"kube-proxy"}, ownPrograms...) }

// proxyOf returns the component that writes the rules of a service proxy.
func proxyOf(proxy string) string {
	if own(proxy) {
		return "service-proxy"
	}
	return "kube-proxy"
}

// proxyComponents returns what programs the Services of a node, in the order in which it starts. This project's server
// reads the API server as kube-proxy does, by the control plane's endpoint: no Service is served before it.
func (d dirs) proxyComponents(p plan, n nodePlan, proxy string) []component {
	if !own(proxy) {
		return []component{d.kubeProxy(n, proxy)}
	}
	const socket = "unix:///run/node-state.sock"
	pods := p.PodNets
	if proxy == "userspace" { // with those of all nodes, pods of other nodes would pass the policy Local, too
		pods = n.PodCIDRs
	}
	return []component{
		{"node-state", []string{
			"--node-name=" + n.Name,
			"--kubeconfig=" + d.file("pki", "kube-proxy.kubeconfig"),
			"--listen=" + socket,
			"--http-listen=" + netip.AddrPortFrom(loopback(p.Family), 10261).String(),
			"--min-sync-period=200ms", // as kube-proxy here
		}},
		{"service-proxy", []string{
			"--mode=" + proxy,
			"--target=" + socket,
			"--pod-cidr=" + joined(pods),
			"--http-listen=" + netip.AddrPortFrom(loopback(p.Family), 10256).String(),
		}},
	}
}

// stopOtherProxies stops what programs the Services of a node and is not wanted, or not so: after `up` with another
// --service-proxy. It deletes the rules that these programs leave, because no program deletes those of another one.
func (c *cluster) stopOtherProxies(ctx context.Context, n nodePlan) error {
	running, err := c.components()
	if err != nil {
		return err
	}
	wanted := c.proxyComponents(c.plan, n, c.ServiceProxy)
	other := false
	for _, p := range running {
		if p.Node != n.Name || !slices.Contains(proxyNames(), p.Component) {
			continue
		}
		cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.PID))
		if err != nil {
			continue // it has ended
		}
		argv := strings.Split(strings.TrimSuffix(string(cmdline), "\x00"), "\x00")
		if slices.ContainsFunc(wanted, func(w component) bool {
			return w.name == p.Component && slices.Equal(w.args, argv[1:])
		}) {
			continue
		}
		if err := c.stop(n.Name, p.Component); err != nil {
			return err
		}
		other = true
	}
	if !other {
		return nil
	}
	for _, proxy := range serviceProxies() {
		rules := ruleSets()[proxy]
		if _, err := lookPath(rules.list[0][0]); err != nil {
			continue // without the command nobody has written such rules
		}
		if err := c.editRules(ctx, n.Name, rules, ruleEdit{}); err != nil {
			return err
		}
	}
	return nil
}

// ruleSet is where a service proxy keeps its rules, and how somebody changes them by hand. Arrays have IPv4 first.
type ruleSet struct {
	list  [2][]string // command that prints the rules
	apply [2][]string // command that reads changes of them
	edit  func(rules string, family int, e ruleEdit) (changes string, err error)
}

// ruleSets maps the values of --service-proxy to where the rules are.
func ruleSets() map[string]ruleSet {
	nft := func(family string) []string { return []string{"nft", "--handle", "list", "ruleset", family} }
	restore := func(family string) []string { return []string{family + "-restore", "--noflush", "--wait", "10"} }
	inNFTables := func(table string) ruleSet {
		return ruleSet{
			[2][]string{nft("ip"), nft("ip6")}, [2][]string{{"nft", "--file", "-"}, {"nft", "--file", "-"}},
			nftTable(table).edit,
		}
	}
	inIPTables := func(prefix string) ruleSet {
		return ruleSet{
			[2][]string{{"iptables-save"}, {"ip6tables-save"}}, [2][]string{restore("iptables"), restore("ip6tables")},
			chainPrefix(prefix).edit,
		}
	}
	return map[string]ruleSet{
		kubeProxyNFTables: inNFTables("kube-proxy"), kubeProxyIPTables: inIPTables("KUBE-"),
		ownNFTables: inNFTables("checkplan-proxy"), ownIPTables: inIPTables("CPLAN-"),
		ownUserspace: {
			[2][]string{{"ip", "-o", "link", "show"}, {"ip", "-o", "link", "show"}},
			[2][]string{{"ip", "-batch", "-"}, {"ip", "-batch", "-"}},
			addressDevice("cplan-userspace").edit,
		},
	}
}

// ruleEdit is a change of a node's service rules as somebody makes it by hand. Addresses are those of TCP ports. The
// zero value deletes all rules.
type ruleEdit struct {
	// service is the port of a cluster IP: its rule is deleted, unless added is valid.
	service netip.AddrPort
	// endpoint of Services: the rules that send connections to it are deleted.
	endpoint netip.AddrPort
	// added gets a rule that sends connections to where those to service go.
	added netip.AddrPort
}

// address returns an address of the family that the edit is about; not valid: it is about both.
func (e ruleEdit) address() netip.Addr {
	if e.endpoint.IsValid() {
		return e.endpoint.Addr()
	}
	return e.service.Addr()
}

// editRules changes the service rules of a node, in the namespaces of the node.
func (c *cluster) editRules(ctx context.Context, node string, rules ruleSet, e ruleEdit) error {
	for family := range rules.list {
		if a := e.address(); a.IsValid() && a.Is6() != (family == 1) {
			continue
		}
		list := c.inNode(ctx, node, rules.list[family]...)
		out, err := list.Output()
		if err != nil {
			return fmt.Errorf("read the service rules of %s: %s: %w", node, rules.list[family][0], withStderr(err))
		}
		changes, err := rules.edit(string(out), family, e)
		if err != nil {
			return fmt.Errorf("change the service rules of %s: %w", node, err)
		}
		apply := c.inNode(ctx, node, rules.apply[family]...)
		apply.Stdin = strings.NewReader(changes)
		if out, err := apply.CombinedOutput(); err != nil {
			return fmt.Errorf("change the service rules of %s: %s: %w: %s",
				node, rules.apply[family][0], err, strings.TrimSpace(string(out)))
		}
	}
	return nil
}

// addressDevice is the interface on which a service proxy without rules has the addresses of Services, of both
// families.
type addressDevice string

// edit returns commands for `ip -batch`. links is what `ip -o link show` prints. The proxy takes the connections
// itself: nobody can change by hand where those to one Service go.
func (name addressDevice) edit(links string, _ int, e ruleEdit) (string, error) {
	switch {
	case e != ruleEdit{}:
		return "", errors.New("the service proxy has no rules: it takes the connections itself")
	case !strings.Contains(links, " "+string(name)+": "):
		return "", nil // it went with the other family
	}
	return "link delete " + string(name) + "\n", nil
}

// nftTable is the name of the table in which a service proxy has its rules, in each family. Chains and maps have the
// names of kube-proxy's.
type nftTable string

// edit returns commands for nft. rules is what `nft --handle list ruleset` prints.
func (name nftTable) edit(rules string, family int, e ruleEdit) (string, error) {
	table := []string{"ip", "ip6"}[family] + " " + string(name)
	_, rules, _ = strings.Cut("\n"+rules, "\ntable "+table+" {")
	rules, _, _ = strings.Cut(rules, "\n}")
	switch {
	case e.added.IsValid():
		service := regexp.MustCompile(fmt.Sprintf(`[\s{]%s \. (?:tcp|6) \. %d (?:comment "[^"]*" )?: goto ([^\s,]+)`,
			regexp.QuoteMeta(e.service.Addr().String()), e.service.Port()))
		found := service.FindStringSubmatch(rules)
		if found == nil {
			return "", notWritten("Service", e.service)
		}
		return fmt.Sprintf("add element %s service-ips { %s . tcp . %d : goto %s }\n",
			table, e.added.Addr(), e.added.Port(), found[1]), nil
	case e.endpoint.IsValid():
		rule := regexp.MustCompile(fmt.Sprintf(`\bl4proto (?:tcp|6) .*\bdnat (?:ip6? )?to %s # handle (\d+)$`,
			regexp.QuoteMeta(e.endpoint.String())))
		chain, changes := "", ""
		for line := range strings.Lines(rules) {
			line = strings.TrimSpace(line)
			if name, ok := strings.CutPrefix(line, "chain "); ok {
				chain, _, _ = strings.Cut(name, " ")
			} else if found := rule.FindStringSubmatch(line); found != nil && strings.HasPrefix(chain, "endpoint-") {
				changes += fmt.Sprintf("delete rule %s %s handle %s\n", table, chain, found[1])
			}
		}
		if changes == "" {
			return "", notWritten("endpoint", e.endpoint)
		}
		return changes, nil
	case e.service.IsValid():
		return fmt.Sprintf("delete element %s service-ips { %s . tcp . %d }\n",
			table, e.service.Addr(), e.service.Port()), nil
	}
	// delete fails without a table, so add the table first.
	return fmt.Sprintf("add table %[1]s\ndelete table %[1]s\n", table), nil
}

// kubeletChains are chains of iptables that the kubelet makes, not kube-proxy.
var kubeletChains = []string{"KUBE-KUBELET-CANARY", "KUBE-IPTABLES-HINT", "KUBE-FIREWALL"}

// chainPrefix begins the names of the chains of iptables in which a service proxy has its rules. Apart from it, the
// names are kube-proxy's.
type chainPrefix string

// edit returns input for `iptables-restore --noflush`. rules is what iptables-save prints.
func (p chainPrefix) edit(rules string, _ int, e ruleEdit) (string, error) {
	prefix := string(p)
	all := e == ruleEdit{}
	of := e.service
	if e.endpoint.IsValid() {
		of = e.endpoint
	}
	destination := fmt.Sprintf(" -d %s/%d ", of.Addr(), of.Addr().BitLen())
	port := fmt.Sprintf(" --dport %d ", of.Port())
	var changes strings.Builder
	found := 0
	for _, table := range strings.Split("\n"+rules, "\n*")[1:] {
		var chains, edits []string
		for line := range strings.Lines(table) {
			line = strings.TrimSpace(line)
			if chain, ok := strings.CutPrefix(line, ":"+prefix); ok {
				chain, _, _ = strings.Cut(prefix+chain, " ")
				if !slices.Contains(kubeletChains, chain) {
					chains = append(chains, chain)
				}
			}
			rule, ok := strings.CutPrefix(line, "-A ")
			if !ok {
				continue
			}
			fields := strings.Fields(rule)
			chain, target := fields[0], fields[len(fields)-1]
			toService := chain == prefix+"SERVICES" && strings.Contains(rule, destination) && strings.Contains(rule, port) &&
				strings.Contains(rule, " -p tcp ")
			switch {
			case all && !strings.HasPrefix(chain, prefix) && slices.Contains(chains, target):
				edits = append(edits, "-D "+rule)
			case e.added.IsValid() && toService && strings.HasPrefix(target, prefix+"SVC-"):
				to := strings.NewReplacer(destination, fmt.Sprintf(" -d %s/%d ", e.added.Addr(), e.added.Addr().BitLen()),
					port, fmt.Sprintf(" --dport %d ", e.added.Port()))
				edits = append(edits, "-I "+chain+" 1"+to.Replace(strings.TrimPrefix(rule, chain)))
			case e.added.IsValid():
			case e.service.IsValid() && toService:
				edits = append(edits, "-D "+rule)
				// kube-proxy writes this rule again with the next change of any Service, but the chains of a Service
				// only with its own: without the rules in its chain, the Service remains broken.
				if slices.Contains(chains, target) {
					edits = append(edits, "-F "+target)
				}
			case e.endpoint.IsValid() && strings.HasPrefix(chain, prefix+"SEP-") && strings.Contains(rule, " -p tcp ") &&
				strings.HasSuffix(rule, " --to-destination "+of.String()):
				edits = append(edits, "-D "+rule)
			}
		}
		if all { // a chain that others jump to cannot be deleted: empty all of them first
			for _, command := range []string{"-F ", "-X "} {
				for _, chain := range chains {
					edits = append(edits, command+chain)
				}
			}
		}
		if len(edits) > 0 {
			name, _, _ := strings.Cut(table, "\n")
			fmt.Fprintf(&changes, "*%s\n%s\nCOMMIT\n", name, strings.Join(edits, "\n"))
			found += len(edits)
		}
	}
	if !all && found == 0 {
		what := "Service"
		if e.endpoint.IsValid() {
			what = "endpoint"
		}
		return "", notWritten(what, of)
	}
	return changes.String(), nil
}

// notWritten is the error of an edit that finds no rule.
func notWritten(what string, port netip.AddrPort) error {
	return fmt.Errorf("no rule of TCP %s %s: the service proxy may not have written it yet", what, port)
}

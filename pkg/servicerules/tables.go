// SPDX-License-Identifier: Apache-2.0

package servicerules

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/cluster"
	"github.com/checkplan/checkplan/pkg/dataplane"
	"github.com/checkplan/checkplan/pkg/dataplane/want"
	"github.com/checkplan/checkplan/pkg/kind"
	"github.com/checkplan/checkplan/pkg/nodestate"
	"github.com/checkplan/checkplan/pkg/servicecheck"
)

// found is the content of the fact about one node and family.
type found struct {
	// Mode of the node's service proxy; empty if None.
	Mode   dataplane.Mode `json:"mode,omitempty"`
	Legacy bool           `json:"legacy,omitempty"`
	// Others are proxies that the node has beside it.
	Others []string `json:"others,omitempty"`
	// None: the node has no rules of kube-proxy, and no other proxy that is known.
	None bool `json:"none,omitempty"`
	// Frontends that were compared: an address and port, from one origin.
	Frontends int `json:"frontends"`
	// Troubled are the Services that differ or were not compared, by index; those that are not listed have the rules that
	// they must have.
	Troubled []troubled `json:"troubled,omitempty"`
	// Followed is the latest change in the API of the Services that are not listed: the proxy knows of it. It is zero if
	// none is known.
	Followed time.Time `json:"followed,omitzero"`
	// Extra is about rules of Services that do not exist.
	Extra extra `json:"extra,omitzero"`
}

// troubled is a Service that is not as it has to be on a node, in a family. If none of Missing, Unread, Gone and Young
// is set, it has other rules than it must have.
type troubled struct {
	Service int `json:"s"`
	// Missing: the node has no rules for the Service.
	Missing bool `json:"missing,omitempty"`
	// Unread: its packets may meet rules that were not understood, or whose meaning needs what was not listed.
	Unread bool `json:"unread,omitempty"`
	// Gone: the Service was not there when the rules were read.
	Gone bool `json:"gone,omitempty"`
	// Young is the first dimension whose allowance covers a difference, if allowances cover all of them.
	Young dimension `json:"young,omitempty"`
	// Changed is when the Service, or its EndpointSlice of the family, changed last before the rules were read, by the API
	// server's clock, and Age for how long that had been so, at least, when they were read again. They are zero if that is
	// not known.
	Changed time.Time        `json:"changed,omitzero"`
	Age     checkup.Duration `json:"age,omitempty"`
	// Of are the dimensions of the differences, each once, without those of settings (allowable) and those that no time
	// makes right.
	Of []dimension `json:"of,omitempty"`
	// Protocol of all frontends that differ; empty if they have several.
	Protocol nodestate.Protocol `json:"protocol,omitempty"`
	// Differ are the first differences, of which More follow. Both, and Choice, are left out for all but the first
	// Services of a node.
	Differ []differs `json:"differ,omitempty"`
	More   int       `json:"more,omitempty"`
	// Choice is how the node must choose among the endpoints of the first port that differs; nil if there is no such port.
	Choice *nodestate.Choice `json:"choice,omitempty"`
}

// differs is a difference in words. Gone: it is an endpoint or an address that the rules have and the API has not.
type differs struct {
	Text string `json:"text"`
	Gone bool   `json:"gone,omitempty"`
}

// extra is what rules serve that no Service has.
type extra struct {
	// Count of addresses and ports.
	Count int `json:"count,omitempty"`
	// Services are the first names by which the rules call them, namespace/name; Unnamed that they do not say, or that
	// there are more names.
	Services []string `json:"services,omitempty"`
	Unnamed  bool     `json:"unnamed,omitempty"`
	Text     string   `json:"text,omitempty"`
	// Unread: rules that were not understood may serve further ones.
	Unread bool `json:"unread,omitempty"`
}

const (
	// maxTexts is of how many Services of a node and family the differences are recorded in words, and mostWords how many
	// of each.
	maxTexts  = 100
	mostWords = 2
	// maxExtra is how many names of Services that do not exist are recorded of a node and family.
	maxExtra = 20
)

// stateFact is the name of the fact about what changed meanwhile, and changed its content.
const stateFact = "state"

type changed struct {
	// Services of which something changed, as keyOf names them, sorted.
	Services []string `json:"services"`
}

// unitOf names the fact about a node and family.
func unitOf(source int, f checkup.IPFamily) string { return fmt.Sprintf("%d %s", source, f) }

// keyOf names a Service in a family.
func keyOf(service string, f checkup.IPFamily) string { return service + " " + string(f) }

// Tables lists Services and EndpointSlices, and returns what compares the tables of agents with them. If they cannot be
// listed, every fact says why.
//
// It also asks for the API server's time. Without it, nothing is known of how long ago Services changed.
func Tables(ctx context.Context, c kubernetes.Interface, w *checkup.Worksheet) kind.Tables {
	return tablesOf(ctx, c, w, cluster.Reader{Kubernetes: c}.Now)
}

func tablesOf(
	ctx context.Context, c kubernetes.Interface, w *checkup.Worksheet, clock func(context.Context) (time.Time, error),
) kind.Tables {
	sheet, err := SheetOf(w)
	if err != nil {
		return unknown(err)
	}
	before, err := list(ctx, c, sheet)
	if err != nil {
		return unknown(err)
	}
	t := &tables{w: w, sheet: sheet, digests: servicecheck.Digests(before.ServiceObjects, before.EndpointSlices)}
	if t.now, err = clock(ctx); err == nil {
		t.changes = changesOf(before, t.now)
	}
	if t.cluster, err = nodestate.New(nodestate.Options{}); err != nil {
		return unknown(err)
	}
	for i := range before.ServiceObjects {
		t.cluster.SetService(&before.ServiceObjects[i])
	}
	for i := range before.EndpointSlices {
		t.cluster.SetSlice(&before.EndpointSlices[i])
	}
	for i, source := range w.Sources {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: source.Node}}
		if source.Zone != "" {
			node.Labels = map[string]string{corev1.LabelTopologyZone: source.Zone}
		}
		for _, a := range sheet.Addresses[i] {
			node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
		}
		t.cluster.SetNode(node)
	}
	return kind.Tables{Compare: t.compare, After: func(ctx context.Context) checkup.Fact {
		now, err := list(ctx, c, sheet)
		if err != nil {
			return factOf(stateFact, nil, notListed(err))
		}
		return factOf(stateFact, changed{t.changed(servicecheck.Digests(now.ServiceObjects, now.EndpointSlices))}, nil)
	}}
}

// unknown is for a state that could not be read.
func unknown(err error) kind.Tables {
	return kind.Tables{
		Compare: func(r checkup.TableReading) checkup.Fact {
			return factOf(unitOf(r.Source, r.Family), nil, notListed(err))
		},
		After: func(context.Context) checkup.Fact { return factOf(stateFact, nil, notListed(err)) },
	}
}

func notListed(err error) *checkup.Cause {
	return &checkup.Cause{Stage: checkup.StageCollect, Message: "cannot tell what the node has to do: " + err.Error()}
}

func factOf(unit string, content any, cause *checkup.Cause) checkup.Fact {
	if cause == nil {
		b, err := json.Marshal(content)
		if err == nil {
			return checkup.Fact{Unit: unit, Content: b}
		}
		cause = notListed(err)
	}
	return checkup.Fact{Unit: unit, Cause: cause}
}

// list lists the Services and EndpointSlices of a sheet's namespaces.
func list(ctx context.Context, c kubernetes.Interface, sheet *Sheet) (*cluster.Snapshot, error) {
	var s cluster.Snapshot
	for _, namespace := range sheet.Namespaces {
		if err := (cluster.Reader{Kubernetes: c}).ServiceObjects(ctx, &s, namespace, ""); err != nil {
			return nil, err
		}
	}
	return &s, nil
}

// tables compares what agents read with the state.
type tables struct {
	w       *checkup.Worksheet
	sheet   *Sheet
	cluster *nodestate.Cluster
	digests map[servicecheck.FamilyKey]string
	// now is the API server's time after the first list. changes has the Services of which it is known when they changed.
	now     time.Time
	changes map[servicecheck.FamilyKey]change
}

// change is the last change of a Service or its EndpointSlices of a family that the API shows.
type change struct {
	at time.Time
	// slices is their number.
	slices int
}

// changesOf returns when Services changed, by what the API server has noted in the objects. A Service is left out if
// one of its objects has no time, or one later than now: somebody else has written it.
func changesOf(s *cluster.Snapshot, now time.Time) map[servicecheck.FamilyKey]change {
	all := map[servicecheck.FamilyKey]change{}
	wrong := func(at time.Time) bool { return at.IsZero() || at.After(now) }
	for i := range s.ServiceObjects {
		o := &s.ServiceObjects[i]
		if at := cluster.WrittenAt(o.ObjectMeta); !wrong(at) {
			for _, f := range checkup.IPFamilies {
				all[servicecheck.FamilyKey{Service: o.Namespace + "/" + o.Name, Family: f}] = change{at: at}
			}
		}
	}
	unknown := map[servicecheck.FamilyKey]bool{}
	for i := range s.EndpointSlices {
		o := &s.EndpointSlices[i]
		key := servicecheck.FamilyKey{
			Service: o.Namespace + "/" + o.Labels[discoveryv1.LabelServiceName], Family: checkup.IPFamily(o.AddressType),
		}
		c, ok := all[key]
		if !ok {
			continue
		}
		at := cluster.WrittenAt(o.ObjectMeta)
		unknown[key] = unknown[key] || wrong(at)
		if c.slices++; at.After(c.at) {
			c.at = at
		}
		all[key] = c
	}
	maps.DeleteFunc(all, func(key servicecheck.FamilyKey, _ change) bool { return unknown[key] })
	return all
}

const (
	// clockTick is what the API server's clock and its notes round off.
	clockTick = time.Second
	// longestAge is that of a Service that is older.
	longestAge = 100 * 365 * 24 * time.Hour
)

// age is for how long, at least, the state of a Service had been what it was when the rules were read again: not before
// the interval after now. It is 0 if that is not known.
func (t *tables) age(c change) checkup.Duration {
	if c.at.IsZero() {
		return 0
	}
	return checkup.Duration(min(max(0, t.now.Sub(c.at)-clockTick), longestAge)) + t.w.Tables.Interval
}

// changed names the Services whose digests are not what they were, were added or removed, sorted.
func (t *tables) changed(now map[servicecheck.FamilyKey]string) []string {
	names := []string{}
	all := maps.Clone(t.digests)
	maps.Copy(all, now)
	for key := range all {
		if t.digests[key] != now[key] {
			names = append(names, keyOf(key.Service, key.Family))
		}
	}
	slices.Sort(names)
	return names
}

// compare returns the fact about one node and family.
func (t *tables) compare(r checkup.TableReading) checkup.Fact {
	unit := unitOf(r.Source, r.Family)
	if r.Source < 0 || r.Source >= len(t.w.Sources) {
		return factOf(unit, nil, &checkup.Cause{Stage: checkup.StageCollect, Message: "no such node"})
	}
	state := t.cluster.State(t.w.Sources[r.Source].Node)
	var looks [checkup.TableLooks]look
	for i, reported := range r.Looks {
		if i > 0 && reported.Unmeasured == nil && bytes.Equal(reported.Data, r.Looks[0].Data) {
			looks[i] = looks[0]
			continue
		}
		if cause := looks[i].read(reported, state, r.Family); cause != nil {
			return factOf(unit, nil, cause)
		}
	}
	first, last := looks[0], looks[len(looks)-1]
	if first.proxy.None != last.proxy.None {
		return factOf(unit, nil, &checkup.Cause{Stage: checkup.StageRules,
			Message: "the node has rules of kube-proxy in one of two looks: they were written or removed meanwhile"})
	}
	f := t.sort(first, last, state, t.w.Sources[r.Source].Node, r.Family)
	f.None, f.Mode, f.Legacy, f.Others = last.proxy.None, last.proxy.Mode, last.proxy.Legacy, last.proxy.Others
	if f.None {
		f.Followed = time.Time{}
	}
	return factOf(unit, f, nil)
}

// look is what one look found.
type look struct {
	proxy       dataplane.Proxy
	differences []dataplane.Difference
	frontends   int
	incomplete  bool
}

// read reads what an agent reported, and compares it with the state of the node.
func (l *look) read(
	reported checkup.TableLook, state []*nodestate.ServiceEndpoints, f checkup.IPFamily,
) *checkup.Cause {
	if reported.Unmeasured != nil {
		return reported.Unmeasured
	}
	garbled := func(err error) *checkup.Cause {
		return &checkup.Cause{Stage: checkup.StageCollect, Message: "what the agent reported is no table: " + err.Error()}
	}
	zip, err := gzip.NewReader(bytes.NewReader(reported.Data))
	if err != nil {
		return garbled(err)
	}
	seen, err := dataplane.ReadLook(zip, dataplane.Family(f))
	if err != nil {
		return garbled(err)
	}
	l.proxy = seen.Proxy
	switch {
	case seen.Proxy.None:
	case seen.Table == nil:
		return &checkup.Cause{Stage: checkup.StageRules, Reason: checkup.ReasonOtherProxy,
			Message: "the rules of this node's service proxy cannot be read: " + seen.Proxy.Reason}
	default:
		wanted := want.Table(state, dataplane.Family(f), seen.Proxy.Decides())
		l.frontends, l.incomplete = len(wanted.Frontends), seen.Table.Incomplete
		l.differences = dataplane.Compare(wanted, *seen.Table)
	}
	return nil
}

// sort assigns the differences that are in both looks to Services.
func (t *tables) sort(first, last look, state []*nodestate.ServiceEndpoints, node string, f checkup.IPFamily) found {
	out := found{Frontends: last.frontends}
	exists := map[string]bool{}
	for _, s := range state {
		for i := range s.Families {
			exists[s.Namespace+"/"+s.Name] = exists[s.Namespace+"/"+s.Name] || checkup.IPFamily(s.Families[i].Family) == f
		}
	}
	index := map[string]int{}
	of := make([]mismatch, len(t.sheet.Services))
	for i, s := range t.sheet.Services {
		if slices.Contains(s.Families, f) {
			index[s.Name] = i
			of[i].gone = !exists[s.Name]
			of[i].change = t.changes[servicecheck.FamilyKey{Service: s.Name, Family: f}]
			of[i].age = t.age(of[i].change)
		}
	}
	var others mismatch
	names := map[string]bool{}
	service := func(d *dataplane.Difference) *mismatch {
		if i, ok := index[d.Service]; ok && exists[d.Service] {
			return &of[i]
		}
		if (d.Kind == dataplane.Extra || d.Kind == dataplane.Unmeasured) && !exists[d.Service] && t.listed(d.Service) {
			return &others
		}
		return nil // of a Service that is not selected
	}
	// A rule that was not understood in one look, and a difference in the other, leave open what is in both.
	for i, l := range []look{first, last} {
		for j := range l.differences {
			d := &l.differences[j]
			if m := service(d); m != nil {
				m.in[i] = true
				m.unread = m.unread || t.unread(d)
			}
		}
		others.in[i] = others.in[i] || l.incomplete
		others.unread = others.unread || l.incomplete
	}
	for _, d := range dataplane.Both(first.differences, last.differences) {
		m := service(&d)
		if m == nil || slices.Contains(t.sheet.Expect.Allow, d.Kind) {
			continue
		}
		is := t.dimension(&d)
		words := differs{Text: d.Words(exists[d.Service])}
		words.Gone = is == stale && (d.Kind == dataplane.EndpointExtra || d.Kind == dataplane.Extra)
		if t.unread(&d) {
			m.words = append(m.words, words)
			continue
		}
		if m.age > 0 && m.age < t.sheet.Expect.allowed(is) {
			m.young, m.youngIs = append(m.young, words), cmp.Or(m.youngIs, is)
			continue
		}
		m.add(&d, words, is)
		if m != &others {
			continue
		}
		if out.Extra.Count += len(d.At); d.Service == "" || len(names) == maxExtra && !names[d.Service] {
			out.Extra.Unnamed = true
		} else {
			names[d.Service] = true
		}
	}
	for i := range of {
		m := &of[i]
		is := troubled{Service: i, Gone: m.gone}
		var differ []differs
		switch {
		case m.gone:
		case len(m.differ) > 0:
			is.Missing, is.Of, is.Protocol, differ = m.missing, m.of, m.protocol, m.differ
			if m.change.slices == 1 { // one that was deleted beside others leaves no time
				is.Changed, is.Age = m.change.at, m.age
			}
		case m.unread && m.in[0] && m.in[1]:
			is.Unread, differ = true, m.words
		case len(m.young) > 0:
			is.Young, differ = m.youngIs, m.young
		default:
			if _, read := index[t.sheet.Services[i].Name]; read && m.change.at.After(out.Followed) {
				out.Followed = m.change.at
			}
			continue
		}
		if len(out.Troubled) < maxTexts {
			is.Differ, is.More = differ[:min(len(differ), mostWords)], max(0, len(differ)-mostWords)
			is.Choice = t.choice(m.first, node, f)
		}
		out.Troubled = append(out.Troubled, is)
	}
	out.Extra.Services = slices.Sorted(maps.Keys(names))
	out.Extra.Unread = others.unread && others.in[0] && others.in[1]
	if len(others.differ) > 0 {
		out.Extra.Text = several(texts(others.differ))
	} else if out.Extra.Unread {
		out.Extra.Text = several(texts(others.words))
	}
	return out
}

// mismatch collects what is not right of one Service, or of all that do not exist.
type mismatch struct {
	gone, missing, unread bool
	in                    [checkup.TableLooks]bool // whether anything differs in each look
	change                change
	age                   checkup.Duration
	// differ are the differences that fail, first is the first one, of and protocol as in troubled. young are those that
	// the plan allows so soon after a change, youngIs the dimension of the first one. words are about rules that were not
	// understood.
	differ, young, words []differs
	first                *dataplane.Difference
	of                   []dimension
	protocol             nodestate.Protocol
	youngIs              dimension
}

// add adds a difference that fails.
func (m *mismatch) add(d *dataplane.Difference, words differs, is dimension) {
	for i, place := range d.At {
		switch p := nodestate.Protocol(place.Protocol); {
		case i == 0 && m.first == nil:
			m.protocol = p
		case m.protocol != p:
			m.protocol = ""
		}
	}
	if m.first == nil {
		m.first = d
	}
	m.differ = append(m.differ, words)
	m.missing = m.missing || d.Kind == dataplane.Missing && d.Whole
	if is != always && !slices.Contains(allowable, d.Kind) && !slices.Contains(m.of, is) {
		m.of = append(m.of, is)
	}
}

// dimension is that of a difference.
func (t *tables) dimension(d *dataplane.Difference) dimension {
	switch d.Kind {
	case dataplane.Missing, dataplane.EndpointMissing:
		return lacking
	case dataplane.WrongAction:
		if d.Want == string(dataplane.Forward) {
			return lacking
		}
		return stale
	case dataplane.EndpointExtra:
		namespace, name, _ := strings.Cut(d.Service, "/")
		if t.cluster.Names(namespace, name, nodestate.IPFamily(d.Family), d.Endpoint) {
			return excluded
		}
		return stale
	case dataplane.Extra, dataplane.WrongService, dataplane.WrongPort, dataplane.WrongAffinity, dataplane.WrongSources,
		dataplane.WrongMasquerade:
		return stale
	}
	return always
}

// choice is how a node must choose among the endpoints of the port of a difference; nil if there is none, or no such
// port.
func (t *tables) choice(d *dataplane.Difference, node string, f checkup.IPFamily) *nodestate.Choice {
	if d == nil {
		return nil
	}
	namespace, name, _ := strings.Cut(d.Service, "/")
	protocol := nodestate.Protocol(d.At[0].Protocol)
	choice, ok := t.cluster.Choice(node, namespace, name, nodestate.IPFamily(f), d.PortName, protocol)
	if !ok {
		return nil
	}
	return &choice
}

// unread reports whether a difference says nothing about the rules: some were not understood, or they lead to a Service
// that was not listed, and that may have the same external address.
func (t *tables) unread(d *dataplane.Difference) bool {
	return d.Kind == dataplane.Unmeasured || d.Kind == dataplane.WrongService && !t.listed(d.Have)
}

// listed reports whether a Service, namespace/name, would be listed if it existed. One without a name is if all are.
func (t *tables) listed(service string) bool {
	namespace, _, _ := strings.Cut(service, "/")
	return slices.Contains(t.sheet.Namespaces, "") || service != "" && slices.Contains(t.sheet.Namespaces, namespace)
}

// texts are the words of differences.
func texts(of []differs) []string {
	var all []string
	for _, d := range of {
		all = append(all, d.Text)
	}
	return all
}

// several is the first of several texts, and how many more there are.
func several(texts []string) string {
	return andMore(texts[:min(len(texts), mostWords)], len(texts)-mostWords)
}

func andMore(texts []string, more int) string {
	text := strings.Join(texts, "; ")
	if more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return text
}

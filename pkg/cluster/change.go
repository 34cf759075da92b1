// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
)

// changeForms are what Change reads, for its errors.
const changeForms = `want one of
  delete node NAME...
  taint nodes NAME... KEY[=VALUE]:EFFECT... (a - behind it removes it)
  label nodes NAME... KEY=VALUE... (KEY- removes it)
  cordon NAME..., uncordon NAME...
with -l SELECTOR or --all in the place of names`

// Change makes the snapshot that of a cluster in which something else is so, in
// the words of kubectl:
//
//	delete node worker-1
//	delete node -l '!node-role.kubernetes.io/control-plane'
//	taint nodes worker-1 dedicated=db:NoSchedule broken-
//	label nodes -l pool=web pool- zone=b
//	cordon worker-1
//
// A label or a taint that is there is overwritten. A node goes with all that is
// on it. What the cluster would do then (evict pods, start them elsewhere) is
// not worked out: what is requested on the other nodes stays as it is.
//
// An error names what is wrong, all of it, and leaves the snapshot as it was.
func (s *Snapshot) Change(change string) error {
	if err := s.change(change); err != nil {
		return fmt.Errorf("change %q: %w", change, err)
	}
	return nil
}

func (s *Snapshot) change(change string) error {
	all, err := words(change)
	if err != nil {
		return err
	}
	if len(all) == 0 {
		return errors.New("says nothing: " + changeForms)
	}
	verb, all := all[0], all[1:]
	switch verb {
	case "delete", "taint", "label":
		if len(all) == 0 || all[0] != "node" && all[0] != "nodes" {
			return fmt.Errorf("%s what? Only nodes can be changed: %s", verb, changeForms)
		}
		all = all[1:]
	case "cordon", "uncordon":
	default:
		return fmt.Errorf("no verb %q: %s", verb, changeForms)
	}

	// Flags, names, and behind them what is to be changed.
	var names, changes []string
	var selector *string
	everything := false
	var problems []error
	for i := 0; i < len(all); i++ {
		word := all[i]
		value, has := "", false
		for _, flag := range []string{"-l", "--selector"} {
			if word == flag && i+1 < len(all) {
				i++
				value, has = all[i], true
			} else if v, ok := strings.CutPrefix(word, flag+"="); ok {
				value, has = v, true
			}
		}
		switch {
		case has && selector != nil:
			problems = append(problems, fmt.Errorf("two selectors, %q and %q: join them with a comma", *selector, value))
		case has:
			selector = &value
		case word == "--all":
			everything = true
		case word == "-l" || word == "--selector":
			problems = append(problems, fmt.Errorf("%s without a selector behind it", word))
		case strings.HasPrefix(word, "-"):
			problems = append(problems, fmt.Errorf("no flag %q: there are -l SELECTOR and --all", word))
		case isChange(verb, word):
			changes = append(changes, word)
		case len(changes) > 0:
			problems = append(problems, fmt.Errorf("%q: want KEY=VALUE:EFFECT for a taint, KEY=VALUE for a label, or one of them with a - behind it; names of nodes come first", word))
		default:
			names = append(names, word)
		}
	}
	chosen, err := s.choose(names, selector, everything)
	problems = append(problems, err)
	apply, err := changeOf(verb, changes)
	problems = append(problems, err)
	if err := errors.Join(problems...); err != nil {
		return err
	}

	if verb == "delete" {
		s.remove(chosen)
		return nil
	}
	// All nodes first, so that nothing is changed by half.
	changed := map[int]Node{}
	found := false
	for i := range s.Nodes {
		if chosen[s.Nodes[i].Name] {
			n, ok := apply(s.Nodes[i])
			changed[i] = n
			found = found || ok
		}
	}
	if !found {
		return fmt.Errorf("there is nothing to remove: none of the nodes has %s", strings.Join(changes, " or "))
	}
	for i, n := range changed {
		s.Nodes[i] = n
	}
	return nil
}

// isChange reports whether a word is a taint or a label, and no name of a node.
func isChange(verb, word string) bool {
	return (verb == "taint" || verb == "label") && (strings.ContainsAny(word, "=:") || strings.HasSuffix(word, "-"))
}

// choose returns the names of the nodes that are meant.
func (s *Snapshot) choose(names []string, selector *string, everything bool) (map[string]bool, error) {
	chosen := map[string]bool{}
	given := 0
	for _, is := range []bool{len(names) > 0, selector != nil, everything} {
		if is {
			given++
		}
	}
	if given != 1 {
		return nil, errors.New("which nodes? Want names, or -l SELECTOR, or --all")
	}
	var problems []error
	for _, name := range names {
		if s.Node(name) == nil {
			problems = append(problems, fmt.Errorf("no node is named %q; there are %s", name, s.someNodes()))
		}
		chosen[name] = true
	}
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	matches := labels.Everything()
	if selector != nil {
		parsed, err := labels.Parse(*selector)
		if err != nil {
			return nil, fmt.Errorf("selector %q: %w", *selector, err)
		}
		if parsed.Empty() {
			return nil, errors.New("selector is empty: say --all, if every node is meant")
		}
		matches = parsed
	}
	if len(names) == 0 {
		for _, n := range s.Nodes {
			if matches.Matches(labels.Set(n.Labels)) {
				chosen[n.Name] = true
			}
		}
		if len(chosen) == 0 {
			return nil, fmt.Errorf("no node matches %s; there are %s", matches, s.someNodes())
		}
	}
	return chosen, nil
}

// someNodes names the first few nodes.
func (s *Snapshot) someNodes() string {
	const few = 5
	var names []string
	for _, n := range s.Nodes[:min(few, len(s.Nodes))] {
		names = append(names, n.Name)
	}
	switch more := len(s.Nodes) - few; {
	case len(names) == 0:
		return "none"
	case more > 0:
		return fmt.Sprintf("%s and %d more", strings.Join(names, ", "), more)
	}
	return strings.Join(names, ", ")
}

// changeOf returns what a verb does to a node, and whether it finds there what
// it is to remove.
func changeOf(verb string, changes []string) (func(Node) (Node, bool), error) {
	var problems []error
	var steps []func(*Node) bool
	for _, word := range changes {
		var step func(*Node) bool
		var err error
		if verb == "taint" {
			step, err = taintOf(word)
		} else {
			step, err = labelOf(word)
		}
		if err != nil {
			problems = append(problems, err)
		}
		steps = append(steps, step)
	}
	switch {
	case verb == "cordon":
		steps = append(steps, func(n *Node) bool {
			n.Unschedulable = true
			setTaint(n, cordoned)
			return true
		})
	case verb == "uncordon":
		steps = append(steps, func(n *Node) bool {
			n.Unschedulable = false
			dropTaints(n, func(t corev1.Taint) bool { return t.Key == cordoned.Key && t.Effect == cordoned.Effect })
			return true
		})
	case verb == "taint" && len(steps) == 0:
		problems = append(problems, errors.New("which taint? Want KEY=VALUE:EFFECT, or KEY- to remove it"))
	case verb == "label" && len(steps) == 0:
		problems = append(problems, errors.New("which label? Want KEY=VALUE, or KEY- to remove it"))
	}
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	return func(n Node) (Node, bool) {
		n.Labels, n.Taints = maps.Clone(n.Labels), slices.Clone(n.Taints)
		found := false
		for _, step := range steps {
			if step(&n) {
				found = true
			}
		}
		return n, found
	}, nil
}

// cordoned is the taint that the node controller gives to a node that is
// unschedulable.
var cordoned = corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}

// effects of a taint.
var effects = []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute}

// taintOf reads KEY=VALUE:EFFECT or KEY:EFFECT, and with a - behind it what is to
// be removed: KEY-, too, with any effect.
func taintOf(word string) (func(*Node) bool, error) {
	text, remove := strings.CutSuffix(word, "-")
	pair, effect, hasEffect := strings.Cut(text, ":")
	key, value, hasValue := strings.Cut(pair, "=")
	var problems []error
	if !hasEffect && (!remove || hasValue) {
		problems = append(problems, fmt.Errorf("taint %q has no effect: want KEY=VALUE:EFFECT with an effect of %q", word, effects))
	}
	if hasEffect && !slices.Contains(effects, corev1.TaintEffect(effect)) {
		problems = append(problems, fmt.Errorf("taint %q: effect %q is none of %q", word, effect, effects))
	}
	problems = append(problems, keyAndValue("taint", word, key, value))
	if err := errors.Join(problems...); err != nil {
		return nil, err
	}
	taint := corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffect(effect)}
	if !remove {
		return func(n *Node) bool { setTaint(n, taint); return true }, nil
	}
	return func(n *Node) bool {
		return dropTaints(n, func(t corev1.Taint) bool {
			return t.Key == key && (!hasEffect || t.Effect == taint.Effect) && (!hasValue || t.Value == value)
		})
	}, nil
}

// labelOf reads KEY=VALUE, or KEY- to remove it.
func labelOf(word string) (func(*Node) bool, error) {
	key, value, set := strings.Cut(word, "=")
	if !set {
		var remove bool
		if key, remove = strings.CutSuffix(word, "-"); !remove {
			return nil, fmt.Errorf("label %q: want KEY=VALUE, or KEY- to remove it", word)
		}
	}
	if err := keyAndValue("label", word, key, value); err != nil {
		return nil, err
	}
	return func(n *Node) bool {
		if !set {
			_, ok := n.Labels[key]
			delete(n.Labels, key)
			return ok
		}
		if n.Labels == nil {
			n.Labels = map[string]string{}
		}
		n.Labels[key] = value
		return true
	}, nil
}

func keyAndValue(what, word, key, value string) error {
	var problems []error
	for _, p := range validation.IsQualifiedName(key) {
		problems = append(problems, fmt.Errorf("%s %q: key %q: %s", what, word, key, p))
	}
	for _, p := range validation.IsValidLabelValue(value) {
		problems = append(problems, fmt.Errorf("%s %q: value %q: %s", what, word, value, p))
	}
	return errors.Join(problems...)
}

// setTaint adds a taint, in the place of the one of the same key and effect.
func setTaint(n *Node, taint corev1.Taint) {
	if i := slices.IndexFunc(n.Taints, func(t corev1.Taint) bool { return t.MatchTaint(&taint) }); i >= 0 {
		n.Taints[i] = taint
		return
	}
	n.Taints = append(n.Taints, taint)
}

// dropTaints removes taints, and reports whether there were any.
func dropTaints(n *Node, gone func(corev1.Taint) bool) bool {
	before := len(n.Taints)
	n.Taints = slices.DeleteFunc(n.Taints, gone)
	if len(n.Taints) == 0 {
		n.Taints = nil
	}
	return len(n.Taints) < before
}

// remove takes nodes away, with the pods and endpoints that are on them.
func (s *Snapshot) remove(nodes map[string]bool) {
	addresses := map[string]bool{} // of what is in the network of a node, and does not name it
	for _, n := range s.Nodes {
		for _, ip := range n.InternalIPs {
			addresses[ip] = addresses[ip] || nodes[n.Name]
		}
	}
	s.Nodes = slices.DeleteFunc(slices.Clone(s.Nodes), func(n Node) bool { return nodes[n.Name] })
	s.Components = slices.DeleteFunc(slices.Clone(s.Components), func(c Component) bool { return nodes[c.Node] })
	s.Selections = slices.Clone(s.Selections)
	for i := range s.Selections {
		sel := &s.Selections[i]
		sel.Pods = slices.DeleteFunc(slices.Clone(sel.Pods), func(p Pod) bool { return nodes[p.Node] })
	}
	s.Services = slices.Clone(s.Services)
	for i := range s.Services {
		service := &s.Services[i]
		service.Endpoints = slices.DeleteFunc(slices.Clone(service.Endpoints), func(e ServiceEndpoint) bool { return nodes[e.Node] || addresses[e.Address] })
	}
}

// words splits a change at white space; within quotes, single or double, it is
// kept.
func words(text string) ([]string, error) {
	var all []string
	var word strings.Builder
	quote, in := rune(0), false
	for _, r := range text {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case r == '\'' || r == '"':
			quote, in = r, true
		case unicode.IsSpace(r):
			if in {
				all = append(all, word.String())
				word.Reset()
			}
			in = false
		default:
			word.WriteRune(r)
			in = true
		}
	}
	if quote != 0 {
		return nil, fmt.Errorf("a quote %c is not closed", quote)
	}
	if in {
		all = append(all, word.String())
	}
	return all, nil
}

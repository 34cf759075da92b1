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
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
)

// changeForms lists the changes that Change accepts, for its errors.
const changeForms = `want one of
  delete node NAME...
  taint nodes NAME... KEY[=VALUE]:EFFECT... (a trailing - removes it)
  label nodes NAME... KEY=VALUE... (KEY- removes it)
  cordon NAME..., uncordon NAME...
with -l SELECTOR or --all instead of names`

// Change applies a hypothetical change to the snapshot. Its syntax is kubectl's:
//
//	delete node worker-1
//	delete node -l '!node-role.kubernetes.io/control-plane'
//	taint nodes worker-1 dedicated=db:NoSchedule broken-
//	label nodes -l pool=web pool- zone=b
//	cordon worker-1
//
// An existing label or taint is overwritten. Deleting a node also deletes everything that runs on it. The reaction of
// the cluster (evicting pods, starting them elsewhere) is not simulated: the requests on the other nodes do not change.
//
// An error lists all problems; the snapshot is then unchanged.
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
		return errors.New("is empty: " + changeForms)
	}
	verb, all := all[0], all[1:]
	switch verb {
	case "delete", "taint", "label":
		if len(all) == 0 || all[0] != "node" && all[0] != "nodes" {
			return fmt.Errorf("%s: only nodes can be changed: %s", verb, changeForms)
		}
		all = all[1:]
	case "cordon", "uncordon":
	default:
		return fmt.Errorf("unknown verb %q: %s", verb, changeForms)
	}

	// Flags and names, then the taints or labels.
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
			problems = append(problems, fmt.Errorf("%s: missing selector", word))
		case strings.HasPrefix(word, "-"):
			problems = append(problems, fmt.Errorf("unknown flag %q: want -l SELECTOR or --all", word))
		case isChange(verb, word):
			changes = append(changes, word)
		case len(changes) > 0:
			problems = append(problems, fmt.Errorf("%q: want KEY=VALUE:EFFECT for a taint, KEY=VALUE for a label, "+
				"or one of them with a trailing -; names of nodes come first", word))
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
	// Change copies of all nodes first: an error must leave the snapshot unchanged.
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
		return fmt.Errorf("nothing to remove: none of the nodes has %s", strings.Join(changes, " or "))
	}
	for i, n := range changed {
		s.Nodes[i] = n
	}
	return nil
}

// isChange reports whether a word is a taint or a label and not a node's name.
func isChange(verb, word string) bool {
	return (verb == "taint" || verb == "label") && (strings.ContainsAny(word, "=:") || strings.HasSuffix(word, "-"))
}

// choose returns the names of the selected nodes.
func (s *Snapshot) choose(names []string, selector *string, everything bool) (map[string]bool, error) {
	chosen := map[string]bool{}
	given := 0
	for _, is := range []bool{len(names) > 0, selector != nil, everything} {
		if is {
			given++
		}
	}
	if given != 1 {
		return nil, errors.New("no nodes selected, or in two ways: want names, or -l SELECTOR, or --all")
	}
	var problems []error
	for _, name := range names {
		if s.Node(name) == nil {
			problems = append(problems, fmt.Errorf("node %q does not exist; nodes are: %s", name, s.someNodes()))
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
			return nil, errors.New("selector is empty: use --all to select every node")
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
			return nil, fmt.Errorf("no node matches %s; nodes are: %s", matches, s.someNodes())
		}
	}
	return chosen, nil
}

// someNodes lists the names of the first few nodes.
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

// changeOf returns a function that applies a verb to a node. The function reports false if the node has nothing of what
// it should remove.
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
		problems = append(problems, errors.New("missing taint: want KEY=VALUE:EFFECT, or KEY- to remove it"))
	case verb == "label" && len(steps) == 0:
		problems = append(problems, errors.New("missing label: want KEY=VALUE, or KEY- to remove it"))
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

// cordoned is the taint that the node controller adds to an unschedulable node.
var cordoned = corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}

// effects lists the effects of taints.
var effects = []corev1.TaintEffect{
	corev1.TaintEffectNoSchedule,
	corev1.TaintEffectPreferNoSchedule,
	corev1.TaintEffectNoExecute,
}

// taintOf parses KEY=VALUE:EFFECT or KEY:EFFECT. A trailing - removes the taint; KEY- removes it with any effect.
func taintOf(word string) (func(*Node) bool, error) {
	text, remove := strings.CutSuffix(word, "-")
	pair, effect, hasEffect := strings.Cut(text, ":")
	key, value, hasValue := strings.Cut(pair, "=")
	var problems []error
	if !hasEffect && (!remove || hasValue) {
		problems = append(problems,
			fmt.Errorf("taint %q has no effect: want KEY=VALUE:EFFECT with an effect of %q", word, effects))
	}
	if hasEffect && !slices.Contains(effects, corev1.TaintEffect(effect)) {
		problems = append(problems, fmt.Errorf("taint %q: effect %q is not one of %q", word, effect, effects))
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

// labelOf parses KEY=VALUE, or KEY- to remove it.
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

// setTaint adds a taint. It replaces one with the same key and effect.
func setTaint(n *Node, taint corev1.Taint) {
	if i := slices.IndexFunc(n.Taints, func(t corev1.Taint) bool { return t.MatchTaint(&taint) }); i >= 0 {
		n.Taints[i] = taint
		return
	}
	n.Taints = append(n.Taints, taint)
}

// dropTaints removes the matching taints and reports whether there were any.
func dropTaints(n *Node, match func(corev1.Taint) bool) bool {
	before := len(n.Taints)
	n.Taints = slices.DeleteFunc(n.Taints, match)
	if len(n.Taints) == 0 {
		n.Taints = nil
	}
	return len(n.Taints) < before
}

// remove deletes nodes, with the pods and endpoints that run on them.
func (s *Snapshot) remove(nodes map[string]bool) {
	addresses := map[string]bool{} // node addresses; for endpoints on the host network without a node name
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
		service.Endpoints = slices.DeleteFunc(slices.Clone(service.Endpoints), func(e ServiceEndpoint) bool {
			return nodes[e.Node] || addresses[e.Address]
		})
	}
	s.EndpointSlices = slices.Clone(s.EndpointSlices)
	for i := range s.EndpointSlices {
		slice := &s.EndpointSlices[i]
		slice.Endpoints = slices.DeleteFunc(slices.Clone(slice.Endpoints), func(e discoveryv1.Endpoint) bool {
			return e.NodeName != nil && nodes[*e.NodeName] ||
				slices.ContainsFunc(e.Addresses, func(a string) bool { return addresses[a] })
		})
	}
}

// words splits a change at white space, except within single or double quotes.
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
		return nil, fmt.Errorf("unclosed quote %c", quote)
	}
	if in {
		all = append(all, word.String())
	}
	return all, nil
}

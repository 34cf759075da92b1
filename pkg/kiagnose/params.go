// SPDX-License-Identifier: Apache-2.0

package kiagnose

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/vmlatency"
)

// Keys of a checkup's ConfigMap with its input.
const (
	SpecPrefix  = "spec."
	KeyTimeout  = "spec.timeout"
	ParamPrefix = "spec.param."
)

// Names of the parameters.
const (
	ParamNetworkNamespace = "networkAttachmentDefinitionNamespace"
	ParamNetworkName      = "networkAttachmentDefinitionName"
	ParamSourceNode       = "sourceNode"
	ParamTargetNode       = "targetNode"
	ParamSampleDuration   = "sampleDurationSeconds"
	ParamMaxLatency       = "maxDesiredLatencyMilliseconds"
	ParamIPFamilies       = "ipFamilies" // not of kiagnose
)

// param is a parameter: its name, and its old spelling, of kiagnose's design document and
// of releases before v0.3. The old spelling in capitals is the environment variable.
type param struct{ name, old string }

var params = []param{
	{ParamNetworkNamespace, "network_attachment_definition_namespace"},
	{ParamNetworkName, "network_attachment_definition_name"},
	{ParamSourceNode, "source_node"},
	{ParamTargetNode, "target_node"},
	{ParamSampleDuration, "sample_duration_seconds"},
	{ParamMaxLatency, "max_desired_latency_milliseconds"},
	{ParamIPFamilies, "ip_families"},
}

// Params returns the names of all parameters.
func Params() []string {
	names := make([]string, len(params))
	for i, p := range params {
		names[i] = p.name
	}
	return names
}

// Variables returns the environment variables of all parameters, in the order of Params.
func Variables() []string {
	names := make([]string, len(params))
	for i, p := range params {
		names[i] = p.variable()
	}
	return names
}

func (p param) variable() string { return strings.ToUpper(p.old) }

// legacy are keys that kiagnose had until v0.2, and why they are not needed here.
var legacy = map[string]string{
	"spec.image":              "the checkup has images of its own",
	"spec.clusterRoles":       "the checkup needs rights in namespaces only, and brings its own roles",
	"spec.roles":              "the checkup brings its own roles",
	"spec.serviceAccountName": "the checkup brings its own service accounts",
}

// The label of a ConfigMap with the name of its kiagnose checkup, and the value of the
// label for this checkup.
const (
	LabelCheckupType = "kiagnose/checkup-type"
	CheckupType      = "kubevirt-vm-latency"
)

// Defaults of parameters that are not given, and of fields of a plan that have no
// parameter. They are those of the plan's schema.
const (
	defaultSample   = checkup.Duration(5 * time.Second)
	defaultInterval = checkup.Duration(200 * time.Millisecond)
	defaultSetup    = checkup.Duration(5 * time.Minute)
	defaultProbe    = checkup.Duration(2 * time.Minute)
	defaultMemory   = "128Mi"
)

// Note is a warning or a problem with one key of a ConfigMap's data, or with one
// environment variable.
type Note struct {
	Key string
	// Message is one line.
	Message string
}

// String prints "key: message".
func (n Note) String() string { return n.Key + ": " + n.Message }

// FromData reads the parameters of a checkup from the data of its ConfigMap.
// It ignores status keys, which are of an earlier run. The check is nil if there is any
// problem; all problems are returned at once, in the order of their keys.
//
// spec.timeout limits the start of the VMs, and, separately, everything after it except
// the measuring itself: the example of kiagnose's document has 5m, and measures for 300 s.
func FromData(data map[string]string) (check *vmlatency.Spec, warnings, problems []Note) {
	r := reader{given: map[string]value{}}
	for _, key := range slices.Sorted(maps.Keys(data)) {
		name, isParam := strings.CutPrefix(key, ParamPrefix)
		i := slices.IndexFunc(params, func(p param) bool { return isParam && (p.name == name || p.old == name) })
		switch {
		case key == KeyTimeout, strings.HasPrefix(key, StatusPrefix):
		case i >= 0 && params[i].name == name:
			r.given[name] = value{key, data[key]}
		case i >= 0:
			now := ParamPrefix + params[i].name
			if _, both := data[now]; both {
				warnings = append(warnings, Note{key, "has no effect beside " + now + ", which is its new spelling"})
				continue
			}
			warnings = append(warnings, Note{key, "is deprecated: write " + now})
			r.given[params[i].name] = value{key, data[key]}
		case legacy[key] != "":
			warnings = append(warnings, Note{key, "has no effect: " + legacy[key]})
		default:
			if meant := similar(key); meant != "" {
				r.problem(key, "unknown key; did you mean %s?", meant)
			} else {
				warnings = append(warnings, Note{key, "has no effect: it is no key of the checkup"})
			}
		}
	}
	if timeout, ok := data[KeyTimeout]; ok {
		r.given[KeyTimeout] = value{KeyTimeout, timeout}
	} else {
		r.problem(KeyTimeout, "is missing: want a duration, such as 5m")
	}
	check = r.check()
	return check, warnings, r.problems
}

// FromEnvironment reads the parameters of a checkup from the environment variables of
// kiagnose's document. Fields without a variable have the defaults of a plan. The check is
// nil if there is any problem.
func FromEnvironment(getenv func(string) string) (check *vmlatency.Spec, problems []Note) {
	r := reader{environment: true, given: map[string]value{}}
	for _, p := range params {
		if text := getenv(p.variable()); text != "" {
			r.given[p.name] = value{p.variable(), text}
		}
	}
	check = r.check()
	return check, r.problems
}

// value is the text of a parameter, and where it was given.
type value struct{ key, text string }

// reader makes a check from the parameters that were given, by name, and collects their
// problems.
type reader struct {
	environment bool // else a ConfigMap
	given       map[string]value
	problems    []Note
}

func (r *reader) problem(key, format string, args ...any) {
	r.problems = append(r.problems, Note{key, fmt.Sprintf(format, args...)})
}

// text returns the text of a parameter, and the key that its problems name. Empty means
// not given.
func (r *reader) text(name string) (text, key string) {
	v, ok := r.given[name]
	switch {
	case ok:
	case r.environment:
		v.key = Variables()[slices.Index(Params(), name)]
	default:
		v.key = ParamPrefix + name
	}
	return strings.TrimSpace(v.text), v.key
}

func (r *reader) check() *vmlatency.Spec {
	v := &vmlatency.Spec{
		IPFamilies: slices.Clone(checkup.IPFamilies),
		Duration:   defaultSample,
		Guest:      checkup.Guest{Memory: defaultMemory},
		Timeouts:   checkup.Timeouts{Setup: defaultSetup, Probe: defaultProbe},
	}
	if given, ok := r.given[KeyTimeout]; ok {
		timeout := r.timeout(given)
		v.Timeouts = checkup.Timeouts{Setup: timeout, Probe: timeout}
	}
	v.Networks = []checkup.NetworkRef{{
		Namespace: r.name(ParamNetworkNamespace, "the namespace of the NetworkAttachmentDefinition", true,
			validation.IsDNS1123Label),
		Name: r.name(ParamNetworkName, "the name of the NetworkAttachmentDefinition", true,
			validation.IsDNS1123Subdomain),
	}}
	if families := r.families(); len(families) > 0 {
		v.IPFamilies = families
	}
	pair := checkup.NodePair{
		Source: r.name(ParamSourceNode, "the name of a node", false, validation.IsDNS1123Subdomain),
		Target: r.name(ParamTargetNode, "the name of a node", false, validation.IsDNS1123Subdomain),
	}
	if given, missing := ParamSourceNode, ParamTargetNode; (pair.Source == "") != (pair.Target == "") {
		if pair.Source == "" {
			given, missing = missing, given
		}
		_, key := r.text(given)
		r.problem(key, "illegal source and target nodes combination: want %s too, or none of them, "+
			"which means any two nodes", missing)
	} else if pair.Source != "" {
		v.Pairs = []checkup.NodePair{pair}
	}
	most := time.Duration(checkup.MaxTimeout)
	if seconds, ok := r.whole(ParamSampleDuration, "seconds", 1, int64(most/time.Second)); ok {
		v.Duration = checkup.Duration(seconds) * checkup.Duration(time.Second)
	}
	v.Interval = max(defaultInterval, vmlatency.LeastInterval(v.Duration))
	if ms, ok := r.whole(ParamMaxLatency, "milliseconds", 0, most.Milliseconds()); ok && ms > 0 {
		limit := checkup.Duration(ms) * checkup.Duration(time.Millisecond)
		v.Expect.Latency.Max = &limit
	}
	if given, ok := r.given[KeyTimeout]; ok && v.Timeouts.Probe > 0 && v.Timeouts.Probe < vmlatency.LeastProbe(v) {
		r.problem(given.key, "%q: want at least %s, which guests need if nothing answers",
			given.text, vmlatency.LeastProbe(v))
	}
	slices.SortStableFunc(r.problems, func(a, b Note) int { return strings.Compare(a.Key, b.Key) })
	if len(r.problems) > 0 {
		return nil
	}
	return v
}

func (r *reader) timeout(given value) checkup.Duration {
	d, err := time.ParseDuration(strings.TrimSpace(given.text))
	switch {
	case err != nil:
		r.problem(given.key, "%q: want a duration with its unit, such as 5m", given.text)
	case d <= 0:
		r.problem(given.key, "%q: want more than 0s", given.text)
	case d > time.Duration(checkup.MaxTimeout):
		r.problem(given.key, "%q: want a day at the most", given.text)
	}
	return checkup.Duration(d)
}

// name returns a parameter that names an object, or empty after a problem.
func (r *reader) name(name, what string, required bool, validate func(string) []string) string {
	text, key := r.text(name)
	if text == "" {
		if _, given := r.given[name]; required && given {
			r.problem(key, "is empty: want %s", what)
		} else if required {
			r.problem(key, "is missing: want %s", what)
		}
		return ""
	}
	for _, message := range validate(text) {
		r.problem(key, "%q: want %s: %s", text, what, checkup.NoExamples(message))
	}
	return text
}

// families returns the IP families to measure, in the order of checkup.IPFamilies; nil if the parameter is not given.
func (r *reader) families() []checkup.IPFamily {
	text, key := r.text(ParamIPFamilies)
	if text == "" {
		return nil
	}
	given := map[checkup.IPFamily]bool{}
	for _, word := range strings.Split(text, ",") {
		f := checkup.IPFamily(strings.TrimSpace(word))
		if !slices.Contains(checkup.IPFamilies, f) {
			r.problem(key, "%q: want IPv4, IPv6, or both with a comma between them", text)
			return nil
		}
		given[f] = true
	}
	return slices.DeleteFunc(slices.Clone(checkup.IPFamilies), func(f checkup.IPFamily) bool { return !given[f] })
}

// whole returns a parameter that is a whole number; false if it is not given, or invalid.
func (r *reader) whole(name, unit string, least, most int64) (int64, bool) {
	text, key := r.text(name)
	if text == "" {
		return 0, false
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < least || n > most {
		r.problem(key, "%q: want a whole number of %s from %d to %d", text, unit, least, most)
		return 0, false
	}
	return n, true
}

// similar returns the key that was probably meant by an unknown one; empty if none is similar.
func similar(key string) string {
	best, bestDistance := "", max(2, len(key)/4)+1
	known := append(slices.Sorted(maps.Keys(legacy)), KeyTimeout)
	for _, p := range params {
		known = append(known, ParamPrefix+p.name, ParamPrefix+p.old)
	}
	for _, k := range known {
		if n := distance(strings.ToLower(key), strings.ToLower(k)); n < bestDistance {
			best, bestDistance = k, n
		}
	}
	for _, p := range params {
		if name := strings.TrimPrefix(key, SpecPrefix); name == p.name || name == p.old || best == ParamPrefix+p.old {
			return ParamPrefix + p.name
		}
	}
	return best
}

// distance is how many letters must be changed, added or removed to turn a into b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := diagonal
			if a[i-1] != b[j-1] {
				cost++
			}
			diagonal = row[j]
			row[j] = min(cost, row[j]+1, row[j-1]+1)
		}
	}
	return row[len(b)]
}

// Data returns the keys of a ConfigMap with the parameters of a check. It returns nil if
// the keys cannot express the check: several networks, a limit on loss, a check of another
// kind.
func Data(spec checkup.Spec) map[string]string {
	check, ok := spec.(*vmlatency.Spec)
	if !ok || len(check.Networks) != 1 || len(check.Pairs) > 1 {
		return nil
	}
	data := map[string]string{
		KeyTimeout:                          check.Timeouts.Setup.String(),
		ParamPrefix + ParamNetworkNamespace: check.Networks[0].Namespace,
		ParamPrefix + ParamNetworkName:      check.Networks[0].Name,
		ParamPrefix + ParamSampleDuration:   strconv.FormatInt(int64(time.Duration(check.Duration)/time.Second), 10),
	}
	if len(check.Pairs) == 1 {
		data[ParamPrefix+ParamSourceNode] = check.Pairs[0].Source
		data[ParamPrefix+ParamTargetNode] = check.Pairs[0].Target
	}
	if !slices.Equal(check.IPFamilies, checkup.IPFamilies) {
		words := make([]string, len(check.IPFamilies))
		for i, f := range check.IPFamilies {
			words[i] = string(f)
		}
		data[ParamPrefix+ParamIPFamilies] = strings.Join(words, ",")
	}
	if limit := check.Expect.Latency.Max; limit != nil {
		data[ParamPrefix+ParamMaxLatency] = strconv.FormatInt(time.Duration(*limit).Milliseconds(), 10)
	}
	back, _, _ := FromData(data)
	if back == nil {
		return nil
	}
	back.Kiagnose = check.Kiagnose
	if !reflect.DeepEqual(back, check) {
		return nil
	}
	return data
}

// SPDX-License-Identifier: Apache-2.0

package tekton

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	pipelinev1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Resolver is one of Tekton's remote resolvers (docs/resolution.md of tektoncd/pipeline), and where it finds Tasks and
// Pipelines. The zero value is none: they are in the namespace of the run.
type Resolver struct {
	// Name is one of Resolvers; empty means none.
	Name string
	// From is the reference of a bundle, a namespace, the URL of a repository, or the catalog of a hub.
	From string
	// params are the other parameters by name, as a user writes them.
	params map[string]string
}

// Names of resolvers.
const (
	ResolverBundles = "bundles"
	ResolverCluster = "cluster"
	ResolverGit     = "git"
	ResolverHub     = "hub"
)

// Resolvers lists the names of every Resolver.
var Resolvers = []string{ResolverBundles, ResolverCluster, ResolverGit, ResolverHub}

// bundleExample is a reference of a bundle.
const bundleExample = "registry.example.com/checkplan/catalog:v0.1.0@sha256:HEX"

// resolverTerms are how a Resolver is written: what From is, with an example, how it is checked, and the parameters.
var resolverTerms = map[string]struct {
	from   string
	check  func(from string) error
	params []resolverParam
}{
	ResolverBundles: {bundleExample, checkBundle, []resolverParam{secretParam}},
	ResolverCluster: {"NAMESPACE", checkNamespace, nil},
	ResolverGit: {"https://git.example.com/team/plans.git", checkGit, []resolverParam{
		{"revision", "a commit, a tag or a branch", regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/+-]{0,249}$`), true},
		{
			"path", "the directory of the catalog in the repository",
			regexp.MustCompile(`^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*$`), false,
		},
		secretParam,
	}},
	ResolverHub: {"CATALOG", checkCatalog, []resolverParam{
		{"version", "a version, such as 0.1.0", versionPattern, false},
	}},
}

// versionPattern is that of a version in a hub. A constraint, such as >=0.1, could change during a run.
var versionPattern = regexp.MustCompile(`^[0-9]+(\.[0-9]+){1,2}([-+][A-Za-z0-9.+-]{1,64})?$`)

type resolverParam struct {
	name, meaning string
	pattern       *regexp.Regexp
	required      bool
}

// secretParam names a Secret in the namespace of the run: credentials are never in a Pipeline.
var secretParam = resolverParam{"secret", "the name of a Secret in the namespace of the run",
	regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$`), false}

// ParseResolver reads NAME=FROM[,PARAM=VALUE...], such as "git=https://git.example.com/plans.git,revision=v1". The
// error lists what is missing or wrong.
func ParseResolver(text string) (Resolver, error) {
	fields := strings.Split(text, ",")
	resolver, from, _ := strings.Cut(fields[0], "=")
	terms, ok := resolverTerms[resolver]
	if !ok {
		return Resolver{}, fmt.Errorf("unknown resolver %q: want NAME=FROM, where NAME is one of %s", resolver,
			strings.Join(Resolvers, ", "))
	}
	r := Resolver{Name: resolver, From: from, params: map[string]string{}}
	var errs []error
	if from == "" {
		errs = append(errs, fmt.Errorf("want %s=%s", resolver, terms.from))
	} else if err := terms.check(from); err != nil {
		errs = append(errs, fmt.Errorf("%s=...: %w", resolver, err)) // it may hold credentials
	}
	for _, field := range fields[1:] {
		key, value, _ := strings.Cut(field, "=")
		i := slices.IndexFunc(terms.params, func(p resolverParam) bool { return p.name == key })
		switch {
		case i < 0:
			var names []string
			for _, p := range terms.params {
				names = append(names, p.name)
			}
			errs = append(errs, fmt.Errorf("%s has no parameter %q; it has: %s", resolver, key,
				strings.Join(append(names, resolver), ", ")))
		case r.params[key] != "":
			errs = append(errs, fmt.Errorf("%s is given twice", key))
		case !terms.params[i].pattern.MatchString(value) || dots(value):
			errs = append(errs, fmt.Errorf("%s=%s: want %s", key, value, terms.params[i].meaning))
		default:
			r.params[key] = value
		}
	}
	for _, p := range terms.params {
		if p.required && !slices.ContainsFunc(fields[1:], func(f string) bool { return strings.HasPrefix(f, p.name+"=") }) {
			errs = append(errs, fmt.Errorf("%s is missing %s=...: %s", resolver, p.name, p.meaning))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return Resolver{}, err
	}
	return r, nil
}

// dots says that a path or a revision has a part "..", which Tekton's resolver refuses, too.
func dots(value string) bool { return slices.Contains(strings.Split(value, "/"), "..") }

func checkBundle(from string) error {
	ref, err := name.ParseReference(from, name.StrictValidation)
	if err != nil || !repositoryPattern.MatchString(ref.Context().Name()) {
		return errors.New("want a reference with registry, repository, and tag or digest, such as " + bundleExample)
	}
	return nil
}

func checkNamespace(from string) error {
	if msgs := validation.IsDNS1123Label(from); len(msgs) > 0 {
		return fmt.Errorf("want a namespace: %s", strings.Join(msgs, "; "))
	}
	return nil
}

// checkGit allows what is encrypted, and no credentials: a Pipeline shows them to all who may read it.
func checkGit(from string) error {
	u, err := url.Parse(from)
	if err != nil || u.Scheme != "https" && u.Scheme != "ssh" || u.Hostname() == "" || strings.Trim(u.Path, "/") == "" ||
		u.RawQuery != "" || u.Fragment != "" || strings.ContainsAny(from, "$ \t\n") {
		return errors.New("want a URL that begins with https:// or ssh://, such as https://git.example.com/team/plans.git")
	}
	if _, password := u.User.Password(); password || u.Scheme == "https" && u.User != nil {
		return errors.New("has credentials: put them into a Secret in the namespace of the run, and name it by secret=NAME")
	}
	return nil
}

func checkCatalog(from string) error {
	if msgs := validation.IsDNS1123Subdomain(from); len(msgs) > 0 {
		return fmt.Errorf("want the name of a catalog: %s", strings.Join(msgs, "; "))
	}
	return nil
}

var commitPattern = regexp.MustCompile(`^([0-9a-f]{40}|[0-9a-f]{64})$`)

// Changeable says why what the resolver finds may change from one task of a run to the next; empty if it cannot.
func (r Resolver) Changeable() string {
	switch r.Name {
	case ResolverBundles:
		if _, err := name.NewDigest(r.From); err != nil {
			return r.From + " is a tag, and not a digest (REF@sha256:HEX)"
		}
		return ""
	case ResolverGit:
		if !commitPattern.MatchString(r.params["revision"]) {
			return "revision " + r.params["revision"] + " is not a commit"
		}
		return ""
	case ResolverHub:
		return ""
	case ResolverCluster:
		return "those of namespace " + r.From + " can be upgraded"
	default:
		return "those of the namespace can be upgraded"
	}
}

// String is the resolver as ParseResolver reads it; empty for the zero value.
func (r Resolver) String() string {
	if r.Name == "" {
		return ""
	}
	text := r.Name + "=" + r.From
	for _, p := range resolverTerms[r.Name].params {
		if value := r.params[p.name]; value != "" {
			text += "," + p.name + "=" + value
		}
	}
	return text
}

// At is the resolver with another place, and the same parameters.
func (r Resolver) At(from string) Resolver {
	r.From = from
	return r
}

// ref is the reference of Tekton to an object of the resolver. The kind is "task" or "pipeline"; version is that of the
// label app.kubernetes.io/version.
func (r Resolver) ref(kind, object, version string) pipelinev1.ResolverRef {
	var params pipelinev1.Params
	add := func(name, value string) {
		if value != "" {
			params = append(params, stringParam(name, value))
		}
	}
	switch r.Name {
	case ResolverBundles:
		add("bundle", r.From)
		add("kind", kind)
		add("name", object)
		add("secret", r.params["secret"])
	case ResolverCluster:
		add("kind", kind)
		add("name", object)
		add("namespace", r.From)
	case ResolverGit:
		add("url", r.From)
		add("revision", r.params["revision"])
		add("pathInRepo", path.Join(r.params["path"], kind, object, object+".yaml"))
		add("gitToken", r.params["secret"])
	case ResolverHub:
		add("catalog", r.From)
		add("kind", kind)
		add("name", object)
		add("version", cmp.Or(r.params["version"], version))
	}
	return pipelinev1.ResolverRef{Resolver: pipelinev1.ResolverName(r.Name), Params: params}
}

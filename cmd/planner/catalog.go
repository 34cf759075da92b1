// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/yaml"

	"github.com/checkplan/checkplan/pkg/bundle"
	"github.com/checkplan/checkplan/pkg/checkup"
	"github.com/checkplan/checkplan/pkg/tekton"
)

func newCatalog(env *environment) *cobra.Command {
	var options tekton.Options
	options.Namespace = tekton.DefaultNamespace
	var plansPath, reference string
	var check bool
	cmd := &cobra.Command{
		Use:   "catalog DIR",
		Short: "Write the Tekton catalog of plans into a directory",
		Long: `catalog compiles plans, and writes them as a Tekton catalog: task/NAME/NAME.yaml,
pipeline/NAME/NAME.yaml, a README with the params of each, samples and RBAC. It has
kustomizations for kubectl apply -k, Flux and Argo CD. With --check it writes
nothing, lists the files that differ, and exits with 1 if there are any. If the
directory has a file annotations.yaml, a map of texts, all Tasks and Pipelines have
these annotations: Artifact Hub reads license, provider, links and others from them.

With --bundle REGISTRY/REPOSITORY:TAG it pushes a Tekton bundle with the Tasks and
Pipelines, for Tekton's resolver bundles. The directory then has no Tasks and no
Pipelines, but the accounts, the roles, and samples and schedules that use the
bundle. The same files are pushed as TAG-manifests, which Flux and Argo CD read. The
references of both are printed by digest, that of the bundle first. The Pipelines
find their Tasks in a second bundle, TAG-tasks. Credentials are those of docker login.

With --resolver it writes Pipelines that find their Tasks by the resolver, and no
Tasks; planner compile --help lists the resolvers.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usage("%s: want one argument: the directory of the catalog", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if reference != "" && options.Tasks.Name != "" {
				return usage("--bundle %s and --resolver %s: want one of them: Pipelines of a bundle find their Tasks in a bundle",
					reference, options.Tasks)
			}
			read, err := env.load(cmd.Context(), []string{plansPath})
			if err != nil {
				return err
			}
			dir := dirOf(env, args[0])
			if options.Annotations, err = annotations(filepath.Join(dir, annotationsFile)); err != nil {
				return exit{exitUsage, err}
			}
			var push func(tekton.Files) ([]string, error)
			if reference != "" {
				if push, err = env.bundle(cmd.Context(), read.Plans, reference, &options); err != nil {
					return exit{exitUsage, err}
				}
			}
			env.warnChangeable(options.Tasks)
			files, err := tekton.Catalog(read.Plans, options)
			if err != nil {
				return exit{exitUsage, err}
			}
			drift, err := files.Drift(dir)
			if err != nil {
				return err
			}
			if check {
				if len(drift) > 0 {
					return fmt.Errorf("%s is not what %s compiles to; to write it again: planner catalog %s\n  %s",
						args[0], plansPath, args[0], strings.Join(drift, "\n  "))
				}
				return nil
			}
			if push != nil { // first: what is written names it
				pinned, err := push(files)
				if err != nil {
					return err
				}
				fmt.Fprintln(env.stdout, strings.Join(pinned, "\n"))
			}
			if err := files.Write(dir); err != nil {
				return err
			}
			fmt.Fprintf(env.stderr, "%s: %d files, %d changed\n", args[0], len(files), len(drift))
			return nil
		},
	}
	addCompileOptions(env, cmd, &options)
	cmd.Flags().StringVar(&plansPath, "plans", "./plans", "directory or file with the plans")
	resolverFlag(cmd, &options.Tasks, "where Pipelines find their Tasks; none are written")
	cmd.Flags().StringVar(&reference, "bundle", "",
		"push the Tasks and Pipelines to REGISTRY/REPOSITORY:TAG as a Tekton bundle; the directory refers to it by digest")
	cmd.Flags().BoolVar(&check, "check", false, "write nothing; fail if the directory differs")
	return cmd
}

// annotationsFile is written by hand: Drift and Write leave it alone.
const annotationsFile = "annotations.yaml"

// annotations reads a file with annotations; nil if it does not exist.
func annotations(file string) (map[string]string, error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var all map[string]string
	if err == nil {
		err = yaml.UnmarshalStrict(text, &all)
	}
	if err != nil {
		return nil, fmt.Errorf("read the annotations of a catalog, want a map of texts: %s: %w", file, err)
	}
	return all, nil
}

// bundles reads and writes bundles.
var bundles = bundle.Registry{UserAgent: "planner/" + version}

// bundle makes the two bundles of plans, and lets the options refer to them: one of the Tasks, and one of the Tasks and
// the Pipelines, which name the digest of the first. push writes both, and the files of the catalog, which are what a
// namespace needs besides. It returns the references of the second bundle and of these files.
func (e *environment) bundle(ctx context.Context, plans []*checkup.Plan, reference string, options *tekton.Options) (
	push func(tekton.Files) ([]string, error), err error) {
	if _, err := bundle.ParseTag(reference); err != nil {
		return nil, err
	}
	var tags [3]name.Tag // in the order of pushing
	for i, suffix := range []string{"-tasks", "", "-manifests"} {
		if tags[i], err = bundle.ParseTag(reference + suffix); err != nil {
			return nil, err
		}
	}
	var images [3]v1.Image
	for i, uses := range []*tekton.Resolver{&options.Tasks, &options.Pipelines} {
		if images[i], err = bundleImage(plans, *options); err != nil {
			return nil, err
		}
		pinned, err := bundle.Pinned(tags[i], images[i])
		if err != nil {
			return nil, err
		}
		if *uses, err = tekton.ParseResolver(tekton.ResolverBundles + "=" + pinned); err != nil {
			return nil, err
		}
	}
	return func(files tekton.Files) (pinned []string, err error) {
		ctx, stop := e.interruptible(ctx)
		defer stop()
		if images[2], err = bundle.Manifests(files); err != nil {
			return nil, err
		}
		for i := range tags {
			reference, err := bundles.Push(ctx, tags[i], images[i])
			if err != nil {
				return nil, err
			}
			pinned = append(pinned, reference)
		}
		return pinned[1:], nil
	}, nil
}

// bundleImage is a bundle with the objects of tekton.Bundle.
func bundleImage(plans []*checkup.Plan, options tekton.Options) (v1.Image, error) {
	objects, err := tekton.Bundle(plans, options)
	if err != nil {
		return nil, err
	}
	var entries []bundle.Entry
	for _, object := range objects {
		m, err := meta.Accessor(object)
		if err != nil {
			return nil, err
		}
		text, err := tekton.Encode(object)
		if err != nil {
			return nil, err
		}
		kind := object.GetObjectKind().GroupVersionKind()
		entries = append(entries, bundle.Entry{APIVersion: kind.GroupVersion().String(), Kind: strings.ToLower(kind.Kind),
			Name: m.GetName(), Content: text})
	}
	return bundle.Image(entries)
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"sigs.k8s.io/yaml"

	"github.com/checkplan/checkplan/pkg/nodestate/client"
)

func connected(string) (kubernetes.Interface, error) { return fake.NewSimpleClientset(), nil }

// TestRun: the program serves until a signal, and leaves no socket.
func TestRun(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	ctx, cancel := context.WithCancel(t.Context())
	var stderr bytes.Buffer
	done := make(chan error)
	go func() {
		done <- run(ctx, &stderr, []string{"--node-name", "worker-1", "--http-listen", "127.0.0.1:0",
			"--listen", "unix://" + socket, "--listen", "tcp://127.0.0.1:0"}, connected)
	}()
	c := &client.EndpointsClient{Target: "unix://" + socket, ErrorDelay: 1}
	defer c.Cancel()
	if items, canceled := c.Next(); canceled || len(items) != 0 || c.Rev != 1 {
		t.Errorf("%v, revision %d, want an empty state", items, c.Rev)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("error %v at the end", err)
	}
	if _, err := os.Stat(socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket remains: %v", err)
	}
	if !strings.Contains(stderr.String(), "the state is known") {
		t.Errorf("logged %s", stderr.String())
	}
}

// TestErrors: what a command line is refused for. None gets as far as serving.
func TestErrors(t *testing.T) {
	dir := t.TempDir()
	for _, test := range []struct {
		name, args, err string
		usage           bool
	}{
		{"no node", "", "want --node-name NODE, or NODE_NAME in the environment", true},
		{"unknown flag", "--nodename n", "unknown flag: --nodename", true},
		{"argument", "--node-name n x", `unexpected argument "x"`, true},
		{"no address", "--node-name n --listen=", "want --listen ADDRESS", true},
		{"node ports", "--node-name n --nodeport-addresses x", `node port addresses "x": not a prefix`, true},
		{"public address", "--node-name n --listen tcp://0.0.0.0:12345", "not a loopback address", false},
		{"second address", "--node-name n --listen unix://" + dir + "/s --listen tcp://:1", "want an IP address", false},
		{"HTTP", "--node-name n --listen unix://" + dir + "/s --http-listen x", "--http-listen: ", false},
		{"kubeconfig", "--node-name n --kubeconfig " + dir + "/none", "configure the client of the API server: ", false},
		{"directory", "--own-directory " + dir + "/none", "no such file or directory", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Setenv("NODE_NAME", "")
			use := connected
			if test.name == "kubeconfig" {
				use = connect
			}
			err := run(t.Context(), &bytes.Buffer{}, strings.Fields(test.args), use)
			if err == nil || !strings.Contains(err.Error(), test.err) || errors.As(err, new(usageError)) != test.usage {
				t.Errorf("error %v, want %q", err, test.err)
			}
			if left, _ := os.ReadDir(dir); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

// TestManifest: the DaemonSet may read three resources, and do nothing else. Its container has no privilege; the one
// that makes its directory has one capability. Its arguments are accepted.
func TestManifest(t *testing.T) {
	text, err := os.ReadFile("../../catalog/node-state/node-state.yaml")
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]int{}
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		var head struct{ Kind string }
		if err := yaml.Unmarshal([]byte(document), &head); err != nil {
			t.Fatal(err)
		}
		kinds[head.Kind]++
		strict := func(v any) {
			if err := yaml.UnmarshalStrict([]byte(document), v); err != nil {
				t.Fatalf("%s: %v", head.Kind, err)
			}
		}
		switch head.Kind {
		case "Namespace":
			strict(&corev1.Namespace{})
		case "ServiceAccount":
			strict(&corev1.ServiceAccount{})
		case "ClusterRoleBinding":
			strict(&rbacv1.ClusterRoleBinding{})
		case "ClusterRole":
			var role rbacv1.ClusterRole
			strict(&role)
			var resources []string
			for _, rule := range role.Rules {
				resources = append(resources, rule.Resources...)
				if !slices.Equal(rule.Verbs, []string{"get", "list", "watch"}) {
					t.Errorf("verbs %v", rule.Verbs)
				}
			}
			if !slices.Equal(resources, []string{"services", "nodes", "endpointslices"}) {
				t.Errorf("resources %v", resources)
			}
		case "DaemonSet":
			var d appsv1.DaemonSet
			strict(&d)
			pod := d.Spec.Template.Spec
			restricted := func(c corev1.Container, add ...corev1.Capability) {
				s := c.SecurityContext
				if !*s.ReadOnlyRootFilesystem || *s.AllowPrivilegeEscalation || s.Privileged != nil ||
					!slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) || !slices.Equal(s.Capabilities.Add, add) {
					t.Errorf("container %s: %+v", c.Name, s)
				}
			}
			if len(pod.InitContainers) != 1 || len(pod.Containers) != 1 {
				t.Fatalf("%d and %d containers", len(pod.InitContainers), len(pod.Containers))
			}
			restricted(pod.InitContainers[0], "CHOWN")
			server := pod.Containers[0]
			restricted(server)
			if s := server.SecurityContext; !*s.RunAsNonRoot || *s.RunAsUser != nobody || *s.RunAsGroup != nobody {
				t.Errorf("runs as %d:%d", *s.RunAsUser, *s.RunAsGroup)
			}
			refused := errors.New("accepted")
			err := run(t.Context(), &bytes.Buffer{}, append([]string{"--node-name", "n"}, server.Args...),
				func(string) (kubernetes.Interface, error) { return nil, refused })
			if !errors.Is(err, refused) {
				t.Errorf("arguments %q: %v", server.Args, err)
			}
		default:
			t.Errorf("unexpected %s", head.Kind)
		}
	}
	if len(kinds) != 5 {
		t.Errorf("kinds %v", kinds)
	}
}

// TestOwnDirectory: needs root, as the init container is.
func TestOwnDirectory(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("not root")
	}
	dir := t.TempDir()
	for range 2 { // the second start of the pod
		if err := run(t.Context(), &bytes.Buffer{}, []string{"--own-directory", dir}, nil); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o750 {
			t.Errorf("mode %v (%v), want 0750", info.Mode(), err)
		}
	}
}

// TestDocs: docs/node-state.md has each flag.
func TestDocs(t *testing.T) {
	doc, err := os.ReadFile("../../docs/node-state.md")
	if err != nil {
		t.Fatal(err)
	}
	var help bytes.Buffer
	if err := run(t.Context(), &help, []string{"--help"}, nil); !errors.Is(err, pflag.ErrHelp) {
		t.Fatal(err)
	}
	flags := regexp.MustCompile(`(?m)^ +--([a-z-]+)`).FindAllStringSubmatch(help.String(), -1)
	if len(flags) < 10 {
		t.Fatalf("flags %q", flags)
	}
	for _, f := range flags {
		if f[1] != "own-directory" && !bytes.Contains(doc, []byte("`--"+f[1]+"`")) {
			t.Errorf("docs/node-state.md lacks --%s", f[1])
		}
	}
}

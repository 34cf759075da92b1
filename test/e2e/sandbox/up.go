// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// searchPath is the PATH of everything that the sandbox starts: Debian puts nft
// and ip into sbin, which not every user's PATH has.
const searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// fabric is the name under which the network between the nodes keeps its
// process and log.
const fabric = "fabric"

// preferredAPIPort is taken on 127.0.0.1 where it is free.
const preferredAPIPort = 16443

// cluster is the running sandbox and what it takes to change it.
type cluster struct {
	dirs
	state
	progress *progress
	// changed counts the components that this command had to start.
	changed func(node, component string)
}

// self is the copy of this command that runs inside of nodes. It must outlive a
// rebuild of the one that was called.
func (c *cluster) self() string { return c.file("bin", "sandbox") }

// prepare writes everything that the components read, unless it is there.
func (c *cluster) prepare() error {
	exe, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return fmt.Errorf("copying this command into the sandbox: %w", err)
	}
	if err := writeFile(c.self(), exe, 0o755); err != nil {
		return fmt.Errorf("copying this command into the sandbox: %w", err)
	}
	if err := c.writePKI(c.plan, c.APIPort); err != nil {
		return err
	}
	cni, err := cniBinDir()
	if err != nil {
		return err
	}
	snapshotter, err := c.snapshotter()
	if err != nil {
		return err
	}
	for _, n := range c.Nodes {
		cniConf, err := cniConfig(n)
		if err != nil {
			return err
		}
		for name, content := range map[string][]byte{
			"containerd.toml":   c.containerdConfig(n, cni, snapshotter),
			"kubelet.yaml":      c.kubeletConfig(c.plan, n),
			"kube-proxy.yaml":   c.kubeProxyConfig(c.plan, n),
			"cni/pods.conflist": cniConf,
		} {
			if err := writeFile(c.file("nodes", n.Name, name), content, 0o644); err != nil {
				return fmt.Errorf("configuring %s: %w", n.Name, err)
			}
		}
	}
	return os.MkdirAll(c.file("nodes", c.Nodes[0].Name, "etcd"), 0o700)
}

// snapshotter is overlayfs, except where the state directory is itself on an
// overlay (in a container), which the kernel does not stack.
func (c *cluster) snapshotter() (string, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(c.dirs.state, &fs); err != nil {
		return "", fmt.Errorf("looking at the file system of %s: %w", c.dirs.state, err)
	}
	if fs.Type == unix.OVERLAYFS_SUPER_MAGIC {
		return "native", nil
	}
	return "overlayfs", nil
}

// up starts everything that does not run, and returns when the nodes, CoreDNS
// and Tekton are ready.
func (c *cluster) up(ctx context.Context, b build) error {
	if err := c.prepare(); err != nil {
		return err
	}
	if err := c.progress.step("nodes' namespaces and network", func(func(string)) error { return c.makeNodes(ctx) }); err != nil {
		return err
	}

	apiReady := make(chan struct{})
	g, starting := errgroup.WithContext(ctx)
	var api *client
	g.Go(func() error {
		var err error
		err = c.progress.step("API server", func(func(string)) error {
			api, err = c.startAPI(starting)
			if err != nil {
				return err
			}
			return api.apply(starting, nodeObjects(c.plan), func(string) {})
		})
		if err != nil {
			return err
		}
		close(apiReady)
		for _, comp := range []component{c.controllerManager(c.plan), c.scheduler(c.plan)} {
			if err := c.start(starting, c.Nodes[0].Name, comp); err != nil {
				return err
			}
		}
		return c.progress.step("manifests of CoreDNS and Tekton", func(detail func(string)) error {
			objects, err := corednsObjects(c.plan)
			if err != nil {
				return err
			}
			tekton, err := tektonObjects(os.DirFS(b.tekton()))
			if err != nil {
				return err
			}
			return api.apply(starting, inOrder(slices.Concat(objects, tekton, []*unstructured.Unstructured{userNamespaceObject()})), detail)
		})
	})
	for _, n := range c.Nodes {
		g.Go(func() error {
			err := c.progress.step("containerd and images on "+n.Name, func(func(string)) error {
				return c.startContainerd(starting, n, b)
			})
			if err != nil {
				return err
			}
			select {
			case <-starting.Done():
				return starting.Err()
			case <-apiReady:
			}
			// A kubelet that this command starts must report anew: what the API
			// server still has of an earlier one says nothing.
			var started time.Time
			if pid, err := c.find(n.Name, "kubelet"); err != nil {
				return err
			} else if pid == 0 {
				started = time.Now()
			}
			for _, comp := range []component{c.kubeProxy(n), c.kubelet(n)} {
				if err := c.start(starting, n.Name, comp); err != nil {
					return err
				}
			}
			if stopped, err := c.stoppedByFault(n.Name, "kubelet"); err != nil || stopped {
				return err
			}
			return c.progress.step(n.Name+" Ready", func(detail func(string)) error {
				return c.wait(starting, n.Name, "kubelet", time.Minute, func() error { return api.nodeReady(starting, n.Name, started) })
			})
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return c.ready(ctx, api)
}

// systemDeployments lists what runs on the cluster itself: namespace and name.
func systemDeployments() [][2]string {
	return [][2]string{
		{"kube-system", "coredns"},
		{"tekton-pipelines", "tekton-pipelines-controller"},
		{"tekton-pipelines", "tekton-pipelines-webhook"},
	}
}

// ready waits for what runs on the cluster, and for Tekton's webhook to answer.
func (c *cluster) ready(ctx context.Context, api *client) error {
	g, waiting := errgroup.WithContext(ctx)
	for _, d := range systemDeployments() {
		g.Go(func() error {
			return c.progress.step(d[1]+" Ready", func(detail func(string)) error {
				err := poll(waiting, 2*time.Minute, func() error {
					err := api.deploymentReady(waiting, d[0], d[1])
					if err != nil {
						detail(err.Error())
					}
					return err
				})
				if err != nil {
					return errors.Join(err, c.podFailed(d[1]), c.ended())
				}
				return nil
			})
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return c.progress.step("Tekton's webhook answers", func(detail func(string)) error {
		err := poll(ctx, 90*time.Second, func() error {
			err := api.tektonAnswers(ctx)
			if err != nil {
				detail(err.Error())
			}
			return err
		})
		if err != nil {
			return errors.Join(err, c.podFailed("tekton-pipelines-webhook"), c.ended())
		}
		return nil
	})
}

// ended is an error of every component that should run and does not, with the
// end of its log; nil where all run.
func (c *cluster) ended() error {
	running, err := c.components()
	if err != nil {
		return err
	}
	var errs []error
	for _, n := range c.Nodes {
		for _, name := range c.componentsOf(n) {
			if !slices.ContainsFunc(running, func(p process) bool { return p.Node == n.Name && p.Component == name }) {
				errs = append(errs, c.failed(n.Name, name, "does not run"))
			}
		}
	}
	return errors.Join(errs...)
}

// podFailed is an error with the end of every log of a Deployment's pods; nil
// where they have none.
func (c *cluster) podFailed(deployment string) error {
	var errs []error
	for _, name := range c.podLogs("*", deployment) {
		tail, err := lastLines(name, 15)
		if err != nil {
			tail = err.Error()
		}
		errs = append(errs, fmt.Errorf("the log %s ends with:\n%s", name, tail))
	}
	return errors.Join(errs...)
}

// podLogs lists the log files of a Deployment's pods.
func (d dirs) podLogs(node, deployment string) []string {
	// POD-LOG/NAMESPACE_POD_UID/CONTAINER/RESTARTS.log is the kubelet's layout.
	found, _ := filepath.Glob(d.file("nodes", node, "pods-log", "*_"+deployment+"-*", "*", "*.log")) // the pattern is well-formed
	return found
}

// makeNodes makes the fabric and each node's namespaces, addresses and routes,
// and records their first processes.
func (c *cluster) makeNodes(ctx context.Context) error {
	fabricPID, err := c.startInit(ctx, fabric, unix.CLONE_NEWNET, "hold")
	if err != nil {
		return err
	}
	if !c.hasLink(ctx, fabricPID, "br0") {
		if err := c.ip(ctx, fabricPID, fabricCommands()); err != nil {
			return fmt.Errorf("making the network between nodes: %w", err)
		}
	}
	c.Processes = map[string]firstProcess{fabric: {fabricPID, netNS(fabricPID)}}
	for _, n := range c.Nodes {
		pid, err := c.startInit(ctx, n.Name,
			unix.CLONE_NEWNET|unix.CLONE_NEWNS|unix.CLONE_NEWPID|unix.CLONE_NEWUTS|unix.CLONE_NEWIPC,
			"node-init", "--keep="+c.dirs.state, "--keep="+c.BinDir)
		if err != nil {
			return err
		}
		if !c.hasLink(ctx, pid, "eth0") {
			if err := c.ip(ctx, fabricPID, linkCommands(n, pid)); err != nil {
				return fmt.Errorf("plugging in %s: %w", n.Name, err)
			}
		}
		if err := c.ip(ctx, pid, nodeCommands(c.plan, n)); err != nil {
			return fmt.Errorf("giving %s its addresses: %w", n.Name, err)
		}
		c.Processes[n.Name] = firstProcess{pid, netNS(pid)}
	}
	return c.writeState(c.state)
}

func netNS(pid int) string { return fmt.Sprintf("/proc/%d/ns/net", pid) }

// startInit starts the first process of new namespaces, unless it runs.
func (c *cluster) startInit(ctx context.Context, node string, flags uintptr, verb string, args ...string) (int, error) {
	if pid, err := c.find(node, "init"); err != nil || pid != 0 {
		return pid, err
	}
	log, err := c.openLog(node, "init")
	if err != nil {
		return 0, err
	}
	defer log.Close() // the child has its own
	r, w, err := os.Pipe()
	if err != nil {
		return 0, fmt.Errorf("starting %s: %w", node, err)
	}
	defer r.Close() // only read
	cmd := exec.Command(c.self(), append([]string{verb, "--state=" + c.dirs.state, "--node=" + node}, args...)...)
	cmd.Env = c.environment(node, "init")
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = log, log, []*os.File{w}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: flags}
	err = cmd.Start()
	_ = w.Close() // the child has its own
	if err != nil {
		return 0, fmt.Errorf("starting %s: making its namespaces: %w", node, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = r.Close() })
	defer stop()
	said, err := io.ReadAll(r)
	if err != nil || string(said) != "ok" {
		return 0, errors.Join(c.failed(node, "init", "did not come up"), err, ctx.Err())
	}
	c.changed(node, "init")
	return cmd.Process.Pid, nil
}

// startAPI starts etcd, the API server and the way to it from the host.
func (c *cluster) startAPI(ctx context.Context) (*client, error) {
	cp := c.Nodes[0]
	for _, comp := range []component{c.dirs.etcd(), c.apiServer(c.plan)} {
		if err := c.start(ctx, cp.Name, comp); err != nil {
			return nil, err
		}
	}
	if err := c.startAPIProxy(); err != nil {
		return nil, err
	}
	api, err := newClient(c.kubeconfig())
	if err != nil {
		return nil, err
	}
	return api, c.wait(ctx, cp.Name, "kube-apiserver", 90*time.Second, func() error { return api.readyz(ctx) })
}

// startAPIProxy starts the proxy, anew where it leads into a namespace that is
// no longer the control plane's.
func (c *cluster) startAPIProxy() error {
	cp := c.Nodes[0]
	netns := c.Processes[cp.Name].NetNS
	const name = "api-proxy"
	pid, err := c.find(cp.Name, name)
	if err != nil {
		return err
	}
	if pid != 0 {
		cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err == nil && slices.Contains(strings.Split(string(cmdline), "\x00"), "--netns="+netns) {
			return nil
		}
		if err := c.stop(cp.Name, name); err != nil {
			return err
		}
	}
	log, err := c.openLog(cp.Name, name)
	if err != nil {
		return err
	}
	defer log.Close() // the child has its own
	cmd := exec.Command(c.self(), name,
		fmt.Sprintf("--listen=127.0.0.1:%d", c.APIPort), "--netns="+netns,
		"--target="+net.JoinHostPort(cp.IPs[0].String(), "6443"))
	cmd.Env = c.environment(cp.Name, name)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting the way to the API server: %w", err)
	}
	c.changed(cp.Name, name)
	return nil
}

// startContainerd starts a node's containerd and gives it the images that the
// node needs, once.
func (c *cluster) startContainerd(ctx context.Context, n nodePlan, b build) error {
	if err := c.start(ctx, n.Name, c.containerd(n)); err != nil {
		return err
	}
	socket := fmt.Sprintf("/proc/%d/root%s", c.Processes[n.Name].PID, containerdSocket)
	err := c.wait(ctx, n.Name, "containerd", time.Minute, func() error {
		conn, err := net.Dial("unix", socket)
		if err != nil {
			return err
		}
		return conn.Close()
	})
	if err != nil {
		return err
	}
	archives := []string{b.nodeImages()}
	if n.ControlPlane {
		archives = append(archives, b.controlPlaneImages())
	}
	done := c.file("nodes", n.Name, "images")
	want := strings.Join(archives, "\n") + "\n"
	if have, err := os.ReadFile(done); err == nil && string(have) == want {
		return nil
	}
	for _, a := range archives {
		if err := c.load(ctx, n, a); err != nil {
			return err
		}
	}
	return writeFile(done, []byte(want), 0o644)
}

// load imports an image archive, of docker save or of the OCI layout, into a
// node's containerd.
func (c *cluster) load(ctx context.Context, n nodePlan, archive string) error {
	f, err := os.Open(archive)
	if err != nil {
		return fmt.Errorf("loading images: %w", err)
	}
	defer f.Close() // only read
	cmd := c.inNode(ctx, n.Name, "ctr", "--address="+containerdSocket, "--namespace=k8s.io", "images", "import", "-")
	cmd.Stdin = f
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("loading %s on %s: %w: %s", archive, n.Name, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// start starts a component in its node's namespaces, unless it runs or a fault
// keeps it from running. It says nothing about readiness.
func (c *cluster) start(ctx context.Context, node string, comp component) error {
	if stopped, err := c.stoppedByFault(node, comp.name); err != nil || stopped {
		return err
	}
	if pid, err := c.find(node, comp.name); err != nil || pid != 0 {
		return err
	}
	binary := filepath.Join(c.BinDir, comp.name)
	if _, err := os.Stat(binary); err != nil {
		if binary, err = lookPath(comp.name); err != nil {
			return err
		}
	}
	log, err := c.openLog(node, comp.name)
	if err != nil {
		return err
	}
	defer log.Close() // the child has its own
	cmd := c.inNode(ctx, node, append([]string{c.self(), "spawn", "--", binary}, comp.args...)...)
	cmd.Env = c.environment(node, comp.name)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Run(); err != nil {
		return errors.Join(c.failed(node, comp.name, "could not be started"), err)
	}
	c.changed(node, comp.name)
	return nil
}

// inNode is a command in all of a node's namespaces.
func (c *cluster) inNode(ctx context.Context, node string, argv ...string) *exec.Cmd {
	args := append([]string{
		fmt.Sprintf("--target=%d", c.Processes[node].PID),
		"--mount", "--uts", "--ipc", "--net", "--pid", "--",
	}, argv...)
	cmd := exec.CommandContext(ctx, "nsenter", args...)
	cmd.Env = []string{"PATH=" + searchPath}
	return cmd
}

// environment is that of a component: nothing of the caller's, and its mark.
func (c *cluster) environment(node, comp string) []string {
	return []string{
		"PATH=" + searchPath, "HOME=/root",
		"ETCD_UNSUPPORTED_ARCH=arm64", // Debian's etcd 3.4 asks for it there, and ignores it elsewhere
		markVariable + "=" + c.mark(node, comp),
	}
}

func (c *cluster) openLog(node, comp string) (*os.File, error) {
	name := c.log(node, comp)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return nil, fmt.Errorf("making the log of %s: %w", comp, err)
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("making the log of %s: %w", comp, err)
	}
	fmt.Fprintf(f, "--- %s of %s started at %s\n", comp, node, time.Now().Format(time.RFC3339))
	return f, nil
}

// ip runs `ip -batch` in the network namespace of a process.
func (c *cluster) ip(ctx context.Context, pid int, commands string) error {
	cmd := exec.CommandContext(ctx, "nsenter", "--net="+netNS(pid), "--", "ip", "-batch", "-")
	cmd.Env = []string{"PATH=" + searchPath}
	cmd.Stdin = strings.NewReader(commands)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("ip -batch: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

func (c *cluster) hasLink(ctx context.Context, pid int, link string) bool {
	cmd := exec.CommandContext(ctx, "nsenter", "--net="+netNS(pid), "--", "ip", "link", "show", "dev", link)
	cmd.Env = []string{"PATH=" + searchPath}
	return cmd.Run() == nil
}

// wait polls until ready returns nil. It gives up early where the component has
// ended, and tells the end of its log.
func (c *cluster) wait(ctx context.Context, node, comp string, limit time.Duration, ready func() error) error {
	var cause error
	checked := time.Now()
	err := poll(ctx, limit, func() error {
		if err := ready(); err == nil {
			return nil
		} else if time.Since(checked) < time.Second {
			return err
		} else if pid, findErr := c.find(node, comp); findErr == nil && pid == 0 {
			cause = errors.New("has ended")
			return nil
		} else {
			checked = time.Now()
			return err
		}
	})
	switch {
	case cause != nil:
		return c.failed(node, comp, cause.Error())
	case err != nil && ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return errors.Join(c.failed(node, comp, "did not become ready"), err)
	}
	return nil
}

// failed is the error of a component, with the end of its log and its place.
func (c *cluster) failed(node, comp, what string) error {
	name := c.log(node, comp)
	tail, err := lastLines(name, 15)
	if err != nil {
		tail = err.Error()
	}
	return fmt.Errorf("%s of %s %s; its log %s ends with:\n%s", comp, node, what, name, tail)
}

func lastLines(name string, n int) (string, error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return "", err
	}
	lines := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n"), nil
}

// poll calls f until it returns nil, and returns its last error at the limit.
func poll(ctx context.Context, limit time.Duration, f func() error) error {
	deadline := time.Now().Add(limit)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := f()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("after %s: %w", limit, err)
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-tick.C:
		}
	}
}

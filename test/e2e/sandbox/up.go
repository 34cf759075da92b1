// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// searchPath is the PATH of everything that the sandbox starts. Debian installs nft and ip in sbin,
// which is not in the PATH of every user.
const searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// fabric is the name of the process and the log of the network between nodes.
const fabric = "fabric"

// startTime is the timeout for each program and Deployment of a cluster to become ready. It takes seconds; beside other
// sandboxes that started, on slow cores, an API server took a minute and a half.
const startTime = 4 * time.Minute

// addonTime is the timeout for an installed addon to become ready.
const addonTime = 10 * time.Minute

// preferredAPIPort is the port on 127.0.0.1, if it is free.
const preferredAPIPort = 16443

// cluster is the running sandbox and what commands need to change it.
type cluster struct {
	dirs
	state
	progress *progress
	// changed is called for each component that this command starts.
	changed func(node, component string)
}

// self is the copy of this command that runs inside nodes. It must not change when the called
// binary is rebuilt.
func (c *cluster) self() string { return c.file("bin", "sandbox") }

// prepare writes all files that the components read.
func (c *cluster) prepare() error {
	exe, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return fmt.Errorf("copy this command into the sandbox: %w", err)
	}
	if err := writeFile(c.self(), exe, 0o755); err != nil {
		return fmt.Errorf("copy this command into the sandbox: %w", err)
	}
	if err := c.copyPrograms(); err != nil {
		return err
	}
	if err := c.writePKI(c.plan, c.APIPort); err != nil {
		return err
	}
	if err := c.linkPlugins(); err != nil {
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
		files := map[string][]byte{
			"containerd.toml":   c.containerdConfig(n, c.cniPlugins(), snapshotter),
			"kubelet.yaml":      c.kubeletConfig(c.plan, n),
			"cni/pods.conflist": cniConf,
		}
		if !own(c.ServiceProxy) {
			files[kubeProxyFile(c.ServiceProxy)] = c.kubeProxyConfig(c.plan, n, c.ServiceProxy)
		}
		for name, content := range files {
			if err := writeFile(c.file("nodes", n.Name, name), content, 0o644); err != nil {
				return fmt.Errorf("configure %s: %w", n.Name, err)
			}
		}
	}
	for _, n := range c.controlPlanes() {
		if err := os.MkdirAll(c.file("nodes", n.Name, "etcd"), 0o700); err != nil {
			return fmt.Errorf("configure %s: %w", n.Name, err)
		}
	}
	return nil
}

// cniPlugins is the directory of CNI plugins for every node.
func (d dirs) cniPlugins() string { return d.file("cni-plugins") }

// linkPlugins creates the directory of CNI plugins, with links to the plugins of the machine.
// Addons add their own plugins.
func (c *cluster) linkPlugins() error {
	from, err := cniBinDir()
	if err != nil {
		return err
	}
	plugins, err := os.ReadDir(from)
	if err != nil {
		return fmt.Errorf("list the CNI plugins: %w", err)
	}
	if err := os.MkdirAll(c.cniPlugins(), 0o755); err != nil {
		return fmt.Errorf("link the CNI plugins: %w", err)
	}
	for _, p := range plugins {
		err := os.Symlink(filepath.Join(from, p.Name()), filepath.Join(c.cniPlugins(), p.Name()))
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("link the CNI plugins: %w", err)
		}
	}
	return nil
}

// snapshotter returns overlayfs, or native if the state directory is itself on an overlay (in a
// container): the kernel does not stack overlays.
func (c *cluster) snapshotter() (string, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(c.dirs.state, &fs); err != nil {
		return "", fmt.Errorf("read the file system type of %s: %w", c.dirs.state, err)
	}
	if fs.Type == unix.OVERLAYFS_SUPER_MAGIC {
		return "native", nil
	}
	return "overlayfs", nil
}

// up starts everything that does not run, and returns when the nodes, CoreDNS and Tekton are ready.
func (c *cluster) up(ctx context.Context, b build) error {
	if err := c.prepare(); err != nil {
		return err
	}
	if err := c.makeCgroups(); err != nil {
		return err
	}
	err := c.progress.step("nodes' namespaces and network", func(func(string)) error { return c.makeNodes(ctx) })
	if err != nil {
		return err
	}
	for _, name := range c.With {
		if prepare := addons()[name].prepare; prepare != nil {
			err := c.progress.step("prepare nodes for "+name, func(func(string)) error {
				return prepare(ctx, c, b.addonDir(name))
			})
			if err != nil {
				return err
			}
		}
	}

	if err := c.startBalancer(); err != nil {
		return err
	}
	api, err := newClient(c.kubeconfig())
	if err != nil {
		return err
	}

	// Start first what the API servers need. Everything else waits for them anyway.
	g, starting := errgroup.WithContext(ctx)
	for _, n := range c.Nodes {
		g.Go(func() error { return c.startContainerd(starting, n, b) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	apiReady := make(chan struct{})
	g, starting = errgroup.WithContext(ctx)
	g.Go(func() error {
		err := c.progress.step("API server", func(func(string)) error {
			if err := c.waitForAPI(starting, api); err != nil {
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
			objects, err := c.objects(b)
			if err != nil {
				return err
			}
			return api.apply(starting, inOrder(objects), detail)
		})
	})
	for _, n := range c.Nodes {
		g.Go(func() error { return c.startNode(starting, n, b, api, apiReady) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return c.ready(ctx, api)
}

// objects returns everything that is installed on the cluster.
func (c *cluster) objects(b build) ([]*unstructured.Unstructured, error) {
	coredns, err := corednsObjects(c.plan)
	if err != nil {
		return nil, err
	}
	ca, err := os.ReadFile(c.file("pki", "ca.crt"))
	if err != nil {
		return nil, fmt.Errorf("read the certificate authority: %w", err)
	}
	kubeadm, err := kubeadmObjects(c.plan, ca)
	if err != nil {
		return nil, err
	}
	tekton, err := tektonObjects(os.DirFS(b.tekton()))
	if err != nil {
		return nil, err
	}
	all := slices.Concat(coredns, kubeadm, tekton, []*unstructured.Unstructured{userNamespaceObject()})
	for _, name := range c.With {
		of := addons()[name].objects
		if of == nil {
			continue
		}
		objects, err := of(c)
		if err != nil {
			return nil, err
		}
		all = append(all, objects...)
	}
	return all, nil
}

// startNode loads the images of a node. When an API server is ready, it starts the service proxy and, on a worker that
// has its images, the kubelet: earlier they would fail and retry. A control plane's kubelet runs already, and its
// service proxy does not wait for images: pods that start before it do not reach the API, and those of Tekton end.
// startNode waits until the node is Ready.
func (c *cluster) startNode(ctx context.Context, n nodePlan, b build, api *client, apiReady <-chan struct{}) error {
	g, starting := errgroup.WithContext(ctx)
	loaded := make(chan struct{})
	g.Go(func() error {
		defer close(loaded)
		return c.progress.step("images on "+n.Name, func(func(string)) error {
			return c.loadOnce(starting, n, c.imagesOf(n, b)...)
		})
	})
	// A kubelet that this command starts must report again: the API server may still have the
	// status from an earlier kubelet.
	var started time.Time
	g.Go(func() error {
		if !n.ControlPlane {
			<-loaded
		}
		select {
		case <-starting.Done():
			return starting.Err()
		case <-apiReady:
		}
		if pid, err := c.find(n.Name, "kubelet"); err != nil {
			return err
		} else if pid == 0 {
			started = time.Now()
		}
		if err := c.stopOtherProxies(starting, n); err != nil {
			return err
		}
		for _, comp := range append([]component{c.kubelet(n)}, c.proxyComponents(c.plan, n, c.ServiceProxy)...) {
			if err := c.startOn(starting, n, comp); err != nil {
				return err
			}
		}
		return nil
	})
	if err := g.Wait(); err != nil {
		return err
	}
	if stopped, err := c.stoppedByFault(n.Name, "kubelet"); err != nil || stopped {
		return err
	}
	return c.progress.step(n.Name+" Ready", func(func(string)) error {
		return c.wait(ctx, n.Name, "kubelet", func() error { return api.nodeReady(ctx, n.Name, started) })
	})
}

// imagesOf lists the image archives of a node, without those of static pods.
func (c *cluster) imagesOf(n nodePlan, b build) []string {
	archives := []string{b.nodeImages()}
	if n.Name == c.Nodes[0].Name {
		archives = append(archives, b.controlPlaneImages())
	}
	for _, name := range c.With {
		addon := addons()[name]
		if n.ControlPlane && len(addon.binaries) > 0 {
			archives = append(archives, b.addonImages(name))
		}
		if addon.images != nil {
			archives = append(archives, addon.images(b.addonDir(name), n)...)
		}
	}
	return archives
}

// systemDeployments lists the Deployments of the cluster and of these addons: namespace and name.
func systemDeployments(with []string) [][2]string {
	all := [][2]string{
		{"kube-system", "coredns"},
		{"tekton-pipelines", "tekton-pipelines-controller"},
		{"tekton-pipelines", "tekton-pipelines-webhook"},
	}
	for _, name := range with {
		all = append(all, addons()[name].deployments...)
	}
	return all
}

// ready waits until everything on the cluster is ready and Tekton's webhook answers.
func (c *cluster) ready(ctx context.Context, api *client) error {
	g, waiting := errgroup.WithContext(ctx)
	for _, n := range c.controlPlanes() {
		for _, name := range staticComponents() {
			if stopped, err := c.stoppedByFault(n.Name, name); err != nil {
				return err
			} else if stopped {
				continue
			}
			g.Go(func() error {
				return c.progress.step(name+" of "+n.Name+" Ready", func(detail func(string)) error {
					err := poll(waiting, startTime, func() error {
						err := api.podReady(waiting, "kube-system", name+"-"+n.Name)
						if err == nil && name == "kube-apiserver" {
							err = api.endpointOfService(waiting, n.IPs[0])
						}
						if err != nil {
							detail(err.Error())
						}
						return err
					})
					if err != nil {
						return errors.Join(err, c.podFailed(n.Name, name))
					}
					return nil
				})
			})
		}
	}
	for _, d := range systemDeployments(c.With) {
		g.Go(func() error {
			return c.progress.step(d[1]+" Ready", func(detail func(string)) error {
				err := poll(waiting, startTime, func() error {
					err := api.deploymentReady(waiting, d[0], d[1])
					if err != nil {
						detail(err.Error())
					}
					return err
				})
				if err != nil {
					return errors.Join(err, c.podFailed("*", d[1]), c.ended())
				}
				return nil
			})
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for _, name := range c.With {
		ready := addons()[name].ready
		if ready == nil {
			continue
		}
		err := c.progress.step(name+" ready", func(detail func(string)) error {
			return poll(ctx, addonTime, func() error {
				err := ready(ctx, c, api)
				if err != nil {
					detail(err.Error())
				}
				return err
			})
		})
		if err != nil {
			return errors.Join(err, c.ended())
		}
	}
	return c.progress.step("Tekton's webhook answers", func(detail func(string)) error {
		err := poll(ctx, startTime, func() error {
			err := api.tektonAnswers(ctx)
			if err != nil {
				detail(err.Error())
			}
			return err
		})
		if err != nil {
			return errors.Join(err, c.podFailed("*", "tekton-pipelines-webhook"), c.ended())
		}
		return nil
	})
}

// ended returns an error for every component that should run but does not, with the end of its log;
// nil if all run.
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

// podFailed returns an error with the end of every log of a Deployment's pods, or of a static pod,
// on the nodes that match a pattern; nil if it finds no logs.
func (c *cluster) podFailed(node, deployment string) error {
	var errs []error
	for _, name := range c.podLogs(node, deployment) {
		tail, err := lastLines(name, 15)
		if err != nil {
			tail = err.Error()
		}
		errs = append(errs, fmt.Errorf("the log %s ends with:\n%s", name, tail))
	}
	return errors.Join(errs...)
}

// podLogs returns the log files of the pods of a Deployment, or of a static pod.
func (d dirs) podLogs(node, deployment string) []string {
	// pods-log/NAMESPACE_POD_UID/CONTAINER/RESTARTS.log is the layout of the kubelet.
	// Glob fails only for malformed patterns.
	found, _ := filepath.Glob(d.file("nodes", node, "pods-log", "*_"+deployment+"-*", "*", "*.log"))
	return found
}

// makeNodes creates the fabric and each node's namespaces, addresses and routes, and records their
// first processes.
func (c *cluster) makeNodes(ctx context.Context) error {
	fabricPID, err := c.startInit(ctx, fabric, unix.CLONE_NEWNET, "hold")
	if err != nil {
		return err
	}
	if !c.hasLink(ctx, fabricPID, "br0") {
		if err := c.ip(ctx, fabricPID, fabricCommands()); err != nil {
			return fmt.Errorf("create the network between nodes: %w", err)
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
			c.deleteStale(ctx, fabricPID, n.Name)
			if err := c.ip(ctx, fabricPID, linkCommands(n, pid)); err != nil {
				return fmt.Errorf("connect node %s: %w", n.Name, err)
			}
		}
		if err := c.ip(ctx, pid, nodeCommands(c.plan, n)); err != nil {
			return fmt.Errorf("set the addresses of node %s: %w", n.Name, err)
		}
		c.Processes[n.Name] = firstProcess{pid, netNS(pid)}
	}
	if err := c.ip(ctx, fabricPID, balancerCommands(c.plan)); err != nil {
		return fmt.Errorf("set the addresses of the balancer: %w", err)
	}
	return c.writeState(c.state)
}

// makeCgroups creates the cgroup of the sandbox, and in it one of each node, for the node's kubelet, with their CPU
// weights: in the hierarchies of all controllers (cgroup v1), or in the one with all of them (v2).
func (c *cluster) makeCgroups() error {
	mounts, err := cgroupMounts()
	if err != nil {
		return err
	}
	for _, mount := range mounts {
		top := filepath.Join(mount, c.cgroup())
		for _, n := range c.Nodes {
			if err := os.MkdirAll(filepath.Join(top, n.Name), 0o755); err != nil {
				return fmt.Errorf("create the cgroup of %s: %w", n.Name, err)
			}
		}
		for _, dir := range []string{mount, top} {
			controllers, _ := os.ReadFile(filepath.Join(dir, "cgroup.controllers")) // v1 has no such file
			for _, controller := range strings.Fields(string(controllers)) {
				if err := writeExisting(filepath.Join(dir, "cgroup.subtree_control"), "+"+controller); err != nil {
					return fmt.Errorf("enable the cgroup controller %s in %s: %w", controller, dir, err)
				}
			}
		}
		shares := map[string]int{top: c.plan.cpuShares(runtime.NumCPU())}
		for _, n := range c.Nodes {
			shares[filepath.Join(top, n.Name)] = n.cpuShares()
		}
		for dir, of := range shares {
			for file, weight := range cpuWeights(of) {
				if err := writeExisting(filepath.Join(dir, file), strconv.Itoa(weight)); err != nil {
					return fmt.Errorf("set the CPU weight of %s: %w", dir, err)
				}
			}
		}
	}
	return nil
}

// writeExisting writes a file of the kernel; one that does not exist is left out.
func writeExisting(file, content string) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = f.WriteString(content)
	return errors.Join(err, f.Close())
}

// deleteStale deletes a node's link in the namespace of a network: after the node's first process died, the kernel
// deletes it too, but later.
func (c *cluster) deleteStale(ctx context.Context, pid int, link string) {
	if c.hasLink(ctx, pid, link) {
		_ = c.ip(ctx, pid, "link delete "+link+"\n") // fails if the kernel deleted it meanwhile
	}
}

func netNS(pid int) string { return fmt.Sprintf("/proc/%d/ns/net", pid) }

// startInit starts the first process of new namespaces, unless it runs already.
func (c *cluster) startInit(ctx context.Context, node string, flags uintptr, verb string, args ...string) (int, error) {
	if pid, err := c.find(node, "init"); err != nil || pid != 0 {
		return pid, err
	}
	log, err := c.openLog(node, "init")
	if err != nil {
		return 0, err
	}
	defer log.Close() // the child has a copy
	r, w, err := os.Pipe()
	if err != nil {
		return 0, fmt.Errorf("start %s: %w", node, err)
	}
	defer r.Close() // read only
	cmd := exec.Command(c.self(), append([]string{verb, "--state=" + c.dirs.state, "--node=" + node}, args...)...)
	cmd.Env = c.environment(node, "init")
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = log, log, []*os.File{w}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: flags}
	err = cmd.Start()
	_ = w.Close() // the child has a copy
	if err != nil {
		return 0, fmt.Errorf("start %s: create its namespaces: %w", node, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = r.Close() })
	defer stop()
	reported, err := io.ReadAll(r)
	if err != nil || string(reported) != "ok" {
		return 0, errors.Join(c.failed(node, "init", "did not become ready"), err, ctx.Err())
	}
	c.changed(node, "init")
	return cmd.Process.Pid, nil
}

// waitForAPI waits until an API server is ready.
func (c *cluster) waitForAPI(ctx context.Context, api *client) error {
	err := poll(ctx, startTime, func() error { return api.readyz(ctx) })
	if err == nil || ctx.Err() != nil {
		return err
	}
	errs := []error{err}
	for _, n := range c.controlPlanes() {
		errs = append(errs, c.podFailed(n.Name, "etcd"), c.podFailed(n.Name, "kube-apiserver"))
		if pid, findErr := c.find(n.Name, "kube-apiserver"); findErr == nil && pid == 0 {
			errs = append(errs, c.failed(n.Name, "kubelet", "does not run the API server"))
		}
	}
	return errors.Join(errs...)
}

// balancerName is the component that forwards to the API servers: from the nodes and their pods at
// the plan's balancerIPs, from the host at the API port.
const balancerName = "api-balancer"

// startBalancer starts the balancer in the fabric's namespace. It restarts a balancer that runs in
// the namespace of an earlier fabric.
func (c *cluster) startBalancer() error {
	node, netns := c.Nodes[0].Name, c.Processes[fabric].NetNS
	pid, err := c.find(node, balancerName)
	if err != nil {
		return err
	}
	if pid != 0 {
		cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err == nil && slices.Contains(strings.Split(string(cmdline), "\x00"), "--netns="+netns) {
			return nil
		}
		if err := c.stop(node, balancerName); err != nil {
			return err
		}
	}
	log, err := c.openLog(node, balancerName)
	if err != nil {
		return err
	}
	defer log.Close() // the child has a copy
	host, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", c.APIPort))
	if err != nil {
		return fmt.Errorf("listen for clients of the API server on the host: %w", err)
	}
	defer host.Close() // the child has a copy
	file, err := host.(*net.TCPListener).File()
	if err != nil {
		return fmt.Errorf("listen for clients of the API server on the host: %w", err)
	}
	defer file.Close() // the child has a copy
	args := []string{
		"--net=" + netns, "--", c.self(), balancerName, "--netns=" + netns, "--ca=" + c.file("pki", "ca.crt"),
	}
	for _, ip := range c.balancerIPs() {
		args = append(args, "--listen="+netip.AddrPortFrom(ip, apiServerPort).String())
	}
	for _, n := range c.controlPlanes() {
		args = append(args, "--backend="+netip.AddrPortFrom(n.IPs[0], apiServerPort).String())
	}
	cmd := exec.Command("nsenter", args...)
	cmd.Env = c.environment(node, balancerName)
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = log, log, []*os.File{file}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the balancer: %w", err)
	}
	c.changed(node, balancerName)
	return nil
}

// startContainerd starts a node's containerd. On a control plane it also starts the kubelet, which
// runs the static pods without an API server.
func (c *cluster) startContainerd(ctx context.Context, n nodePlan, b build) error {
	if err := c.start(ctx, n.Name, c.containerd(n)); err != nil {
		return err
	}
	socket := fmt.Sprintf("/proc/%d/root%s", c.Processes[n.Name].PID, containerdSocket)
	err := c.wait(ctx, n.Name, "containerd", func() error {
		conn, err := net.Dial("unix", socket)
		if err != nil {
			return err
		}
		return conn.Close()
	})
	if err != nil || !n.ControlPlane {
		return err
	}
	return c.progress.step("etcd and API server on "+n.Name, func(func(string)) error {
		if err := c.loadOnce(ctx, n, b.staticImages()); err != nil {
			return err
		}
		for _, name := range staticComponents() {
			if stopped, err := c.stoppedByFault(n.Name, name); err != nil {
				return err
			} else if stopped {
				continue
			}
			if err := c.writeStaticPod(c.plan, n, name); err != nil {
				return err
			}
		}
		return c.start(ctx, n.Name, c.kubelet(n))
	})
}

// loadOnce imports the image archives that the node does not have yet.
func (c *cluster) loadOnce(ctx context.Context, n nodePlan, archives ...string) error {
	done := c.file("nodes", n.Name, "images")
	b, err := os.ReadFile(done)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read the list of images of %s: %w", n.Name, err)
	}
	have := string(b)
	for _, a := range archives {
		if slices.Contains(strings.Split(have, "\n"), a) {
			continue
		}
		if err := c.load(ctx, n, a); err != nil {
			return err
		}
		have += a + "\n"
		if err := writeFile(done, []byte(have), 0o644); err != nil {
			return fmt.Errorf("write the list of images of %s: %w", n.Name, err)
		}
	}
	return nil
}

// load imports an image archive (docker save or OCI layout) into a node's containerd, which unpacks an image when it
// first creates a container of it: most nodes never run most images.
func (c *cluster) load(ctx context.Context, n nodePlan, archive string) error {
	f, err := os.Open(archive)
	if err != nil {
		return fmt.Errorf("load images: %w", err)
	}
	defer f.Close() // read only
	cmd := c.inNode(ctx, n.Name, "ctr", "--address="+containerdSocket, "--namespace=k8s.io",
		"images", "import", "--no-unpack", "-")
	cmd.Stdin = f
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("load %s on node %s: %w: %s", archive, n.Name, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// start starts a component in its node's namespaces, unless it runs or a fault stops it. It does
// not wait until the component is ready.
func (c *cluster) start(ctx context.Context, node string, comp component) error {
	if stopped, err := c.stoppedByFault(node, comp.name); err != nil || stopped {
		return err
	}
	if runs, err := c.started(node, comp.name); err != nil || runs {
		return err
	}
	binary := filepath.Join(c.BinDir, comp.name)
	if slices.Contains(ownPrograms, comp.name) {
		binary = c.program(comp.name)
	}
	if _, err := os.Stat(binary); err != nil {
		if binary, err = lookPath(comp.name); err != nil {
			return err
		}
	}
	log, err := c.openLog(node, comp.name)
	if err != nil {
		return err
	}
	defer log.Close() // the child has a copy
	argv := []string{c.self(), "spawn", "--"}
	if kept(comp.name) {
		argv = append(argv, c.self(), "keep", "--")
	}
	cmd := c.inNode(ctx, node, slices.Concat(argv, []string{binary}, comp.args)...)
	cmd.Env = c.environment(node, comp.name)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Run(); err != nil {
		return errors.Join(c.failed(node, comp.name, "did not start"), err)
	}
	c.changed(node, comp.name)
	return nil
}

// startOn is start for a component of a worker or control plane; kube-proxy starts again until it knows the zone of its
// node.
//
// kube-proxy 1.35.6 adds the receiver of the node's zone (RegisterEventHandler) after the informer, which already runs,
// may have reported it (NewNodeTopologyConfig, both in cmd/kube-proxy/app/server.go). On two CPUs the report was first
// in 41 to 66 of 3,000 starts. Such a kube-proxy ignores topology hints until it ends.
func (c *cluster) startOn(ctx context.Context, n nodePlan, comp component) error {
	const tries = 5
	for range tries {
		if runs, err := c.started(n.Name, comp.name); err != nil || runs {
			return err
		}
		var written int64
		if info, err := os.Stat(c.log(n.Name, comp.name)); err == nil {
			written = info.Size()
		}
		if err := c.start(ctx, n.Name, comp); err != nil {
			return err
		}
		if comp.name != "kube-proxy" || n.ControlPlane { // a control plane is in no zone
			return nil
		}
		if knows, err := c.knowsZone(ctx, n.Name, written); err != nil || knows {
			return err
		}
		c.progress.printf("kube-proxy of %s did not receive the zone of its node, and starts again", n.Name)
		if err := c.stop(n.Name, comp.name); err != nil {
			return err
		}
	}
	return fmt.Errorf("start kube-proxy of %s: it did not receive the zone of its node in %d starts", n.Name, tries)
}

// knowsZone reports whether a node's kube-proxy, whose log has a length of written from earlier ones, received the zone
// of its node. It is true of one that a fault stops, and of one that received nothing in 10 s: its API server is away.
func (c *cluster) knowsZone(ctx context.Context, node string, written int64) (bool, error) {
	knows, received := true, time.Time{}
	err := poll(ctx, 10*time.Second, func() error {
		if pid, err := c.find(node, "kube-proxy"); err != nil || pid == 0 {
			return err
		}
		log, err := os.ReadFile(c.log(node, "kube-proxy"))
		if err != nil {
			return err
		}
		switch log := string(log[min(written, int64(len(log))):]); {
		case strings.Contains(log, "handler.OnTopologyChange"):
			return nil
		case !strings.Contains(log, "handler.OnNodeSynced"):
		case received.IsZero():
			received = time.Now()
		case time.Since(received) > time.Second:
			knows = false
			return nil
		}
		return errors.New("the log does not show whether kube-proxy received its node")
	})
	if ctx.Err() != nil {
		return false, err
	}
	return knows, nil
}

// restartDelay is how long after its end a component that is kept starts again.
const restartDelay = time.Second

// kept reports whether a component starts again when it ends. These end by themselves where a cluster's kubelet would
// start them again: the scheduler exits if its cache does not agree with the API server about the node of a pod, such
// as after a binding whose answer was lost (FlushAndExit in kubernetes/pkg/scheduler/backend/cache/cache.go).
func kept(component string) bool {
	return component == "kube-scheduler" || component == "kube-controller-manager"
}

// started reports whether a component runs, or will run again.
func (d dirs) started(node, component string) (bool, error) {
	found, err := d.scan(func(exe, of string) bool {
		return of == component && (exe == component || kept(component) && exe == "sandbox")
	})
	return slices.ContainsFunc(found, func(p process) bool { return p.Node == node }), err
}

// inNode returns a command that runs in all namespaces of a node.
func (c *cluster) inNode(ctx context.Context, node string, argv ...string) *exec.Cmd {
	args := append([]string{
		fmt.Sprintf("--target=%d", c.Processes[node].PID),
		"--mount", "--uts", "--ipc", "--net", "--pid", "--",
	}, argv...)
	cmd := exec.CommandContext(ctx, "nsenter", args...)
	cmd.Env = []string{"PATH=" + searchPath}
	return cmd
}

// environment returns the environment of a component: its mark, and no variables of the caller.
func (c *cluster) environment(node, comp string) []string {
	env := []string{
		"PATH=" + searchPath, "HOME=/root",
		markVariable + "=" + c.mark(node, comp),
	}
	for _, v := range goVariables(comp) {
		env = append(env, v.Name+"="+v.Value)
	}
	return env
}

func (c *cluster) openLog(node, comp string) (*os.File, error) {
	name := c.log(node, comp)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return nil, fmt.Errorf("open the log of %s: %w", comp, err)
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open the log of %s: %w", comp, err)
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

// wait polls until ready returns nil, for at most startTime. If the component has exited, wait returns early, with the
// end of the log.
func (c *cluster) wait(ctx context.Context, node, comp string, ready func() error) error {
	var cause error
	checked := time.Now()
	err := poll(ctx, startTime, func() error {
		if err := ready(); err == nil {
			return nil
		} else if time.Since(checked) < time.Second {
			return err
		} else if pid, findErr := c.find(node, comp); findErr == nil && pid == 0 {
			cause = errors.New("has exited")
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

// failed returns the error of a component, with the path and the end of its log.
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

// poll calls f until it returns nil. At the limit it returns the last error.
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

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
)

// The kubelet looks at its status every statusSeconds, reports it if it changed, and renews its lease four
// times in leaseSeconds. A node without either for graceSeconds is NotReady. With the defaults of
// Kubernetes (10, 40 and 50) each test of a stopped kubelet would take a minute.
const (
	statusSeconds = 4
	leaseSeconds  = 16
	graceSeconds  = 18
)

const (
	containerdSocket = "/run/containerd/containerd.sock"
	apiServerPort    = 6443
	etcdPort         = 2379
	etcdPeerPort     = 2380
	etcdMetricsPort  = 2381
)

// pkiDir is where static pods mount the sandbox's directory of certificates.
const pkiDir = "/etc/kubernetes/pki/"

// component is a process of a node: its name, which is also the name of its binary and log file,
// and its arguments without the name.
type component struct {
	name string
	args []string
}

// etcd returns the node's member of etcd, with the flags of kubeadm. In addition it does not wait for the disk:
// after a crash of the machine, only down is left.
func etcd(p plan, n nodePlan) component {
	peer := func(n nodePlan) string { return "https://" + netip.AddrPortFrom(n.IPs[0], etcdPeerPort).String() }
	var members []string
	for _, member := range p.controlPlanes() {
		members = append(members, member.Name+"="+peer(member))
	}
	return component{"etcd", []string{
		"--name=" + n.Name,
		"--data-dir=/var/lib/etcd",
		"--advertise-client-urls=" + etcdURL(n.IPs[0]),
		"--listen-client-urls=" + etcdURL(loopback(p.Family)) + "," + etcdURL(n.IPs[0]),
		"--listen-metrics-urls=http://" + netip.AddrPortFrom(loopback(p.Family), etcdMetricsPort).String(),
		"--listen-peer-urls=" + peer(n), "--initial-advertise-peer-urls=" + peer(n),
		"--initial-cluster=" + strings.Join(members, ","),
		"--initial-cluster-state=new",
		"--cert-file=" + pkiDir + "etcd/server.crt", "--key-file=" + pkiDir + "etcd/server.key",
		"--client-cert-auth=true", "--trusted-ca-file=" + pkiDir + "etcd/ca.crt",
		"--peer-cert-file=" + pkiDir + "etcd/peer.crt", "--peer-key-file=" + pkiDir + "etcd/peer.key",
		"--peer-client-cert-auth=true", "--peer-trusted-ca-file=" + pkiDir + "etcd/ca.crt",
		"--log-level=warn",
		"--unsafe-no-fsync",
	}}
}

func etcdURL(ip netip.Addr) string {
	return "https://" + netip.AddrPortFrom(ip, etcdPort).String()
}

// apiServer returns the node's API server. As with kubeadm, it uses the etcd member of its own
// node.
func apiServer(p plan, n nodePlan) component {
	return component{"kube-apiserver", []string{
		"--advertise-address=" + n.IPs[0].String(),
		"--bind-address=" + unspecified(p.Family),
		fmt.Sprintf("--secure-port=%d", apiServerPort),
		"--allow-privileged=true",
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--etcd-servers=" + etcdURL(loopback(p.Family)),
		"--etcd-cafile=" + pkiDir + "etcd/ca.crt",
		"--etcd-certfile=" + pkiDir + "apiserver-etcd-client.crt", "--etcd-keyfile=" + pkiDir + "apiserver-etcd-client.key",
		"--client-ca-file=" + pkiDir + "ca.crt",
		"--tls-cert-file=" + pkiDir + "apiserver.crt", "--tls-private-key-file=" + pkiDir + "apiserver.key",
		"--kubelet-certificate-authority=" + pkiDir + "ca.crt",
		"--kubelet-client-certificate=" + pkiDir + "apiserver-kubelet-client.crt",
		"--kubelet-client-key=" + pkiDir + "apiserver-kubelet-client.key",
		"--kubelet-preferred-address-types=InternalIP",
		"--proxy-client-cert-file=" + pkiDir + "front-proxy-client.crt",
		"--proxy-client-key-file=" + pkiDir + "front-proxy-client.key",
		"--requestheader-client-ca-file=" + pkiDir + "ca.crt",
		"--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + pkiDir + "service-account.key",
		"--service-account-signing-key-file=" + pkiDir + "service-account.key",
		"--service-cluster-ip-range=" + joined(p.ServiceNets),
	}}
}

func (d dirs) controllerManager(p plan) component {
	pki := func(file string) string { return d.file("pki", file) }
	return component{"kube-controller-manager", []string{
		"--kubeconfig=" + pki("kube-controller-manager.kubeconfig"),
		"--authentication-kubeconfig=" + pki("kube-controller-manager.kubeconfig"),
		"--authorization-kubeconfig=" + pki("kube-controller-manager.kubeconfig"),
		"--bind-address=" + loopback(p.Family).String(),
		"--leader-elect=false",
		"--allocate-node-cidrs=false", // the plan allocates them
		"--cluster-cidr=" + joined(p.PodNets),
		"--service-cluster-ip-range=" + joined(p.ServiceNets),
		"--root-ca-file=" + pki("ca.crt"),
		"--cluster-signing-cert-file=" + pki("ca.crt"), "--cluster-signing-key-file=" + pki("ca.key"),
		"--service-account-private-key-file=" + pki("service-account.key"),
		"--use-service-account-credentials=true",
		"--node-monitor-period=2s",
		fmt.Sprintf("--node-monitor-grace-period=%ds", graceSeconds),
		"--kube-api-qps=200", "--kube-api-burst=400", // no throttling of garbage collection
	}}
}

func (d dirs) scheduler(p plan) component {
	config := d.file("pki", "kube-scheduler.kubeconfig")
	return component{"kube-scheduler", []string{
		"--kubeconfig=" + config,
		"--authentication-kubeconfig=" + config,
		"--authorization-kubeconfig=" + config,
		"--bind-address=" + loopback(p.Family).String(),
		"--leader-elect=false",
	}}
}

func (d dirs) containerd(n nodePlan) component {
	return component{"containerd", []string{"--config=" + d.file("nodes", n.Name, "containerd.toml")}}
}

func (d dirs) kubelet(n nodePlan) component {
	return component{"kubelet", []string{
		"--config=" + d.file("nodes", n.Name, "kubelet.yaml"),
		"--kubeconfig=" + d.file("pki", "kubelet-"+n.Name+".kubeconfig"),
		"--hostname-override=" + n.Name,
		"--node-ip=" + joined(n.IPs),
	}}
}

// kubeProxy returns kube-proxy in one of its modes. Each mode has a file of its own: so a running kube-proxy shows its
// mode.
func (d dirs) kubeProxy(n nodePlan, proxy string) component {
	return component{"kube-proxy", []string{"--config=" + d.file("nodes", n.Name, kubeProxyFile(proxy))}}
}

// kubeProxyFile returns the name of the file of kubeProxyConfig.
func kubeProxyFile(proxy string) string { return "kube-proxy-" + kubeProxyMode(proxy) + ".yaml" }

func kubeProxyMode(proxy string) string {
	if proxy == kubeProxyIPTables {
		return "iptables"
	}
	return "nftables"
}

// unspecified returns the address that listens on all IP families of the cluster.
func unspecified(family string) string {
	if family == "ipv4" {
		return "0.0.0.0"
	}
	return "::"
}

func loopback(family string) netip.Addr {
	if family == "ipv6" {
		return netip.IPv6Loopback()
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1})
}

// containerdConfig returns the configuration of containerd in a node's own mount namespace.
// crun starts a container with half of the CPU time of runc. restrict_oom_score_adj prevents errors on machines
// without CAP_SYS_RESOURCE. The opt plugin would create /opt/containerd on the host.
func (d dirs) containerdConfig(n nodePlan, cniBinDir, snapshotter string) []byte {
	return fmt.Appendf(nil, `version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = [
  "io.containerd.internal.v1.opt",
  "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs",
]

[grpc]
  address = %q

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = %q
  restrict_oom_score_adj = true
  disable_hugetlb_controller = true
  enable_unprivileged_icmp = true
  enable_unprivileged_ports = true

[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = %q
  conf_dir = %q

[plugins."io.containerd.grpc.v1.cri".containerd]
  snapshotter = %q
  default_runtime_name = "crun"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.crun]
  runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.crun.options]
  BinaryName = "crun"
  SystemdCgroup = false
`, containerdSocket, image("pause"), cniBinDir, d.file("nodes", n.Name, "cni"), snapshotter)
}

// podShares are the shares of cgroup v1 that a kubelet gives the pods of its node for each CPU.
//
// Source: MilliCPUToShares of the kubelet (pkg/kubelet/cm).
const podShares = 1024

// cpuShares returns the shares of a sandbox's cgroup, which has the pods of all its nodes. With the kernel's default,
// 1024, they would weigh as much as one of the sandbox's kubelets, and starve on a busy machine.
func (p plan) cpuShares(cpus int) int { return podShares * len(p.Nodes) * cpus }

// cpuShares returns the shares of the node's pods among those of its sandbox. A control plane has twice those of a
// worker: real ones have a machine of their own. Virtual machines that boot keep all CPUs busy here, and beside them
// an API server with the shares of a worker does not answer for minutes.
func (n nodePlan) cpuShares() int {
	if n.ControlPlane {
		return 2 * podShares
	}
	return podShares
}

// cpuWeights returns a CPU weight by the file of the cgroup: cpu.shares of cgroup v1 and cpu.weight of v2.
//
// Source: KEP-2254, for the conversion of shares to a weight.
func cpuWeights(shares int) map[string]int {
	const most = 1 << 18 // the kernel's limit of shares
	shares = min(shares, most)
	return map[string]int{"cpu.shares": shares, "cpu.weight": 1 + (shares-2)*9999/(most-2)}
}

// kubeletConfig returns the node's KubeletConfiguration. It differs from the defaults of Kubernetes
// because several kubelets share one machine, and none of them may manage its disk. Each manages the pods' cgroups in
// its node's cgroup (makeCgroups). It also allows cgroup v1.
func (d dirs) kubeletConfig(p plan, n nodePlan) []byte {
	var dns strings.Builder
	for _, ip := range p.dnsServiceIPs() {
		fmt.Fprintf(&dns, "- %q\n", ip)
	}
	controlPlane := ""
	if n.ControlPlane {
		// If the API server was not ready when the kubelet started a static pod, the API server learns about
		// the pod only at the next sync, by default after a minute.
		controlPlane = fmt.Sprintf(
			"syncFrequency: 3s\nstaticPodPath: %s\nregisterWithTaints:\n- key: %s\n  effect: NoSchedule\n",
			d.staticPods(n), controlPlaneLabel)
	}
	return fmt.Appendf(nil, `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous:
    enabled: false
  webhook:
    enabled: true
  x509:
    clientCAFile: %[1]s
authorization:
  mode: Webhook
tlsCertFile: %[2]s
tlsPrivateKeyFile: %[3]s
address: %[4]q
healthzBindAddress: %[5]q
containerRuntimeEndpoint: unix://%[6]s
clusterDomain: cluster.local
clusterDNS:
%[7]sresolvConf: ""
failCgroupV1: false
failSwapOn: false
cgroupDriver: cgroupfs
cgroupRoot: /%[8]s/%[9]s
enforceNodeAllocatable: []
localStorageCapacityIsolation: true
evictionHard:
  memory.available: 1Mi
  nodefs.available: "0%%"
  nodefs.inodesFree: "0%%"
  imagefs.available: "0%%"
  imagefs.inodesFree: "0%%"
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
nodeStatusUpdateFrequency: %[10]ds
nodeStatusReportFrequency: 5m0s
nodeLeaseDurationSeconds: %[11]d
serializeImagePulls: false
seccompDefault: true
registerNode: true
%[12]s`, d.file("pki", "ca.crt"), d.file("pki", "kubelet-"+n.Name+".crt"), d.file("pki", "kubelet-"+n.Name+".key"),
		unspecified(p.Family), loopback(p.Family).String(), containerdSocket, dns.String(), d.cgroup(), n.Name,
		statusSeconds, leaseSeconds, controlPlane)
}

// kubeProxyConfig returns the node's KubeProxyConfiguration. The conntrack settings belong to the
// machine, not to the node: zero does not change them. Calls of handlers are logged for startKubeProxy.
func (d dirs) kubeProxyConfig(p plan, n nodePlan, proxy string) []byte {
	return fmt.Appendf(nil, `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: %[1]s
clientConnection:
  kubeconfig: %[2]s
hostnameOverride: %[3]s
bindAddress: %[4]q
clusterCIDR: %[5]q
detectLocalMode: ClusterCIDR
healthzBindAddress: %[6]q
metricsBindAddress: %[7]q
%[1]s:
  minSyncPeriod: 200ms
conntrack:
  maxPerCore: 0
  min: 0
logging:
  vmodule:
  - filePattern: config
    verbosity: 4
`, kubeProxyMode(proxy), d.file("pki", "kube-proxy.kubeconfig"), n.Name, unspecified(p.Family), joined(p.PodNets),
		netip.AddrPortFrom(loopback(p.Family), 10256),
		netip.AddrPortFrom(loopback(p.Family), 10249))
}

// cniConfig returns the node's network for pods: a bridge with the node as gateway, without
// masquerading.
func cniConfig(n nodePlan) ([]byte, error) {
	type subnet struct {
		Subnet netip.Prefix `json:"subnet"`
	}
	var ranges [][]subnet
	for _, c := range n.PodCIDRs {
		ranges = append(ranges, []subnet{{c}})
	}
	b, err := json.MarshalIndent(map[string]any{
		"cniVersion": "0.4.0",
		"name":       "pods",
		"plugins": []any{map[string]any{
			"type": "bridge", "bridge": "cni0",
			"isDefaultGateway": true, "ipMasq": false, "hairpinMode": true, "mtu": 1500,
			"ipam": map[string]any{"type": "host-local", "ranges": ranges},
		}},
	}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write the CNI configuration of %s: %w", n.Name, err)
	}
	return append(b, '\n'), nil
}

// fabricCommands returns commands for `ip -batch` in the fabric's namespace: they create the bridge
// that joins the nodes.
func fabricCommands() string {
	return "link add br0 type bridge\nlink set br0 mtu 1500 up\nlink set lo up\n"
}

// balancerCommands returns commands for `ip -batch` in the fabric's namespace: they add the
// balancer's addresses and routes to every node's pods. They can be repeated.
func balancerCommands(p plan) string {
	var b strings.Builder
	for i, ip := range p.balancerIPs() {
		b.WriteString(address(ip, p.NodeNets[i], "br0"))
	}
	for _, n := range p.Nodes {
		b.WriteString(podRoutes(n, "br0"))
	}
	return b.String()
}

func address(ip netip.Addr, net netip.Prefix, dev string) string {
	nodad := ""
	if ip.Is6() {
		nodad = " nodad"
	}
	return fmt.Sprintf("addr replace %s/%d dev %s%s\n", ip, net.Bits(), dev, nodad)
}

// podRoutes returns commands that add routes to a node's pods.
func podRoutes(n nodePlan, dev string) string {
	routes := ""
	for i, c := range n.PodCIDRs {
		routes += fmt.Sprintf("route replace %s via %s dev %s\n", c, n.IPs[i], dev)
	}
	return routes
}

// linkCommands returns commands for `ip -batch` in the fabric's namespace: they connect a node,
// whose first process is pid, to the bridge.
func linkCommands(n nodePlan, pid int) string {
	return fmt.Sprintf("link add name %[1]s mtu 1500 type veth peer name eth0 mtu 1500 netns %[2]d\n"+
		"link set %[1]s master br0 up\n", n.Name, pid)
}

// nodeCommands returns commands for `ip -batch` in the node's namespace. They add the node's
// addresses, routes to the pods of every other node, and a route for Services: the service proxy then
// changes the destination of these packets. The commands can be repeated.
func nodeCommands(p plan, n nodePlan) string {
	var b strings.Builder
	b.WriteString("link set lo up\nlink set eth0 up\n")
	for i, ip := range n.IPs {
		b.WriteString(address(ip, p.NodeNets[i], "eth0"))
	}
	for i := range p.ServiceNets {
		fmt.Fprintf(&b, "route replace %s dev eth0\n", p.ServiceNets[i])
	}
	for _, other := range p.Nodes {
		if other.Name != n.Name {
			b.WriteString(podRoutes(other, "eth0"))
		}
	}
	return b.String()
}

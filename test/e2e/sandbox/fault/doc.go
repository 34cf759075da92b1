// SPDX-License-Identifier: Apache-2.0

// Package fault adds faults to the network between the nodes of the sandbox, and
// removes them again.
//
// A fault acts on real packets, in the network namespaces of nodes. By default it
// affects only packets from a pod of one node to a pod of another node: source and
// destination must both be in pod CIDRs, of different nodes. A fault affects the
// traffic of nodes themselves only if --src or --dst selects it. So kubelets still
// reach the API server under all other faults.
//
// # Kinds
//
//	sandbox fault add drop                       packets are dropped
//	sandbox fault add loss  --percent 20         20% of the packets are dropped, at random
//	sandbox fault add snat  --node w1            packets of the pods of w1 arrive with an address of w1 as source address
//	sandbox fault add mtu   --max-bytes 1400     IP packets longer than 1400 bytes are dropped, without an ICMP error
//	sandbox fault add delay --by 30ms            packets arrive at least 30 ms later, in order
//	sandbox fault add stale --node w1 --service 10.96.0.10:53 --endpoint 198.18.102.2:53
//	                                             UDP flows of the pods of w1 stay with an endpoint of a Service
//
// # Where
//
//	(nothing)                             between all nodes
//	--node w1                             to and from the pods of w1
//	--node w1 --direction ingress         from other nodes' pods to the pods of w1
//	--node w1 --direction egress          from the pods of w1 to other nodes' pods
//	--from w1 --to w2                     from the pods of w1 to the pods of w2; the
//	                                      answers of w2 are not affected
//
// # Between which ends
//
//	--src hosts, --dst hosts  the node itself instead of its pods: everything on
//	                          the host network, with kubelets and API servers
//	--src any, --dst any      the node and its pods
//	--src IP, --dst IP        one pod or node
//
// So nodes, ends and port select one pair of components. If --from and --to are
// the same node, or an end is an address, the fault also affects packets that stay
// on one node. It never affects packets between two pods of one node: the bridge
// of the pods forwards them without any hook.
//
// # In which network
//
//	--network br10            frames of an additional network between the nodes,
//	                          instead of packets of the pod network
//
// Places are the same as above: the egress of --node is what its guests send to
// other nodes, its ingress is what they receive from other nodes. The fault selects
// frames by the input and output links of the network's bridge, not by addresses.
// So --src and --dst are not allowed. Frames between guests of one node are not
// affected: the node's own bridge forwards them.
//
// A drop without protocol and port drops every frame, including ARP and neighbor
// discovery; with --family, those of one family (ARP belongs to IPv4). All other
// faults affect IP packets without VLAN tag and let neighbor discovery pass: a loss
// of 20% is a loss of packets, not of neighbors.
//
// # Which packets
//
//	--family ipv4|ipv6        of one IP family
//	--protocol tcp|udp|icmp   of one protocol; icmp is ICMPv6 in IPv6
//	--dport 80, --sport 80    with this destination or source port, of TCP and UDP
//	                          or of --protocol
//
//	--flows 1/8               of TCP and UDP, the flows in the first of eight buckets
//
//	--for 2s                  of drop, loss and mtu, only during the first two seconds
//
// --for is a blip. On each node it begins when the rules are loaded, and the kernel ends it. List has the fault until
// clear.
//
// --flows is one dead path of several parallel ones: a flow is affected wholly, or not at
// all. The kernel's symmetric hash of addresses, protocol and ports selects its bucket
// (nftables' symhash): a flow and its answers are in the same one, on every node, until
// the machine boots. ICMP has no flows and is not affected.
//
// # Flows that stay with an endpoint
//
// stale is for the entries of connection tracking that a service proxy must remove when
// an endpoint of a UDP Service ends, because a client that keeps its source port is led
// to the endpoint as long as its packets keep the entry alive:
//
//	--service IP:PORT         an address and port of the Service
//	--endpoint IP:PORT        the endpoint with which its flows stay
//
// A flow stays from its second packet on, if the endpoint has answered the first one.
// When the proxy removes the entry of such a flow, the next packet makes it again. Flows
// that other endpoints answer, and new ones, go where the proxy sends them. The fault
// forgets a flow 3 minutes after its last packet. Packets of the node itself are not
// affected. After clear, the entries stay until their flow is silent for two minutes.
// stale has no other flags.
//
// Kind, place and packets of the other kinds combine freely. Common faults:
//
//	sandbox fault add drop --node w1                          node cut off
//	sandbox fault add drop --node w1 --direction ingress      node ingress dropped
//	sandbox fault add drop --node w1 --direction egress       node egress dropped
//	sandbox fault add drop --from w1 --to w2                  one ordered pair dropped
//	sandbox fault add drop --protocol udp                     UDP dropped, everywhere
//	sandbox fault add drop --protocol tcp --dport 8080        one port dropped
//	sandbox fault add drop --family ipv6                      IPv6 dropped
//	sandbox fault add drop --flows 1/8                        one of eight parallel paths is dead
//	sandbox fault add drop --from c1 --to c2 --src hosts --dst hosts --protocol tcp --dport 2379
//	                                                          c1's components cannot reach c2's etcd
//	sandbox fault add drop --from c1 --to c2 --dst hosts --protocol tcp --dport 6443
//	                                                          c1's pods cannot reach c2's API server
//	sandbox fault add drop --src any --dst 198.18.229.2 --protocol tcp --dport 8443
//	                                                          one endpoint of a Service is unreachable
//	sandbox fault add mtu --max-bytes 1400 --from w1 --to w2  MTU black hole
//	sandbox fault add drop --network br10 --node w1           node cut off from an additional network
//	sandbox fault add loss --percent 20 --node w1             20% loss
//	sandbox fault add delay --by 30ms                         30 ms more one way, 60 ms more per round trip
//	sandbox fault list
//	sandbox fault clear [ID...]                               no ID: all
//
// # Where the kernel applies a fault
//
// Each packet passes the rules of a fault once. Drop, loss and mtu act in the
// forward hook; for packets from or to the node itself, in the output or input
// hook. They act on the node of --node, in both directions; without --node, on the
// source's node. In these hooks a packet to a Service already has the address of
// its pod. A delay by netem acts on the source's node, because the qdisc of the
// uplink is there. A delay by a queue acts on the destination's node. Overlapping
// faults add up. snat acts in the postrouting hook of its node, by connection
// tracking: on the first packet of a flow, and thereby on the whole flow; stale acts in the
// prerouting hook in the same way. Faults of an additional network act in the forward hook of the
// network's bridge, which has its own namespace. A broadcast frame counts once for
// each link that sends it.
//
// # Limits
//
// A hook sees what the kernel forwards. That can differ from what is on the wire:
//
//   - With connection tracking (kube-proxy enables it) the kernel reassembles IP
//     fragments before the hooks. mtu then checks the whole datagram, and ports and
//     flows match all of it. Without connection tracking, mtu checks each fragment,
//     ports match only the first one, and the others are a flow of their own, without
//     ports. In each case but the last the datagram is lost.
//   - veth carries TCP as segments of up to 64 KiB (GSO), and mtu checks these: a
//     TCP stream with a segment size below the limit can lose aggregates that a
//     real link would carry. UDP and ICMP are exact. For exact TCP, turn off tso,
//     gso and gro on the pods' links.
//   - loss and delay also act on aggregates: one lost aggregate is many lost
//     segments.
//
// # How a delay works
//
// If the kernel has the qdiscs prio and netem and [Node.Uplink] is known, the rule
// sets the priority of the packet to a prio band whose qdisc is netem. That works
// for one delay at a time. Otherwise, and for further delays, the rule sends the
// packet to a netfilter queue. A background process of the calling binary (see
// [Hold]) releases it when it is due. Delays in an additional network always use a
// queue. A bridge has no queue: its rule marks the packet, and a rule of family
// inet, which the kernel evaluates next for packets of a bridge, queues it.
//
// The process ends on [Clear], or when its record or one of its nodes is gone. If
// it is killed, packets pass without delay and [List] reports this. With netem and
// with a queue no packet is early, and packets beyond 65536 held at once are lost.
// Clear releases what a queue holds, but loses what netem holds. A queue also loses
// what it holds when another fault of the same node is cleared, because the kernel
// empties queues when it removes a hook.
//
// # State
//
// Each fault is one JSON file in a directory that the caller names. Add writes it
// before it changes a node: another process can list and clear the faults of a
// process that was killed, including incomplete ones. Each fault is one nftables
// table, inet checkplan_fault_ID, in each namespace where it acts. In an additional
// network it is the table bridge checkplan_fault_ID, for a delay both tables.
package fault

// SPDX-License-Identifier: Apache-2.0

// Package fault breaks the network between the nodes of the sandbox, one
// nameable fault at a time, and mends it again.
//
// A fault acts on real packets, in the network namespaces of nodes, and unless it
// says otherwise on nothing but packets from a pod of one node to a pod of
// another: source and destination must both lie in pod CIDRs, of different nodes.
// Traffic of the nodes themselves is touched only by faults that name it with
// --src or --dst, so kubelets keep talking to the API server whatever else is
// broken.
//
// # Kinds
//
//	sandbox fault add drop                       packets vanish
//	sandbox fault add loss  --percent 20         20% of the packets vanish, at random
//	sandbox fault add mtu   --max-bytes 1400     IP packets longer than 1400 bytes vanish, silently
//	sandbox fault add delay --by 30ms            packets arrive at least 30 ms later, in order
//
// # Where
//
//	(nothing)                             between all nodes
//	--node w1                             to and from the pods of w1
//	--node w1 --direction ingress         from other nodes' pods to the pods of w1
//	--node w1 --direction egress          from the pods of w1 to other nodes' pods
//	--from w1 --to w2                     from the pods of w1 to the pods of w2; the
//	                                      packets that w2 answers with are not touched
//
// # Whose packets
//
//	--src hosts, --dst hosts  of a node itself instead of its pods: of all that is
//	                          on the host network, kubelets and API servers included
//	--src any, --dst any      of a node and its pods
//	--src IP, --dst IP        of one pod or node
//
// So one pair of components is told by its nodes, its ends and its port. Where
// --from and --to are the same node, or an end is an address, packets that do not
// leave the node are touched too. Those between two pods of one node never are:
// the bridge of the pods carries them past every hook.
//
// # In which network
//
//	--network br10            frames of a further network between the nodes, instead
//	                          of packets of the pods' network
//
// Place is as above: what --node's guests send to other nodes is its egress, and
// what comes from there its ingress. Frames are told by the links of the network's
// bridge on which they come and go, so addresses do not matter, and --src and
// --dst are not to be had. Frames between guests of one node are not touched: the
// node's own bridge carries them.
//
// A drop that names neither protocol nor port takes every frame, ARP and neighbor
// discovery too, or with --family those of one family (ARP with IPv4). Everything
// else acts on IP packets without VLAN tag, and lets neighbor discovery pass, so
// that a loss of 20% is one of the packets and not of the neighbors.
//
// # Which packets
//
//	--family ipv4|ipv6        of one IP family
//	--protocol tcp|udp|icmp   of one protocol; icmp is ICMPv6 in IPv6
//	--dport 80, --sport 80    with this destination or source port, of TCP and UDP
//	                          or of the one protocol named
//
// Kind, place and packets combine freely. The faults that one mostly wants:
//
//	sandbox fault add drop --node w1                          node cut off
//	sandbox fault add drop --node w1 --direction ingress      node ingress dropped
//	sandbox fault add drop --node w1 --direction egress       node egress dropped
//	sandbox fault add drop --from w1 --to w2                  one ordered pair dropped
//	sandbox fault add drop --protocol udp                     UDP dropped, everywhere
//	sandbox fault add drop --protocol tcp --dport 8080        one port dropped
//	sandbox fault add drop --family ipv6                      IPv6 dropped
//	sandbox fault add drop --from c1 --to c2 --src hosts --dst hosts --protocol tcp --dport 2379
//	                                                          c1's components cannot reach c2's etcd
//	sandbox fault add drop --from c1 --to c2 --dst hosts --protocol tcp --dport 6443
//	                                                          c1's pods cannot reach c2's API server
//	sandbox fault add drop --src any --dst 198.18.229.2 --protocol tcp --dport 8443
//	                                                          nobody can reach one endpoint of a Service
//	sandbox fault add mtu --max-bytes 1400 --from w1 --to w2  MTU black hole
//	sandbox fault add drop --network br10 --node w1           node cut off from a further network
//	sandbox fault add loss --percent 20 --node w1             20% loss
//	sandbox fault add delay --by 30ms                         30 ms more, one way; 60 ms there and back
//	sandbox fault list
//	sandbox fault clear [ID...]                               no ID: all
//
// # Where a packet meets its fault
//
// Every packet meets a fault once. Drop, loss and mtu act in the forward hook, or
// in the output or input hook where the packet is from or to the node itself: of
// the node named by `--node`, whichever way the packet goes, and else of the
// source's node. There a packet to a Service already has the address of the pod
// that it goes to. Delay acts on the source's node if netem makes it, because
// that is where the qdisc of the uplink is, and on the destination's node if a
// queue makes it. Faults that overlap add up. Faults of a further network act in
// the forward hook of the network's bridge, which is in a namespace of its own; a
// frame to everybody counts once for each link on which it leaves.
//
// # What cannot be told from real packets
//
// A hook sees what the kernel forwards, which is not always what is on the wire:
//
//   - With connection tracking (kube-proxy turns it on) IP fragments are put
//     together before the hooks. mtu then judges the whole datagram, and ports
//     match all of it. Without, mtu judges each fragment, and ports match only
//     the first one; either way the datagram is lost.
//   - veth carries TCP as segments of up to 64 KiB (GSO), and mtu judges those:
//     a TCP stream with a segment size under the limit can lose aggregates that a
//     real link would carry. UDP and ICMP are exact. To be exact for TCP as
//     well, turn off tso, gso and gro on the pods' links.
//   - loss and delay act on what the hook sees too: one lost aggregate is many
//     lost segments.
//
// # How delay is made
//
// Where the kernel has the qdiscs prio and netem and [Node.Uplink] is known, the
// rule gives the packet the priority of a prio band whose qdisc is netem. That
// serves one delay at a time. Otherwise, and for further delays, the rule hands it
// to a netfilter queue, and a background process of the calling binary (see [Hold])
// gives it back in time. So it is always in a further network, whose bridge has no
// queue: there the rule marks the packet, and one of family inet, to which the
// kernel shows a bridge's packets next, hands it over. That process ends with
// [Clear], and by itself when its record or one of its nodes is gone. Should it
// be killed, packets pass without delay and [List] says so. In both ways no
// packet is early, and packets beyond 65536 held at once are lost. Clear lets
// pass what a queue holds, and loses what netem does; a queue also loses what it
// holds when another fault of the same node is cleared, because the kernel
// empties queues when a hook goes.
//
// # State
//
// One JSON file per fault, in a directory that the caller names, written before
// the first packet is touched: so another process can list and clear what a
// killed one has added, half-added faults included. Each fault is one nftables
// table, inet checkplan_fault_ID, in the namespaces where it acts; of a further
// network, bridge checkplan_fault_ID, and for a delay both.
package fault

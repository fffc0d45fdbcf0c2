//! Drop reasons: why the datapath drops a packet. One list gives number, name, meaning, hook and
//! advice.
//!
//! `docs/reference/drop-reasons.md` is generated from this list (`cargo xtask tidy --bless`).

/// Declares [`DropReason`] and everything that is derived from it.
macro_rules! drop_reasons {
    ($(
        $(#[doc = $meaning:literal])+
        $variant:ident = $number:literal, $name:literal, at $hooks:literal, do $advice:literal;
    )+) => {
        /// Why a packet was dropped. The number is the index in the drop counters, and the same in
        /// the API, the metrics and the documentation; it never changes once released.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u32)]
        pub enum DropReason {
            $( $(#[doc = $meaning])+ $variant = $number, )+
        }

        impl DropReason {
            /// All reasons, in the order of their numbers.
            pub const ALL: [Self; [$($number),+].len()] = [$(Self::$variant),+];

            /// Returns the reason with this number. A `match`, so that the BPF compiler makes a
            /// range check of it and no table.
            #[inline(always)]
            pub const fn from_number(number: u32) -> Option<Self> {
                match number {
                    $( $number => Some(Self::$variant), )+
                    _ => None,
                }
            }

            /// Returns the name in counters, metrics, the API and the documentation.
            pub const fn name(self) -> &'static str {
                match self {
                    $( Self::$variant => $name, )+
                }
            }

            /// Returns what the reason means, in one or two sentences.
            pub const fn meaning(self) -> &'static str {
                match self {
                    $( Self::$variant => concat!($($meaning),+), )+
                }
            }

            /// Returns the hooks that drop for this reason, separated by commas.
            pub const fn hooks(self) -> &'static str {
                match self {
                    $( Self::$variant => $hooks, )+
                }
            }

            /// Returns whether the datapath lacked what the packet needed: a port, a place in the
            /// flow table, or memory to rewrite it. Other reasons are properties of the packet, its
            /// sender or its receiver.
            #[inline(always)]
            pub const fn is_shortage(self) -> bool {
                matches!(self, Self::NoPort | Self::FlowTableFull | Self::RewriteFailed)
            }

            /// Returns the advice to the operator.
            pub const fn advice(self) -> &'static str {
                match self {
                    $( Self::$variant => $advice, )+
                }
            }
        }
    };
}

drop_reasons! {
    /// A header is cut short or contradicts itself, or the checksum of an IPv4 header is wrong.
    Malformed = 1, "malformed",
        at "from_pod, uplink_in, uplink_out, xdp_guard",
        do "Capture at the sender: a broken stack, a fuzzer or an attack. A few during a fault \
            of the network are harmless.";
    /// The source MAC address of a pod's frame, or a MAC address in its ARP or neighbour discovery
    /// packet, is not the pod's.
    SpoofedMac = 2, "spoofed-mac",
        at "from_pod",
        do "Find out what in the pod changes its MAC address or sends raw frames. Set \
            `macspoofchk: false` only for pods that must bridge or forward.";
    /// The source address of a pod's packet, or an address that its ARP or neighbour discovery
    /// packet announces or probes, is not the pod's. Of link-local addresses of IPv6, a pod has the
    /// one that is derived from its MAC address, and those that it was assigned.
    /// Or a pod's ICMP error is about a packet that was not sent to the pod.
    SpoofedAddress = 3, "spoofed-address",
        at "from_pod",
        do "Find out which address the pod added or forges. Routers, VPN gateways and virtual \
            machines in a pod need `macspoofchk: false` or static addresses.";
    /// The source or destination can never be on a wire: a loopback address, a multicast or
    /// broadcast source, an address of 0.0.0.0/8, or an IPv4-mapped IPv6 address, which alone
    /// `uplink_out` checks for. Or a packet to a pod has a source that no router forwards: 0.0.0.0,
    /// ::, a link-local address of IPv6, the broadcast address of a subnet, or an address of the
    /// node.
    Martian = 4, "martian",
        at "from_pod, uplink_in, uplink_out, xdp_guard",
        do "Find the pod or the machine on the uplink that sends with such an address. No host \
            would accept the packet.";
    /// No free source port was found for a new NAT flow within the bounded number of tries.
    NoPort = 5, "no-port",
        at "from_pod, uplink_out",
        do "Too many flows of one protocol from one address to one destination and port. Spread \
            the load over destinations, or give networks egress addresses of their own.";
    /// The flow table is full, and no other pod has more flows than the one that opens this flow.
    FlowTableFull = 6, "flow-table-full",
        at "from_pod, uplink_in, uplink_out",
        do "Find the pods with most flows: `viaductctl flows --usage`. Raise \
            `--flow-table-size`.";
    /// The first fragment of an IP fragment's datagram has not arrived within 30 s, or more
    /// fragments waited for theirs than are held for a sender; so it cannot be translated.
    FragmentWithoutFirst = 7, "fragment-without-first",
        at "from_pod, uplink_in, uplink_out",
        do "First fragments are lost before this hook. Avoid fragmentation: check the MTU and path \
            MTU discovery.";
    /// A second flow would have the same addresses, and its protocol has no ports that distinguish
    /// the replies.
    NatClash = 8, "nat-clash",
        at "uplink_out",
        do "Use one pod per peer for protocols without ports (GRE, ESP).";
    /// The packet has a pod address that no attached pod has: as its source where it would leave
    /// the node, or as its destination where the node would have to resolve it on a bridge that has
    /// only Viaduct's pods. Or it came in by an interface that no attached pod has.
    UnknownPod = 9, "unknown-pod",
        at "from_pod, uplink_in, uplink_out",
        do "Expected for a moment during and after a DEL, and for scans of the pod CIDR. If it \
            lasts, something uses an address of the pod CIDR that Viaduct did not assign: look for \
            pods of another plugin in the same CIDR, and for clients of pods that are gone. At \
            `from_pod`, `viaductctl doctor` shows whether reconciliation fails.";
    /// No address of the packet's family to translate to: neither the uplink nor the gateway of the
    /// pod's network has one.
    NoSourceAddress = 10, "no-source-address",
        at "from_pod, uplink_out",
        do "Give the uplink an address of that family, or exempt the destination with \
            `--non-masquerade-cidr`.";
    /// The packet has more IPv6 extension headers, or options of neighbour discovery, than the
    /// parser walks.
    TooManyHeaders = 11, "too-many-headers",
        at "from_pod, uplink_in, uplink_out",
        do "Such packets are rare outside of tests and attacks. Capture at the sender.";
    /// The kernel refused to change the packet.
    RewriteFailed = 12, "rewrite-failed",
        at "from_pod, uplink_in, uplink_out",
        do "Lack of memory for a packet buffer, or a frame shorter than its headers say. If it \
            lasts, report it as a bug with a capture.";
    /// A packet came in by an uplink with a source address in a pod CIDR of this node, or (checked
    /// by `xdp_guard` only) with the MAC address of its bridge.
    SpoofedFromOutside = 13, "spoofed-from-outside",
        at "uplink_in, xdp_guard",
        do "Look for another network that uses the same pod CIDR, for pods of another plugin on \
            this node, or for a forged source.";
    /// The hostport or flow belongs to a pod that is gone.
    StaleGeneration = 14, "stale-generation",
        at "from_pod, uplink_in",
        do "Expected for a moment after a DEL. If it lasts, `viaductctl doctor` shows whether \
            reconciliation fails.";
    /// The promiscuous bridge has delivered the same packet to the pod already.
    Duplicate = 15, "duplicate",
        at "to_pod",
        do "Expected with `--hairpin-mode promiscuous-bridge`: these are the second copies of \
            hairpin packets.";
    /// The pod has opened as many flows as its quota allows, or clients outside have opened as many
    /// to it, and none of them could be evicted.
    FlowQuota = 16, "flow-quota",
        at "from_pod, uplink_in, uplink_out",
        do "See `viaductctl flows --usage`: a scan, a connection leak, or a flood against the \
            pod's hostport. Each quota is half of the flow table, at least 1,024 flows; raise \
            `--flow-table-size` if the pod needs more.";
    /// The node does not have the egress address that the pod's network is configured to use.
    NoEgressAddress = 17, "no-egress-address",
        at "uplink_out",
        do "Add the address to an interface of the node, or correct the network's egress \
            address.";
    /// An ICMP reply, error or redirect from a pod belongs to no flow, so it would leave the node
    /// with the pod's own address.
    NoFlow = 18, "no-flow",
        at "uplink_out",
        do "Expected after flows were evicted or expired (ICMP: 30 s idle). If it lasts, capture \
            at the pod: it sends ICMP replies or errors without a request.";
    /// The packet would leave with the pod's own address by a link that has no translation attached
    /// yet.
    UnknownUplink = 19, "unknown-uplink",
        at "from_pod",
        do "Expected for a moment when a link appears. If it lasts, compare the route with the \
            uplinks in `viaductctl status`; `doctor` lists uplinks without programs. A port of \
            a bond or VRF is no uplink.";
    /// The pod exceeded its bandwidth limit.
    RateLimit = 20, "rate-limit",
        at "from_pod, to_pod, uplink_in",
        do "Expected for senders that do not back off. Change the limit with `viaductctl limit`.";
    /// The packet is from one pod to another, and the `ingressPolicy` of both pods forbids it,
    /// whatever addresses it has.
    IngressPolicy = 21, "ingress-policy",
        at "from_pod, to_pod",
        do "Use `ingressPolicy: open`, or reach the pod by its published port.";
    /// A first fragment ends within its transport header (RFC 1858, RFC 7112).
    TinyFragment = 22, "tiny-fragment",
        at "from_pod, uplink_in, uplink_out, xdp_guard",
        do "No stack fragments like this: capture at the sender, a fuzzer or an attempt to evade a \
            filter.";
    /// A fragment overlaps another one of its datagram, or is a second first fragment with other
    /// ports. The datagram's further fragments are dropped as well (RFC 5722, RFC 3128).
    OverlappingFragment = 23, "overlapping-fragment",
        at "from_pod, uplink_in, uplink_out",
        do "Capture at the sender: an attempt to evade a filter, or a sender that uses an \
            identification again while fragments of the last datagram are missing.";
    /// A frame has a VLAN tag behind a VLAN tag: of a pod with a spoof check any, from outside two
    /// tags with VLAN 0. A receiver removes both and processes a packet that no filter has seen
    /// (CVE-2021-27853).
    TaggedTwice = 24, "tagged-twice",
        at "from_pod, uplink_in, xdp_guard",
        do "Capture at the sender: an attempt to evade a filter. A pod that needs stacked VLANs \
            needs `vlanTrunk` or `macspoofchk: false`.";
    /// A frame of a pod with a spoof check has a VLAN tag that its network is not configured for:
    /// the bridge assigns the VLAN of such a pod's frames. VLAN 0 is a priority, and passes.
    UnknownVlan = 25, "unknown-vlan",
        at "from_pod",
        do "Find the VLAN interface or raw socket in the pod. Set `vlanTrunk` for pods that send \
            tagged frames.";
    /// A frame of a pod with a spoof check is neither IPv4, IPv6 nor ARP: LLC, STP, LLDP, MPLS,
    /// PPPoE, RARP and others.
    ForeignFrame = 26, "foreign-frame",
        at "from_pod",
        do "Find what in the pod sends such frames, often a routing or discovery daemon. Pods \
            that need another protocol need `macspoofchk: false`.";
    /// A pod with a spoof check sent what only a router sends: a router advertisement or redirect
    /// (ICMP, ICMPv6), or a query or advertisement to multicast listeners and routers (IGMP, MLD,
    /// RFC 4286).
    RogueRouter = 27, "rogue-router",
        at "from_pod",
        do "Find the routing daemon or the attacker in the pod: other pods would send their \
            traffic to it. Pods that route for others need `macspoofchk: false`.";
    /// A pod with a spoof check sent a DHCP or DHCPv6 message to a client (UDP port 68 or 546).
    RogueDhcp = 28, "rogue-dhcp",
        at "from_pod",
        do "Find the DHCP server or the attacker in the pod: other pods would take addresses and \
            routes from it. A DHCP server in a pod needs `macspoofchk: false`.";
    /// The packet is for a pod's own address, from outside of the pod's network, and the network
    /// has no direct access (`directAccess: false`).
    DirectAccess = 29, "direct-access",
        at "from_pod, uplink_in",
        do "Use the pod's published port, publish one, or set `directAccess: true` for the network \
            (`--direct-access` for the agent's own).";
    /// The packet would leave an internal network (`internal: true`), or enter one, and belongs to
    /// no published port.
    InternalNetwork = 30, "internal-network",
        at "from_pod, to_pod, uplink_in, uplink_out",
        do "Publish a port of the pod, or attach the pod to a second network that is not internal.";
    /// An ICMP error from outside quotes a packet of a hostport, and no flow has sent that packet.
    /// The stack would apply the error to the socket that reserves the port, and so to the path MTU
    /// of the node.
    ErrorWithoutFlow = 31, "error-without-flow",
        at "uplink_in",
        do "Expected after flows were evicted or expired. If it lasts, capture at the uplink: a \
            sender forges ICMP errors.";
    /// A packet for the UDP port of the tunnels between nodes has a source address that no peer
    /// has, or comes from a pod. VXLAN has no authentication: the kernel would accept the packet
    /// inside.
    TunnelForeignSender = 32, "tunnel-foreign-sender",
        at "from_pod, uplink_in",
        do "Compare the source (`viaductctl drops`) with the addresses of the peers (`viaductctl \
            peers`). A node may send with an address that its entry in the list lacks: add the \
            address. Else find the sender: another overlay with the same port, or an attacker.";
    /// A packet from a tunnel between nodes has a source address that is in no prefix of a peer.
    TunnelSource = 33, "tunnel-source",
        at "uplink_in",
        do "Compare the source (`viaductctl drops`) with the prefixes of the peers (`viaductctl \
            peers`). Expected for a moment after a node has got another pod CIDR. If it lasts, the \
            lists of the two nodes differ, or other software of the sender's node uses the tunnel.";
    /// A packet from a tunnel between nodes is neither for a pod or published port of this node nor
    /// an answer to the node itself; or its frame is for another MAC address, tagged, or no IP.
    TunnelDestination = 34, "tunnel-destination",
        at "uplink_in",
        do "Services of the node are reached by the node's own addresses, not through the tunnel. \
            If pods of one node reach none of this one, `--node-name` of this agent differs from \
            the node's name in the list of peers of the others.";
    /// No network policy of the pod allows the connection, or none of the pod at its other end.
    NetworkPolicy = 35, "network-policy",
        at "from_pod, to_pod, uplink_in, uplink_out",
        do "Find the connection with `viaductctl drops` or `viaductctl why`, and the policies of \
            its pods with `viaductctl policies`. Add a rule if it should be allowed.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_found_by_its_number_and_fits_the_table() {
        for (index, reason) in DropReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, index + 1);
            assert_eq!(DropReason::from_number(reason as u32), Some(reason));
            assert!((reason as u32) < crate::maps::DROP_REASONS);
        }
        assert_eq!(DropReason::from_number(0), None);
    }
}

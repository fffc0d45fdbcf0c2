//! Degraded reasons: why a node does not work completely. One list gives word, meaning, advice and
//! the code of CNI STATUS.
//!
//! The table in `docs/operations.md` is generated from this list (`cargo xtask tidy --bless`).

/// Declares [`DegradedReason`] and everything that is derived from it.
macro_rules! degraded_reasons {
    ($(
        $(#[doc = $meaning:literal])+
        $variant:ident = $word:literal, status $status:literal, do $advice:literal;
    )+) => {
        /// Reason of a degradation. The word is the same in the API, the metrics, the events and
        /// the documentation; it never changes once released.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum DegradedReason {
            $( $(#[doc = $meaning])+ $variant, )+
        }

        impl DegradedReason {
            /// All reasons, in the order of the documentation.
            pub const ALL: [Self; [$($word),+].len()] = [$(Self::$variant),+];

            /// Returns the word in the API, the metrics and the events, such as `no-uplink`.
            pub const fn word(self) -> &'static str {
                match self {
                    $( Self::$variant => $word, )+
                }
            }

            /// Returns what the reason means, in one or two sentences.
            pub const fn meaning(self) -> &'static str {
                match self {
                    $( Self::$variant => concat!($($meaning),+), )+
                }
            }

            /// Returns the code of CNI STATUS, with its condition; empty where STATUS succeeds.
            pub const fn status(self) -> &'static str {
                match self {
                    $( Self::$variant => $status, )+
                }
            }

            /// Returns the advice to the operator, in one sentence.
            pub const fn advice(self) -> &'static str {
                match self {
                    $( Self::$variant => $advice, )+
                }
            }
        }
    };
}

degraded_reasons! {
    /// The default network has no range, and a pod needs it.
    NoPodCidr = "no-pod-cidr", status "50 for the default network",
        do "Give the agent a pod CIDR (`--pod-cidr`, `--pod-cidr-file`).";
    /// No link leads out of the node.
    NoUplink = "no-uplink", status "",
        do "Set a link up and give it an address or a route.";
    /// A link named with `--uplink` does not exist.
    UplinkMissing = "uplink-missing", status "",
        do "Create the link, or correct `--uplink`.";
    /// An uplink has no programs: pods are not masqueraded or published there.
    ProgramsMissing = "programs-missing", status "51",
        do "Find the error of the attachment in the agent's log.";
    /// A network's bridge cannot be used.
    NetworkRefused = "network-refused", status "50 for the network",
        do "Correct the network's configuration, or remove what it conflicts with.";
    /// At most a tenth of a range is free.
    PoolNearlyExhausted = "pool-nearly-exhausted", status "",
        do "Enlarge the range, or run fewer pods on this node.";
    /// A range has no free address.
    PoolExhausted = "pool-exhausted", status "50 for the network",
        do "Enlarge the range, or remove pods.";
    /// The node does not have an address that pods should leave with.
    NoEgressAddress = "no-egress-address", status "",
        do "Add the address to a link, or correct `--egress-address`.";
    /// The default of another software's filter table drops the packets of pods, and no rule of
    /// ours accepts them.
    ForwardingDropped = "forwarding-dropped", status "50",
        do "Set `--forwarding auto`, or accept the pods' packets in the table that the message names.";
    /// The kernel has no nftables, and the node has containers of other software: they do not reach
    /// hostports.
    NoNftables = "no-nftables", status "",
        do "Load the module `nf_tables` (with `nft_fib_inet`, `nft_nat`, `nft_masq`), and restart the agent.";
    /// Another link or route has addresses of a network's subnet.
    SubnetOverlap = "subnet-overlap", status "50 if it has all addresses of the network",
        do "Give the network another subnet, or remove the other address or route.";
    /// The node has got an address that a pod has: the node's packets win, and the pod is cut off.
    AddressOfNode = "pod-address-on-node", status "",
        do "Remove the address from the link that the message names, or restart the pod.";
    /// A strict reverse path filter drops packets of pods, answers to them, or requests to their
    /// published ports.
    ReversePathFilter = "rp-filter", status "50 for the network",
        do "Set `net.ipv4.conf.LINK.rp_filter` and `net.ipv4.conf.all.rp_filter` to 2 (loose) or 0.";
    /// A link that pods' packets pass does not forward.
    ForwardingOff = "forwarding-off", status "50 for the network",
        do "Set `net.ipv4.conf.LINK.forwarding` to 1.";
    /// Other software changes a sysctl back whenever the agent has set it.
    SysctlContested = "sysctl-contested", status "",
        do "Find the software that sets it (`/etc/sysctl.d`, a firewall, a security baseline), and \
            correct its configuration.";
    /// An IPsec policy drops packets of pods, or encrypts them before they are masqueraded.
    IpsecPolicy = "ipsec-policy", status "50 for the network",
        do "Exempt the pods' subnet from the policy (`ip xfrm policy`), or list the destination as \
            `--non-masquerade-cidr`.";
    /// A network has a larger MTU than the default route, or a bridge a smaller one than its pods.
    MtuMismatch = "mtu-mismatch", status "",
        do "Set the network's `mtu` to that of the default route, and that of the bridge to that \
            of its pods.";
    /// The agent's cgroup does not contain all processes of the node.
    CgroupUncovered = "cgroup-uncovered", status "",
        do "Give the agent the root of the node's cgroup2 with `--cgroup`; in a container, mount \
            it from the host.";
    /// Few file descriptors are left for port reservations.
    FileLimit = "file-limit", status "",
        do "Raise `LimitNOFILE=` of the agent's unit.";
    /// Netfilter's conntrack table is full, or nearly.
    ConntrackFull = "conntrack-full", status "50 while it is full",
        do "Raise `net.netfilter.nf_conntrack_max`, or find what opens so many connections.";
    /// A neighbour table has overflowed in the last minute.
    NeighboursFull = "neighbour-table-full", status "",
        do "Raise `net.ipv4.neigh.default.gc_thresh3` or `net.ipv6.neigh.default.gc_thresh3`.";
    /// Another CNI configuration comes before the one for the default network.
    ConflistShadowed = "conflist-shadowed", status "",
        do "Rename one of the files: runtimes use the first in the order of names.";
    /// No valid CNI configuration names Viaduct.
    ConflistUnusable = "conflist-unusable", status "",
        do "Correct the file, or copy Viaduct's configuration to the runtime's directory.";
    /// A CNI configuration that names Viaduct needs a plugin that is not installed.
    PluginMissing = "plugin-missing", status "50 for the network",
        do "Install the plugin in the runtime's CNI directory, or correct `--cni-bin-dir`.";
    /// Peers have names, addresses or prefixes of each other or of this node: what is in conflict
    /// is not used.
    PeerConflict = "peer-conflict", status "",
        do "Correct the list of peers, or the pod CIDRs of the nodes that the message names.";
    /// A peer has no address on a link of this node: its pods are not reached.
    PeerNotOnLink = "peer-not-on-link", status "",
        do "Connect the nodes to one link, or add routes to the peer's prefixes and set \
            `--between-nodes none`.";
    /// The node has no route to any address of a peer: no tunnel reaches it.
    PeerUnreachable = "peer-unreachable", status "",
        do "Add a route to an address of the peer, or correct its addresses in the list.";
    /// A link of other software has the name of a tunnel to other nodes.
    TunnelUnavailable = "tunnel-unavailable", status "",
        do "Rename or remove the link that the message names.";
    /// Other software has a route to a peer's prefix, which the agent leaves as it is.
    PeerRouteTaken = "peer-route-taken", status "",
        do "Remove the other route, or set `--between-nodes none` if it is meant to be used.";
    /// The list of peers cannot be read: the last one stays in effect.
    PeersUnreadable = "peers-unreadable", status "",
        do "Correct the file of `--peers-file`, and write it by renaming.";
    /// The program that sends the list of peers has lost its source: the last list stays in effect.
    PeersStale = "peers-stale", status "",
        do "Make the source that the message names reachable from this node; until then nodes that \
            join, leave or change their addresses are not followed.";
    /// The network policies cannot be read: the last ones stay in effect.
    PoliciesUnreadable = "policies-unreadable", status "",
        do "Correct the file of `--policies-file`, and write it by renaming.";
    /// The agent cannot read the network policies that it has stored: none is in effect.
    PoliciesLost = "policies-lost", status "",
        do "Set the policies again (`viaductctl policies set`, `PUT /v1/policies`).";
    /// The routes of `--non-masquerade-routes` have more prefixes than the datapath's table.
    TooManyRoutes = "too-many-routes", status "",
        do "Let the routing daemon aggregate its routes, or list their prefixes as \
            `--non-masquerade-cidr`.";
    /// The agent's engine does not end an operation: all other requests wait.
    EngineStuck = "engine-stuck", status "50",
        do "Find why the kernel does not answer; if it stays, restart the agent, which interrupts no \
            traffic.";
    /// The last reconciliation could not repair something.
    RepairFailed = "repair-failed", status "51 if it concerns the node",
        do "Find the error in the agent's log; the next reconciliation tries again.";
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::DegradedReason;

    #[test]
    fn each_degraded_reason_has_a_word_of_its_own_and_one_sentence_of_advice() {
        let words: BTreeSet<&str> = DegradedReason::ALL.map(DegradedReason::word).into();
        assert_eq!(words.len(), DegradedReason::ALL.len());
        for reason in DegradedReason::ALL {
            let word = reason.word();
            let is_kebab = |byte: u8| byte.is_ascii_lowercase() || byte == b'-';
            assert!(word.bytes().all(is_kebab), "{word}");
            assert!(reason.meaning().trim().ends_with('.'), "{word}");
            assert!(reason.advice().ends_with('.'), "{word}");
        }
    }
}

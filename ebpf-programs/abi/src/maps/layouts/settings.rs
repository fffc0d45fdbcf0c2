//! Settings of all programs: one map element, which the agent always replaces as a whole.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::{Mac, Port};

/// Idle timeouts of flows, in seconds. 32 bytes.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Timeouts {
    /// TCP, before packets of both directions were seen.
    pub tcp_opening: u32,
    /// TCP, established (RFC 5382 requires at least 7440).
    pub tcp_established: u32,
    /// TCP, after a FIN.
    pub tcp_closing: u32,
    /// TCP, after a RST.
    pub tcp_reset: u32,
    /// UDP, before a reply.
    pub udp_single: u32,
    /// UDP, after a reply.
    pub udp_stream: u32,
    /// ICMP and ICMPv6 echo.
    pub icmp: u32,
    /// All other protocols.
    pub other: u32,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            tcp_opening: 120,
            tcp_established: 432_000,
            tcp_closing: 120,
            tcp_reset: 10,
            udp_single: 30,
            udp_stream: 180,
            icmp: 30,
            other: 600,
        }
    }
}

/// The one element of the settings table. 64 bytes.
#[derive(
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Debug,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
)]
#[repr(C)]
pub struct Settings {
    /// Flow timeouts in seconds.
    pub timeouts: Timeouts,
    /// Lowest source port for masqueraded flows.
    pub port_low: u16,
    /// Highest source port for masqueraded flows.
    pub port_high: u16,
    /// Maximum number of concurrent flows of a pod without its own [`crate::Pod::flow_quota`]; 0
    /// for no limit.
    pub flow_quota: u32,
    /// Cookie of the agent's network namespace (`SO_NETNS_COOKIE`): only sockets of this namespace
    /// are the node's own. 0 until the agent has set it.
    pub netns_cookie: u64,
    /// Bits of [`SettingsFlags`].
    pub flags: u32,
    /// MAC address of the default network's bridge, which no frame from outside may have as its
    /// source; zeros if there is none.
    pub bridge_mac: Mac,
    /// UDP port of the tunnels to other nodes; zero if there are none.
    pub tunnel_port: Port,
    /// Always zero.
    pub reserved: [u16; 2],
}

const _: () = assert!(size_of::<Settings>() == 64);

/// Bits of [`Settings::flags`].
#[derive(Clone, Copy, Debug)]
pub struct SettingsFlags;

impl SettingsFlags {
    /// At least one bridge is promiscuous: frames that it sends to pods may be duplicates.
    pub const DUPLICATES: u32 = 1 << 0;
    /// Packets may bypass bridge and netfilter: no rule of other software applies to them.
    pub const BYPASS: u32 = 1 << 1;
    /// Every interface that leads away from the node is an uplink: a pod's packet must not leave
    /// through one that is not open yet ([`crate::UplinkFlags::OPEN`]).
    pub const EXIT_CHECK: u32 = 1 << 2;
    /// The pacing rate of TCP sockets is set to their pods' limits.
    pub const PACE: u32 = 1 << 4;
    /// Packets beyond their pod's limit get a departure time (EDT), which uplinks with the qdisc
    /// `fq` obey.
    pub const DELIVERY_TIME: u32 = 1 << 5;
    /// Routes depend only on input interface, addresses and mark: no policy rule or multipath route
    /// uses ports or protocol.
    pub const ROUTES_BY_ADDRESS: u32 = 1 << 6;
    /// Packets of connections that netfilter has accepted may bypass bridge and netfilter: no rule
    /// must see every packet.
    pub const OFFLOAD: u32 = 1 << 7;
    /// The same for UDP flows without a reply ([`crate::Offloaded::UNREPLIED`]): no rule must see
    /// every packet of a new connection.
    pub const OFFLOAD_UNREPLIED: u32 = 1 << 8;
    /// Network policies apply to pods of this node ([`crate::maps::RULE_SETS`]).
    pub const POLICIES: u32 = 1 << 9;
}

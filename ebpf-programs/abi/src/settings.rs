//! What the agent tells all programs: one element, written whole.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::Mac;

/// Seconds without a packet after which a flow is forgotten.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Timeouts {
    /// TCP, before both directions were seen.
    pub tcp_opening: u32,
    /// TCP, established (RFC 5382 asks for 7440 at least).
    pub tcp_established: u32,
    /// TCP, after a FIN.
    pub tcp_closing: u32,
    /// TCP, after a RST.
    pub tcp_reset: u32,
    /// UDP, before a reply (RFC 4787 leaves it to us).
    pub udp_single: u32,
    /// UDP, after a reply.
    pub udp_stream: u32,
    /// ICMP echo.
    pub icmp: u32,
    /// Any other protocol.
    pub other: u32,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            tcp_opening: 60,
            tcp_established: 86_400,
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
    /// Lowest port that MASQUERADE may move a flow to.
    pub port_low: u16,
    /// Highest port that MASQUERADE may move a flow to.
    pub port_high: u16,
    /// Most flows that a pod without a [`crate::Pod::flow_quota`] of its own may have at once; 0 for no limit.
    pub flow_quota: u32,
    /// Cookie of the agent's network namespace (`SO_NETNS_COOKIE`): only sockets of that namespace are the node's own.
    /// 0 as long as nobody has said which.
    pub netns_cookie: u64,
    /// [`SettingsFlags`].
    pub flags: u32,
    /// Ethernet address of the bridge of the agent's own network, which nobody outside has; zeros where there is none.
    pub bridge_mac: Mac,
    /// Always zero.
    pub reserved: [u16; 3],
}

const _: () = assert!(size_of::<Settings>() == 64);

/// Bits of [`Settings::flags`].
#[derive(Clone, Copy, Debug)]
pub struct SettingsFlags;

impl SettingsFlags {
    /// A bridge is promiscuous: what it sends to pods may be a duplicate.
    pub const DUPLICATES: u32 = 1 << 0;
    /// Packets may go past bridge and stack: no rule of anybody matters to them.
    pub const BYPASS: u32 = 1 << 1;
    /// Every link that leads away is an uplink: a pod's packet must not leave by one that is not open yet.
    pub const EXIT_CHECK: u32 = 1 << 2;
    /// Sockets are told the limits of their pods, and pace themselves.
    pub const PACE: u32 = 1 << 4;
    /// Packets that are beyond their pod's limit are told when to depart, for uplinks that heed it (`fq`).
    pub const DELIVERY_TIME: u32 = 1 << 5;
    /// Which way a packet goes depends on where it comes in, its addresses and its mark: no route and no rule asks for more.
    pub const ROUTES_BY_ADDRESS: u32 = 1 << 6;
}

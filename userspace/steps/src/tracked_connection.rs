//! A connection in netfilter's conntrack table.

use abi::Tuple;

/// A connection as conntrack has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrackedConnection {
    /// Tuple of the packets of the one who has opened it, before translation.
    pub original: Tuple,
    /// Tuple of the replies, before they are translated back.
    pub reply: Tuple,
    /// Bits of [`ConntrackStatus`].
    pub status: u32,
    /// Remaining lifetime in seconds, as after the last packet.
    pub timeout: u32,
    /// Mark of the connection.
    pub mark: u32,
    /// Zone; 0 is the usual one.
    pub zone: u16,
    /// Whether a helper follows the connection's contents.
    pub has_helper: bool,
    /// State of a TCP connection (`enum tcp_conntrack`).
    pub tcp_state: Option<u8>,
    /// Whether sequence numbers are not checked, in both directions.
    pub is_liberal: bool,
}

/// Bits of [`TrackedConnection::status`] (`enum ip_conntrack_status`).
#[derive(Clone, Copy, Debug)]
pub struct ConntrackStatus;

impl ConntrackStatus {
    /// A helper expected it: its first packet is related to another connection.
    pub const EXPECTED: u32 = 1 << 0;
    /// Packets of both directions were seen.
    pub const SEEN_REPLY: u32 = 1 << 1;
    /// The connection is not removed early.
    pub const ASSURED: u32 = 1 << 2;
    /// The first packet has left the node.
    pub const CONFIRMED: u32 = 1 << 3;
    /// Sequence numbers are translated; the connection is about to be removed, is a template, or
    /// has a helper, or a flow table has it.
    pub const SPECIAL: u32 = 1 << 6 | 1 << 9 | 1 << 11 | 1 << 13 | 1 << 14 | 1 << 15;
}

impl TrackedConnection {
    /// `TCP_CONNTRACK_ESTABLISHED`.
    pub const ESTABLISHED: u8 = 3;
}

//! Cgroup programs for sockets of the node.

use std::fmt;

use abi::maps::programs;

/// A cgroup program for sockets of the node. They translate hostport addresses on `connect`,
/// `sendmsg`, `recvmsg` and `getpeername`, protect reserved ports on `bind`, and set the pacing
/// rate of TCP senders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SocketHook {
    /// `connect4`: IPv4 `connect(2)`.
    Connect4,
    /// `connect6`: IPv6 `connect(2)`.
    Connect6,
    /// `sendmsg4`: IPv4 `sendmsg(2)` of unconnected datagram sockets.
    Sendmsg4,
    /// `sendmsg6`: IPv6 `sendmsg(2)` of unconnected datagram sockets.
    Sendmsg6,
    /// `recvmsg4`: source address of received IPv4 datagrams.
    Recvmsg4,
    /// `recvmsg6`: source address of received IPv6 datagrams.
    Recvmsg6,
    /// `getpeername4`: IPv4 `getpeername(2)`.
    Getpeername4,
    /// `getpeername6`: IPv6 `getpeername(2)`.
    Getpeername6,
    /// `bind4`: IPv4 `bind(2)`.
    Bind4,
    /// `bind6`: IPv6 `bind(2)`.
    Bind6,
    /// `pace`: pacing rate of local TCP senders of rate-limited pods.
    Pace,
}

impl SocketHook {
    /// Every hook, in the order of the variants.
    pub const ALL: [Self; 11] = [
        Self::Connect4,
        Self::Connect6,
        Self::Sendmsg4,
        Self::Sendmsg6,
        Self::Recvmsg4,
        Self::Recvmsg6,
        Self::Getpeername4,
        Self::Getpeername6,
        Self::Bind4,
        Self::Bind6,
        Self::Pace,
    ];

    /// Returns the program's name in the BPF object.
    pub const fn program(self) -> &'static str {
        match self {
            Self::Connect4 => programs::CONNECT4,
            Self::Connect6 => programs::CONNECT6,
            Self::Sendmsg4 => programs::SENDMSG4,
            Self::Sendmsg6 => programs::SENDMSG6,
            Self::Recvmsg4 => programs::RECVMSG4,
            Self::Recvmsg6 => programs::RECVMSG6,
            Self::Getpeername4 => programs::GETPEERNAME4,
            Self::Getpeername6 => programs::GETPEERNAME6,
            Self::Bind4 => programs::BIND4,
            Self::Bind6 => programs::BIND6,
            Self::Pace => programs::PACE,
        }
    }
}

/// State of one hook on the node's cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketHookState {
    /// The program that this agent has loaded is attached.
    Attached,
    /// A program of a previous agent is attached, or it is attached to another cgroup.
    Outdated,
    /// No program of ours is attached.
    Absent,
}

impl fmt::Display for SocketHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.program())
    }
}

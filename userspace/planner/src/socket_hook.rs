//! Programs that are asked about sockets of the node, and attaching them to its cgroup. Knows no cgroup.

use std::collections::BTreeSet;
use std::fmt;

use abi::maps::programs;

use crate::{Observed, Plan, Step};

/// Which of our programs is asked about sockets of the node: what they connect to, send to, receive from, are told of
/// and are bound to, and how fast they send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SocketHook {
    /// `connect4`.
    Connect4,
    /// `connect6`.
    Connect6,
    /// `sendmsg4`.
    Sendmsg4,
    /// `sendmsg6`.
    Sendmsg6,
    /// `recvmsg4`.
    Recvmsg4,
    /// `recvmsg6`.
    Recvmsg6,
    /// `getpeername4`.
    Getpeername4,
    /// `getpeername6`.
    Getpeername6,
    /// `bind4`.
    Bind4,
    /// `bind6`.
    Bind6,
    /// `pace`.
    Pace,
}

impl SocketHook {
    /// All of them.
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

    /// Name of the program.
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

impl fmt::Display for SocketHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.program())
    }
}

/// What attaches the programs that the cgroup can have and has not, or has in another version.
pub(crate) fn attach_sockets(observed: &Observed) -> Plan {
    let hooks = observed.socket_hooks.iter();
    let missing = hooks.filter(|(_, attached)| !**attached);
    let hooks: BTreeSet<SocketHook> = missing.map(|(hook, _)| *hook).collect();
    Plan::of((!hooks.is_empty()).then_some(Step::AttachSockets { hooks }))
}

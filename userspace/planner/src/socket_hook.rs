//! Cgroup socket hooks: which cgroup programs the attachments require, and the plans that attach
//! and detach them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use abi::maps::programs;
use model::{Attachment, Protocol};

use crate::attach::Records;
use crate::{Observed, Plan, ShaperMode, Step};

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

/// Hooks that any hostport requires: `connect`, `bind` and `getpeername`.
const HOSTPORT_HOOKS: [SocketHook; 6] = [
    SocketHook::Connect4,
    SocketHook::Connect6,
    SocketHook::Getpeername4,
    SocketHook::Getpeername6,
    SocketHook::Bind4,
    SocketHook::Bind6,
];

/// Hooks that a UDP hostport requires besides: they run for each datagram of an unconnected socket.
const UDP_HOSTPORT_HOOKS: [SocketHook; 4] = [
    SocketHook::Sendmsg4,
    SocketHook::Sendmsg6,
    SocketHook::Recvmsg4,
    SocketHook::Recvmsg6,
];

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

/// Returns the cgroup programs that these attachments require: the hostport hooks where a port is
/// published, the datagram hooks where one of the ports is UDP, and `pace` where a limit is shaped.
/// Every socket of the node pays for each of them.
pub fn required_socket_hooks<'a>(
    attachments: impl IntoIterator<Item = &'a Attachment>,
    shaper: ShaperMode,
) -> BTreeSet<SocketHook> {
    let mut needed = BTreeSet::new();
    for attachment in attachments {
        let mut ports = attachment.port_mappings.iter();
        if ports.len() > 0 {
            needed.extend(HOSTPORT_HOOKS);
        }
        if ports.any(|mapping| mapping.protocol == Protocol::Udp) {
            needed.extend(UDP_HOSTPORT_HOOKS);
        }
        if !attachment.bandwidth.is_unlimited() && shaper != ShaperMode::Police {
            needed.insert(SocketHook::Pace);
        }
    }
    needed
}

/// State of each hook that this kernel supports.
type Links = BTreeMap<SocketHook, SocketHookState>;

/// Plans to attach the `needed` hooks that the kernel supports and that are absent or outdated.
pub fn plan_attach_socket_hooks(needed: &BTreeSet<SocketHook>, links: &Links) -> Plan {
    let lacks = |hook, link| needed.contains(&hook) && link != SocketHookState::Attached;
    Plan::of(selected(links, lacks).map(|hooks| Step::AttachSocketHooks { hooks }))
}

/// Plans to detach the hooks that `which` selects.
pub(crate) fn plan_detach_socket_hooks(
    links: &Links,
    which: impl Fn(SocketHook, SocketHookState) -> bool,
) -> Plan {
    Plan::of(selected(links, which).map(|hooks| Step::DetachSocketHooks { hooks }))
}

/// Returns the hooks that `which` selects; `None` for no hook.
fn selected(
    links: &Links,
    which: impl Fn(SocketHook, SocketHookState) -> bool,
) -> Option<BTreeSet<SocketHook>> {
    let hooks: BTreeSet<SocketHook> = links
        .iter()
        .filter(|(hook, link)| which(**hook, **link))
        .map(|(hook, _)| *hook)
        .collect();
    (!hooks.is_empty()).then_some(hooks)
}

/// Plans the cgroup hooks for all attachments. A hook of this agent that is no longer required
/// stays attached: a node that had one hostport will have another. A previous agent's hook that is
/// not required is detached.
pub(crate) fn plan_socket_hooks(
    records: &Records,
    shaper: ShaperMode,
    observed: &Observed,
) -> Plan {
    let attachments = records.values().map(|record| &record.attachment);
    let needed = required_socket_hooks(attachments, shaper);
    let links = &observed.socket_hooks;
    let mut plan = plan_attach_socket_hooks(&needed, links);
    plan.append(plan_detach_socket_hooks(links, |hook, link| {
        link == SocketHookState::Outdated && !needed.contains(&hook)
    }));
    plan
}

#[cfg(test)]
mod tests;

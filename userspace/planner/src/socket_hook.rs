//! Programs that are asked about sockets of the node, and attaching them to its cgroup. Knows no cgroup.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use abi::maps::programs;
use model::{Attachment, Protocol};

use crate::attach::Records;
use crate::{Observed, Plan, ShaperMode, Step};

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

/// What is asked when a socket dials or binds an address that may be published, and when it asks for its peer.
const OF_PORTS: [SocketHook; 6] = [
    SocketHook::Connect4,
    SocketHook::Connect6,
    SocketHook::Getpeername4,
    SocketHook::Getpeername6,
    SocketHook::Bind4,
    SocketHook::Bind6,
];

/// What is asked for each datagram of a socket that is not connected.
const OF_DATAGRAMS: [SocketHook; 4] = [
    SocketHook::Sendmsg4,
    SocketHook::Sendmsg6,
    SocketHook::Recvmsg4,
    SocketHook::Recvmsg6,
];

/// What the cgroup has of a program of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketLink {
    /// The program as we have loaded it.
    Attached,
    /// One of an agent before us, or of another cgroup.
    Outdated,
    /// Nothing.
    Absent,
}

impl fmt::Display for SocketHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.program())
    }
}

/// The programs that somebody has to be asked by: those of ports where any are published, those of datagrams where one of
/// them is of UDP, and what paces where a limit counts. Each costs every socket of the node.
pub fn needed_sockets<'a>(
    attachments: impl IntoIterator<Item = &'a Attachment>,
    shaper: ShaperMode,
) -> BTreeSet<SocketHook> {
    let mut needed = BTreeSet::new();
    for attachment in attachments {
        let mut ports = attachment.port_mappings.iter();
        if ports.len() > 0 {
            needed.extend(OF_PORTS);
        }
        if ports.any(|mapping| mapping.protocol == Protocol::Udp) {
            needed.extend(OF_DATAGRAMS);
        }
        if !attachment.bandwidth.is_unlimited() && shaper != ShaperMode::Police {
            needed.insert(SocketHook::Pace);
        }
    }
    needed
}

/// What the cgroup has of each program that it can have.
type Links = BTreeMap<SocketHook, SocketLink>;

/// Attaches what `needed` names and the cgroup can have and lacks.
pub fn attach_sockets(needed: &BTreeSet<SocketHook>, links: &Links) -> Plan {
    let lacks = |hook, link| needed.contains(&hook) && link != SocketLink::Attached;
    Plan::of(chosen(links, lacks).map(|hooks| Step::AttachSockets { hooks }))
}

/// Detaches what `which` chooses.
pub(crate) fn detach_sockets(
    links: &Links,
    which: impl Fn(SocketHook, SocketLink) -> bool,
) -> Plan {
    Plan::of(chosen(links, which).map(|hooks| Step::DetachSockets { hooks }))
}

/// The programs that `which` chooses, if there are any.
fn chosen(
    links: &Links,
    which: impl Fn(SocketHook, SocketLink) -> bool,
) -> Option<BTreeSet<SocketHook>> {
    let hooks: BTreeSet<SocketHook> = links
        .iter()
        .filter(|(hook, link)| which(**hook, **link))
        .map(|(hook, _)| *hook)
        .collect();
    (!hooks.is_empty()).then_some(hooks)
}

/// What the cgroup is to have for all attachments. What is ours and nobody needs any more stays: who had one port will
/// have another. What an agent before us left and nobody needs goes.
pub(crate) fn plan_sockets(records: &Records, shaper: ShaperMode, observed: &Observed) -> Plan {
    let attachments = records.values().map(|record| &record.attachment);
    let needed = needed_sockets(attachments, shaper);
    let links = &observed.socket_hooks;
    let mut plan = attach_sockets(&needed, links);
    plan.append(detach_sockets(links, |hook, link| {
        link == SocketLink::Outdated && !needed.contains(&hook)
    }));
    plan
}

#[cfg(test)]
mod tests;

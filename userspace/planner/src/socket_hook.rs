//! Cgroup socket hooks: which cgroup programs the attachments require, and the plans that attach
//! and detach them.

use std::collections::{BTreeMap, BTreeSet};

use model::{Attachment, Protocol};
use steps::{Observed, SocketHook, SocketHookState, Step};

use crate::{Plan, Records, ShaperMode};

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

/// Returns the cgroup programs that these attachments require: the hostport hooks where a port is
/// published, the datagram hooks where one of the ports is UDP, and `pace` where a limit is shaped.
/// Every socket of the node pays for each of them.
pub fn required_socket_hooks<'a>(
    attachments: impl IntoIterator<Item = &'a Attachment>,
    shaper: ShaperMode,
) -> BTreeSet<SocketHook> {
    let mut needed = BTreeSet::new();
    for attachment in attachments {
        let mappings = attachment.port_mappings.iter();
        let mut ports = mappings
            .filter(|mapping| !attachment.is_direct(mapping))
            .peekable();
        if ports.peek().is_some() {
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

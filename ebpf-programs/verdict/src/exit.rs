//! The exit check: by which links a pod's packet may leave, and to which addresses on other links
//! of pods.
//!
//! Packets are translated at the uplink. A link that has just appeared would let packets out with
//! the pod's own address until the agent has attached programs to it. The kernel's routes lead to
//! the link at once, so the check looks up the packet's route.
//!
//! A packet to an address that no pod has would make the kernel resolve that address. Its neighbour
//! tables are small, and all namespaces share them: packets to many such addresses would leave no
//! entries for others (decision 104).

use abi::{DropReason, SettingsFlags, UplinkFlags};

use crate::masquerade::is_masqueraded;
use crate::node::Node;
use crate::outcome::Decision;
use crate::packet::Packet;
use crate::row_cache;
use crate::sender::has_mac;
use crate::work::Work;

const DESTINATION_MAC: u32 = 0;

/// Drops packets that would leave the node untranslated, or to an address of a bridge of pods that
/// no pod has. Packets that stay on the bridge are not checked.
#[inline(always)]
pub(crate) fn check<E: Packet + Node>(env: &mut E, work: &mut Work) -> Decision<()> {
    let enabled = env
        .settings()
        .is_some_and(|settings| settings.flags & SettingsFlags::EXIT_CHECK != 0);
    let Some(bridge) = env.pod(work.pod).map(|pod| pod.network) else {
        return Ok(());
    };
    let Some(mac) = env.network(bridge).map(|network| network.mac) else {
        return Ok(());
    };
    if !has_mac(env, DESTINATION_MAC, mac) {
        return Ok(());
    }
    let is_unassigned = row_cache::is_unassigned(env, work);
    if !enabled && !is_unassigned {
        return Ok(());
    }
    // A cache entry would hide a link that appears during its lifetime.
    work.recorder.mark_uncacheable();
    let link = env.egress_route(bridge, &work.headers.tuple, &mut work.hop, &mut 0);
    if link == 0 {
        return Ok(());
    }
    if is_unassigned && env.network(link).is_some() {
        return Err(DropReason::UnknownPod);
    }
    if !enabled || is_open(env, link) || !is_translated(env, work) {
        return Ok(());
    }
    Err(DropReason::UnknownUplink)
}

/// Returns whether the link is an uplink with both programs attached, the bridge of another
/// network, or a link to containers of other software.
#[inline(always)]
fn is_open<E: Node>(node: &E, link: u32) -> bool {
    match node.uplink(link) {
        Some(uplink) => uplink.flags & UplinkFlags::OPEN != 0,
        None => node.network(link).is_some(),
    }
}

/// Returns whether the packet is from a pod and must be masqueraded.
#[inline(always)]
fn is_translated<E: Node>(node: &E, work: &mut Work) -> bool {
    let Some(endpoint) = node.endpoint(&work.headers.tuple.source) else {
        return false;
    };
    work.endpoint = *endpoint;
    is_masqueraded(node, work)
}

#[cfg(test)]
mod tests;

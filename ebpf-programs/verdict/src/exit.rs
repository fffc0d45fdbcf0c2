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
//!
//! A packet that a pod sends to the MAC address of another pod, whose link has a smaller MTU, would
//! be discarded by the bridge. Where the node routes between the two, the packet goes to the node
//! instead, which reports the MTU or fragments it (decision 114).

use abi::{DropReason, SettingsFlags, UplinkFlags};

use crate::hostport_from_pod::{self, address_to_bridge};
use crate::masquerade::is_masqueraded;
use crate::node::Node;
use crate::outcome::Decision;
use crate::packet::Packet;
use crate::row_cache;
use crate::sender::{ETHERNET, has_mac};
use crate::shape::Shaper;
use crate::work::Work;

const DESTINATION_MAC: u32 = 0;

/// Drops packets that would leave the node untranslated, or to an address of a bridge of pods that
/// no pod has. Packets that stay on the bridge are not checked, except for their length.
#[inline(always)]
pub(crate) fn check<E: Packet + Node + Shaper>(env: &mut E, work: &mut Work) -> Decision<()> {
    let enabled = env
        .settings()
        .is_some_and(|settings| settings.flags & SettingsFlags::EXIT_CHECK != 0);
    let Some(bridge) = env.pod(work.pod).map(|pod| pod.network) else {
        return Ok(());
    };
    let Some(mac) = env.network(bridge).map(|network| network.mac) else {
        return Ok(());
    };
    let is_routed = has_mac(env, DESTINATION_MAC, mac);
    let is_unassigned = is_routed && row_cache::is_unassigned(env, work);
    let is_too_large = !is_routed && is_discarded_by_bridge(env, work, bridge);
    if !(is_routed && enabled || is_unassigned || is_too_large) {
        return Ok(());
    }
    // A cache entry would hide a link that appears during its lifetime.
    work.recorder.mark_uncacheable();
    let link = env.egress_route(bridge, &work.headers.tuple, &mut work.hop, &mut 0);
    if link == 0 {
        return Ok(());
    }
    if is_too_large {
        let is_reported =
            env.network(link).is_some() && env.mtu(link) <= env.mtu(work.endpoint.interface);
        return if is_reported {
            address_to_bridge(env, work)
        } else {
            Ok(())
        };
    }
    if is_unassigned && env.network(link).is_some() {
        return Err(DropReason::UnknownPod);
    }
    if !enabled || is_open(env, link) || !is_translated(env, work) {
        return Ok(());
    }
    Err(DropReason::UnknownUplink)
}

/// Returns whether the packet is addressed directly to a pod of its sender's bridge, and exceeds
/// that pod's MTU. [`Work::endpoint`] is then the receiving pod. On a promiscuous bridge the
/// receiver would take the forwarded packet for a duplicate.
#[inline(always)]
fn is_discarded_by_bridge<E: Packet + Node + Shaper>(
    env: &E,
    work: &mut Work,
    bridge: u32,
) -> bool {
    let to = work.headers.tuple.destination;
    let has_duplicates = env
        .settings()
        .is_some_and(|settings| settings.flags & SettingsFlags::DUPLICATES != 0);
    if work.headers.l3 != ETHERNET || has_duplicates || !row_cache::find_endpoint(env, work, &to) {
        return false;
    }
    let is_on_bridge = env
        .pod(work.endpoint.pod)
        .is_some_and(|pod| pod.network == bridge && has_mac(env, DESTINATION_MAC, pod.mac));
    let to = work.endpoint.interface;
    if !is_on_bridge || env.mtu(work.interface) <= env.mtu(to) {
        return false;
    }
    // Shorter packets of the flow stay on the bridge.
    work.recorder.mark_uncacheable();
    !hostport_from_pod::fits(env, work, to)
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

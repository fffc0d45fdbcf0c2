//! By which links a pod's packet may leave.
//!
//! Translation happens at the uplink, so a link that has just appeared would let packets out as they are until the
//! agent has attached to it. The kernel knows the way of a packet the moment a route is there, and so do we, if we ask.

use abi::{DropReason, SettingsFlags, UplinkFlags};

use crate::masquerade::is_masqueraded;
use crate::node::Node;
use crate::outcome::Decision;
use crate::packet::Packet;
use crate::sender::has_mac;
use crate::work::Work;

const DESTINATION_MAC: u32 = 0;

/// Refuses what would leave untranslated. What stays on the bridge is not asked about.
#[inline(always)]
pub(crate) fn check<E: Packet + Node>(env: &mut E, work: &mut Work) -> Decision<()> {
    let guarded = env
        .settings()
        .is_some_and(|settings| settings.flags & SettingsFlags::EXIT_CHECK != 0);
    if !guarded {
        return Ok(());
    }
    let Some(bridge) = env.pod(work.pod).map(|pod| pod.network) else {
        return Ok(());
    };
    let Some(mac) = env.network(bridge).map(|network| network.mac) else {
        return Ok(());
    };
    if !has_mac(env, DESTINATION_MAC, mac) {
        return Ok(());
    }
    // A link that appears now is not to be found out about later.
    work.recorder.mark_uncacheable();
    let link = env.egress_route(bridge, &work.headers.tuple, &mut work.hop, &mut 0);
    if link == 0 || is_open(env, link) || !is_translated(env, work) {
        return Ok(());
    }
    Err(DropReason::UnknownUplink)
}

/// Whether the link is an uplink that translates, or leads to other pods.
#[inline(always)]
fn is_open<E: Node>(node: &E, link: u32) -> bool {
    let uplink = node.uplink(link);
    uplink.is_some_and(|uplink| uplink.flags & UplinkFlags::OPEN != 0)
        || node.network(link).is_some()
}

#[inline(always)]
fn is_translated<E: Node>(node: &E, work: &mut Work) -> bool {
    let Some(endpoint) = node.endpoint(&work.headers.tuple.source) else {
        return false;
    };
    work.endpoint = *endpoint;
    is_masqueraded(node, work)
}

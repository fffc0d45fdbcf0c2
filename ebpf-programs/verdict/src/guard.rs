//! What can never be right on an uplink, whatever flows there are: told by one look at a frame, before the kernel makes a
//! packet of it. Whatever could be right passes, for `uplink_in` to decide.

use abi::{Direction, DropReason, Mac};

use crate::address::{is_loopback, is_multicast};
use crate::hostport::is_of_pods;
use crate::node::Node;
use crate::outcome::Decision;
use crate::packet::Packet;
use crate::parse;
use crate::sender::{SOURCE_MAC, has_mac};
use crate::work::{Content, Headers};

/// Refuses what can never be right, and counts it.
#[inline(always)]
pub fn enter(frame: &impl Packet, node: &mut impl Node, interface: u32) -> Decision<()> {
    let mut headers = Headers {
        length: frame.len(),
        ..Headers::default()
    };
    let decision = check(frame, node, interface, &mut headers);
    if let Err(reason) = decision {
        node.count_dropped(reason, 0, Direction::Ingress, headers.length);
    }
    decision
}

#[inline(always)]
fn check(
    frame: &impl Packet,
    node: &impl Node,
    interface: u32,
    headers: &mut Headers,
) -> Decision<()> {
    let Some(uplink) = node.uplink(interface) else {
        return Ok(());
    };
    let l2_len = uplink.l2_len;
    if l2_len != 0 && claims_bridge(frame, node) {
        return Err(DropReason::SpoofedFromOutside);
    }
    match parse::frame(frame, l2_len, headers) {
        // Many headers are not wrong, only long.
        Err(DropReason::TooManyHeaders) | Ok(Content::Arp | Content::Foreign) => return Ok(()),
        Err(reason) => return Err(reason),
        Ok(Content::Ip | Content::Known | Content::LostFragment | Content::IcmpError) => {}
    }
    let (source, destination) = (&headers.tuple.source, &headers.tuple.destination);
    if is_loopback(source) || is_loopback(destination) || is_multicast(source) {
        return Err(DropReason::Martian);
    }
    if is_of_pods(node, source) {
        return Err(DropReason::SpoofedFromOutside);
    }
    Ok(())
}

/// Whether a frame from outside says that our bridge has sent it: whoever learns from it would send ours there.
#[inline(always)]
fn claims_bridge(frame: &impl Packet, node: &impl Node) -> bool {
    let mac = node.settings().map_or(Mac::default(), |it| it.bridge_mac);
    mac != Mac::default() && has_mac(frame, SOURCE_MAC, mac)
}

#[cfg(test)]
mod tests;

//! The XDP prefilter: drops frames that are invalid on any uplink, before the kernel allocates a
//! packet buffer.
//!
//! Decides by the frame alone, without the flow table. All other frames pass, and `uplink_in`
//! decides about them.

use abi::{Direction, DropReason, Mac};

use crate::admission;
use crate::drop_record::Dropped;
use crate::hostport::{is_martian, is_pod_address};
use crate::node::{Node, pod_of};
use crate::outcome::Decision;
use crate::packet::Packet;
use crate::parse;
use crate::sender::{SOURCE_MAC, has_mac};
use crate::work::{Content, Headers};

/// Drops a frame that came in by this interface, and counts that.
#[inline(always)]
pub fn check(frame: &impl Packet, node: &mut impl Node, interface: u32) -> Result<(), Dropped> {
    let mut headers = Headers {
        length: frame.len(),
        ..Headers::default()
    };
    classify(frame, node, interface, &mut headers).map_err(|reason| {
        let (pod, length) = (pod_of(node, &headers, Direction::Ingress), headers.length);
        node.count_dropped(reason, pod, Direction::Ingress, length);
        Dropped {
            reason,
            pod,
            length,
        }
    })
}

#[inline(always)]
fn classify(
    frame: &impl Packet,
    node: &impl Node,
    interface: u32,
    headers: &mut Headers,
) -> Decision<()> {
    let Some(uplink) = node.uplink(interface) else {
        return Ok(());
    };
    let l2_len = uplink.l2_len;
    if l2_len != 0 && has_bridge_mac(frame, node) {
        return Err(DropReason::SpoofedFromOutside);
    }
    match parse::received(frame, l2_len, headers) {
        // A long chain of extension headers is not invalid.
        Err(DropReason::TooManyHeaders) | Ok(Content::Arp) => return Ok(()),
        Ok(Content::Foreign) => return check_foreign(frame, l2_len),
        Err(reason) => return Err(reason),
        Ok(
            Content::Ip
            | Content::FlowFound
            | Content::Fragment
            | Content::LostFragment
            | Content::EarlyFragment
            | Content::AwaitedFragment
            | Content::IcmpError,
        ) => {}
    }
    if is_martian(&headers.tuple) {
        return Err(DropReason::Martian);
    }
    if is_pod_address(node, &headers.tuple.source) {
        return Err(DropReason::SpoofedFromOutside);
    }
    Ok(())
}

/// Drops stacked tags of a frame that is neither IP nor ARP. Links without an Ethernet header have
/// none.
#[inline(always)]
fn check_foreign(frame: &impl Packet, l2_len: u32) -> Decision<()> {
    if l2_len == 0 {
        Ok(())
    } else {
        admission::check_outsider_at_xdp(frame)
    }
}

/// Returns whether a frame from outside has our bridge's MAC address as its source. A switch that
/// learns the address from it would send the pods' frames there.
#[inline(always)]
fn has_bridge_mac(frame: &impl Packet, node: &impl Node) -> bool {
    let mac = node.settings().map_or(Mac::default(), |it| it.bridge_mac);
    mac != Mac::default() && has_mac(frame, SOURCE_MAC, mac)
}

#[cfg(test)]
mod tests;

//! Admission by list: what a frame may be at all, before anything in it is checked.
//!
//! A pod with a spoof check may send IPv4, IPv6 and ARP, without a VLAN tag: these are what the
//! checks behind this one understand. All else is dropped under a name. A list of what passes needs
//! no knowledge of what a receiver does with the rest: Linux removes any number of tags with VLAN
//! 0, and processes what is behind them (`__netif_receive_skb_core` in `net/core/dev.c`).

use abi::DropReason;

use crate::outcome::Decision;
use crate::packet::Packet;
use crate::parse::{is_any_tag, is_vlan_tag};
use crate::sender::ETHERNET;
use crate::work::Content;

/// The VLAN identifier in the two bytes behind the `EtherType` of a tag.
const VLAN_ID: u16 = 0xfff;

/// Drops a pod's frame unless it is on the list.
///
/// The kernel has removed the outer tag already. A tag with VLAN 0 carries a priority only: frame
/// and content are then those of an untagged one. A pod's port in a VLAN takes untagged frames, and
/// pods of a trunk have no spoof check, so no other tag is ever configured here.
#[inline(always)]
pub(crate) fn check_pod(packet: &impl Packet, content: Content) -> Decision<()> {
    let is_tag = is_any_tag(packet.ethertype());
    if packet.is_tagged() && is_tag {
        return Err(DropReason::TaggedTwice);
    }
    if is_tag || packet.vlan_id() != 0 {
        return Err(DropReason::UnknownVlan);
    }
    if content == Content::Foreign {
        return Err(DropReason::ForeignFrame);
    }
    Ok(())
}

/// Drops a frame from outside with two tags of VLAN 0: the node itself would receive the packet
/// behind them. A frame of another VLAN is for an interface on top of this one, which has programs
/// of its own, whether or not a tag with VLAN 0 is in front; without such an interface, the stack
/// drops it.
#[inline(always)]
pub(crate) fn check_outsider(packet: &impl Packet) -> Decision<()> {
    if packet.is_tagged() && is_priority_tag(packet, packet.ethertype(), ETHERNET) {
        return Err(DropReason::TaggedTwice);
    }
    Ok(())
}

/// As [`check_outsider`], before the kernel has removed a tag.
#[inline(always)]
pub(crate) fn check_outsider_at_xdp(frame: &impl Packet) -> Decision<()> {
    if !is_priority_tag(frame, frame.ethertype(), ETHERNET) {
        return Ok(());
    }
    let inner = frame
        .words::<1>(ETHERNET)
        .map_or(0, |[word]| ethertype(word));
    if is_priority_tag(frame, inner, ETHERNET + TAG) {
        return Err(DropReason::TaggedTwice);
    }
    Ok(())
}

/// Bytes of a tag behind its `EtherType`: the tag itself and the next `EtherType`.
const TAG: u32 = 4;

/// Returns whether an `EtherType` is that of a tag, and the tag at `offset` is of VLAN 0. So is one
/// that is cut off: no receiver can process it.
#[inline(always)]
fn is_priority_tag(packet: &impl Packet, ethertype: u16, offset: u32) -> bool {
    if !is_vlan_tag(ethertype) {
        return false;
    }
    let tag = packet.words::<1>(offset).map_or(0, |[word]| {
        let [high, low, _, _] = word.to_ne_bytes();
        u16::from_be_bytes([high, low])
    });
    tag & VLAN_ID == 0
}

/// Returns the `EtherType` behind a tag, from the word with both.
#[inline(always)]
fn ethertype(word: u32) -> u16 {
    let [_, _, high, low] = word.to_ne_bytes();
    u16::from_be_bytes([high, low])
}

#[cfg(test)]
mod tests;

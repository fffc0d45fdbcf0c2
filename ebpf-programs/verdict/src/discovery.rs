//! Neighbour discovery of a pod (RFC 4861): it announces and probes its own addresses only, at its
//! own MAC address.

use abi::{Address, DropReason, Mac, Pod};

use crate::address::{is_link_local, is_multicast};
use crate::node::Node;
use crate::outcome::Decision;
use crate::packet::Packet;
use crate::sender::{has_link_local, has_v6};
use crate::work::{Fragment, Headers};

/// ICMPv6 types.
pub(crate) const NEIGHBOUR_SOLICITATION: u8 = 135;
pub(crate) const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
const ROUTER_SOLICITATION: u8 = 133;
/// Multicast listener report and done (RFC 2710), and report of version 2 (RFC 3810).
const LISTENER: [u8; 3] = [131, 132, 143];

/// Bytes from the `ICMPv6` header to the options, without and with a target address.
const OPTIONS: u32 = 8;
const OPTIONS_BEHIND_TARGET: u32 = 24;
/// Maximum number of options that are parsed. Linux sends two at most.
const MAX_OPTIONS: u32 = 4;
/// Options: source and target link-layer address.
const SOURCE_ADDRESS: u8 = 1;
const TARGET_ADDRESS: u8 = 2;

/// Returns whether the message may have the unspecified address as its source: a host without an
/// address yet sends it, to a group.
#[inline(always)]
pub(crate) fn may_be_unspecified(headers: &Headers) -> bool {
    let [report, done, report_v2] = LISTENER;
    let icmp_type = headers.icmp_type;
    let is_sent_without_address = icmp_type == ROUTER_SOLICITATION
        || icmp_type == NEIGHBOUR_SOLICITATION
        || icmp_type == report
        || icmp_type == done
        || icmp_type == report_v2;
    is_sent_without_address && is_multicast(&headers.tuple.destination)
}

/// Returns whether the message announces or probes an address that is not the pod's.
#[inline(always)]
pub(crate) fn is_forged<E: Packet + Node>(
    env: &E,
    headers: &Headers,
    slot: u32,
    pod: &Pod,
) -> bool {
    let names_target = match headers.icmp_type {
        NEIGHBOUR_ADVERTISEMENT => true,
        NEIGHBOUR_SOLICITATION => headers.tuple.source.is_any(),
        _ => false,
    };
    if !names_target {
        return false;
    }
    let Some(words) = env.words::<4>(headers.l4 + 8) else {
        return true;
    };
    let target = Address::from_words(words);
    if is_link_local(&target) {
        !has_link_local(env, slot, pod, &target)
    } else {
        !has_v6(env, slot, pod, &target)
    }
}

/// Drops messages with the link-layer address of another machine in an option: neighbours would
/// send there what is for the pod. Fragments of such messages are dropped as well (RFC 6980).
#[inline(always)]
pub(crate) fn check_options(packet: &impl Packet, headers: &Headers, own: Mac) -> Decision<()> {
    let mut at = headers.l4
        + match headers.icmp_type {
            ROUTER_SOLICITATION => OPTIONS,
            NEIGHBOUR_SOLICITATION | NEIGHBOUR_ADVERTISEMENT => OPTIONS_BEHIND_TARGET,
            _ => return Ok(()),
        };
    if headers.fragment != Fragment::Whole {
        return Err(DropReason::Malformed);
    }
    for _ in 0..MAX_OPTIONS {
        if at + 8 > headers.end {
            return Ok(());
        }
        let [first, second] = packet.words::<2>(at).ok_or(DropReason::Malformed)?;
        let ([kind, units, a, b], [c, d, e, f]) = (first.to_ne_bytes(), second.to_ne_bytes());
        if units == 0 {
            return Err(DropReason::Malformed);
        }
        let has_address = kind == SOURCE_ADDRESS || kind == TARGET_ADDRESS;
        // An adopted pod may have any.
        if has_address && own != Mac::default() && own != Mac::new([a, b, c, d, e, f]) {
            return Err(DropReason::SpoofedMac);
        }
        at += u32::from(units) * 8;
    }
    if at + 8 > headers.end {
        Ok(())
    } else {
        Err(DropReason::TooManyHeaders)
    }
}

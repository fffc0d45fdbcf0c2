//! NAT of ICMP errors: translates the quoted packet back, so that its sender recognises it.
//!
//! Without this, path MTU discovery does not work through NAT. The error may come from the host
//! that the packet was for, from a router, or from the node itself: its stack complains of packets
//! as they are after translation, for instance of those that are too large for a pod's network. The
//! node's own errors keep their source address.
//!
//! A quote may be as short as 8 bytes behind its IP header (RFC 792). Its transport checksum is
//! translated if it is quoted.

use abi::{Address, DropReason, HostportKey};

use crate::address::is_multicast;
use crate::checksum::Difference;
use crate::flow;
use crate::fragment;
use crate::fragment_store::FragmentStore;
use crate::hostport;
use crate::hostport_from_pod;
use crate::node::{Node, Socket};
use crate::outcome::Decision;
use crate::packet::{ChecksumKind, Packet};
use crate::parse;
use crate::rewrite::{self, ICMP_CHECKSUM};
use crate::work::{Headers, Hook, Transport, Work};

/// Looks up the flow that the quoted packet belongs to. On a hit, [`Work::translated`] is the tuple
/// that the quote must have.
///
/// An error whose quote has no flow is left unchanged: it is for the node, or about a flow that was
/// never translated.
#[inline(always)]
pub(crate) fn find<E: Packet + Node + FragmentStore>(
    env: &mut E,
    work: &mut Work,
    hook: Hook,
) -> bool {
    let outer = work.headers;
    if parse::quoted(env, &outer, &mut work.embedded).is_err()
        || work.embedded.transport == Transport::IcmpError
        || !fragment::find_ports(env, &mut work.fragment, &mut work.embedded)
    {
        // For `check_quoted_hostport`: the quote has no ports.
        work.embedded.transport = Transport::None;
        return false;
    }
    work.translated = work.embedded.tuple.reverse();
    let Some(entry) = env.flow(&work.translated) else {
        return false;
    };
    let flow = env.read(entry);
    if flow.flags & hook.flag() == 0 || flow::is_stale(env, &flow) {
        return false;
    }
    work.translated = flow.translated;
    if hook == Hook::FromPod && !hostport_from_pod::has_current_pods(env, work, &flow) {
        return false;
    }
    work.translated = work.translated.reverse();
    let is_about_flow = matches_outer_address(env, work, hook);
    // A forged error must not be counted for the pod whose flow it quotes.
    if is_about_flow && hook != Hook::FromPod {
        work.pod = flow.pod;
    }
    is_about_flow
}

/// Drops an error about a packet of a hostport, after `find` has found no flow of that packet.
///
/// The stack would find the socket that reserves the port, and Linux 6.1 changes the node's path
/// MTU by such an error even if the socket ignores it (`IP_PMTUDISC_OMIT`).
#[inline(always)]
pub fn check_quoted_hostport<E: Node>(node: &mut E, work: &mut Work) -> Decision<()> {
    if !work.embedded.transport.has_ports() {
        return Ok(());
    }
    let quoted = &work.embedded.tuple;
    let key = HostportKey::new(quoted.source, quoted.source_port, quoted.protocol);
    if !node.is_local(&quoted.source) || hostport::owner(node, &key).is_none() {
        return Ok(());
    }
    // An ephemeral port of the node may equal a hostport.
    if work.embedded.transport != Transport::Sctp
        && node.socket(&work.embedded.tuple.reverse()) == Socket::Connected
    {
        return Ok(());
    }
    Err(DropReason::ErrorWithoutFlow)
}

/// Returns the destination of the packet that an ICMP error quotes, by its IP header alone; `None`
/// where the quote is shorter.
#[inline(always)]
pub(crate) fn quoted_destination(packet: &impl Packet, error: &Headers) -> Option<Address> {
    let quote = error.l4 + 8;
    if error.version == 6 {
        Some(Address::from_words(packet.words::<4>(quote + 24)?))
    } else {
        let [word] = packet.words::<1>(quote + 16)?;
        Some(Address::from_v4_word(word))
    }
}

/// Returns whether the error is addressed to the sender of the quoted packet (in), or comes from
/// its destination or from this node (out, from a pod, and to a pod).
#[inline(always)]
fn matches_outer_address<E: Node>(node: &E, work: &Work, hook: Hook) -> bool {
    let (outer, quoted) = (&work.headers.tuple, &work.embedded.tuple);
    match hook {
        Hook::UplinkIn => outer.destination == quoted.source,
        Hook::UplinkOut | Hook::FromPod => {
            !is_multicast(&quoted.destination)
                && (outer.source == quoted.destination || node.is_local(&outer.source))
        }
    }
}

/// Rewrites the quoted packet to [`Work::translated`]. The error's own checksum follows in
/// [`translate_error`].
#[inline(always)]
pub(crate) fn translate_quote<P: Packet>(packet: &mut P, work: &mut Work) -> Decision<()> {
    let difference = rewrite::quote(packet, &work.embedded, &work.translated)?;
    work.quote_difference = difference.folded();
    Ok(())
}

/// Rewrites the error's own address, and its checksum after [`translate_quote`]. Between pods both
/// addresses: the source of a pod that connects to itself is translated as well. An error that the
/// node itself has made is from and to the right address already.
#[inline(always)]
pub(crate) fn translate_error<P: Packet>(packet: &mut P, work: &Work, hook: Hook) -> Decision<()> {
    let v6 = work.headers.version == 6;
    let checksum = work.headers.l4 + ICMP_CHECKSUM;
    let mut outer = work.headers.tuple;
    let is_nodes = outer.source != work.embedded.tuple.destination;
    match hook {
        Hook::UplinkIn => outer.destination = work.translated.source,
        Hook::UplinkOut | Hook::FromPod if is_nodes => {}
        Hook::UplinkOut => outer.source = work.translated.destination,
        Hook::FromPod => {
            outer.source = work.translated.destination;
            outer.destination = work.translated.source;
        }
    }
    let body = Difference::from_folded(work.quote_difference);
    let addresses = rewrite::addresses(packet, &work.headers, &outer)?;
    fix_icmp_checksum(packet, checksum, body, false)?;
    if v6 {
        fix_icmp_checksum(packet, checksum, addresses, true)?;
    }
    Ok(())
}

/// Adds a difference to the ICMP checksum.
#[inline(always)]
fn fix_icmp_checksum<P: Packet>(
    packet: &mut P,
    at: u32,
    difference: Difference,
    pseudo_header: bool,
) -> Decision<()> {
    if difference == Difference::NONE {
        return Ok(());
    }
    let kind = ChecksumKind {
        pseudo_header,
        zero_means_none: false,
        v6: pseudo_header,
    };
    packet.fix_checksum(at, difference, kind)
}

//! Rewriting a packet's tuple, checksums included. Uses no table.

use abi::{DropReason, Tuple, protocol};

use crate::checksum::{Difference, fold_halves};
use crate::outcome::Decision;
use crate::packet::{ChecksumKind, Packet};
use crate::parse::{high_half, low_half};
use crate::work::{Fragment, Headers, Transport};

/// Offset of the word with TTL, protocol and checksum in an IPv4 header.
pub(crate) const V4_TIME_TO_LIVE: u32 = 8;
/// Offset of the word with identification and fragment offset in an IPv4 header.
const V4_IDENTIFICATION: u32 = 4;
/// Offset of the identification in an IPv6 fragment header.
const V6_IDENTIFICATION: u32 = 4;
/// Offset of the source in an IPv6 header.
pub(crate) const V6_SOURCE: u32 = 8;
/// Offset of the destination in an IPv6 header.
const V6_DESTINATION: u32 = 24;
/// Offset of the checksum in a TCP header.
pub(crate) const TCP_CHECKSUM: u32 = 16;
/// Offset of the checksum in a UDP header.
pub(crate) const UDP_CHECKSUM: u32 = 6;
/// Offset of the CRC in an SCTP header.
const SCTP_CHECKSUM: u32 = 8;
/// Offset of the checksum in an ICMP header, of either family.
pub(crate) const ICMP_CHECKSUM: u32 = 2;

/// Rewrites the packet's addresses and ports to those of `to`.
#[inline(always)]
pub(crate) fn packet<P: Packet>(packet: &mut P, headers: &Headers, to: &Tuple) -> Decision<()> {
    let checksum = checksum_offset(headers);
    let (udp, v6) = (never_zero(headers), headers.version == 6);
    let addresses = addresses(packet, headers, to)?;
    if let Some(checksum) = checksum
        && has_pseudo_header(headers)
        && addresses != Difference::NONE
    {
        let kind = kind(udp, v6, true);
        packet.fix_checksum(checksum, addresses, kind)?;
    }
    let ports = ports(packet, headers, to)?;
    if headers.transport == Transport::Sctp && ports != Difference::NONE {
        return fix_crc(packet, headers, to);
    }
    if let Some(checksum) = checksum
        && ports != Difference::NONE
    {
        let kind = kind(udp, v6, false);
        packet.fix_checksum(checksum, ports, kind)?;
    }
    Ok(())
}

/// Rewrites the packet that an ICMP error quotes to the tuple `to`, checksums included as far as
/// they are quoted. Returns the difference that this makes to the error's own checksum.
#[inline(always)]
pub(crate) fn quote<P: Packet>(
    packet: &mut P,
    headers: &Headers,
    to: &Tuple,
) -> Decision<Difference> {
    let addresses = addresses(packet, headers, to)?;
    let ports = ports(packet, headers, to)?;
    let covered = if has_pseudo_header(headers) {
        addresses.plus(ports)
    } else {
        ports
    };
    let checksum = quoted_checksum(packet, headers, to, covered)?;
    // The quoted IPv4 header's own checksum compensates for its addresses; IPv6 has none.
    let header = if headers.version == 6 {
        addresses
    } else {
        Difference::NONE
    };
    Ok(header.plus(ports).plus(checksum))
}

/// Adds `covered`, the difference of all that it covers, to the transport checksum of a quoted
/// packet. Returns the difference that this makes to the sum of the quote. A quote may end before
/// the checksum (RFC 792).
#[inline(always)]
fn quoted_checksum<P: Packet>(
    packet: &mut P,
    headers: &Headers,
    to: &Tuple,
    covered: Difference,
) -> Decision<Difference> {
    if headers.transport == Transport::Sctp {
        return quoted_crc(packet, headers, to);
    }
    let Some(at) = checksum_offset(headers) else {
        return Ok(Difference::NONE);
    };
    // The checksum is the first half of a word in TCP, and the second half in UDP and ICMP.
    let first = headers.transport == Transport::Tcp;
    let at = if first { at } else { at - 2 };
    let Some([old]) = quoted_word(packet, headers, at) else {
        return Ok(Difference::NONE);
    };
    let sum = if first { low_half(old) } else { high_half(old) };
    let udp = headers.transport == Transport::Udp;
    if covered == Difference::NONE || udp && sum == 0 {
        return Ok(Difference::NONE);
    }
    let sum = match covered.apply(sum) {
        0 if udp => u16::MAX,
        sum => sum,
    };
    let new = if first {
        word(sum, high_half(old))
    } else {
        word(low_half(old), sum)
    };
    packet.store(at, [new])?;
    Ok(Difference::NONE.and(old, new))
}

/// Returns the word at `at`, if it is quoted: what follows may be a trailer of the frame.
#[inline(always)]
fn quoted_word<P: Packet>(packet: &P, headers: &Headers, at: u32) -> Option<[u32; 1]> {
    if at + 4 > headers.end {
        return None;
    }
    packet.words::<1>(at)
}

/// As [`quoted_checksum`], for SCTP.
#[inline(always)]
fn quoted_crc<P: Packet>(packet: &mut P, headers: &Headers, to: &Tuple) -> Decision<Difference> {
    let from = &headers.tuple;
    let moved = from.source_port != to.source_port || from.destination_port != to.destination_port;
    let at = headers.l4 + SCTP_CHECKSUM;
    let Some([old]) = quoted_word(packet, headers, at).filter(|_| moved) else {
        return Ok(Difference::NONE);
    };
    if headers.fragment != Fragment::Whole {
        return Ok(Difference::NONE);
    }
    fix_crc(packet, headers, to)?;
    let [new] = packet.words::<1>(at).ok_or(DropReason::RewriteFailed)?;
    Ok(Difference::NONE.and(old, new))
}

/// Updates SCTP's CRC, which covers the ports and all that follows, but no address. A CRC of zero
/// stays: it is left to the network card, or the packet has none (RFC 9653).
#[inline(always)]
fn fix_crc<P: Packet>(packet: &mut P, headers: &Headers, to: &Tuple) -> Decision<()> {
    // The CRC covers bytes that are not in this packet.
    if headers.fragment != Fragment::Whole {
        return Err(DropReason::RewriteFailed);
    }
    let at = headers.l4 + SCTP_CHECKSUM;
    let ([old], [first, second]) = packet
        .words::<1>(at)
        .zip(packet.words::<2>(headers.l3))
        .ok_or(DropReason::RewriteFailed)?;
    if old == 0 {
        return Ok(());
    }
    let end = if headers.version == 6 {
        u32::from(u16::from_be(low_half(second))) + 40
    } else {
        u32::from(u16::from_be(high_half(first)))
    };
    let length = (headers.l3 + end).saturating_sub(headers.l4);
    let from = &headers.tuple;
    let difference = word(from.source_port.raw(), from.destination_port.raw())
        ^ word(to.source_port.raw(), to.destination_port.raw());
    let change = packet.crc_change(difference, length);
    packet.store(at, [old ^ change])
}

/// Returns the properties of a checksum update, of UDP or another protocol.
#[inline(always)]
pub(crate) const fn kind(udp: bool, v6: bool, pseudo_header: bool) -> ChecksumKind {
    ChecksumKind {
        pseudo_header,
        zero_means_none: udp,
        v6: v6 && pseudo_header,
    }
}

/// Rewrites both addresses, and the IPv4 header checksum. Returns the difference for other
/// checksums.
#[inline(always)]
pub(crate) fn addresses<P: Packet>(
    packet: &mut P,
    headers: &Headers,
    to: &Tuple,
) -> Decision<Difference> {
    let from = &headers.tuple;
    let mut difference = Difference::NONE;
    if from.source != to.source {
        difference = difference.and_words(from.source.words(), to.source.words());
    }
    if from.destination != to.destination {
        difference = difference.and_words(from.destination.words(), to.destination.words());
    }
    if headers.version != 6 && difference != Difference::NONE {
        let addresses = [to.source.words()[3], to.destination.words()[3]];
        v4_addresses(packet, headers, addresses, difference)?;
        return Ok(difference);
    }
    if from.source != to.source {
        packet.store(headers.l3 + V6_SOURCE, to.source.words())?;
    }
    if from.destination != to.destination {
        packet.store(headers.l3 + V6_DESTINATION, to.destination.words())?;
    }
    Ok(difference)
}

/// Rewrites the IPv4 header checksum and the addresses behind it in one write.
#[inline(always)]
fn v4_addresses<P: Packet>(
    packet: &mut P,
    headers: &Headers,
    [source, destination]: [u32; 2],
    difference: Difference,
) -> Decision<()> {
    let at = headers.l3 + V4_TIME_TO_LIVE;
    let [old] = packet.words::<1>(at).ok_or(DropReason::RewriteFailed)?;
    let first = header_word(old, 0, difference.halved());
    packet.store(at, [first, source, destination])
}

/// Rewrites the identification of a fragment, given as in [`abi::FragmentKey`].
#[inline(always)]
pub(crate) fn identification<P: Packet>(
    packet: &mut P,
    headers: &Headers,
    new: u32,
) -> Decision<()> {
    if headers.version == 6 {
        // No checksum covers the field.
        return packet.store_and_update_csum(headers.fragment_header + V6_IDENTIFICATION, [new]);
    }
    let at = headers.l3 + V4_IDENTIFICATION;
    let [first, second] = packet.words::<2>(at).ok_or(DropReason::RewriteFailed)?;
    let numbered = word(low_half(new), high_half(first));
    let difference = Difference::NONE.and(first, numbered);
    packet.store(at, [numbered, header_word(second, 0, difference.halved())])
}

/// Returns the word with TTL, protocol and checksum of an IPv4 header, with the TTL decremented by
/// `hops` (the packet has that many left), and with addresses that differ by `addresses`
/// ([`Difference::halved`]).
#[inline(always)]
pub(crate) fn header_word(old: u32, hops: u8, addresses: u16) -> u32 {
    let [ttl, protocol, _, _] = old.to_ne_bytes();
    let aged = u16::from_ne_bytes([ttl.wrapping_sub(hops), protocol]);
    // The sum decreases by what the TTL decreases by.
    let lost = !u16::from_ne_bytes([hops, 0]);
    let sum = fold_halves([!high_half(old), addresses, lost]);
    word(aged, !sum)
}

/// Rewrites the ports, or the echo identifier. Returns the difference for the transport's checksum.
#[inline(always)]
pub(crate) fn ports<P: Packet>(
    packet: &mut P,
    headers: &Headers,
    to: &Tuple,
) -> Decision<Difference> {
    let from = &headers.tuple;
    if headers.fragment == Fragment::Later
        || (from.source_port == to.source_port && from.destination_port == to.destination_port)
    {
        return Ok(Difference::NONE);
    }
    let at = match headers.transport {
        Transport::Tcp | Transport::Udp | Transport::Sctp => headers.l4,
        Transport::EchoRequest | Transport::EchoReply => headers.l4 + 4,
        Transport::None | Transport::IcmpError | Transport::IcmpOther | Transport::Portless => {
            return Ok(Difference::NONE);
        }
    };
    let Some([old]) = packet.words::<1>(at) else {
        return Ok(Difference::NONE);
    };
    let new = match headers.transport {
        Transport::EchoRequest => word(to.source_port.raw(), high_half(old)),
        Transport::EchoReply => word(to.destination_port.raw(), high_half(old)),
        Transport::None
        | Transport::Tcp
        | Transport::Udp
        | Transport::Sctp
        | Transport::IcmpError
        | Transport::IcmpOther
        | Transport::Portless => word(to.source_port.raw(), to.destination_port.raw()),
    };
    packet.store(at, [new])?;
    Ok(Difference::NONE.and(old, new))
}

/// Returns a word of memory from its two halves.
#[inline(always)]
pub(crate) const fn word(first: u16, second: u16) -> u32 {
    let ([a, b], [c, d]) = (first.to_ne_bytes(), second.to_ne_bytes());
    u32::from_ne_bytes([a, b, c, d])
}

/// Returns the offset of the transport's checksum, if the packet has one that is a sum.
#[inline(always)]
fn checksum_offset(headers: &Headers) -> Option<u32> {
    if headers.fragment == Fragment::Later {
        return None;
    }
    match headers.transport {
        Transport::Tcp => Some(headers.l4 + TCP_CHECKSUM),
        Transport::Udp => Some(headers.l4 + UDP_CHECKSUM),
        Transport::EchoRequest
        | Transport::EchoReply
        | Transport::IcmpError
        | Transport::IcmpOther => Some(headers.l4 + ICMP_CHECKSUM),
        // Their ports stay, but their checksums cover the addresses.
        Transport::Portless if is_udp_lite_or_dccp(headers) => Some(headers.l4 + UDP_CHECKSUM),
        Transport::None | Transport::Sctp | Transport::Portless => None,
    }
}

/// Returns whether a checksum that becomes zero is written as 0xffff.
#[inline(always)]
fn never_zero(headers: &Headers) -> bool {
    headers.transport == Transport::Udp || headers.tuple.protocol == protocol::UDP_LITE
}

/// Returns whether the packet is of UDP-Lite (RFC 3828) or DCCP (RFC 4340), which have their
/// checksums where UDP has it.
#[inline(always)]
const fn is_udp_lite_or_dccp(headers: &Headers) -> bool {
    matches!(headers.tuple.protocol, protocol::UDP_LITE | protocol::DCCP)
}

/// Returns whether the transport's checksum covers the addresses.
#[inline(always)]
fn has_pseudo_header(headers: &Headers) -> bool {
    headers.tuple.protocol != protocol::ICMP
}

#[cfg(test)]
mod tests;

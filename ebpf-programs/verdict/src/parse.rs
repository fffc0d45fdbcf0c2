//! The parser: from bytes to [`Headers`]. Uses no table and applies no policy.
//!
//! Layouts: IEEE 802.3 / RFC 894, RFC 826 (ARP), RFC 791, RFC 8200 (IPv6 and its extension
//! headers), RFC 4302 (AH), RFC 9293 (TCP), RFC 768 (UDP), RFC 792 and RFC 4443 (ICMP), RFC 9260
//! (SCTP).

use abi::{Address, DropReason, Port, Seen, Tuple, protocol};

use crate::outcome::Decision;
use crate::packet::Packet;
use crate::work::{Content, Fragment, Headers, Transport};

/// Maximum number of IPv6 extension headers that are parsed.
pub(crate) const MAX_EXTENSIONS: u32 = 5;

pub(crate) const ETHERTYPE_IPV4: u16 = 0x0800;
pub(crate) const ETHERTYPE_ARP: u16 = 0x0806;
pub(crate) const ETHERTYPE_IPV6: u16 = 0x86dd;
/// A VLAN tag (IEEE 802.1Q), and a service tag (IEEE 802.1ad).
const ETHERTYPE_VLAN: [u16; 2] = [0x8100, 0x88a8];
/// Tags of bridges before IEEE 802.1ad ("Q-in-Q").
const ETHERTYPE_QINQ: [u16; 3] = [0x9100, 0x9200, 0x9300];

/// Bytes of an IPv4 header without options.
pub(crate) const IPV4_HEADER: u32 = 20;
/// Bytes of an IPv6 header without extensions.
pub(crate) const IPV6_HEADER: u32 = 40;
/// Bytes of a UDP header.
pub(crate) const UDP_HEADER: u32 = 8;
/// Bytes of a TCP header without options.
pub(crate) const TCP_HEADER: u32 = 20;
/// Bytes of an SCTP common header.
pub(crate) const SCTP_HEADER: u32 = 12;
/// Offset of the word with the header length and the flags in a TCP header (RFC 9293).
pub(crate) const TCP_FLAGS: u32 = 12;

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION_OPTIONS: u8 = 60;

/// How much of the packet must be present.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extent {
    /// All bytes that its header announces.
    Whole,
    /// Only the IP header and 8 bytes: a packet quoted in an ICMP error (RFC 792). With the offset
    /// at which the error ends: a frame may have a trailer.
    Quoted(u32),
}

/// Parses a frame that starts with `l2_len` bytes of Ethernet, or with an IP header where that is
/// 0.
#[inline(always)]
pub(crate) fn frame(packet: &impl Packet, l2_len: u32, headers: &mut Headers) -> Decision<Content> {
    *headers = Headers {
        l3: l2_len,
        length: packet.len().saturating_sub(l2_len),
        ..Headers::default()
    };
    match version(packet, l2_len) {
        Layer3::V4 => ipv4(packet, Extent::Whole, headers)?,
        Layer3::V6 => ipv6(packet, Extent::Whole, headers)?,
        Layer3::Arp => return Ok(Content::Arp),
        Layer3::Other => return Ok(Content::Foreign),
    }
    Ok(match headers.transport {
        Transport::IcmpError => Content::IcmpError,
        Transport::None
        | Transport::Tcp
        | Transport::Udp
        | Transport::Sctp
        | Transport::EchoRequest
        | Transport::EchoReply
        | Transport::IcmpOther
        | Transport::Portless => Content::Ip,
    })
}

/// As [`frame`], for a packet that was received: an IPv4 header with a wrong checksum is malformed.
/// The checksum of a header with options is left to the stack, which such a packet always passes.
#[inline(always)]
pub(crate) fn received(
    packet: &impl Packet,
    l2_len: u32,
    headers: &mut Headers,
) -> Decision<Content> {
    let content = frame(packet, l2_len, headers)?;
    if headers.version == 4 && headers.l4 == headers.l3 + IPV4_HEADER {
        let words = packet.words::<5>(headers.l3).ok_or(DropReason::Malformed)?;
        if !is_valid_checksum(words) {
            return Err(DropReason::Malformed);
        }
    }
    Ok(content)
}

/// Returns whether the checksum of an IPv4 header without options is right (RFC 791, RFC 1071).
#[inline(always)]
pub(crate) fn is_valid_checksum(words: [u32; 5]) -> bool {
    let [a, b, c, d, e] = words;
    // Ones' complement sums depend neither on the byte order nor on the width of the words.
    let sum = u64::from(a) + u64::from(b) + u64::from(c) + u64::from(d) + u64::from(e);
    let halves = (sum & 0xffff_ffff) + (sum >> 32);
    let folded = (halves & 0xffff) + (halves >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    folded == 0xffff
}

/// Returns whether a frame may be an ICMP error or a fragment, by its IP header alone.
#[inline(always)]
pub(crate) fn may_be_error_or_fragment(packet: &impl Packet, l2_len: u32) -> bool {
    match packet.ethertype() {
        ETHERTYPE_IPV4 => match packet.words::<2>(l2_len + 4) {
            Some([first, second]) => {
                u16::from_be(high_half(first)) & !0x4000 != 0
                    || second.to_ne_bytes()[1] == protocol::ICMP
            }
            None => false,
        },
        ETHERTYPE_IPV6 => match packet.words::<1>(l2_len + 4) {
            Some([word]) => {
                let next = word.to_ne_bytes()[2];
                next == protocol::ICMPV6 || is_extension(next)
            }
            None => false,
        },
        _ => false,
    }
}

/// Parses the packet that an ICMP error at `outer` quotes.
#[inline(always)]
pub(crate) fn quoted(packet: &impl Packet, outer: &Headers, headers: &mut Headers) -> Decision<()> {
    *headers = Headers {
        l3: outer.l4 + 8,
        ..Headers::default()
    };
    if outer.version == 6 {
        ipv6(packet, Extent::Quoted(outer.end), headers)
    } else {
        ipv4(packet, Extent::Quoted(outer.end), headers)
    }
}

/// Returns whether an `EtherType` is that of a VLAN tag which Linux removes from a frame
/// (`eth_type_vlan`).
#[inline(always)]
pub(crate) const fn is_vlan_tag(ethertype: u16) -> bool {
    let [vlan, service] = ETHERTYPE_VLAN;
    ethertype == vlan || ethertype == service
}

/// Returns whether an `EtherType` is that of any VLAN tag.
#[inline(always)]
pub(crate) const fn is_any_tag(ethertype: u16) -> bool {
    let [first, second, third] = ETHERTYPE_QINQ;
    is_vlan_tag(ethertype) || ethertype == first || ethertype == second || ethertype == third
}

enum Layer3 {
    V4,
    V6,
    Arp,
    Other,
}

#[inline(always)]
fn version(packet: &impl Packet, l2_len: u32) -> Layer3 {
    if l2_len == 0 {
        let Some([word]) = packet.words::<1>(0) else {
            return Layer3::Other;
        };
        return match word.to_ne_bytes()[0] >> 4 {
            4 => Layer3::V4,
            6 => Layer3::V6,
            _ => Layer3::Other,
        };
    }
    match packet.ethertype() {
        ETHERTYPE_IPV4 => Layer3::V4,
        ETHERTYPE_IPV6 => Layer3::V6,
        ETHERTYPE_ARP => Layer3::Arp,
        _ => Layer3::Other,
    }
}

/// Returns the first two bytes of a word in memory.
#[inline(always)]
pub(crate) const fn low_half(word: u32) -> u16 {
    let [a, b, _, _] = word.to_ne_bytes();
    u16::from_ne_bytes([a, b])
}

/// Returns the last two bytes of a word in memory.
#[inline(always)]
pub(crate) const fn high_half(word: u32) -> u16 {
    let [_, _, c, d] = word.to_ne_bytes();
    u16::from_ne_bytes([c, d])
}

#[inline(always)]
fn ipv4(packet: &impl Packet, extent: Extent, headers: &mut Headers) -> Decision<()> {
    let l3 = headers.l3;
    let words = packet.words::<5>(l3).ok_or(DropReason::Malformed)?;
    let first = words[0].to_ne_bytes()[0];
    let header_len = u32::from(first & 0xf) * 4;
    if first >> 4 != 4 || header_len < 20 {
        return Err(DropReason::Malformed);
    }
    let total = u32::from(u16::from_be(high_half(words[0])));
    let end = end(packet, extent, l3, announced(total, total))?;
    if l3 + header_len > end {
        return Err(DropReason::Malformed);
    }
    let fragment = u16::from_be(high_half(words[1]));
    headers.version = 4;
    headers.l4 = l3 + header_len;
    headers.identification = u32::from(low_half(words[1]));
    headers.fragment = fragment_kind(fragment & 0x1fff != 0, fragment & 0x2000 != 0);
    headers.fragment_start = u32::from(fragment & 0x1fff);
    // No comparison: that would be a branch, and double the paths for the verifier.
    headers.fragment_is_last = (!fragment >> 13 & 1) as u8;
    headers.tuple.source = Address::from_v4_word(words[3]);
    headers.tuple.destination = Address::from_v4_word(words[4]);
    headers.tuple.protocol = words[2].to_ne_bytes()[1];
    transport(packet, extent, end, headers)
}

#[inline(always)]
fn ipv6(packet: &impl Packet, extent: Extent, headers: &mut Headers) -> Decision<()> {
    let l3 = headers.l3;
    let words = packet.words::<10>(l3).ok_or(DropReason::Malformed)?;
    if words[0].to_ne_bytes()[0] >> 4 != 6 {
        return Err(DropReason::Malformed);
    }
    let payload = u32::from(u16::from_be(low_half(words[1])));
    let end = end(packet, extent, l3, announced(payload, payload + 40))?;
    headers.version = 6;
    headers.tuple.source = Address::from_words([words[2], words[3], words[4], words[5]]);
    headers.tuple.destination = Address::from_words([words[6], words[7], words[8], words[9]]);
    // IPv4-mapped addresses are not valid on a wire (RFC 4291 2.5.5.2), and mean IPv4 in our
    // tables.
    if headers.tuple.source.is_v4() || headers.tuple.destination.is_v4() {
        return Err(DropReason::Martian);
    }
    headers.tuple.protocol = words[1].to_ne_bytes()[2];
    headers.l4 = l3 + 40;
    extensions(packet, end, headers)?;
    transport(packet, extent, end, headers)
}

/// The length that a packet announces, IP header included.
#[derive(Clone, Copy)]
struct Announced {
    total: u32,
    field_is_zero: bool,
}

#[inline(always)]
const fn announced(field: u32, total: u32) -> Announced {
    Announced {
        total,
        field_is_zero: field == 0,
    }
}

/// Returns the offset of the packet's end. A length field of zero may stand for a length that 16
/// bits do not hold (RFC 2675, large GSO packets).
#[inline(always)]
fn end(packet: &impl Packet, extent: Extent, l3: u32, announced: Announced) -> Decision<u32> {
    if let Extent::Quoted(end) = extent {
        return Ok(end);
    }
    let available = packet.len();
    if announced.field_is_zero && available > l3 + 0xffff {
        return Ok(available);
    }
    if l3 + announced.total > available {
        return Err(DropReason::Malformed);
    }
    Ok(l3 + announced.total)
}

#[inline(always)]
const fn fragment_kind(later: bool, more: bool) -> Fragment {
    if later {
        Fragment::Later
    } else if more {
        Fragment::First
    } else {
        Fragment::Whole
    }
}

#[inline(always)]
const fn is_extension(next: u8) -> bool {
    matches!(
        next,
        HOP_BY_HOP | ROUTING | FRAGMENT | AUTHENTICATION | DESTINATION_OPTIONS
    )
}

#[inline(always)]
fn extensions(packet: &impl Packet, end: u32, headers: &mut Headers) -> Decision<()> {
    let mut next = headers.tuple.protocol;
    let mut at = headers.l4;
    for _ in 0..MAX_EXTENSIONS {
        if !is_extension(next) || headers.fragment == Fragment::Later {
            break;
        }
        let [first, second] = packet.words::<2>(at).ok_or(DropReason::Malformed)?;
        let [following, length, _, _] = first.to_ne_bytes();
        at += match next {
            FRAGMENT => {
                let bits = u16::from_be(high_half(first));
                headers.identification = second;
                headers.fragment = fragment_kind(bits & 0xfff8 != 0, bits & 1 != 0);
                headers.fragment_start = u32::from(bits >> 3);
                headers.fragment_is_last = (!bits & 1) as u8;
                headers.fragment_header = at;
                8
            }
            AUTHENTICATION => (u32::from(length) + 2) * 4,
            _ => (u32::from(length) + 1) * 8,
        };
        next = following;
        if at > end {
            return Err(DropReason::Malformed);
        }
    }
    if is_extension(next) && headers.fragment != Fragment::Later {
        return Err(DropReason::TooManyHeaders);
    }
    headers.tuple.protocol = next;
    headers.l4 = at;
    Ok(())
}

#[inline(always)]
fn transport(
    packet: &impl Packet,
    extent: Extent,
    end: u32,
    headers: &mut Headers,
) -> Decision<()> {
    headers.seen = Seen::PACKET;
    headers.end = end;
    headers.transport = kind(headers.version, headers.tuple.protocol);
    if headers.fragment == Fragment::Later {
        return Ok(());
    }
    let needed = match headers.transport {
        Transport::Portless | Transport::None => return Ok(()),
        Transport::Tcp if extent == Extent::Whole => TCP_HEADER,
        Transport::Sctp if extent == Extent::Whole => SCTP_HEADER,
        Transport::Tcp
        | Transport::Sctp
        | Transport::Udp
        | Transport::EchoRequest
        | Transport::EchoReply
        | Transport::IcmpError
        | Transport::IcmpOther => 8,
    };
    let l4 = headers.l4;
    if l4 + needed > end {
        return Err(if headers.fragment == Fragment::First {
            DropReason::TinyFragment
        } else {
            DropReason::Malformed
        });
    }
    if headers.transport == Transport::Tcp && extent == Extent::Whole {
        let words = packet.words::<4>(l4).ok_or(DropReason::Malformed)?;
        ports(&mut headers.tuple, words[0]);
        headers.seen |= tcp_flags(words[3]);
        headers.sequence = u32::from_be(words[1]);
        headers.acknowledgment = u32::from_be(words[2]);
        // SYN and FIN occupy a sequence number each (RFC 9293 3.4).
        let flags =
            u32::from(headers.seen & Seen::SYN != 0) + u32::from(headers.seen & Seen::FIN != 0);
        let payload = end.saturating_sub(l4 + tcp_header(words[3]));
        headers.next_sequence = headers.sequence.wrapping_add(payload).wrapping_add(flags);
        return Ok(());
    }
    let [first, second] = packet.words::<2>(l4).ok_or(DropReason::Malformed)?;
    match headers.transport {
        Transport::Tcp | Transport::Udp | Transport::Sctp => ports(&mut headers.tuple, first),
        Transport::None
        | Transport::EchoRequest
        | Transport::EchoReply
        | Transport::IcmpError
        | Transport::IcmpOther
        | Transport::Portless => {
            headers.icmp_type = first.to_ne_bytes()[0];
            headers.transport = icmp_kind(headers.version, headers.icmp_type);
            let identifier = Port::from_raw(low_half(second));
            if headers.transport == Transport::EchoRequest {
                headers.tuple.source_port = identifier;
            } else if headers.transport == Transport::EchoReply {
                headers.tuple.destination_port = identifier;
            }
        }
    }
    Ok(())
}

#[inline(always)]
fn ports(tuple: &mut Tuple, word: u32) {
    tuple.source_port = Port::from_raw(low_half(word));
    tuple.destination_port = Port::from_raw(high_half(word));
}

/// Returns the transport of a protocol number. All of ICMP is [`Transport::IcmpOther`] until its
/// type is parsed.
#[inline(always)]
const fn kind(version: u8, number: u8) -> Transport {
    match (version, number) {
        (_, protocol::TCP) => Transport::Tcp,
        (_, protocol::UDP) => Transport::Udp,
        (_, protocol::SCTP) => Transport::Sctp,
        (4, protocol::ICMP) | (6, protocol::ICMPV6) => Transport::IcmpOther,
        _ => Transport::Portless,
    }
}

#[inline(always)]
const fn icmp_kind(version: u8, icmp_type: u8) -> Transport {
    match (version, icmp_type) {
        // Timestamp, information and address mask messages have their identifier where echo has it
        // (RFC 792, RFC 950).
        (4, 8 | 13 | 15 | 17) | (6, 128) => Transport::EchoRequest,
        (4, 0 | 14 | 16 | 18) | (6, 129) => Transport::EchoReply,
        (4, 3 | 4 | 11 | 12) | (6, 1..=4) => Transport::IcmpError,
        _ => Transport::IcmpOther,
    }
}

/// Returns the length of a TCP header in bytes, from its word at [`TCP_FLAGS`].
#[inline(always)]
pub(crate) const fn tcp_header(word: u32) -> u32 {
    (word.to_ne_bytes()[0] >> 4) as u32 * 4
}

/// Returns the [`Seen`] bits of the word at [`TCP_FLAGS`].
#[inline(always)]
pub(crate) const fn tcp_flags(word: u32) -> u32 {
    let flags = word.to_ne_bytes()[1];
    let mut seen = 0;
    if flags & 0x01 != 0 {
        seen |= Seen::FIN;
    }
    if flags & 0x02 != 0 {
        seen |= Seen::SYN;
    }
    if flags & 0x04 != 0 {
        seen |= Seen::RST;
    }
    if flags & 0x10 != 0 {
        seen |= Seen::ACK;
    }
    seen
}

#[cfg(test)]
mod tests;

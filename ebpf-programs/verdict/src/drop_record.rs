//! Drop events: which drops are reported, and what is reported of a packet.
//!
//! Parses by itself, and with less care than `parse`: a packet may have been dropped
//! because it is malformed, or before it was parsed at all. What is not there stays zero.

use abi::{
    Address, DropReason, DropSampling, DroppedPacket, DroppedPacketFlags as Flags, Port, Tuple,
    protocol,
};

use crate::outcome::Code as _;
use crate::packet::Packet;
use crate::parse::{
    ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, IPV4_HEADER, IPV6_HEADER, high_half, low_half,
};

/// A drop that a program without scratch memory has counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// Why.
    pub reason: DropReason,
    /// Slot of the pod that the packet was for; 0 where none is known.
    pub pod: u32,
    /// Length in bytes from the IP header on.
    pub length: u32,
}

/// A drop that is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The new [`abi::PodDropCount::sampled`].
    pub state: u64,
    /// Packets since the last report, with this one.
    pub count: u32,
}

/// Decides whether the drop that has made the counter `packets` is reported: the first of a pod and
/// reason since the agent listens, and the first of each interval. `now` is in milliseconds of
/// `CLOCK_MONOTONIC`.
///
/// `state` has the time of the last report in its upper half, and the counter at that time in the
/// lower one; both wrap around.
#[inline(always)]
pub fn sample(state: u64, packets: u64, now: u64, sampling: &DropSampling) -> Option<Sample> {
    if now >= sampling.until {
        return None;
    }
    let (now, packets) = (now & LOW, packets & LOW);
    let age = now.wrapping_sub(state >> 32) & LOW;
    let listening = now.wrapping_sub(sampling.since) & LOW;
    let is_first = state == 0 || age > listening;
    if !is_first && age < sampling.interval {
        return None;
    }
    let count = if is_first {
        1
    } else {
        packets.wrapping_sub(state) & LOW
    };
    Some(Sample {
        state: now << 32 | packets,
        count: u32::from_code(count),
    })
}

/// The lower half of a number.
const LOW: u64 = 0xffff_ffff;

/// The bytes of a packet, as [`describe`] reads them.
pub trait Bytes {
    /// Returns the `EtherType` in host byte order.
    fn ethertype(&self) -> u16;

    /// Returns `N` words from `offset` on, or `None` where the packet ends before.
    fn words<const N: usize>(&self, offset: u32) -> Option<[u32; N]>;
}

impl<P: Packet> Bytes for P {
    #[inline(always)]
    fn ethertype(&self) -> u16 {
        Packet::ethertype(self)
    }

    #[inline(always)]
    fn words<const N: usize>(&self, offset: u32) -> Option<[u32; N]> {
        Packet::words(self, offset)
    }
}

/// Describes a frame that starts with `l2_len` bytes of Ethernet, or with an IP header where that
/// is 0. `described` must be zeros, apart from the hook.
#[inline(always)]
pub fn describe(packet: &impl Bytes, l2_len: u32, described: &mut DroppedPacket) {
    let mut ethertype = packet.ethertype();
    if l2_len == 0 {
        ethertype = match packet.words::<1>(0) {
            Some([word]) if word.to_ne_bytes()[0] >> 4 == 4 => ETHERTYPE_IPV4,
            Some([word]) if word.to_ne_bytes()[0] >> 4 == 6 => ETHERTYPE_IPV6,
            _ => 0,
        };
    } else {
        described.ethertype = ethertype;
    }
    match ethertype {
        ETHERTYPE_IPV4 => {
            let Some(layer4) = ipv4(packet, l2_len, &mut described.tuple) else {
                return;
            };
            described.flags |= Flags::ADDRESSES;
            transport(packet, layer4, true, described);
        }
        ETHERTYPE_IPV6 => {
            let Some(layer4) = ipv6(packet, l2_len, &mut described.tuple) else {
                return;
            };
            described.flags |= Flags::ADDRESSES;
            transport(packet, layer4, false, described);
        }
        ETHERTYPE_ARP => {
            let (Some([sender]), Some([target])) = (
                packet.words::<1>(l2_len + 14),
                packet.words::<1>(l2_len + 24),
            ) else {
                return;
            };
            described.tuple.source = Address::from_v4_word(sender);
            described.tuple.destination = Address::from_v4_word(target);
            described.flags |= Flags::ADDRESSES;
        }
        _ => {}
    }
}

/// Where the transport header is.
#[derive(Clone, Copy)]
struct Layer4 {
    at: u32,
    is_fragment: bool,
    /// Whether the header is in another fragment.
    is_elsewhere: bool,
}

#[inline(always)]
fn ipv4(packet: &impl Bytes, l3: u32, tuple: &mut Tuple) -> Option<Layer4> {
    let words = packet.words::<5>(l3)?;
    tuple.source = Address::from_v4_word(words[3]);
    tuple.destination = Address::from_v4_word(words[4]);
    tuple.protocol = words[2].to_ne_bytes()[1];
    let header = u32::from(words[0].to_ne_bytes()[0] & 0xf) * 4;
    let fragment = u16::from_be(high_half(words[1])) & 0x3fff;
    Some(Layer4 {
        at: l3 + header,
        is_fragment: fragment != 0,
        is_elsewhere: fragment & 0x1fff != 0 || header < IPV4_HEADER,
    })
}

/// Of the extension headers, only a fragment header is followed.
#[inline(always)]
fn ipv6(packet: &impl Bytes, l3: u32, tuple: &mut Tuple) -> Option<Layer4> {
    let words = packet.words::<10>(l3)?;
    tuple.source = Address::from_words([words[2], words[3], words[4], words[5]]);
    tuple.destination = Address::from_words([words[6], words[7], words[8], words[9]]);
    tuple.protocol = words[1].to_ne_bytes()[2];
    let whole = Layer4 {
        at: l3 + IPV6_HEADER,
        is_fragment: false,
        is_elsewhere: false,
    };
    if tuple.protocol != FRAGMENT {
        return Some(whole);
    }
    let Some([word]) = packet.words::<1>(l3 + IPV6_HEADER) else {
        return Some(whole);
    };
    tuple.protocol = word.to_ne_bytes()[0];
    Some(Layer4 {
        at: l3 + IPV6_HEADER + 8,
        is_fragment: true,
        is_elsewhere: u16::from_be(high_half(word)) & 0xfff8 != 0,
    })
}

/// The fragment header of IPv6 (RFC 8200 4.5).
const FRAGMENT: u8 = 44;

/// Reads ports, or type and code of an ICMP message and the packet that an error quotes.
#[inline(always)]
fn transport(packet: &impl Bytes, layer4: Layer4, is_v4: bool, described: &mut DroppedPacket) {
    if layer4.is_fragment {
        described.flags |= Flags::FRAGMENT;
    }
    if layer4.is_elsewhere {
        return;
    }
    let Some([first]) = packet.words::<1>(layer4.at) else {
        return;
    };
    let of_icmp = if is_v4 {
        protocol::ICMP
    } else {
        protocol::ICMPV6
    };
    if described.tuple.protocol != of_icmp {
        if ports(first, &mut described.tuple) {
            described.flags |= Flags::PORTS;
        }
        return;
    }
    let [icmp_type, icmp_code, _, _] = first.to_ne_bytes();
    described.icmp_type = icmp_type;
    described.icmp_code = icmp_code;
    described.flags |= Flags::ICMP;
    let is_error = if is_v4 {
        matches!(icmp_type, 3 | 4 | 5 | 11 | 12)
    } else {
        icmp_type < 128
    };
    if !is_error {
        return;
    }
    let quoted = &mut described.quoted;
    let inner = if is_v4 {
        ipv4(packet, layer4.at + 8, quoted)
    } else {
        ipv6(packet, layer4.at + 8, quoted)
    };
    let Some(inner) = inner else {
        return;
    };
    described.flags |= Flags::QUOTED;
    if !inner.is_elsewhere
        && let Some([first]) = packet.words::<1>(inner.at)
    {
        ports(first, &mut described.quoted);
    }
}

/// Sets the ports of a protocol that has them, from the first word of its header.
#[inline(always)]
fn ports(word: u32, tuple: &mut Tuple) -> bool {
    let has_ports = matches!(
        tuple.protocol,
        protocol::TCP | protocol::UDP | protocol::SCTP
    );
    if has_ports {
        tuple.source_port = Port::from_raw(low_half(word));
        tuple.destination_port = Port::from_raw(high_half(word));
    }
    has_ports
}

#[cfg(test)]
mod tests;

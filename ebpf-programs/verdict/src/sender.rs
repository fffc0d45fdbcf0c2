//! The sender check: a pod may send only from its own addresses (spoofing), and nothing that is
//! never on a wire (martians).

use abi::{Address, DropReason, EndpointFlags, Mac, Pod, Port, protocol};

use crate::address::{
    is_forwardable, is_invalid_destination, is_invalid_source, is_link_local, is_multicast,
    link_local_of,
};
use crate::admission;
use crate::discovery;
use crate::icmp;
use crate::node::Node;
use crate::outcome::Decision;
use crate::packet::Packet;
use crate::parse::{high_half, low_half};
use crate::role;
use crate::row_cache;
use crate::work::{Content, Headers, Work};

/// Bytes of the Ethernet header of a pod's frame.
pub(crate) const ETHERNET: u32 = 14;
/// Offset of the source address in an Ethernet header.
pub(crate) const SOURCE_MAC: u32 = 6;

/// Drops martians of all pods, and spoofed packets and frames of other protocols of pods with a
/// spoof check. Writes to no table: nothing of a packet is stored before it has passed.
#[inline(always)]
pub(crate) fn check<E: Packet + Node>(
    env: &mut E,
    work: &mut Work,
    content: Content,
) -> Decision<()> {
    // During a DEL, the row may be free already, or another pod's: it is then not of this
    // interface.
    let Some(pod) = env
        .pod(work.pod)
        .filter(|pod| pod.interface == work.interface)
    else {
        return Err(DropReason::UnknownPod);
    };
    let checked = pod.flags & EndpointFlags::SPOOF_CHECK != 0;
    if checked {
        admission::check_pod(env, content)?;
        if !has_own_mac(env, SOURCE_MAC, pod) {
            return Err(DropReason::SpoofedMac);
        }
    }
    match content {
        Content::Arp if checked => return arp(env, work.pod, pod),
        Content::Arp | Content::Foreign => return Ok(()),
        Content::Ip
        | Content::FlowFound
        | Content::Fragment
        | Content::LostFragment
        | Content::EarlyFragment
        | Content::AwaitedFragment
        | Content::IcmpError => {}
    }
    let headers = &work.headers;
    let source = &headers.tuple.source;
    if is_invalid_source(source) || is_invalid_destination(&headers.tuple.destination) {
        return Err(DropReason::Martian);
    }
    work.stack_only = u32::from(takes_the_stack(env, work));
    let headers = &work.headers;
    let source = &headers.tuple.source;
    let own = !checked
        || if headers.version == 6 {
            is_own_v6(env, headers, work.pod, pod)
        } else {
            has_v4(env, work.pod, pod, source) || is_dhcp_request(headers)
        };
    if !own {
        return Err(DropReason::SpoofedAddress);
    }
    if !checked {
        return Ok(());
    }
    if headers.version == 6 && headers.tuple.protocol == protocol::ICMPV6 {
        discovery::check_options(env, headers, pod.mac)?;
    }
    role::check(env, headers)?;
    if content == Content::IcmpError {
        return quote(env, headers, work.pod, pod);
    }
    Ok(())
}

/// Returns whether only the stack may forward the packet: it drops what no router forwards, and
/// packets from the node's own addresses.
#[inline(always)]
fn takes_the_stack(node: &impl Node, work: &mut Work) -> bool {
    let tuple = &work.headers.tuple;
    let is_forwarded = is_forwardable(&tuple.source)
        && is_forwardable(&tuple.destination)
        && !is_link_local(&tuple.destination);
    !is_forwarded || row_cache::is_local_source(node, work)
}

/// Returns whether an IPv4 address is the pod's first one, or one of its further ones.
#[inline(always)]
pub(crate) fn has_v4(node: &impl Node, slot: u32, pod: &Pod, address: &Address) -> bool {
    *address == pod.v4 || is_additional_address(node, slot, pod, address)
}

/// As [`has_v4`], for an address of an IPv6 packet. The unspecified address and IPv4-mapped ones
/// are never a pod's.
#[inline(always)]
pub(crate) fn has_v6(node: &impl Node, slot: u32, pod: &Pod, address: &Address) -> bool {
    !address.is_any()
        && !address.is_v4()
        && (*address == pod.v6 || is_additional_address(node, slot, pod, address))
}

/// Returns whether an address is one that a pod has beside the first one of each family. Few pods
/// have any, so this lookup comes last, for packets with an unexpected source only.
#[inline(always)]
fn is_additional_address(node: &impl Node, slot: u32, pod: &Pod, address: &Address) -> bool {
    let owner = node.endpoint(address);
    owner.is_some_and(|owner| owner.pod == slot && owner.generation == pod.generation)
}

/// Returns whether the MAC address at an offset is this one.
#[inline(always)]
pub(crate) fn has_mac(packet: &impl Packet, at: u32, own: Mac) -> bool {
    let Some([first, rest]) = packet.words::<2>(at) else {
        return false;
    };
    let own = own.bytes();
    first == u32::from_ne_bytes([own[0], own[1], own[2], own[3]])
        && low_half(rest) == u16::from_ne_bytes([own[4], own[5]])
}

/// Returns whether the MAC address at an offset can be the pod's. A row without a MAC address is of
/// a pod whose interface another plugin manages: it may have any.
#[inline(always)]
fn has_own_mac(packet: &impl Packet, at: u32, pod: &Pod) -> bool {
    pod.mac == Mac::default() || has_mac(packet, at, pod.mac)
}

/// Returns whether a link-local address of IPv6 is the pod's: the one that Linux derives from its
/// MAC address, or one that it was assigned. The MAC address of an adopted pod is unknown: such a
/// pod may have any but the bridge's and those that other pods were assigned.
#[inline(always)]
pub(crate) fn has_link_local(node: &impl Node, slot: u32, pod: &Pod, address: &Address) -> bool {
    if pod.mac == Mac::default() {
        // One decision a line: combined, the verifier would meet an uninitialised register.
        if let Some(network) = node.network(pod.network)
            && *address == link_local_of(network.mac)
        {
            return false;
        }
        return match node.endpoint(address) {
            Some(owner) => owner.pod == slot,
            None => true,
        };
    }
    *address == link_local_of(pod.mac) || is_additional_address(node, slot, pod, address)
}

/// Checks an ARP packet: the sender must be the pod, or a probe without an address yet (RFC 5227),
/// for an address that no other pod has: a probe from elsewhere ends the detection of its owner.
#[inline(always)]
fn arp<E: Packet + Node>(env: &E, slot: u32, pod: &Pod) -> Decision<()> {
    let words = env.words::<7>(ETHERNET).ok_or(DropReason::Malformed)?;
    let [kind, _, _, _] = words[0].to_ne_bytes();
    let [hardware_len, protocol_len, _, _] = words[1].to_ne_bytes();
    if kind != 0 || hardware_len != 6 || protocol_len != 4 {
        return Err(DropReason::Malformed);
    }
    if !has_own_mac(env, ETHERNET + 8, pod) {
        return Err(DropReason::SpoofedMac);
    }
    let [a, b] = high_half(words[3]).to_ne_bytes();
    let [c, d] = low_half(words[4]).to_ne_bytes();
    let sender = Address::v4([a, b, c, d]);
    let target = Address::from_v4_word(words[6]);
    let is_own = if sender == Address::v4([0; 4]) {
        env.endpoint(&target).is_none() || has_v4(env, slot, pod, &target)
    } else {
        has_v4(env, slot, pod, &sender)
    };
    if is_own {
        Ok(())
    } else {
        Err(DropReason::SpoofedAddress)
    }
}

/// Checks the packet that an ICMP error quotes: a pod is not a router, and reports only packets
/// that were sent to itself. A forged report would change the path MTU of another pod.
#[inline(always)]
fn quote<E: Packet + Node>(env: &E, headers: &Headers, slot: u32, pod: &Pod) -> Decision<()> {
    let destination = icmp::quoted_destination(env, headers).ok_or(DropReason::Malformed)?;
    let is_own = if headers.version == 6 {
        has_v6(env, slot, pod, &destination)
    } else {
        has_v4(env, slot, pod, &destination)
    };
    if is_own || destination == headers.tuple.source {
        Ok(())
    } else {
        Err(DropReason::SpoofedAddress)
    }
}

/// Ports of DHCP: client and server (RFC 2131).
const DHCP: [u16; 2] = [68, 67];

/// Returns whether a packet is a DHCP request, which a pod sends from 0.0.0.0.
#[inline(always)]
fn is_dhcp_request(headers: &Headers) -> bool {
    let tuple = &headers.tuple;
    let [client, server] = DHCP;
    tuple.source == Address::v4([0; 4])
        && tuple.protocol == protocol::UDP
        && tuple.source_port == Port::new(client)
        && tuple.destination_port == Port::new(server)
}

/// Returns whether an IPv6 packet has a valid source: the pod's own address, a link-local one only
/// if the destination is link-local or multicast; or the unspecified address, for neighbour
/// discovery.
#[inline(always)]
fn is_own_v6<E: Packet + Node>(env: &E, headers: &Headers, slot: u32, pod: &Pod) -> bool {
    let (source, destination) = (&headers.tuple.source, &headers.tuple.destination);
    let icmp = headers.tuple.protocol == protocol::ICMPV6;
    let is_own = if is_link_local(source) {
        (is_link_local(destination) || is_multicast(destination))
            && has_link_local(env, slot, pod, source)
    } else {
        let is_unspecified = icmp && discovery::may_be_unspecified(headers);
        (source.is_any() && is_unspecified) || has_v6(env, slot, pod, source)
    };
    is_own && !(icmp && discovery::is_forged(env, headers, slot, pod))
}

#[cfg(test)]
mod tests;

//! The second copy of a packet that a promiscuous bridge delivers twice (behaviours K20, K21).
//!
//! A promiscuous bridge passes every frame to the node as well. Where netfilter hooks bridges
//! (`bridge-nf-call-iptables`), a packet to a virtual address is translated on both paths, and its
//! pod gets it from the sender by the bridge and again from the node. Only the node's copy has the
//! bridge's own MAC address and the IP address of a pod as its source. On a bridge that is not
//! promiscuous, a packet that the node has routed from pod to pod has both as well and is the only
//! copy, so nothing is dropped there.

use abi::{Address, DropReason, SettingsFlags};

use crate::address::same_subnet;
use crate::node::Node;
use crate::outcome::Decision;
use crate::packet::Packet;
use crate::parse::{ETHERTYPE_IPV4, ETHERTYPE_IPV6};
use crate::sender::ETHERNET;
use crate::sender::has_mac;
use crate::work::Work;

const SOURCE_MAC: u32 = 6;
/// Offset of the source address in the IPv4 header.
const SOURCE_V4: u32 = 12;
/// Offset of the source address in the IPv6 header.
const SOURCE_V6: u32 = 8;

/// Drops duplicates.
#[inline(always)]
pub(crate) fn check<E: Packet + Node>(env: &mut E, work: &mut Work) -> Decision<()> {
    let promiscuous = env
        .settings()
        .is_some_and(|settings| settings.flags & SettingsFlags::DUPLICATES != 0);
    if !promiscuous {
        return Ok(());
    }
    let Some(bridge) = env.pod(work.pod).map(|pod| pod.network) else {
        return Ok(());
    };
    let Some(source) = source(env) else {
        return Ok(());
    };
    let family = source.family();
    let Some(network) = env.network(bridge) else {
        return Ok(());
    };
    let (gateway, length) = (network.gateway(family), network.duplicates(family));
    if length == 0 || source == gateway || !has_mac(env, SOURCE_MAC, network.mac) {
        return Ok(());
    }
    let is_pods = same_subnet(&source, &gateway, u32::from(length)) || is_on(env, &source, bridge);
    if is_pods && !env.is_local(&source) {
        Err(DropReason::Duplicate)
    } else {
        Ok(())
    }
}

/// Returns the source address of an IP packet in an Ethernet frame.
#[inline(always)]
fn source<E: Packet>(packet: &E) -> Option<Address> {
    match packet.ethertype() {
        ETHERTYPE_IPV4 => {
            let [word] = packet.words::<1>(ETHERNET + SOURCE_V4)?;
            Some(Address::from_v4_word(word))
        }
        ETHERTYPE_IPV6 => {
            let words = packet.words::<4>(ETHERNET + SOURCE_V6)?;
            Some(Address::from_words(words))
        }
        _ => None,
    }
}

/// Returns whether a pod on this bridge has the address: a bridge may have more subnets than its
/// entry has.
#[inline(always)]
fn is_on<E: Node>(node: &E, address: &Address, bridge: u32) -> bool {
    let Some(slot) = node.endpoint(address).map(|endpoint| endpoint.pod) else {
        return false;
    };
    node.pod(slot).is_some_and(|pod| pod.network == bridge)
}

//! Roles that a pod does not have: it is neither a router nor a DHCP server.
//!
//! Hosts believe these messages whatever address they come from: other pods would send their
//! traffic to the pod, or take their configuration from it.

use abi::{DropReason, Port, protocol};

use crate::outcome::Decision;
use crate::packet::Packet;
use crate::work::{Fragment, Headers};

/// IGMP (RFC 9776).
const IGMP: u8 = 2;

/// UDP ports of DHCP clients (RFC 2131), and of DHCPv6 clients (RFC 8415).
const CLIENT: [u16; 2] = [68, 546];

/// Drops messages of routers and of DHCP servers.
#[inline(always)]
pub(crate) fn check(packet: &impl Packet, headers: &Headers) -> Decision<()> {
    if headers.fragment == Fragment::Later {
        return Ok(());
    }
    match headers.tuple.protocol {
        protocol::UDP => {
            let [v4, v6] = CLIENT;
            let client = if headers.version == 6 { v6 } else { v4 };
            if headers.tuple.destination_port == Port::new(client) {
                return Err(DropReason::RogueDhcp);
            }
        }
        protocol::ICMPV6 if headers.version == 6 && is_router_icmp_v6(headers.icmp_type) => {
            return Err(DropReason::RogueRouter);
        }
        protocol::ICMP if headers.version == 4 && is_router_icmp(headers.icmp_type) => {
            return Err(DropReason::RogueRouter);
        }
        IGMP if headers.version == 4 => {
            let word = packet.words::<1>(headers.l4);
            let [kind, _, _, _] = word.map_or([0; 4], |[word]| word.to_ne_bytes());
            if is_router_igmp(kind) {
                return Err(DropReason::RogueRouter);
            }
        }
        _ => {}
    }
    Ok(())
}

/// Redirect (RFC 792), and router advertisement (RFC 1256).
#[inline(always)]
const fn is_router_icmp(icmp_type: u8) -> bool {
    matches!(icmp_type, 5 | 9)
}

/// Multicast listener query (RFC 3810), router advertisement and redirect (RFC 4861), multicast
/// router advertisement and termination (RFC 4286).
#[inline(always)]
const fn is_router_icmp_v6(icmp_type: u8) -> bool {
    matches!(icmp_type, 130 | 134 | 137 | 151 | 153)
}

/// Membership query (RFC 9776), multicast router advertisement and termination (RFC 4286).
#[inline(always)]
const fn is_router_igmp(kind: u8) -> bool {
    matches!(kind, 0x11 | 0x30 | 0x32)
}

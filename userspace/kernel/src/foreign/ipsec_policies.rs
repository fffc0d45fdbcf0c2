//! Lists IPsec policies (XFRM), and the default for packets without one.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use model::Cidr;
use rtnetlink::packet_core::NlasIterator;
use rtnetlink::sys::Socket;
use rtnetlink::sys::protocols::NETLINK_XFRM;
use steps::{Ipsec, IpsecDirection, IpsecPolicy};

use crate::foreign::ipsec;
use crate::netlink::messages::messages;
use crate::netlink::socket;

/// `XFRM_MSG_GETPOLICY` and `XFRM_MSG_NEWPOLICY`.
const GET_POLICY: u16 = 0x15;
const POLICY: u16 = 0x13;
/// `NLMSG_DONE` and `NLMSG_ERROR`.
const DONE: u16 = 3;
const ERROR: u16 = 2;
/// `NLM_F_REQUEST | NLM_F_DUMP`.
const DUMP: u16 = 0x301;

/// Size of `struct nlmsghdr`, and of `struct xfrm_userpolicy_id`, the body of a request.
const HEADER: usize = 16;
const REQUEST_BODY: usize = 64;

/// Size of `struct xfrm_userpolicy_info`; attributes come after it.
const INFO: usize = 168;
/// Offsets in it. It begins with `struct xfrm_selector`: destination and source, 16 bytes each.
const DESTINATION: usize = 0;
const SOURCE: usize = 16;
/// Ports and their masks, 8 bytes.
const PORTS: usize = 32;
const FAMILY: usize = 40;
const DESTINATION_LENGTH: usize = 42;
const SOURCE_LENGTH: usize = 43;
const PROTOCOL: usize = 44;
const LINK: usize = 48;
/// Behind the selector and the lifetimes.
const PRIORITY: usize = 152;
const DIRECTION: usize = 160;
const ACTION: usize = 161;

/// `XFRMA_TMPL`, `XFRMA_MARK` and `XFRMA_IF_ID`.
const TEMPLATES: u16 = 5;
const MARK: u16 = 21;
const INTERFACE: u16 = 31;

/// Returns the policies of the namespace of the calling thread; none without IPsec.
pub(crate) fn all() -> io::Result<Ipsec> {
    let Some(socket) = socket::if_supported(Socket::new(NETLINK_XFRM))? else {
        return Ok(Ipsec::default());
    };
    let directions = [
        IpsecDirection::In,
        IpsecDirection::Forward,
        IpsecDirection::Out,
    ];
    let blocked = directions.into_iter().zip(ipsec::blocked(&socket)?);
    let blocked = blocked.filter(|(_, blocked)| *blocked);
    Ok(Ipsec {
        blocked: blocked.map(|(direction, _)| direction).collect(),
        policies: policies(&socket)?,
    })
}

fn policies(socket: &Socket) -> io::Result<Vec<IpsecPolicy>> {
    socket.send(&request(), 0)?;
    let mut found = Vec::new();
    let mut buffer = Vec::with_capacity(64 * 1024);
    loop {
        buffer.clear();
        socket.recv(&mut buffer, 0)?;
        for (kind, body) in messages(&buffer) {
            match kind {
                DONE | ERROR => return Ok(found),
                POLICY => found.extend(policy(body)),
                _ => {}
            }
        }
    }
}

fn request() -> Vec<u8> {
    let length = u32::try_from(HEADER + REQUEST_BODY).unwrap_or(0);
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend(GET_POLICY.to_ne_bytes());
    bytes.extend(DUMP.to_ne_bytes());
    bytes.resize(HEADER + REQUEST_BODY, 0);
    bytes
}

/// Decodes a policy; `None` for those of single sockets, whose directions are numbered from 3.
fn policy(body: &[u8]) -> Option<IpsecPolicy> {
    let direction = match body.get(DIRECTION)? {
        0 => IpsecDirection::In,
        1 => IpsecDirection::Out,
        2 => IpsecDirection::Forward,
        _ => return None,
    };
    let attributes = || NlasIterator::new(body.get(INFO..).unwrap_or_default()).flatten();
    let has = |kinds: &[u16]| attributes().any(|attribute| kinds.contains(&attribute.kind()));
    let is_set = |at: usize, length: usize| {
        let bytes = body.get(at..at + length);
        bytes.is_some_and(|bytes| bytes.iter().any(|byte| *byte != 0))
    };
    Some(IpsecPolicy {
        direction,
        source: prefix(body, SOURCE, SOURCE_LENGTH)?,
        destination: prefix(body, DESTINATION, DESTINATION_LENGTH)?,
        is_narrowed: is_set(PORTS, 8)
            || is_set(PROTOCOL, 1)
            || is_set(LINK, 4)
            || has(&[MARK, INTERFACE]),
        blocks: *body.get(ACTION)? == 1,
        transforms: has(&[TEMPLATES]),
        priority: u32::from_ne_bytes(*body.get(PRIORITY..)?.first_chunk()?),
    })
}

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(bytes: &[u8]) {
    for (_, body) in messages(bytes) {
        let _ = policy(body);
    }
}

/// Decodes the address at `at` and its prefix length. Policies for both families have family 0, and
/// are those of IPv4 here.
fn prefix(body: &[u8], at: usize, length: usize) -> Option<Cidr> {
    const INET6: u16 = 10;
    let family = u16::from_ne_bytes(*body.get(FAMILY..)?.first_chunk()?);
    let bytes: [u8; 16] = *body.get(at..)?.first_chunk()?;
    let address = if family == INET6 {
        IpAddr::V6(Ipv6Addr::from(bytes))
    } else {
        IpAddr::V4(Ipv4Addr::from(*bytes.first_chunk()?))
    };
    Cidr::containing(address, *body.get(length)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(direction: u8, action: u8) -> Vec<u8> {
        let mut body = vec![0; INFO];
        body[DESTINATION..4].copy_from_slice(&[10, 9, 0, 0]);
        body[SOURCE..SOURCE + 4].copy_from_slice(&[10, 1, 0, 0]);
        body[FAMILY] = 2;
        (body[DESTINATION_LENGTH], body[SOURCE_LENGTH]) = (16, 24);
        body[PRIORITY..PRIORITY + 4].copy_from_slice(&77_u32.to_ne_bytes());
        (body[DIRECTION], body[ACTION]) = (direction, action);
        body
    }

    #[test]
    fn an_ipsec_policy_is_decoded_with_its_selector() {
        let found = policy(&encoded(2, 1)).unwrap();
        assert_eq!(found.direction, IpsecDirection::Forward);
        assert_eq!(found.source.to_string(), "10.1.0.0/24");
        assert_eq!(found.destination.to_string(), "10.9.0.0/16");
        assert_eq!((found.priority, found.blocks), (77, true));
        assert!(!found.transforms && !found.is_narrowed);
        let mut narrowed = encoded(1, 0);
        narrowed[PROTOCOL] = 6;
        narrowed.extend([8_u16.to_ne_bytes(), TEMPLATES.to_ne_bytes()].concat());
        narrowed.extend([0; 4]);
        let found = policy(&narrowed).unwrap();
        assert!(found.transforms && found.is_narrowed && !found.blocks);
    }

    #[test]
    fn ipsec_policies_of_sockets_and_cut_messages_are_skipped() {
        assert_eq!(policy(&encoded(4, 1)), None);
        assert_eq!(policy(&encoded(1, 1)[..100]), None);
    }
}

//! UDP connections in the conntrack table that keep an earlier translation of a hostport.
//!
//! A client that goes on sending keeps its entry alive, and with it the address of a pod that is
//! gone, or no translation at all (behaviour R15). TCP connections end with their pod. Messages are
//! those of `include/uapi/linux/netfilter/nfnetlink_conntrack.h`.

use std::io;
use std::net::IpAddr;

use model::Protocol;
use nix::errno::Errno;
use rtnetlink::sys::Socket;
use rtnetlink::sys::protocols::NETLINK_NETFILTER;
use steps::EntryKey;

use crate::error::is_gone;
use crate::firewall::nftables::{Attributes, parse};
use crate::netlink::messages::messages;
use crate::netlink::socket;

/// `NFNL_SUBSYS_CTNETLINK` with `IPCTNL_MSG_CT_NEW`, `_GET` and `_DELETE`.
const NEW: u16 = 1 << 8;
const GET: u16 = 1 << 8 | 1;
const DELETE: u16 = 1 << 8 | 2;
/// `NLM_F_REQUEST | NLM_F_DUMP`, and `NLM_F_REQUEST | NLM_F_ACK`.
const DUMP: u16 = 0x301;
const ACK: u16 = 0x5;
/// `NLMSG_ERROR` and `NLMSG_DONE`.
const ERROR: u16 = 2;
const DONE: u16 = 3;

/// `AF_INET` and `AF_INET6`.
const IPV4: u8 = 2;
const IPV6: u8 = 10;

/// `NLA_F_NESTED`.
const NESTED: u16 = 0x8000;
/// `CTA_TUPLE_ORIG`, `CTA_TUPLE_IP`, `CTA_TUPLE_PROTO`.
const ORIGINAL: u16 = 1;
const ADDRESSES: u16 = 1;
const PORTS: u16 = 2;
/// `CTA_IP_V4_DST` and `CTA_IP_V6_DST`.
const DESTINATION_V4: u16 = 2;
const DESTINATION_V6: u16 = 4;
/// `CTA_PROTO_NUM` and `CTA_PROTO_DST_PORT`.
const NUMBER: u16 = 1;
const DESTINATION_PORT: u16 = 3;
/// `CTA_ZONE`.
const ZONE: u16 = 18;
/// `CTA_FILTER`, `CTA_FILTER_ORIG_FLAGS`, and in them protocol and destination port.
const FILTER: u16 = 25;
const FILTER_FLAGS: u16 = 1;
const BY_PROTOCOL_AND_PORT: u32 = 1 << 3 | 1 << 5;

const HEADER: usize = 16;
const FAMILY_HEADER: usize = 4;

/// The connections to one UDP hostport.
pub(super) struct StaleFlows {
    address: Option<IpAddr>,
    ipv4: bool,
    port: u16,
}

impl StaleFlows {
    /// Returns the connections of a hostport that changes; `None` for other protocols.
    pub(super) fn before(key: &EntryKey) -> Option<Self> {
        let EntryKey::Hostport {
            address,
            ipv4,
            port,
            protocol: Protocol::Udp,
        } = key
        else {
            return None;
        };
        Some(Self {
            address: *address,
            ipv4: *ipv4,
            port: *port,
        })
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Removes the entries of these connections. `is_local` says whether an address is the node's.
    pub(super) fn end(&self, is_local: impl Fn(IpAddr) -> bool) -> io::Result<()> {
        let Some(mut socket) = socket::if_supported(Socket::new(NETLINK_NETFILTER))? else {
            return Ok(());
        };
        socket::set_receive_timeout(&socket)?;
        let filtered = self.list(&mut socket, true);
        let entries = match filtered {
            // A kernel before 5.8 has no filter, or not this one.
            Err(error) if is_refusal(&error) => self.list(&mut socket, false)?,
            other => other?,
        };
        for entry in entries {
            let is_ours = match self.address {
                Some(address) => entry.destination == address,
                None => is_local(entry.destination),
            };
            if is_ours {
                self.delete(&mut socket, &entry)?;
            }
        }
        Ok(())
    }

    fn family(&self) -> u8 {
        if self.ipv4 { IPV4 } else { IPV6 }
    }

    fn list(&self, socket: &mut Socket, filtered: bool) -> io::Result<Vec<Tracked>> {
        let mut query = Attributes::default();
        if filtered {
            let protocol = Attributes::default()
                .bytes(NUMBER, &[abi::protocol::UDP])
                .bytes(DESTINATION_PORT, &self.port.to_be_bytes());
            let tuple = Attributes::default().nested(PORTS, &protocol);
            let flags =
                Attributes::default().bytes(FILTER_FLAGS, &BY_PROTOCOL_AND_PORT.to_ne_bytes());
            query = query.nested(ORIGINAL, &tuple).nested(FILTER, &flags);
        }
        socket.send(&message(GET, DUMP, self.family(), &query), 0)?;
        let mut found = Vec::new();
        receive(socket, |body| {
            found.extend(Tracked::of(body).filter(|entry| entry.port == self.port));
        })?;
        Ok(found)
    }

    /// Removes one entry; one that is gone is success.
    fn delete(&self, socket: &mut Socket, entry: &Tracked) -> io::Result<()> {
        let mut query = Attributes::default().bytes(NESTED | ORIGINAL, &entry.original);
        if let Some(zone) = &entry.zone {
            query = query.bytes(ZONE, zone);
        }
        socket.send(&message(DELETE, ACK, self.family(), &query), 0)?;
        match receive(socket, |_| {}) {
            Err(error) if is_gone(&error) => Ok(()),
            other => other,
        }
    }
}

/// A tracked UDP connection.
struct Tracked {
    /// `CTA_TUPLE_ORIG`, encoded.
    original: Vec<u8>,
    /// `CTA_ZONE`, encoded.
    zone: Option<Vec<u8>>,
    destination: IpAddr,
    port: u16,
}

impl Tracked {
    fn of(body: &[u8]) -> Option<Self> {
        let attributes = body.get(FAMILY_HEADER..)?;
        let original = attribute(attributes, ORIGINAL)?;
        let protocol = attribute(original, PORTS)?;
        if attribute(protocol, NUMBER)? != [abi::protocol::UDP] {
            return None;
        }
        let addresses = attribute(original, ADDRESSES)?;
        let v4 = attribute(addresses, DESTINATION_V4).and_then(|it| it.first_chunk::<4>());
        let v6 = attribute(addresses, DESTINATION_V6).and_then(|it| it.first_chunk::<16>());
        let destination = match (v4, v6) {
            (Some(v4), _) => IpAddr::from(*v4),
            (None, Some(v6)) => IpAddr::from(*v6),
            (None, None) => return None,
        };
        Some(Self {
            zone: attribute(attributes, ZONE).map(<[u8]>::to_vec),
            destination,
            port: u16::from_be_bytes(*attribute(protocol, DESTINATION_PORT)?.first_chunk()?),
            original: original.to_vec(),
        })
    }
}

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(bytes: &[u8]) {
    for (_, body) in messages(bytes) {
        let _ = Tracked::of(body);
    }
}

fn attribute(attributes: &[u8], kind: u16) -> Option<&[u8]> {
    parse(attributes)
        .find(|(this, _)| *this == kind)
        .map(|(_, value)| value)
}

fn message(kind: u16, flags: u16, family: u8, attributes: &Attributes) -> Vec<u8> {
    let body = attributes.as_bytes();
    let length = u32::try_from(HEADER + FAMILY_HEADER + body.len()).unwrap_or(u32::MAX);
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend([family, 0, 0, 0]);
    bytes.extend(body);
    bytes
}

/// Reads the answers to one request up to its end.
fn receive(socket: &Socket, mut entry: impl FnMut(&[u8])) -> io::Result<()> {
    let mut buffer = Vec::with_capacity(64 * 1024);
    loop {
        socket::receive(socket, &mut buffer)?;
        for (kind, body) in messages(&buffer) {
            match kind {
                DONE => return Ok(()),
                ERROR => {
                    let code = body
                        .first_chunk::<4>()
                        .map_or(0, |it| i32::from_ne_bytes(*it));
                    return match code {
                        0 => Ok(()),
                        code => Err(io::Error::from_raw_os_error(-code)),
                    };
                }
                NEW => entry(body),
                _ => {}
            }
        }
    }
}

fn is_refusal(error: &io::Error) -> bool {
    [Errno::EINVAL, Errno::EOPNOTSUPP, Errno::ERANGE]
        .into_iter()
        .any(|errno| crate::error::is(error, errno))
}

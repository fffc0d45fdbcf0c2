//! Looks up connections in netfilter's conntrack table, and changes them.
//!
//! Messages are those of `include/uapi/linux/netfilter/nfnetlink_conntrack.h`.

use std::io;

use abi::{Address, Port, Tuple, protocol};
use nix::errno::Errno;
use rtnetlink::sys::Socket;
use steps::TrackedConnection;

use crate::error::{is, is_gone};
use crate::firewall::nftables::{Attributes, be32, parse};
use crate::netlink::messages::{HEADER, messages};
use crate::netlink::socket;

/// `NFNL_SUBSYS_CTNETLINK` with `IPCTNL_MSG_CT_NEW`, `_GET` and `_DELETE`.
const NEW: u16 = 1 << 8;
pub(crate) const GET: u16 = 1 << 8 | 1;
pub(crate) const DELETE: u16 = 1 << 8 | 2;
/// `NLM_F_REQUEST | NLM_F_ACK`.
pub(crate) const ACK: u16 = 0x5;
/// `NLM_F_REQUEST | NLM_F_DUMP`.
pub(crate) const DUMP: u16 = 0x301;
/// `NLMSG_ERROR` and `NLMSG_DONE`.
const ERROR: u16 = 2;
const DONE: u16 = 3;

/// `AF_INET` and `AF_INET6`.
pub(crate) const IPV4: u8 = 2;
pub(crate) const IPV6: u8 = 10;

/// `CTA_TUPLE_ORIG` and `CTA_TUPLE_REPLY`.
pub(crate) const ORIGINAL: u16 = 1;
const REPLY: u16 = 2;
/// `CTA_STATUS`, `CTA_PROTOINFO`, `CTA_HELP`, `CTA_TIMEOUT`, `CTA_MARK` and `CTA_ZONE`.
const STATUS: u16 = 3;
const STATE: u16 = 4;
const HELPER: u16 = 5;
const TIMEOUT: u16 = 7;
const MARK: u16 = 8;
pub(crate) const ZONE: u16 = 18;
/// `CTA_TUPLE_IP` and `CTA_TUPLE_PROTO`.
pub(crate) const ADDRESSES: u16 = 1;
pub(crate) const PORTS: u16 = 2;
/// `CTA_PROTO_NUM`, `CTA_PROTO_SRC_PORT` and `CTA_PROTO_DST_PORT`.
pub(crate) const NUMBER: u16 = 1;
const SOURCE_PORT: u16 = 2;
pub(crate) const DESTINATION_PORT: u16 = 3;
/// `CTA_PROTOINFO_TCP`, and in it the state and the flags of each direction.
const TCP: u16 = 1;
const TCP_STATE: u16 = 1;
const TCP_FLAGS: [u16; 2] = [4, 5];
/// `IP_CT_TCP_FLAG_BE_LIBERAL`.
const LIBERAL: u8 = 8;

const FAMILY_HEADER: usize = 4;

/// A socket for the conntrack table of one network namespace.
pub(crate) struct Conntrack {
    socket: Socket,
}

impl Conntrack {
    /// Opens a socket in the namespace of the calling thread; `None` where the kernel has no
    /// netfilter netlink.
    pub(crate) fn open() -> io::Result<Option<Self>> {
        let Some(socket) = socket::open_netfilter()? else {
            return Ok(None);
        };
        Ok(Some(Self { socket }))
    }

    /// Returns the connection with this tuple, in either direction and the usual zone.
    pub(crate) fn find(&self, tuple: &Tuple) -> io::Result<Option<TrackedConnection>> {
        let query = Attributes::default().nested(ORIGINAL, &encode(tuple));
        self.socket
            .send(&message(GET, ACK, family(tuple), &query), 0)?;
        let mut found = None;
        match receive(&self.socket, |body| found = connection(body)) {
            Ok(()) => Ok(found),
            // The kernel has netfilter netlink without conntrack's part of it.
            Err(error) if is_gone(&error) || is(&error, Errno::EINVAL) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns all connections, of both families.
    pub(crate) fn list(&self) -> io::Result<Vec<TrackedConnection>> {
        let query = Attributes::default();
        self.socket.send(&message(GET, DUMP, 0, &query), 0)?;
        let mut found = Vec::new();
        match receive(&self.socket, |body| found.extend(connection(body))) {
            Ok(()) => Ok(found),
            Err(error) if is_gone(&error) || is(&error, Errno::EINVAL) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Stops the check of sequence numbers for a TCP connection, of which packets will not be seen.
    pub(crate) fn make_liberal(&self, connection: &TrackedConnection) -> io::Result<()> {
        // `struct nf_ct_tcp_flags`: flags and mask.
        let flags = TCP_FLAGS
            .into_iter()
            .fold(Attributes::default(), |all, of| {
                all.bytes(of, &[LIBERAL, LIBERAL])
            });
        let change = Attributes::default()
            .nested(ORIGINAL, &encode(&connection.original))
            .nested(STATE, &Attributes::default().nested(TCP, &flags));
        let family = family(&connection.original);
        self.socket.send(&message(NEW, ACK, family, &change), 0)?;
        receive(&self.socket, |_| {})
    }
}

fn family(tuple: &Tuple) -> u8 {
    if tuple.source.is_v4() { IPV4 } else { IPV6 }
}

/// Encodes `CTA_TUPLE_*`. `CTA_IP_V4_SRC` and `_DST` are 1 and 2, those of IPv6 3 and 4.
fn encode(tuple: &Tuple) -> Attributes {
    let bytes = |address: &Address| -> Vec<u8> {
        let words = address.words().map(u32::to_ne_bytes);
        let all = words.as_flattened();
        if address.is_v4() { &all[12..] } else { all }.to_vec()
    };
    let first = if tuple.source.is_v4() { 1 } else { 3 };
    let addresses = Attributes::default()
        .bytes(first, &bytes(&tuple.source))
        .bytes(first + 1, &bytes(&tuple.destination));
    let ports = Attributes::default()
        .bytes(NUMBER, &[tuple.protocol])
        .bytes(SOURCE_PORT, &tuple.source_port.raw().to_ne_bytes())
        .bytes(
            DESTINATION_PORT,
            &tuple.destination_port.raw().to_ne_bytes(),
        );
    Attributes::default()
        .nested(ADDRESSES, &addresses)
        .nested(PORTS, &ports)
}

/// Decodes `CTA_TUPLE_*`.
fn decode(encoded: &[u8]) -> Option<Tuple> {
    let (addresses, ports) = (attribute(encoded, ADDRESSES)?, attribute(encoded, PORTS)?);
    let address = |v4, v6| {
        if let Some(octets) = attribute(addresses, v4).and_then(<[u8]>::first_chunk::<4>) {
            return Some(Address::v4(*octets));
        }
        let octets = attribute(addresses, v6)?.first_chunk::<16>()?;
        let (words, _) = octets.as_chunks::<4>();
        let [a, b, c, d] = *words else { return None };
        Some(Address::from_words([a, b, c, d].map(u32::from_ne_bytes)))
    };
    let port = |kind| {
        let bytes = attribute(ports, kind).and_then(<[u8]>::first_chunk::<2>);
        bytes.map_or(Port::NONE, |bytes| {
            Port::from_raw(u16::from_ne_bytes(*bytes))
        })
    };
    Some(Tuple {
        source: address(1, 3)?,
        destination: address(2, 4)?,
        source_port: port(SOURCE_PORT),
        destination_port: port(DESTINATION_PORT),
        protocol: *attribute(ports, NUMBER)?.first()?,
        reserved: [0; 3],
    })
}

/// Decodes a connection: `struct nfgenmsg`, then attributes.
fn connection(body: &[u8]) -> Option<TrackedConnection> {
    let all = body.get(FAMILY_HEADER..)?;
    let word = |kind| attribute(all, kind).and_then(be32).unwrap_or(0);
    let original = decode(attribute(all, ORIGINAL)?)?;
    let tcp = attribute(all, STATE).and_then(|state| attribute(state, TCP));
    let is_liberal = |of| {
        tcp.and_then(|tcp| attribute(tcp, of)?.first())
            .is_some_and(|flags| flags & LIBERAL != 0)
    };
    Some(TrackedConnection {
        original,
        reply: decode(attribute(all, REPLY)?)?,
        status: word(STATUS),
        timeout: word(TIMEOUT),
        mark: word(MARK),
        zone: attribute(all, ZONE)
            .and_then(<[u8]>::first_chunk::<2>)
            .map_or(0, |zone| u16::from_be_bytes(*zone)),
        has_helper: attribute(all, HELPER).is_some(),
        tcp_state: tcp.and_then(|tcp| attribute(tcp, TCP_STATE)?.first().copied()),
        is_liberal: original.protocol == protocol::TCP && TCP_FLAGS.into_iter().all(is_liberal),
    })
}

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(bytes: &[u8]) {
    for (_, body) in messages(bytes) {
        let _ = connection(body);
    }
}

/// Returns an attribute of a list.
pub(crate) fn attribute(attributes: &[u8], kind: u16) -> Option<&[u8]> {
    parse(attributes)
        .find(|(this, _)| *this == kind)
        .map(|(_, value)| value)
}

/// Encodes a request of conntrack.
pub(crate) fn message(kind: u16, flags: u16, family: u8, attributes: &Attributes) -> Vec<u8> {
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
pub(crate) fn receive(socket: &Socket, mut entry: impl FnMut(&[u8])) -> io::Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn tuple(v4: bool) -> Tuple {
        let address = |last| {
            if v4 {
                Address::v4([10, 0, 0, last])
            } else {
                Address::from_words([0x2001, 2, 3, last.into()])
            }
        };
        Tuple {
            source: address(1),
            destination: address(2),
            source_port: Port::new(40_000),
            destination_port: Port::new(443),
            protocol: protocol::TCP,
            reserved: [0; 3],
        }
    }

    #[test]
    fn tuples_of_conntrack_are_decoded_as_they_are_encoded() {
        for v4 in [true, false] {
            let encoded = encode(&tuple(v4));
            assert_eq!(decode(encoded.as_bytes()), Some(tuple(v4)));
        }
        assert_eq!(decode(&[]), None);
    }

    #[test]
    fn a_connection_of_conntrack_has_its_status_and_tcp_state() {
        let flags = |liberal: [u8; 2]| {
            let of = TCP_FLAGS.into_iter().zip(liberal);
            let tcp = of.fold(
                Attributes::default().bytes(TCP_STATE, &[3]),
                |all, (of, bits)| all.bytes(of, &[bits, 0]),
            );
            Attributes::default().nested(TCP, &tcp)
        };
        let of = |liberal| {
            let all = Attributes::default()
                .nested(ORIGINAL, &encode(&tuple(true)))
                .nested(REPLY, &encode(&tuple(true).reverse()))
                .be32(STATUS, 0xe)
                .be32(TIMEOUT, 300)
                .be32(MARK, 7)
                .bytes(ZONE, &[0, 9])
                .nested(STATE, &flags(liberal));
            connection(&[&[2, 0, 0, 0], all.as_bytes()].concat())
        };
        let expected = TrackedConnection {
            original: tuple(true),
            reply: tuple(true).reverse(),
            status: 0xe,
            timeout: 300,
            mark: 7,
            zone: 9,
            has_helper: false,
            tcp_state: Some(3),
            is_liberal: true,
        };
        assert_eq!(of([LIBERAL; 2]), Some(expected));
        assert!(of([LIBERAL, 0]).is_some_and(|it| !it.is_liberal));
        assert_eq!(connection(&[2, 0, 0, 0]), None);
    }
}

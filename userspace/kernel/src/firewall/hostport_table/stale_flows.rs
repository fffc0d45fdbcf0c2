//! UDP connections in the conntrack table that keep an earlier translation of a hostport.
//!
//! A client that goes on sending keeps its entry alive, and with it the address of a pod that is
//! gone, or no translation at all (behaviour R15). TCP connections end with their pod.

use std::io;
use std::net::IpAddr;

use model::Protocol;
use nix::errno::Errno;
use rtnetlink::sys::Socket;
use rtnetlink::sys::protocols::NETLINK_NETFILTER;
use steps::EntryKey;

use crate::error::is_gone;
use crate::firewall::conntrack::{
    ACK, ADDRESSES, DELETE, DESTINATION_PORT, DUMP, GET, IPV4, IPV6, NUMBER, ORIGINAL, PORTS, ZONE,
    attribute, message, receive,
};
use crate::firewall::nftables::Attributes;
#[cfg(any(test, feature = "fuzzing"))]
use crate::netlink::messages::messages;
use crate::netlink::socket;

/// `NLA_F_NESTED`.
const NESTED: u16 = 0x8000;
/// `CTA_IP_V4_DST` and `CTA_IP_V6_DST`.
const DESTINATION_V4: u16 = 2;
const DESTINATION_V6: u16 = 4;
/// `CTA_FILTER`, `CTA_FILTER_ORIG_FLAGS`, and in them protocol and destination port.
const FILTER: u16 = 25;
const FILTER_FLAGS: u16 = 1;
const BY_PROTOCOL_AND_PORT: u32 = 1 << 3 | 1 << 5;

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

fn is_refusal(error: &io::Error) -> bool {
    [Errno::EINVAL, Errno::EOPNOTSUPP, Errno::ERANGE]
        .into_iter()
        .any(|errno| crate::error::is(error, errno))
}

//! Sender and destination of an explained packet: pods by name, addresses, ports.

use std::net::{IpAddr, SocketAddr};

use abi::{Address, Port, Tuple, protocol as number};
use api::WhyQuery;
use cni::Error;
use explain::{Question, Sender, Snapshot, sender_of};
use model::Record;

use crate::http::flows::matches_name;

/// Source port of packets whose query names none, and the identifier of echo requests: the first of
/// those that no flow has.
const SOURCE_PORTS: std::ops::Range<u16> = 40_123..60_000;

/// Pods and tables that names are resolved by.
pub(super) struct Parties<'a> {
    records: &'a [Record],
    snapshot: &'a Snapshot,
}

/// A side of the packet.
struct Party<'a> {
    /// The pod that it was named by.
    pod: Option<&'a Record>,
    address: Option<IpAddr>,
    port: Option<u16>,
}

impl Party<'_> {
    /// Returns its address of a family.
    fn address(&self, is_v4: bool) -> Option<IpAddr> {
        match self.pod {
            Some(record) => record.attachment.address(is_v4),
            None => self.address.filter(|address| address.is_ipv4() == is_v4),
        }
    }
}

impl<'a> Parties<'a> {
    pub(super) const fn new(records: &'a [Record], snapshot: &'a Snapshot) -> Self {
        Self { records, snapshot }
    }

    /// Returns the question of a query.
    pub(super) fn question(&self, query: &WhyQuery) -> Result<Question, Error> {
        let (Some(from), Some(to)) = (&query.from, &query.to) else {
            return Err(Error::decode(
                "from and to are missing: name both, or last_drop",
            ));
        };
        let (sender, receiver) = (self.party(from)?, self.party(to)?);
        let (source, destination) = [true, false]
            .into_iter()
            .find_map(|is_v4| sender.address(is_v4).zip(receiver.address(is_v4)))
            .ok_or_else(|| {
                Error::environment(format!("{from} and {to} have no address family in common"))
            })?;
        let is_v4 = source.is_ipv4();
        let number = protocol_of(query.protocol.as_deref(), receiver.port, is_v4)?;
        let has_ports = number == number::TCP || number == number::UDP;
        let mut tuple = Tuple {
            source: address(source),
            destination: address(destination),
            protocol: number,
            ..Tuple::default()
        };
        if has_ports {
            let port = receiver.port.ok_or_else(|| {
                Error::decode(format!("{to} has no port: a tcp or udp packet needs one"))
            })?;
            tuple.destination_port = Port::new(port);
        }
        tuple.source_port = sender
            .port
            .map_or_else(|| self.free_port(&tuple), Port::new);
        let sender = match sender.pod {
            Some(record) => Sender::Pod(record.attachment.slot),
            None => sender_of(&self.snapshot.tables, &tuple.source),
        };
        Ok(Question {
            length: query
                .size
                .map_or(0, |size| usize::try_from(size).unwrap_or(0)),
            ..Question::plain(sender, tuple)
        })
    }

    /// Returns a source port with which the packet belongs to no flow.
    fn free_port(&self, tuple: &Tuple) -> Port {
        let is_free = |port: &u16| {
            let source_port = Port::new(*port);
            let tuple = Tuple {
                source_port,
                ..*tuple
            };
            !self.snapshot.tables.flows.contains_key(&tuple)
        };
        let mut ports = SOURCE_PORTS;
        Port::new(ports.find(is_free).unwrap_or(SOURCE_PORTS.start))
    }

    /// Parses `POD`, `POD:PORT`, `ADDR`, `ADDR:PORT` or `[ADDR]:PORT`.
    fn party(&self, text: &str) -> Result<Party<'a>, Error> {
        if let Some((address, port)) = socket(text) {
            return Ok(Party {
                pod: None,
                address: Some(address),
                port,
            });
        }
        if let Some(record) = self.pod(text)? {
            return Ok(Party {
                pod: Some(record),
                address: None,
                port: None,
            });
        }
        if let Some((name, port)) = text.rsplit_once(':')
            && let Ok(port) = port.parse()
            && let Some(record) = self.pod(name)?
        {
            return Ok(Party {
                pod: Some(record),
                address: None,
                port: Some(port),
            });
        }
        Err(Error::environment(format!(
            "{text} is neither an address nor an attached pod: pods have a name, namespace/name, or \
             a prefix of the container ID"
        )))
    }

    /// Returns the pod with this name; several attachments of one container are one pod, of which
    /// the first interface counts.
    fn pod(&self, name: &str) -> Result<Option<&'a Record>, Error> {
        let mut found = self
            .records
            .iter()
            .filter(|record| matches_name(record, name));
        let Some(first) = found.next() else {
            return Ok(None);
        };
        let id = &first.attachment.key.container_id;
        if found.any(|other| other.attachment.key.container_id != *id) {
            return Err(Error::environment(format!(
                "{name} matches several pods: use namespace/name, or a longer part of the container \
                 ID"
            )));
        }
        Ok(Some(first))
    }
}

fn protocol_of(name: Option<&str>, port: Option<u16>, is_v4: bool) -> Result<u8, Error> {
    let icmp = if is_v4 { number::ICMP } else { number::ICMPV6 };
    match name {
        None if port.is_some() => Ok(number::TCP),
        None | Some("icmp") => Ok(icmp),
        Some(name @ ("tcp" | "udp")) => Ok(protocol(name).unwrap_or(number::TCP)),
        Some(other) => Err(Error::decode(format!(
            "{other}: a packet to explain is tcp, udp or icmp"
        ))),
    }
}

/// Returns the number of a protocol that the API names, other than ICMP.
pub(super) fn protocol(name: &str) -> Option<u8> {
    match name {
        "tcp" => Some(number::TCP),
        "udp" => Some(number::UDP),
        "sctp" => Some(number::SCTP),
        other => other.parse().ok(),
    }
}

/// Parses an address with or without a port.
pub(super) fn end(text: &str) -> Option<(Address, Option<u16>)> {
    let (ip, port) = socket(text)?;
    Some((address(ip), port))
}

fn socket(text: &str) -> Option<(IpAddr, Option<u16>)> {
    if let Ok(socket) = text.parse::<SocketAddr>() {
        return Some((socket.ip().to_canonical(), Some(socket.port())));
    }
    let bare = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'))
        .unwrap_or(text);
    Some((bare.parse::<IpAddr>().ok()?.to_canonical(), None))
}

/// Returns the address as the datapath has it.
pub(super) fn address(ip: IpAddr) -> Address {
    match ip {
        IpAddr::V4(v4) => Address::v4(v4.octets()),
        IpAddr::V6(v6) => Address::v6(v6.octets()),
    }
}

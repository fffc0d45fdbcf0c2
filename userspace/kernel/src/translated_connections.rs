//! TCP connections that netfilter translates to pods, and the flows that leave their translation to
//! netfilter.
//!
//! `uplink_out` tracks each connection of another NAT with its next packet (decision 95). For a
//! connection without traffic, the programs of the uplink run on packets that were never sent:
//! `BPF_PROG_TEST_RUN` has the effect of the packet on the tables, and discards it.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};

use abi::{Address, Port, Tuple, protocol};
use model::Mac;
use steps::{EntryKey, Hook, RouteDecision, RoutedPacket, TrackedConnection};

use crate::Host;
use crate::bpf::map::{Wire, present};
use crate::firewall::conntrack::Conntrack;
use crate::netlink::{links, packet_route};

/// `ETH_P_IP` and `ETH_P_IPV6`.
const ETHERTYPES: [u16; 2] = [0x0800, 0x86dd];
/// Length of a TCP header without options, in bytes.
const TCP_HEADER: u16 = 20;
/// Lengths of the IPv4 header without options and of both headers, in bytes.
const IPV4_HEADER: usize = 20;
const IPV4_LENGTH: u16 = 20 + TCP_HEADER;
/// TTL, hop limit, and TCP window of the packets.
const LIVES: u8 = 64;
const WINDOW: u16 = 1_024;
/// TCP's flag ACK, and its header length in the upper half of a byte.
const ACK: u8 = 0x10;
const OFFSET: u8 = 5 << 4;

impl Host {
    /// Returns the TCP connections in conntrack that netfilter translates to one of `addresses`, by
    /// the destination of their packets.
    pub(crate) fn list_translated(
        addresses: &BTreeSet<IpAddr>,
    ) -> io::Result<Vec<TrackedConnection>> {
        let Some(conntrack) = Conntrack::open()? else {
            return Ok(Vec::new());
        };
        let mut found = conntrack.list()?;
        found.retain(|connection| {
            connection.original.protocol == protocol::TCP
                && connection.original.destination != connection.reply.source
                && addresses.contains(&ip(&connection.reply.source))
        });
        Ok(found)
    }

    /// Runs the programs of the uplink on a reply and a request of the connection, so that it gets
    /// a flow without translation. Returns whether it has one, or needs none because its packets
    /// pass no uplink.
    pub(crate) fn make_flow(&mut self, connection: &TrackedConnection) -> io::Result<bool> {
        let request = connection.original;
        let reply = request.reverse();
        let packet = RoutedPacket {
            from: None,
            source: end(&reply.source, reply.source_port),
            destination: end(&reply.destination, reply.destination_port),
            protocol: protocol::TCP,
        };
        let route = packet_route::find(&mut self.netlink, &self.tables.names, &packet)?;
        let RouteDecision::Leaves { link, .. } = route.decision else {
            return Ok(false);
        };
        // No program at another link translates.
        let uplink = EntryKey::Uplink(self.tables.names.named(link));
        if self.tables.some(&BTreeSet::from([uplink]))?.is_empty() {
            return Ok(true);
        }
        let name = links::name_of(link);
        let found = name.map(|name| links::find(&mut self.netlink, &name));
        // Only links with Ethernet headers have an address of this kind.
        let Some(mac) = found.transpose()?.flatten().and_then(|link| link.mac) else {
            return Ok(false);
        };
        self.programs
            .run(Hook::UplinkOut, link, &frame(&reply, mac))?;
        self.programs
            .run(Hook::UplinkIn, link, &frame(&request, mac))?;
        Ok(present(self.tables.flows.get(&Wire(request), 0))?.is_some())
    }
}

fn ip(address: &Address) -> IpAddr {
    IpAddr::from(address.bytes()).to_canonical()
}

fn end(address: &Address, port: Port) -> SocketAddr {
    SocketAddr::new(ip(address), port.number())
}

/// Returns an Ethernet frame from and to `mac`, with a TCP segment without data: the flag ACK, and
/// zeros as sequence numbers.
fn frame(tuple: &Tuple, mac: Mac) -> Vec<u8> {
    let [ipv4, ipv6] = ETHERTYPES;
    let (kind, header) = if tuple.source.is_v4() {
        (ipv4, ipv4_header(tuple))
    } else {
        (ipv6, ipv6_header(tuple))
    };
    let mut frame = [mac.0, mac.0].concat();
    frame.extend(kind.to_be_bytes());
    frame.extend(header);
    frame.extend(tuple.source_port.number().to_be_bytes());
    frame.extend(tuple.destination_port.number().to_be_bytes());
    frame.extend([0; 8]);
    frame.extend([OFFSET, ACK]);
    frame.extend(WINDOW.to_be_bytes());
    // Checksum and urgent pointer: no program verifies the former.
    frame.extend([0; 4]);
    frame
}

fn ipv4_header(tuple: &Tuple) -> Vec<u8> {
    let mut header = vec![0x45, 0];
    header.extend(IPV4_LENGTH.to_be_bytes());
    // Identification, then "don't fragment".
    header.extend([0, 0, 0x40, 0]);
    header.extend([LIVES, protocol::TCP, 0, 0]);
    header.extend(&tuple.source.bytes()[12..]);
    header.extend(&tuple.destination.bytes()[12..]);
    debug_assert_eq!(header.len(), IPV4_HEADER);
    let sum = checksum(&header).to_be_bytes();
    header[10..12].copy_from_slice(&sum);
    header
}

fn ipv6_header(tuple: &Tuple) -> Vec<u8> {
    let mut header = vec![0x60, 0, 0, 0];
    header.extend(TCP_HEADER.to_be_bytes());
    header.extend([protocol::TCP, LIVES]);
    header.extend(tuple.source.bytes());
    header.extend(tuple.destination.bytes());
    header
}

/// Returns the Internet checksum of a header of 20 bytes (RFC 1071).
fn checksum(header: &[u8]) -> u16 {
    let (words, _) = header.as_chunks::<2>();
    let sum: u32 = words
        .iter()
        .map(|word| u32::from(u16::from_be_bytes(*word)))
        .sum();
    // Ten words carry at most 9, so that two additions are enough.
    let folded = (sum & 0xffff) + (sum >> 16);
    let [_, _, high, low] = ((folded & 0xffff) + (folded >> 16)).to_be_bytes();
    !u16::from_be_bytes([high, low])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuple(source: Address, destination: Address) -> Tuple {
        Tuple {
            source,
            destination,
            source_port: Port::new(8_080),
            destination_port: Port::new(40_000),
            protocol: protocol::TCP,
            reserved: [0; 3],
        }
    }

    #[test]
    fn a_frame_of_a_connection_has_its_addresses_and_a_valid_header_checksum() {
        let [a, b] = [[192, 0, 2, 1], [198, 51, 100, 7]];
        let frame = frame(
            &tuple(Address::v4(a), Address::v4(b)),
            Mac([2, 0, 0, 0, 0, 1]),
        );
        assert_eq!(frame.len(), 14 + 40);
        assert_eq!(frame[12..14], [8, 0]);
        assert_eq!((&frame[26..30], &frame[30..34]), (&a[..], &b[..]));
        assert_eq!(frame[34..38], [0x1f, 0x90, 0x9c, 0x40]);
        assert_eq!(frame[47], ACK);
        // The sum over a header with its checksum is zero.
        assert_eq!(checksum(&frame[14..34]), 0);
    }

    #[test]
    fn a_frame_of_an_ipv6_connection_has_its_addresses() {
        let [a, b] = [[0x20; 16], [0xfd; 16]];
        let frame = frame(&tuple(Address::v6(a), Address::v6(b)), Mac([2; 6]));
        assert_eq!(frame.len(), 14 + 40 + 20);
        assert_eq!(frame[12..15], [0x86, 0xdd, 0x60]);
        assert_eq!((&frame[22..38], &frame[38..54]), (&a[..], &b[..]));
    }
}

//! A captured frame: its addresses for filters, and its line of text.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use etherparse::{LaxNetSlice, LaxSlicedPacket, TransportSlice};
use time::OffsetDateTime;
use time::macros::format_description;

/// A frame as the pod's interface sent or received it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    /// Time since 1970 (UTC).
    pub(super) at: Duration,
    /// Whether the pod has sent it.
    pub(super) is_sent: bool,
    /// Length in bytes from the Ethernet header on.
    pub(super) length: u32,
    /// Its bytes from the Ethernet header on, perhaps without the last ones.
    pub(super) bytes: Vec<u8>,
    pub(super) summary: Summary,
}

/// Headers of a frame.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Summary {
    /// `tcp`, `udp`, `icmp`, `sctp`, `arp`, the IP protocol number, or the `EtherType`.
    pub(super) protocol: String,
    /// Source and destination; port 0 where the packet has none.
    pub(super) ends: Option<(SocketAddr, SocketAddr)>,
    /// TCP flags, or type and code of an ICMP message.
    pub(super) detail: String,
}

/// Names of TCP flags, as tcpdump abbreviates them.
const FLAGS: [(u8, char); 6] = [
    (0x02, 'S'),
    (0x01, 'F'),
    (0x04, 'R'),
    (0x08, 'P'),
    (0x10, '.'),
    (0x20, 'U'),
];

impl Summary {
    /// Parses a frame from the Ethernet header on. What cannot be parsed stays empty.
    pub(super) fn of(bytes: &[u8]) -> Self {
        let Ok(packet) = LaxSlicedPacket::from_ethernet(bytes) else {
            return Self::default();
        };
        let ethertype = bytes
            .get(12..14)
            .map(|it| format!("0x{:02x}{:02x}", it[0], it[1]));
        let (addresses, protocol) = match &packet.net {
            Some(LaxNetSlice::Ipv4(ip)) => {
                let header = ip.header();
                let ends = (
                    header.source_addr().into(),
                    header.destination_addr().into(),
                );
                (Some(ends), protocol_of(ip.payload().ip_number.0))
            }
            Some(LaxNetSlice::Ipv6(ip)) => {
                let header = ip.header();
                let ends = (
                    header.source_addr().into(),
                    header.destination_addr().into(),
                );
                (Some(ends), protocol_of(ip.payload().ip_number.0))
            }
            Some(LaxNetSlice::Arp(arp)) => (arp_ends(arp), "arp".to_owned()),
            None => (None, ethertype.unwrap_or_default()),
        };
        let (ports, detail) = packet
            .transport
            .as_ref()
            .map_or(((0, 0), String::new()), transport);
        let ends = addresses.map(|(source, destination): (IpAddr, IpAddr)| {
            (
                SocketAddr::new(source, ports.0),
                SocketAddr::new(destination, ports.1),
            )
        });
        Self {
            protocol,
            ends,
            detail,
        }
    }

    /// Returns source and destination as the agent's API writes them.
    pub(super) fn ends_text(&self) -> Option<(String, String)> {
        let (source, destination) = self.ends?;
        Some((end(source), end(destination)))
    }
}

/// Returns `192.0.2.1:443`, or the address alone without a port.
fn end(socket: SocketAddr) -> String {
    match socket.port() {
        0 => socket.ip().to_string(),
        _ => socket.to_string(),
    }
}

fn protocol_of(number: u8) -> String {
    match number {
        1 | 58 => "icmp".to_owned(),
        6 => "tcp".to_owned(),
        17 => "udp".to_owned(),
        132 => "sctp".to_owned(),
        other => other.to_string(),
    }
}

fn arp_ends(arp: &etherparse::ArpPacketSlice<'_>) -> Option<(IpAddr, IpAddr)> {
    let address = |bytes: &[u8]| <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from);
    address(arp.sender_protocol_addr()).zip(address(arp.target_protocol_addr()))
}

/// Returns the ports, and flags or type.
fn transport(transport: &TransportSlice<'_>) -> ((u16, u16), String) {
    match transport {
        TransportSlice::Tcp(tcp) => {
            let flags = tcp.slice().get(13).copied().unwrap_or_default();
            let set = FLAGS.iter().filter(|(bit, _)| flags & bit != 0);
            let text: String = set.map(|(_, name)| name).collect();
            (
                (tcp.source_port(), tcp.destination_port()),
                format!("[{text}]"),
            )
        }
        TransportSlice::Udp(udp) => ((udp.source_port(), udp.destination_port()), String::new()),
        TransportSlice::Icmpv4(icmp) => ((0, 0), icmp_type(icmp.slice())),
        TransportSlice::Icmpv6(icmp) => ((0, 0), icmp_type(icmp.slice())),
        TransportSlice::Igmp(_) => ((0, 0), String::new()),
    }
}

/// Returns type and code, as `8/0`.
fn icmp_type(message: &[u8]) -> String {
    match message {
        [kind, code, ..] => format!("{kind}/{code}"),
        _ => String::new(),
    }
}

/// Which frames are captured: those that match all given values.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub(super) struct Filter {
    /// Only packets from or to this address [default: all]
    #[arg(long, value_name = "ADDRESS")]
    pub(super) host: Option<IpAddr>,
    /// Only packets with this source or destination port [default: all]
    #[arg(long, value_name = "PORT")]
    pub(super) port: Option<u16>,
    /// Only packets of this protocol: tcp, udp, icmp, sctp, arp, or an IP protocol number [default:
    /// all]
    #[arg(long = "proto", visible_alias = "protocol", value_name = "PROTOCOL")]
    pub(super) protocol: Option<String>,
}

impl Filter {
    pub(super) fn matches(&self, summary: &Summary) -> bool {
        let is_end = |of: &dyn Fn(SocketAddr) -> bool| {
            summary
                .ends
                .is_some_and(|(source, destination)| of(source) || of(destination))
        };
        self.host
            .is_none_or(|host| is_end(&|socket| socket.ip() == host))
            && self
                .port
                .is_none_or(|port| is_end(&|socket| socket.port() == port))
            && self
                .protocol
                .as_ref()
                .is_none_or(|protocol| *protocol == summary.protocol)
    }
}

/// Returns the line of a frame: time, direction (`>` from the pod, `<` to it), protocol, addresses,
/// length from the Ethernet header on, and what is known about it.
pub(super) fn line(frame: &Frame, comments: &[String]) -> String {
    let direction = if frame.is_sent { '>' } else { '<' };
    let Summary {
        protocol, detail, ..
    } = &frame.summary;
    let ends = frame.summary.ends_text().map_or_else(
        || "no addresses".to_owned(),
        |(source, destination)| format!("{source} -> {destination}"),
    );
    let detail = if detail.is_empty() {
        String::new()
    } else {
        format!(" {detail}")
    };
    let mut text = format!(
        "{}  {direction}  {protocol} {ends}{detail}  {} B",
        clock(frame.at),
        frame.length
    );
    for comment in comments {
        text.push_str("  # ");
        text.push_str(comment);
    }
    text.push('\n');
    text
}

/// Returns the time of day in UTC with microseconds.
pub(super) fn clock(at: Duration) -> String {
    let format = format_description!("[hour]:[minute]:[second].[subsecond digits:6]");
    let nanoseconds = i128::try_from(at.as_nanos()).unwrap_or(0);
    OffsetDateTime::from_unix_timestamp_nanos(nanoseconds)
        .ok()
        .and_then(|time| time.format(format).ok())
        .unwrap_or_else(|| format!("{} s", at.as_secs()))
}

#[cfg(test)]
pub(super) mod tests {
    use etherparse::PacketBuilder;

    use super::*;

    /// Returns a TCP frame with SYN.
    pub(in crate::capture) fn syn(is_sent: bool, ports: (u16, u16)) -> Frame {
        let (source, destination) = ([10, 244, 1, 2], [198, 51, 100, 7]);
        let mut bytes = Vec::new();
        PacketBuilder::ethernet2([2; 6], [4; 6])
            .ipv4(source, destination, 64)
            .tcp(ports.0, ports.1, 7, 1000)
            .syn()
            .write(&mut bytes, &[])
            .unwrap();
        Frame {
            at: Duration::new(1_790_000_000, 123_456_789),
            is_sent,
            length: u32::try_from(bytes.len()).unwrap(),
            summary: Summary::of(&bytes),
            bytes,
        }
    }

    #[test]
    fn a_captured_frame_is_one_line_with_direction_and_comments() {
        let frame = syn(true, (40_123, 443));
        insta::assert_snapshot!(line(&frame, &[]), @"14:13:20.123456  >  tcp 10.244.1.2:40123 -> 198.51.100.7:443 [S]  54 B");
        let comments = ["dropped by from_pod as martian".to_owned()];
        let text = line(&syn(false, (1, 2)), &comments);
        assert!(
            text.ends_with("  # dropped by from_pod as martian\n"),
            "{text}"
        );
        assert!(text.contains("  <  "), "{text}");
    }

    #[test]
    fn icmp_and_frames_without_addresses_are_summarised() {
        let mut bytes = Vec::new();
        PacketBuilder::ethernet2([2; 6], [4; 6])
            .ipv6([0xfd; 16], [0xfe; 16], 64)
            .icmpv6_echo_request(1, 2)
            .write(&mut bytes, b"x")
            .unwrap();
        let summary = Summary::of(&bytes);
        assert_eq!(
            (summary.protocol.as_str(), summary.detail.as_str()),
            ("icmp", "128/0")
        );
        bytes[12..14].copy_from_slice(&[0x88, 0xcc]);
        assert_eq!(Summary::of(&bytes).protocol, "0x88cc");
        for length in 0..bytes.len() {
            let _no_panic = Summary::of(&bytes[..length]);
        }
    }

    #[test]
    fn a_capture_filter_matches_either_end_and_all_given_values() {
        let summary = syn(true, (40_123, 443)).summary;
        let host = |text: &str| Some(text.parse().unwrap());
        let tcp = Some("tcp".to_owned());
        for (filter, is_match) in [
            (Filter::default(), true),
            (
                Filter {
                    host: host("198.51.100.7"),
                    ..Filter::default()
                },
                true,
            ),
            (
                Filter {
                    host: host("198.51.100.8"),
                    ..Filter::default()
                },
                false,
            ),
            (
                Filter {
                    port: Some(443),
                    protocol: tcp.clone(),
                    ..Filter::default()
                },
                true,
            ),
            (
                Filter {
                    port: Some(443),
                    protocol: Some("udp".to_owned()),
                    ..Filter::default()
                },
                false,
            ),
            (
                Filter {
                    port: Some(80),
                    protocol: tcp,
                    ..Filter::default()
                },
                false,
            ),
        ] {
            assert_eq!(filter.matches(&summary), is_match, "{filter:?}");
        }
        let filter = Filter {
            port: Some(7),
            ..Filter::default()
        };
        assert!(!filter.matches(&Summary::default()));
    }
}

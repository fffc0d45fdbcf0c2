//! Builds the frames of an explanation, and reads their addresses back after each hook.

use abi::{Address, Mac, Port, Tuple, protocol};
use verdict::simulator::frame::{Body, Frame, flag};

use crate::question::{Question, has_ports, is_echo_reply};

/// Length of an Ethernet header in bytes.
pub(crate) const ETHERNET: usize = 14;
/// Largest packet that is built, in bytes from the IP header on.
const LARGEST: usize = 65_000;

/// Builds the packet of a question, with an Ethernet header to and from these MAC addresses. A TCP
/// segment opens a connection, or answers the one that does.
pub(crate) fn build(question: &Question, is_answer: bool, ethernet: Option<[Mac; 2]>) -> Vec<u8> {
    question.shape.bytes(frame(question, is_answer, ethernet))
}

/// Builds the fragment that has to arrive before the packet of a question; `None` where none has.
pub(crate) fn preceding(question: &Question, ethernet: Option<[Mac; 2]>) -> Option<Vec<u8>> {
    question.shape.preceding(frame(question, false, ethernet))
}

fn frame(question: &Question, is_answer: bool, ethernet: Option<[Mac; 2]>) -> Frame {
    let Question { tuple, length, .. } = question;
    let is_v4 = tuple.source.is_v4();
    let payload = |header: usize| {
        let headers = if is_v4 { 20 } else { 40 } + header;
        vec![0; (*length).min(LARGEST).saturating_sub(headers)]
    };
    let body = body(question, is_answer, payload);
    Frame {
        ethernet,
        ..Frame::new(tuple.source, tuple.destination, body)
    }
}

/// Returns the body of the packet, with the payload behind a transport header of a length.
fn body(question: &Question, is_answer: bool, payload: impl Fn(usize) -> Vec<u8>) -> Body {
    let tuple = &question.tuple;
    let (from, to) = (tuple.source_port.number(), tuple.destination_port.number());
    match tuple.protocol {
        protocol::TCP => {
            let flags = if is_answer {
                flag::SYN | flag::ACK
            } else {
                flag::SYN
            };
            Body::Tcp(from, to, flags, payload(20))
        }
        protocol::UDP => Body::Udp(from, to, payload(8)),
        // The first chunk is behind the 12 bytes of the header, of which 4 are the checksum.
        protocol::SCTP => Body::Sctp(from, to, payload(12)),
        protocol::ICMP | protocol::ICMPV6 => match question.icmp {
            Some((icmp_type, code)) => {
                let quoted = question.quoted.as_ref().map(quoted);
                let payload = quoted.unwrap_or_else(|| payload(8));
                Body::Icmp(icmp_type, code, [0; 4], payload)
            }
            None => echo(tuple, tuple.source.is_v4(), payload(8)),
        },
        other => Body::Other(other, payload(0)),
    }
}

/// Returns what an ICMP error quotes of a packet: its IP header, and eight bytes behind it.
fn quoted(tuple: &Tuple) -> Vec<u8> {
    let question = Question::plain(crate::Sender::World, *tuple);
    let header = if tuple.source.is_v4() { 20 } else { 40 };
    let mut packet = build(&question, false, None);
    packet.truncate(header + 8);
    packet
}

fn echo(tuple: &Tuple, is_v4: bool, payload: Vec<u8>) -> Body {
    let (identifier, icmp_type) = if is_echo_reply(tuple) {
        (tuple.destination_port, if is_v4 { 0 } else { 129 })
    } else {
        (tuple.source_port, if is_v4 { 8 } else { 128 })
    };
    let [high, low] = identifier.number().to_be_bytes();
    Body::Icmp(icmp_type, 0, [high, low, 0, 1], payload)
}

/// Returns addresses, ports and protocol of a packet that [`build`] has made, also after its
/// translation.
pub(crate) fn read(frame: &[u8], has_ethernet: bool) -> Option<Tuple> {
    let packet = frame.get(if has_ethernet { ETHERNET } else { 0 }..)?;
    let (source, destination, number, transport) = if packet.first()? >> 4 == 4 {
        let address = |at: usize| {
            let bytes = packet.get(at..at + 4)?;
            Some(Address::v4(bytes.try_into().ok()?))
        };
        (address(12)?, address(16)?, *packet.get(9)?, 20)
    } else {
        let address = |at: usize| {
            let bytes = packet.get(at..at + 16)?;
            Some(Address::v6(bytes.try_into().ok()?))
        };
        (address(8)?, address(24)?, *packet.get(6)?, 40)
    };
    let port = |at: usize| -> Option<Port> {
        let bytes = packet.get(transport + at..transport + at + 2)?;
        Some(Port::new(u16::from_be_bytes(bytes.try_into().ok()?)))
    };
    let (source_port, destination_port) = match number {
        number if has_ports(number) => (port(0)?, port(2)?),
        protocol::ICMP | protocol::ICMPV6 => match packet.get(transport)? {
            0 | 129 => (Port::NONE, port(4)?),
            _ => (port(4)?, Port::NONE),
        },
        _ => (Port::NONE, Port::NONE),
    };
    Some(Tuple {
        source,
        destination,
        source_port,
        destination_port,
        protocol: number,
        ..Tuple::default()
    })
}

/// Writes the MAC addresses of a frame with an Ethernet header, or puts one in front; without
/// `ethernet`, removes it.
pub(crate) fn set_ethernet(frame: &mut Vec<u8>, had_ethernet: bool, ethernet: Option<[Mac; 2]>) {
    if had_ethernet {
        frame.drain(..ETHERNET.min(frame.len()));
    }
    let Some([to, from]) = ethernet else {
        return;
    };
    let ethertype: [u8; 2] = match frame.first() {
        Some(first) if first >> 4 == 6 => [0x86, 0xdd],
        _ => [0x08, 0x00],
    };
    let header = to.bytes().into_iter().chain(from.bytes()).chain(ethertype);
    frame.splice(..0, header);
}

/// Returns the destination MAC address of a frame.
pub(crate) fn destination_mac(frame: &[u8]) -> Mac {
    let bytes = frame.get(..6).and_then(|bytes| bytes.try_into().ok());
    Mac::new(bytes.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tuple(is_v4: bool, number: u8, ports: (u16, u16)) -> Tuple {
        let address = |last| {
            if is_v4 {
                Address::v4([10, 0, 0, last])
            } else {
                let mut bytes = [0; 16];
                (bytes[0], bytes[15]) = (0xfd, last);
                Address::v6(bytes)
            }
        };
        Tuple {
            source: address(1),
            destination: address(2),
            source_port: Port::new(ports.0),
            destination_port: Port::new(ports.1),
            protocol: number,
            ..Tuple::default()
        }
    }

    proptest! {
        #[test]
        fn a_frame_has_the_tuple_and_length_that_it_was_built_with(
            is_v4: bool,
            which in 0..4_usize,
            ports in (1..u16::MAX, 1..u16::MAX),
            length in 80..2_000_usize,
            has_ethernet: bool,
        ) {
            let icmp = if is_v4 { protocol::ICMP } else { protocol::ICMPV6 };
            let number = [protocol::TCP, protocol::UDP, protocol::SCTP, icmp][which];
            let ports = if number == icmp { (ports.0, 0) } else { ports };
            let tuple = tuple(is_v4, number, ports);
            let macs = [Mac::new([2; 6]), Mac::new([4; 6])];
            let question = Question {
                length,
                ..crate::testing::question(crate::Sender::World, tuple)
            };
            let frame = build(&question, false, has_ethernet.then_some(macs));
            prop_assert_eq!(read(&frame, has_ethernet), Some(tuple));
            let header = if has_ethernet { ETHERNET } else { 0 };
            prop_assert_eq!(frame.len(), length + header);
            let answer = Question {
                tuple: tuple.reverse(),
                ..question
            };
            let answer = build(&answer, true, None);
            prop_assert_eq!(read(&answer, false), Some(tuple.reverse()));
            let mut moved = frame.clone();
            set_ethernet(&mut moved, has_ethernet, None);
            prop_assert_eq!(read(&moved, false), Some(tuple));
            set_ethernet(&mut moved, false, Some(macs));
            prop_assert_eq!(read(&moved, true), Some(tuple));
            prop_assert_eq!(destination_mac(&moved), macs[0]);
        }
    }
}

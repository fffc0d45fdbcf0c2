//! Ports of IP fragments: the first fragment stores them for the later ones.

use abi::{FragmentKey, FragmentPorts, Port, protocol};

use crate::node::Node;
use crate::work::{Content, Fragment, Headers, Transport, Work};

/// Stores a first fragment's ports, or fills in those of a later one.
#[inline(always)]
pub(crate) fn complete<E: Node>(node: &mut E, work: &mut Work, content: Content) -> Content {
    if content != Content::Ip || work.headers.fragment == Fragment::Whole {
        return content;
    }
    let key = FragmentKey {
        source: work.headers.tuple.source,
        destination: work.headers.tuple.destination,
        identification: work.headers.identification,
        protocol: work.headers.tuple.protocol,
        reserved: [0; 3],
    };
    if work.headers.fragment == Fragment::First {
        let ports = FragmentPorts {
            source_port: work.headers.tuple.source_port,
            destination_port: work.headers.tuple.destination_port,
            seen: work.now,
        };
        node.store_fragment_ports(&key, &ports);
        return content;
    }
    if work.headers.transport == Transport::Portless {
        return content;
    }
    let Some(ports) = node.fragment_ports(&key) else {
        // Unknown whether it belongs to a request or a reply: treated as a packet without ports.
        work.headers.transport = Transport::Portless;
        return Content::LostFragment;
    };
    work.headers.tuple.source_port = ports.source_port;
    work.headers.tuple.destination_port = ports.destination_port;
    work.headers.transport = transport(&work.headers);
    content
}

/// Returns the transport of a later fragment. ICMP has no type there: a request has its identifier
/// as the source port, a reply as the destination port.
#[inline(always)]
fn transport(headers: &Headers) -> Transport {
    match headers.tuple.protocol {
        protocol::ICMP | protocol::ICMPV6 if headers.tuple.destination_port == Port::NONE => {
            Transport::EchoRequest
        }
        protocol::ICMP | protocol::ICMPV6 => Transport::EchoReply,
        _ => headers.transport,
    }
}

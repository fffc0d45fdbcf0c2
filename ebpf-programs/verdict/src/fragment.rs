//! Ports for fragments that have none: the first one leaves them for those behind it.

use abi::{FragmentKey, FragmentPorts, Port, protocol};

use crate::node::Node;
use crate::work::{Content, Fragment, Headers, Transport, Work};

/// Leaves a first fragment's ports, or finds those of a later one.
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
        node.keep_fragment_ports(&key, &ports);
        return content;
    }
    if work.headers.transport == Transport::Portless {
        return content;
    }
    let Some(ports) = node.fragment_ports(&key) else {
        // Nobody can say whether it is of a question or of an answer: it is taken for what has an owner.
        work.headers.transport = Transport::Portless;
        return Content::LostFragment;
    };
    work.headers.tuple.source_port = ports.source_port;
    work.headers.tuple.destination_port = ports.destination_port;
    work.headers.transport = transport(&work.headers);
    content
}

/// The identifier of a request is its source port, that of a reply its destination port: ICMP's type is not there.
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

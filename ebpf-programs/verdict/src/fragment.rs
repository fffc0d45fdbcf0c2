//! Ports of IP fragments: the first fragment stores them for the later ones.

use abi::{FragmentKey, FragmentPorts, Port, Tuple, protocol};

use crate::node::Node;
use crate::work::{Content, Fragment, Headers, Transport, Work};

/// Length in bytes from the IP header on that every link with IPv6 takes (RFC 8200, 5).
const ALWAYS_FITS: u32 = 1280;

/// Stores a first fragment's ports, or fills in those of a later one.
#[inline(always)]
pub(crate) fn complete<E: Node>(node: &mut E, work: &mut Work, content: Content) -> Content {
    if content != Content::Ip || work.headers.fragment == Fragment::Whole {
        return content;
    }
    if work.headers.fragment == Fragment::First {
        store(node, work);
        return content;
    }
    if !find_ports(node, &mut work.headers) {
        // Unknown whether it belongs to a request or a reply: treated as a packet without ports.
        work.headers.transport = Transport::Portless;
        return Content::LostFragment;
    }
    content
}

/// Returns the key of a fragment with these addresses.
#[inline(always)]
fn key(headers: &Headers, addresses: &Tuple) -> FragmentKey {
    FragmentKey {
        source: addresses.source,
        destination: addresses.destination,
        identification: headers.identification,
        protocol: headers.tuple.protocol,
        reserved: [0; 3],
    }
}

/// Stores the ports of a first fragment a second time, as they are after translation: an ICMP error
/// about a later one quotes that with its translated addresses. Only where an error is possible:
/// links with IPv6 take fragments of [`ALWAYS_FITS`] bytes.
#[inline(always)]
pub(crate) fn store_translated<E: Node>(node: &mut E, work: &Work) {
    if work.headers.fragment != Fragment::First || work.headers.length <= ALWAYS_FITS {
        return;
    }
    let ports = FragmentPorts {
        source_port: work.translated.source_port,
        destination_port: work.translated.destination_port,
        seen: work.now,
    };
    node.store_fragment_ports(&key(&work.headers, &work.translated), &ports);
}

/// Stores the ports of a first fragment as they are in the packet.
#[inline(always)]
pub(crate) fn store<E: Node>(node: &mut E, work: &Work) {
    let ports = FragmentPorts {
        source_port: work.headers.tuple.source_port,
        destination_port: work.headers.tuple.destination_port,
        seen: work.now,
    };
    node.store_fragment_ports(&key(&work.headers, &work.headers.tuple), &ports);
}

/// Fills in the ports of a later fragment, which may be quoted in an ICMP error; returns false
/// where they are unknown.
#[inline(always)]
pub(crate) fn find_ports<E: Node>(node: &E, headers: &mut Headers) -> bool {
    if headers.fragment != Fragment::Later || headers.transport == Transport::Portless {
        return true;
    }
    let Some(ports) = node.fragment_ports(&key(headers, &headers.tuple)) else {
        return false;
    };
    headers.tuple.source_port = ports.source_port;
    headers.tuple.destination_port = ports.destination_port;
    headers.transport = transport(headers);
    true
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

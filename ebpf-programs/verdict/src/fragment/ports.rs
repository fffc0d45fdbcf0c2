//! Ports of datagrams for their later fragments, and for ICMP errors about those.

use abi::{Datagram, DatagramFlags, Port, protocol};

use super::share::{fill_key, sender_share, translated_share};
use super::{FragmentWork, insert, restart};
use crate::fragment_store::FragmentStore;
use crate::node::Node;
use crate::work::{Fragment, Headers, Transport, Work};

/// Length in bytes from the IP header on that every link with IPv6 takes (RFC 8200, 5).
const ALWAYS_FITS: u32 = 1280;

/// Fills in the ports of a later fragment, which may be quoted in an ICMP error; returns false
/// where they are unknown. Looks for the datagram as its sender's hook has seen it, and as it is
/// after translation ([`store_translated`]).
#[inline(always)]
pub(crate) fn find_ports<E: Node + FragmentStore>(
    env: &E,
    fragment: &mut FragmentWork,
    headers: &mut Headers,
) -> bool {
    if headers.fragment != Fragment::Later || headers.transport == Transport::Portless {
        return true;
    }
    let translated = translated_share(&headers.tuple);
    fill_key(
        &mut fragment.key,
        headers,
        sender_share(env, &headers.tuple),
    );
    if fragment.key.share != 0
        && let Some(datagram) = env.datagram(&fragment.key)
    {
        env.read_datagram(datagram, &mut fragment.datagram);
        if fragment.datagram.flags & DatagramFlags::PORTS != 0 {
            fill_ports(&fragment.datagram, headers);
            return true;
        }
    }
    fragment.key.share = translated;
    let Some(datagram) = env.datagram(&fragment.key) else {
        return false;
    };
    env.read_datagram(datagram, &mut fragment.datagram);
    fill_ports(&fragment.datagram, headers);
    true
}

/// Stores the ports of a first fragment a second time, as they are after translation: an ICMP error
/// about a later one quotes that with its translated addresses. Only where an error is possible:
/// links with IPv6 take fragments of [`ALWAYS_FITS`] bytes.
#[inline(always)]
pub(crate) fn store_translated<E: FragmentStore>(env: &mut E, work: &mut Work) {
    if work.headers.fragment != Fragment::First || work.headers.length <= ALWAYS_FITS {
        return;
    }
    let (headers, fragment) = (&work.headers, &mut work.fragment);
    let identification =
        if fragment.key.share != 0 && fragment.datagram.flags & DatagramFlags::IDENTIFIED != 0 {
            fragment.datagram.identification
        } else {
            headers.identification
        };
    fill_key(
        &mut fragment.key,
        headers,
        translated_share(&work.translated),
    );
    fragment.key.source = work.translated.source;
    fragment.key.destination = work.translated.destination;
    fragment.key.identification = identification;
    restart(&mut fragment.datagram, work.now);
    fragment.datagram.source_port = work.translated.source_port;
    fragment.datagram.destination_port = work.translated.destination_port;
    overwrite(env, fragment);
}

/// Stores the ports of a first fragment that the node's own stack has made.
#[inline(always)]
pub(crate) fn store<E: Node + FragmentStore>(env: &mut E, work: &mut Work) {
    let share = sender_share(env, &work.headers.tuple);
    let (headers, fragment) = (&work.headers, &mut work.fragment);
    fill_key(&mut fragment.key, headers, share);
    if share == 0 {
        return;
    }
    restart(&mut fragment.datagram, work.now);
    fragment.datagram.source_port = headers.tuple.source_port;
    fragment.datagram.destination_port = headers.tuple.destination_port;
    overwrite(env, fragment);
}

/// Writes the state of a datagram whose ports are known, in place of any other.
#[inline(always)]
fn overwrite<E: FragmentStore>(env: &mut E, fragment: &mut FragmentWork) {
    fragment.datagram.flags = DatagramFlags::PORTS;
    match env.datagram(&fragment.key) {
        Some(known) => env.write_datagram(known, &fragment.datagram),
        None => insert(env, fragment),
    }
}

/// Fills in the ports of a datagram. ICMP has no type in a later fragment: a request has its
/// identifier as the source port, a reply as the destination port.
#[inline(always)]
pub(super) fn fill_ports(datagram: &Datagram, headers: &mut Headers) {
    headers.tuple.source_port = datagram.source_port;
    headers.tuple.destination_port = datagram.destination_port;
    headers.transport = match headers.tuple.protocol {
        protocol::ICMP | protocol::ICMPV6 if headers.tuple.destination_port == Port::NONE => {
            Transport::EchoRequest
        }
        protocol::ICMP | protocol::ICMPV6 => Transport::EchoReply,
        _ => headers.transport,
    };
}

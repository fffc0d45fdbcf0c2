//! Names in the API and in log lines: of pods, of protocols, and of the ends of a packet.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use abi::{Address, Port, Tuple, protocol};
use api::{EndsView, PodView};
use model::PodName;

/// Returns the name of a Kubernetes pod.
pub(crate) fn pod(pod: &PodName) -> PodView {
    PodView {
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
    }
}

/// Returns the numbers of a protocol that [`protocol`] names; `None` for an unknown name.
pub(crate) fn protocols(name: &str) -> Option<BTreeSet<u8>> {
    Some(match name {
        "tcp" => [protocol::TCP].into(),
        "udp" => [protocol::UDP].into(),
        "sctp" => [protocol::SCTP].into(),
        "icmp" => [protocol::ICMP, protocol::ICMPV6].into(),
        number => [number.parse().ok()?].into(),
    })
}

/// Returns `tcp`, `udp`, `sctp`, `icmp` (of both families), or the IP protocol number.
pub(crate) fn protocol(number: u8) -> String {
    match number {
        protocol::TCP => "tcp".to_owned(),
        protocol::UDP => "udp".to_owned(),
        protocol::SCTP => "sctp".to_owned(),
        protocol::ICMP | protocol::ICMPV6 => "icmp".to_owned(),
        other => other.to_string(),
    }
}

/// Returns whether packets of a protocol have ports.
pub(crate) const fn has_ports(protocol: u8) -> bool {
    matches!(protocol, protocol::TCP | protocol::UDP | protocol::SCTP)
}

/// Returns an address of the datapath, an IPv4 one in its own notation.
pub(crate) fn ip(address: &Address) -> IpAddr {
    IpAddr::from(address.bytes()).to_canonical()
}

/// Returns source and destination of a tuple: `address:port`, or the addresses alone.
pub(crate) fn ends(tuple: &Tuple, has_ports: bool) -> EndsView {
    let text = |address: &Address, port: Port| {
        if has_ports {
            SocketAddr::new(ip(address), port.number()).to_string()
        } else {
            ip(address).to_string()
        }
    };
    EndsView {
        source: text(&tuple.source, tuple.source_port),
        destination: text(&tuple.destination, tuple.destination_port),
    }
}

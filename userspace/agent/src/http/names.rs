//! Names in the API: of pods, and of protocols.

use std::collections::BTreeSet;

use abi::protocol;
use api::PodView;
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

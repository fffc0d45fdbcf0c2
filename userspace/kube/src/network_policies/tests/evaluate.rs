//! Evaluates what the agent is sent, rule by rule.

use std::collections::BTreeSet;
use std::net::IpAddr;

use api::{PoliciesSetting, PolicyPeerSetting, PolicyPortSetting};
use model::Cidr;

/// A connection, as seen from the pod to which policies apply.
#[derive(Clone, Copy, Debug)]
pub(super) struct Connection {
    pub(super) is_ingress: bool,
    /// The other end.
    pub(super) peer: IpAddr,
    /// As Kubernetes writes it.
    pub(super) protocol: &'static str,
    /// Port of the end that accepts the connection.
    pub(super) port: u16,
}

/// Returns whether the policies allow a connection of the pod.
pub(super) fn allows(setting: &PoliciesSetting, pod: &str, connection: Connection) -> bool {
    let applying = setting
        .policies
        .iter()
        .filter(|policy| policy.pods.iter().any(|one| one == pod));
    let mut is_isolated = false;
    let has_peer = |peers: &[PolicyPeerSetting]| {
        peers.is_empty() || peers.iter().any(|one| contains(setting, one, connection))
    };
    let has_port = |ports: &[PolicyPortSetting]| {
        ports.is_empty() || ports.iter().any(|one| is_port(one, connection))
    };
    for policy in applying {
        let is_allowed = if connection.is_ingress {
            let rules = policy.ingress.as_ref();
            is_isolated |= rules.is_some();
            let mut rules = rules.into_iter().flatten();
            rules.any(|rule| has_peer(&rule.from) && has_port(&rule.ports))
        } else {
            let rules = policy.egress.as_ref();
            is_isolated |= rules.is_some();
            let mut rules = rules.into_iter().flatten();
            rules.any(|rule| has_peer(&rule.to) && has_port(&rule.ports))
        };
        if is_allowed {
            return true;
        }
    }
    !is_isolated
}

fn contains(setting: &PoliciesSetting, peer: &PolicyPeerSetting, connection: Connection) -> bool {
    let is_in = |cidr: &String| cidr.parse::<Cidr>().unwrap().contains(connection.peer);
    match (&peer.cidr, &peer.group) {
        (Some(cidr), None) => is_in(cidr) && !peer.except.iter().any(is_in),
        (None, Some(group)) => setting.groups[group].contains(&connection.peer.to_string()),
        _ => panic!("{peer:?}"),
    }
}

fn is_port(port: &PolicyPortSetting, connection: Connection) -> bool {
    let is_number = match (port.port, port.last_port) {
        (None, None) => true,
        (Some(first), last) => (first..=last.unwrap_or(first)).contains(&connection.port),
        (None, Some(_)) => panic!("{port:?}"),
    };
    is_number && port.protocol == connection.protocol.to_lowercase()
}

/// Checks what holds for everything that is sent.
pub(super) fn check(setting: &PoliciesSetting) {
    let names: BTreeSet<&String> = setting.policies.iter().map(|one| &one.name).collect();
    assert_eq!(names.len(), setting.policies.len(), "{setting:?}");
    let mut used = BTreeSet::new();
    for policy in &setting.policies {
        assert!(!policy.pods.is_empty(), "{policy:?}");
        let from = policy.ingress.iter().flatten().flat_map(|rule| &rule.from);
        let to = policy.egress.iter().flatten().flat_map(|rule| &rule.to);
        used.extend(from.chain(to).filter_map(|peer| peer.group.as_ref()));
    }
    let groups: BTreeSet<&String> = setting.groups.keys().collect();
    assert_eq!(groups, used);
}

//! Accept rules for the packets of pods.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use model::{Attachment, PortSet, Protocol};
use steps::AcceptRule;

use super::PodSources;
use crate::Records;

/// Returns the rules for these links, attachments and firewalled addresses.
///
/// Links of ours accept by interface. Pods behind a bridge of other software, and those of other
/// plugins, are accepted by address, and the latter only with `firewall` in their configuration.
pub fn accept_rules(
    sources: &PodSources,
    records: &Records,
    firewalled: &BTreeSet<IpAddr>,
) -> Vec<AcceptRule> {
    let answers = sources.links.iter().cloned().map(AcceptRule::AnswersTo);
    let from = sources.links.iter().cloned().map(AcceptRule::From);
    let attachments = || records.values().map(|record| &record.attachment);
    let is_foreign = |own: &&Attachment| !sources.links.contains(&own.bridge);
    let mut addresses = firewalled.clone();
    addresses.extend(
        attachments()
            .filter(|own| own.adopted.is_none())
            .filter(is_foreign)
            .flat_map(|own| own.addresses.iter().map(|one| one.address.address)),
    );
    let ports: BTreeSet<AcceptRule> = attachments().flat_map(to_ports).collect();
    let direct = sources.direct.iter().cloned();
    let peers = sources.links.iter().flat_map(|link| {
        let peers = sources.peers.iter().cloned();
        peers.map(move |(input, source)| AcceptRule::Peers {
            input,
            source,
            link: link.clone(),
        })
    });
    answers
        .chain(addresses.iter().copied().map(AcceptRule::AnswersToAddress))
        .chain(from)
        .chain(addresses.iter().copied().map(AcceptRule::FromAddress))
        .chain(direct.map(|(prefix, link)| AcceptRule::Direct(prefix, link)))
        .chain(ports)
        // Last, since they may be many.
        .chain(peers)
        .collect()
}

/// Returns a rule for each published port, or range of ports, in each family that publishes it.
fn to_ports(attachment: &Attachment) -> impl Iterator<Item = AcceptRule> + use<> {
    let mut published: BTreeMap<(IpAddr, Protocol), PortSet> = BTreeMap::new();
    for mapping in &attachment.port_mappings {
        let host = mapping.host_address;
        let addresses = [true, false]
            .into_iter()
            .filter(|ipv4| host.is_none_or(|host| host.is_ipv4() == *ipv4))
            .filter_map(|ipv4| attachment.address(ipv4));
        for address in addresses {
            let ports = published.entry((address, mapping.protocol)).or_default();
            ports.extend([mapping.container_port.get()]);
        }
    }
    (published.into_iter()).flat_map(|((address, protocol), ports)| {
        let ranges = ports.ranges().into_iter();
        ranges.map(move |ports| AcceptRule::ToPorts {
            address,
            protocol,
            ports,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{attachment, intent, port};

    /// Each packet of other software's containers passes all rules.
    #[test]
    fn a_range_of_ports_is_one_accept_rule() {
        let mut request = intent("c1");
        request.port_mappings = (0..1_000)
            .map(|offset| port(&format!("{}->{}/tcp", 9_000 + offset, 8_000 + offset)))
            .chain([port("53->53/udp"), port("192.0.2.1@54->53/udp")])
            .collect();
        let rules: Vec<String> = to_ports(&attachment(&request))
            .map(|rule| rule.to_string())
            .collect();
        let expected = [
            "viaduct: to 10.1.0.2 ports 8000-8999/tcp",
            "viaduct: to 10.1.0.2 port 53/udp",
            "viaduct: to fd00:1::2 ports 8000-8999/tcp",
            "viaduct: to fd00:1::2 port 53/udp",
        ];
        assert_eq!(rules, expected);
    }
}

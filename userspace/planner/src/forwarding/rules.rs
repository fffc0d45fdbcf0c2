//! Accept rules for the packets of pods.

use std::collections::BTreeSet;
use std::net::IpAddr;

use model::Attachment;
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

/// Returns a rule for each published port, in each family that publishes it.
fn to_ports(attachment: &Attachment) -> impl Iterator<Item = AcceptRule> + '_ {
    attachment.port_mappings.iter().flat_map(|mapping| {
        [true, false].into_iter().filter_map(|ipv4| {
            let host = mapping.host_address;
            let is_published = host.is_none_or(|host| host.is_ipv4() == ipv4);
            let address = attachment.address(ipv4).filter(|_| is_published)?;
            Some(AcceptRule::ToPort {
                address,
                protocol: mapping.protocol,
                port: mapping.container_port.get(),
            })
        })
    })
}

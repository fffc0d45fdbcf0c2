//! Accept rules for the packets of pods.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use model::{Attachment, Cidr, IfName, Protocol};

use super::PodSources;
use crate::Records;

/// A rule of a chain of ours. All accept the packet, but for [`AcceptRule::Admin`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AcceptRule {
    /// Packets from a link of ours.
    From(IfName),
    /// Answers to a link of ours: packets of established connections, and errors about them.
    AnswersTo(IfName),
    /// Packets from an address, of an interface that another plugin made.
    FromAddress(IpAddr),
    /// Answers to that address.
    AnswersToAddress(IpAddr),
    /// Packets from a prefix to a link of ours: hosts that reach pods directly.
    Direct(Cidr, IfName),
    /// Packets to a published port, after the translation.
    ToPort {
        /// Address of the pod.
        address: IpAddr,
        /// Transport protocol.
        protocol: Protocol,
        /// Port of the pod.
        port: u16,
    },
    /// Evaluates a chain of the administrator.
    Admin(String),
}

impl AcceptRule {
    /// Returns an address of the family that the rule is for; `None` for all.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        match self {
            Self::From(_) | Self::AnswersTo(_) | Self::Admin(_) => None,
            Self::FromAddress(address)
            | Self::AnswersToAddress(address)
            | Self::ToPort { address, .. } => Some(*address),
            Self::Direct(prefix, _) => Some(prefix.network()),
        }
    }
}

/// The text is the comment by which a present rule is recognised.
impl fmt::Display for AcceptRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("viaduct: ")?;
        match self {
            Self::From(link) => write!(f, "from {link}"),
            Self::AnswersTo(link) => write!(f, "answers to {link}"),
            Self::FromAddress(address) => write!(f, "from {address}"),
            Self::AnswersToAddress(address) => write!(f, "answers to {address}"),
            Self::Direct(prefix, link) => write!(f, "from {prefix} to {link}"),
            Self::ToPort {
                address,
                protocol,
                port,
            } => write!(f, "to {address} port {port}/{protocol}"),
            Self::Admin(chain) => write!(f, "firewall plugin, chain {chain}"),
        }
    }
}

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
    answers
        .chain(addresses.iter().copied().map(AcceptRule::AnswersToAddress))
        .chain(from)
        .chain(addresses.iter().copied().map(AcceptRule::FromAddress))
        .chain(direct.map(|(prefix, link)| AcceptRule::Direct(prefix, link)))
        .chain(ports)
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

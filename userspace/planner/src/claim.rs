//! Ports of the node as they are claimed: each is held by a socket of the agent, so that nobody else can serve it.
//!
//! The table entry of a hostport directs packets; the claim keeps the port from everybody who would rather have it,
//! and lets `ss` and whoever looks for a free port see that it is taken (behaviour K31). Knows nothing of sockets.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use model::{Attachment, PortMapping, Protocol};

use crate::tables::{hostport_keys, mapping_keys};
use crate::uplink::is_link_local;
use crate::{EntryKey, Step};

/// A port of the node, in one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Claim {
    /// Address of the node; the unspecified one of a family means every address of it.
    pub address: IpAddr,
    /// Port.
    pub port: u16,
    /// Protocol.
    pub protocol: Protocol,
}

/// How a claim is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Holding {
    /// By a socket of the agent.
    Socket,
    /// By nothing but the table entry: this kernel has no sockets of the protocol, so nobody else can have one.
    Table,
}

/// A claim that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Held {
    /// Generation of the attachment whose it is.
    pub generation: u32,
    /// How.
    pub by: Holding,
}

/// Claims that are held.
pub type HeldPorts = BTreeMap<Claim, Held>;

impl Claim {
    /// The claim of a hostport's entry; `None` for any other entry.
    pub fn of(key: &EntryKey) -> Option<Self> {
        let EntryKey::Hostport {
            address,
            ipv4,
            port,
            protocol,
        } = *key
        else {
            return None;
        };
        let any = if ipv4 {
            IpAddr::from([0; 4])
        } else {
            IpAddr::from([0; 16])
        };
        Some(Self {
            address: address.unwrap_or(any),
            port,
            protocol,
        })
    }

    /// Address and port.
    pub fn socket(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.port)
    }

    /// Whether a socket bound to `other` keeps everybody else from this one.
    pub fn overlaps(&self, other: &Self) -> bool {
        let addresses = self.address == other.address
            || (self.address.is_ipv4() == other.address.is_ipv4()
                && (self.address.is_unspecified() || other.address.is_unspecified()));
        addresses && self.port == other.port && self.protocol == other.protocol
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.socket(), self.protocol)
    }
}

/// The claims that `attachment` is to hold. A link-local address is none: it means something only together with a
/// link, which a mapping cannot name.
pub fn attachment_claims(attachment: &Attachment) -> BTreeSet<Claim> {
    hostport_keys(attachment)
        .filter_map(|key| Claim::of(&key))
        .filter(|claim| !is_link_local(claim.address))
        .collect()
}

/// The claims that `mapping` of `attachment` stands for: one in each family.
pub fn mapping_claims(attachment: &Attachment, mapping: &PortMapping) -> Vec<Claim> {
    let keys = mapping_keys(attachment, mapping);
    keys.filter_map(|key| Claim::of(&key)).collect()
}

/// Those claims of `attachment` that are not held in its name.
pub(crate) fn missing(attachment: &Attachment, held: &HeldPorts) -> Vec<Claim> {
    let is_ours = |claim: &Claim| {
        let held = held.get(claim);
        held.is_some_and(|held| held.generation == attachment.generation)
    };
    attachment_claims(attachment)
        .into_iter()
        .filter(|claim| !is_ours(claim))
        .collect()
}

/// The steps that hold `claims` for `attachment`.
pub(crate) fn hold(
    attachment: &Attachment,
    claims: impl IntoIterator<Item = Claim>,
) -> impl Iterator<Item = Step> {
    let generation = attachment.generation;
    claims
        .into_iter()
        .map(move |claim| Step::HoldPort { claim, generation })
}

/// The steps that let go of what is held in the name of `attachment`.
pub(crate) fn release(attachment: &Attachment, held: &HeldPorts) -> impl Iterator<Item = Step> {
    let generation = attachment.generation;
    attachment_claims(attachment)
        .into_iter()
        .filter_map(move |claim| {
            let held = held.get(&claim)?;
            (held.generation == generation).then_some(claim)
        })
        .map(move |claim| Step::ReleasePort { claim, generation })
}

#[cfg(test)]
mod tests;

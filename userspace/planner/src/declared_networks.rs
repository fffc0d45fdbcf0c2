//! Which bridges and subnets the networks of CNI configurations may use.
//!
//! The agent's default network is the operator's own and is not checked. The lists decide about new
//! attachments only.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use model::{Cidr, Network};

use crate::Refusal;

/// Longest pattern in bytes: an interface name has 15, and a pattern may have stars beside them.
const LONGEST_PATTERN: usize = 32;

/// Pattern of an interface name, in which `*` stands for any text, also none.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NamePattern(String);

/// Error of a text that is no pattern of an interface name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no pattern of an interface name: letters, digits, punctuation but / and :, and * for any text"
)]
pub struct InvalidNamePattern(pub String);

impl FromStr for NamePattern {
    type Err = InvalidNamePattern;

    fn from_str(text: &str) -> Result<Self, InvalidNamePattern> {
        let is_allowed = |c: char| c.is_ascii_graphic() && c != '/' && c != ':';
        let is_valid =
            !text.is_empty() && text.len() <= LONGEST_PATTERN && text.chars().all(is_allowed);
        if is_valid {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidNamePattern(text.to_owned()))
        }
    }
}

impl fmt::Display for NamePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl NamePattern {
    /// Returns whether the whole name matches.
    pub fn matches(&self, name: &str) -> bool {
        let Some((start, rest)) = self.0.split_once('*') else {
            return self.0 == name;
        };
        let Some(mut left) = name.strip_prefix(start) else {
            return false;
        };
        let (middle, end) = rest.rsplit_once('*').unwrap_or(("", rest));
        // The first place of each part leaves most for the others.
        for part in middle.split('*') {
            match left.find(part) {
                Some(at) => left = &left[at + part.len()..],
                None => return false,
            }
        }
        left.ends_with(end)
    }
}

/// The bridges and subnets that declared networks may use; `None` for all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeclaredNetworks {
    /// Names of bridges.
    pub bridges: Option<BTreeSet<NamePattern>>,
    /// Prefixes within which the networks' subnets and gateways are.
    pub subnets: Option<BTreeSet<Cidr>>,
}

impl DeclaredNetworks {
    /// Returns an error if a declared network uses a bridge or an address that is not listed.
    pub fn check(&self, network: &Network) -> Result<(), Refusal> {
        if let Some(bridges) = &self.bridges
            && !bridges
                .iter()
                .any(|pattern| pattern.matches(network.bridge.as_str()))
        {
            return Err(Refusal::BridgeNotAllowed {
                bridge: network.bridge.clone(),
                allowed: list(bridges),
            });
        }
        let Some(allowed) = &self.subnets else {
            return Ok(());
        };
        let is_allowed = |subnet: &Cidr| {
            allowed.iter().any(|prefix| {
                prefix.prefix_len() <= subnet.prefix_len() && prefix.contains(subnet.network())
            })
        };
        let gateways = network.gateways();
        let hosts = gateways.iter().filter_map(|own| {
            let length = if own.address.is_ipv4() { 32 } else { 128 };
            Cidr::containing(own.address, length)
        });
        match network
            .subnets()
            .into_iter()
            .chain(hosts)
            .find(|subnet| !is_allowed(subnet))
        {
            None => Ok(()),
            Some(subnet) => Err(Refusal::SubnetNotAllowed {
                subnet,
                allowed: list(allowed),
            }),
        }
    }
}

fn list<T: fmt::Display>(allowed: &BTreeSet<T>) -> String {
    if allowed.is_empty() {
        return "none".to_owned();
    }
    let words: Vec<String> = allowed.iter().map(ToString::to_string).collect();
    words.join(", ")
}

#[cfg(test)]
mod tests;

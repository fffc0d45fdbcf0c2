//! Peers: the other nodes of a cluster, whose pods have addresses of their own prefixes.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use crate::{Cidr, InvalidName, PeerName, is_link_local};

/// Another node: the prefixes of its pods, and the addresses by which it is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    name: PeerName,
    prefixes: Box<[Cidr]>,
    addresses: Box<[IpAddr]>,
}

/// Why a peer, or a list of them, is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPeer {
    /// The name is invalid.
    #[error(transparent)]
    Name(#[from] InvalidName),
    /// No pod can have an address of the prefix: it is that of all addresses, of groups, of the
    /// loopback or of one link.
    #[error("peer {peer}: {prefix} cannot be a prefix of pods")]
    Prefix {
        /// Name of the peer.
        peer: PeerName,
        /// The prefix.
        prefix: Cidr,
    },
    /// No node can be reached by the address.
    #[error("peer {peer}: {address} cannot be the address of a node")]
    Address {
        /// Name of the peer.
        peer: PeerName,
        /// The address.
        address: IpAddr,
    },
    /// A prefix or an address is none.
    #[error("peer {peer}: {why}")]
    Text {
        /// Name of the peer.
        peer: PeerName,
        /// What was read, and why it is invalid.
        why: String,
    },
    /// The list has more prefixes than [`Peers::MAX_PREFIXES`].
    #[error("the peers have {0} prefixes: {max} is the maximum", max = Peers::MAX_PREFIXES)]
    TooMany(usize),
    /// A text is not one that [`Peers`] was printed as.
    #[error("{0:?} is not a peer")]
    Syntax(String),
}

/// Name, prefixes and addresses of a peer, as requests and files have them.
pub type PeerTexts<'a> = (&'a str, &'a [String], &'a [String]);

impl Peer {
    /// Returns a peer with its prefixes and addresses in the given order, each once.
    pub fn new(
        name: PeerName,
        prefixes: impl IntoIterator<Item = Cidr>,
        addresses: impl IntoIterator<Item = IpAddr>,
    ) -> Result<Self, InvalidPeer> {
        let (prefixes, addresses) = (once(prefixes), once(addresses));
        if let Some(prefix) = prefixes.iter().copied().find(|one| !is_of_pods(one)) {
            return Err(InvalidPeer::Prefix { peer: name, prefix });
        }
        if let Some(address) = addresses.iter().copied().find(|one| !is_of_node(*one)) {
            return Err(InvalidPeer::Address {
                peer: name,
                address,
            });
        }
        Ok(Self {
            name,
            prefixes,
            addresses,
        })
    }

    fn parse((name, prefixes, addresses): PeerTexts<'_>) -> Result<Self, InvalidPeer> {
        let name: PeerName = name.parse()?;
        let invalid = |why: String| InvalidPeer::Text {
            peer: name.clone(),
            why,
        };
        let prefix = |text: &String| Cidr::masked(text).map_err(|error| invalid(error.to_string()));
        let address = |text: &String| {
            let parsed: Result<IpAddr, _> = text.parse();
            parsed.map_err(|error| invalid(format!("{text:?}: {error}")))
        };
        let prefixes: Vec<Cidr> = prefixes.iter().map(prefix).collect::<Result<_, _>>()?;
        let addresses: Vec<IpAddr> = addresses.iter().map(address).collect::<Result<_, _>>()?;
        Self::new(name, prefixes, addresses)
    }

    /// Returns the name.
    pub fn name(&self) -> &PeerName {
        &self.name
    }

    /// Returns the prefixes of the peer's pods.
    pub fn prefixes(&self) -> &[Cidr] {
        &self.prefixes
    }

    /// Returns the addresses of the node, the preferred ones of each family first.
    pub fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }
}

/// Returns the items in their order, each once.
fn once<T: Copy + Ord>(items: impl IntoIterator<Item = T>) -> Box<[T]> {
    let mut seen = BTreeSet::new();
    let new = items.into_iter().filter(|item| seen.insert(*item));
    new.collect()
}

fn is_of_pods(prefix: &Cidr) -> bool {
    prefix.prefix_len() > 0 && is_of_node(prefix.network())
}

fn is_of_node(address: IpAddr) -> bool {
    let is_special = match address {
        IpAddr::V4(v4) => v4.is_broadcast(),
        IpAddr::V6(v6) => v6.to_ipv4_mapped().is_some(),
    };
    !(is_special
        || address.is_unspecified()
        || address.is_loopback()
        || address.is_multicast()
        || is_link_local(address))
}

/// The complete list of peers, in the order of their age: the newest is last.
///
/// Its text has a line for each peer: name, prefixes and addresses, separated by spaces, and lists
/// by commas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peers(Box<[Peer]>);

impl Peers {
    /// Most prefixes of all peers: half of the datapath's table, whose other entries are those of
    /// routes and of this node's own networks.
    pub const MAX_PREFIXES: usize = 16_384;

    /// Returns the list.
    pub fn new(peers: impl IntoIterator<Item = Peer>) -> Result<Self, InvalidPeer> {
        let peers: Box<[Peer]> = peers.into_iter().collect();
        let prefixes = peers.iter().map(|peer| peer.prefixes.len()).sum();
        if prefixes > Self::MAX_PREFIXES {
            return Err(InvalidPeer::TooMany(prefixes));
        }
        Ok(Self(peers))
    }

    /// Parses a list. Host bits of prefixes are ignored.
    ///
    /// Fails at the first text that is invalid, and names its peer.
    pub fn parse<'a>(peers: impl IntoIterator<Item = PeerTexts<'a>>) -> Result<Self, InvalidPeer> {
        let parsed: Result<Vec<Peer>, InvalidPeer> = peers.into_iter().map(Peer::parse).collect();
        Self::new(parsed?)
    }

    /// Returns the peers.
    pub fn list(&self) -> &[Peer] {
        &self.0
    }
}

impl fmt::Display for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for peer in &self.0 {
            write!(f, "{} ", peer.name)?;
            write_list(&peer.prefixes, f)?;
            f.write_str(" ")?;
            write_list(&peer.addresses, f)?;
            f.write_str("\n")?;
        }
        Ok(())
    }
}

fn write_list(items: &[impl fmt::Display], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            f.write_str(",")?;
        }
        item.fmt(f)?;
    }
    Ok(())
}

impl FromStr for Peers {
    type Err = InvalidPeer;

    fn from_str(text: &str) -> Result<Self, InvalidPeer> {
        let peers: Result<Vec<Peer>, InvalidPeer> = text.lines().map(parse).collect();
        Self::new(peers?)
    }
}

fn parse(line: &str) -> Result<Peer, InvalidPeer> {
    let syntax = || InvalidPeer::Syntax(line.to_owned());
    let mut parts = line.split(' ');
    let mut part = || parts.next().ok_or_else(syntax);
    let name: PeerName = part()?.parse()?;
    let prefixes = parse_list(part()?).ok_or_else(syntax)?;
    let addresses = parse_list(part()?).ok_or_else(syntax)?;
    Peer::new(name, prefixes, addresses)
}

fn parse_list<T: FromStr>(text: &str) -> Option<Vec<T>> {
    let items = text.split(',').filter(|item| !item.is_empty());
    items.map(|item| item.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use proptest::prelude::*;

    use super::*;

    fn peer(prefix: &str, address: &str) -> Result<Peer, InvalidPeer> {
        let name = "node-1.example".parse().unwrap();
        Peer::new(name, [prefix.parse().unwrap()], [address.parse().unwrap()])
    }

    #[test]
    fn prefixes_that_no_pod_and_addresses_that_no_node_can_have_are_refused() {
        for prefix in [
            "0.0.0.0/0",
            "::/0",
            "224.0.0.0/4",
            "127.0.0.0/8",
            "fe80::/64",
            "ff00::/8",
        ] {
            let error = peer(prefix, "192.0.2.1").unwrap_err();
            assert!(matches!(error, InvalidPeer::Prefix { .. }), "{prefix}");
        }
        for address in [
            "0.0.0.0",
            "::",
            "127.0.0.1",
            "::1",
            "fe80::1",
            "ff02::1",
            "255.255.255.255",
        ] {
            let error = peer("10.1.0.0/24", address).unwrap_err();
            assert!(matches!(error, InvalidPeer::Address { .. }), "{address}");
        }
        peer("10.1.0.0/24", "192.0.2.1").unwrap();
        peer("fd00:1::/64", "2001:db8::1").unwrap();
    }

    #[test]
    fn a_list_of_peers_with_too_many_prefixes_is_refused() {
        let peer = |number: usize| {
            let number = u32::try_from(number).unwrap();
            let network = IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 | number << 8));
            let name = format!("n{number}").parse().unwrap();
            Peer::new(name, Cidr::containing(network, 24), []).unwrap()
        };
        Peers::new((0..Peers::MAX_PREFIXES).map(peer)).unwrap();
        let error = Peers::new((0..=Peers::MAX_PREFIXES).map(peer)).unwrap_err();
        assert_eq!(error, InvalidPeer::TooMany(Peers::MAX_PREFIXES + 1));
    }

    #[test]
    fn names_of_peers_are_those_of_nodes() {
        for good in ["a", "node-1.example.org", "10.0.0.1"] {
            assert!(good.parse::<PeerName>().is_ok(), "{good}");
        }
        for bad in ["", "-a", "a b", "a\nb", &"a".repeat(254)] {
            assert!(bad.parse::<PeerName>().is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn a_list_of_peers_survives_being_printed(
            peers in prop::collection::vec((0..3_u8, any::<[u16; 3]>(), any::<[u16; 3]>()), 0..6),
        ) {
            let peers = peers.into_iter().enumerate().map(|(number, (some, v4, v6))| {
                let v4 = v4.map(|bits| Ipv4Addr::from_bits(0x0a00_0000 | u32::from(bits) << 8));
                let v6 = v6.map(|bits| Ipv6Addr::from_bits(0xfd << 120 | u128::from(bits) << 64));
                let networks = v4.iter().filter_map(|one| Cidr::containing((*one).into(), 24));
                let wide = v6.iter().filter_map(|one| Cidr::containing((*one).into(), 64));
                let addresses = v4
                    .iter()
                    .map(|one| IpAddr::V4(*one))
                    .chain(v6.iter().map(|one| IpAddr::V6(*one)));
                let name = format!("n{number}").parse().unwrap();
                let some = usize::from(some);
                let prefixes = networks.chain(wide).skip(some);
                Peer::new(name, prefixes, addresses.skip(2 * some)).unwrap()
            });
            let peers = Peers::new(peers).unwrap();
            prop_assert_eq!(peers.to_string().parse(), Ok(peers));
        }
    }
}

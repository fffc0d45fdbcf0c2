//! Which networks may be on a node together. Knows no kernel and no store.

use std::net::IpAddr;

use model::{Cidr, Network, NetworkName, RangeSet};

/// A network that cannot be beside another.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetworkClash {
    /// Both would give the same addresses.
    #[error("{} of network {name} overlaps with {} of network {other}", subnets.0, subnets.1)]
    Overlap {
        /// The network that was to be used.
        name: NetworkName,
        /// The one that is there.
        other: NetworkName,
        /// Ranges of both.
        subnets: (Cidr, Cidr),
    },
    /// A configuration declares a network of the name of the agent's own.
    #[error("{name} is the name of the agent's default network")]
    Reserved {
        /// The name.
        name: NetworkName,
    },
}

/// Whether `network` can be beside `others` and the agent's own network. Two may be on one bridge, but an address
/// belongs to one of them.
pub(crate) fn admit<'a>(
    network: &Network,
    default: &'a Network,
    others: impl Iterator<Item = &'a Network>,
) -> Result<(), NetworkClash> {
    if network.name == default.name && network != default {
        let name = network.name.clone();
        return Err(NetworkClash::Reserved { name });
    }
    let mut others = others
        .chain([default])
        .filter(|other| other.name != network.name);
    let clash = others.find_map(|other| {
        let subnets = network.overlap(other)?;
        Some(NetworkClash::Overlap {
            name: network.name.clone(),
            other: other.name.clone(),
            subnets,
        })
    });
    clash.map_or(Ok(()), Err)
}

/// Whether `address` is between the ends of one of the set's ranges.
pub(crate) fn holds(set: &RangeSet, address: IpAddr) -> bool {
    let mut ranges = set.ranges().iter();
    ranges.any(|range| (range.first()..=range.last()).contains(&address))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(name: &str, subnet: &str) -> Network {
        Network {
            name: name.parse().unwrap(),
            bridge: "br0".parse().unwrap(),
            ranges: vec![RangeSet::of_cidr(subnet.parse().unwrap()).unwrap()],
            routes: Vec::new(),
            default_route: true,
            mtu: None,
            hairpin: model::HairpinMode::None,
            masquerade: true,
            options: model::BridgeOptions::default(),
        }
    }

    #[test]
    fn networks_share_no_address() {
        let default = network("default", "10.1.0.0/16");
        let other = network("other", "10.2.0.0/16");
        let admitted = |name, subnet| admit(&network(name, subnet), &default, [&other].into_iter());
        assert_eq!(admitted("new", "10.3.0.0/16"), Ok(()));
        assert_eq!(
            admitted("other", "10.2.0.0/24"),
            Ok(()),
            "a changed definition"
        );
        for subnet in ["10.1.3.0/24", "10.2.3.0/24"] {
            let clash = admitted("new", subnet).unwrap_err();
            assert!(matches!(clash, NetworkClash::Overlap { .. }));
            assert!(clash.to_string().contains(subnet), "{clash}");
        }
    }

    #[test]
    fn the_agents_own_network_is_nobody_elses_to_define() {
        let default = network("default", "10.1.0.0/16");
        assert_eq!(admit(&default, &default, [].into_iter()), Ok(()));
        let clash = admit(&network("default", "10.3.0.0/16"), &default, [].into_iter());
        assert!(matches!(clash, Err(NetworkClash::Reserved { .. })));
    }
}

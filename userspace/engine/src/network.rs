//! Decides which networks may be on a node together. Depends on neither kernel nor store.

use model::{Cidr, IfName, Network, NetworkName};

/// Conflict of a network with another one of the node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetworkClash {
    /// The ranges of both networks have addresses in common.
    #[error("{} of network {name} overlaps with {} of network {other}", subnets.0, subnets.1)]
    Overlap {
        /// The requested network.
        name: NetworkName,
        /// The network that is on the node.
        other: NetworkName,
        /// Subnets of the requested and of the other network.
        subnets: (Cidr, Cidr),
    },
    /// Another network of the bridge has other egress addresses, which belong to the bridge.
    #[error(
        "network {name} and network {other} share bridge {bridge} and have different egress addresses"
    )]
    Egress {
        /// The requested network.
        name: NetworkName,
        /// The network that is on the node.
        other: NetworkName,
        /// Their bridge.
        bridge: IfName,
    },
    /// A CNI configuration declares a network with the name of the agent's default network.
    #[error("{name} is the name of the agent's default network")]
    Reserved {
        /// Name of the default network.
        name: NetworkName,
    },
}

/// Returns an error if `network` conflicts with the default network or with `others`. Two networks
/// may share a bridge, but not an address.
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
    let clash = others.find_map(|other| clash(network, other));
    clash.map_or(Ok(()), Err)
}

fn clash(network: &Network, other: &Network) -> Option<NetworkClash> {
    let (name, other_name) = (network.name.clone(), other.name.clone());
    if let Some(subnets) = network.overlap(other) {
        return Some(NetworkClash::Overlap {
            name,
            other: other_name,
            subnets,
        });
    }
    let shares = network.bridge == other.bridge && network.options.egress != other.options.egress;
    shares.then(|| NetworkClash::Egress {
        name,
        other: other_name,
        bridge: network.bridge.clone(),
    })
}

#[cfg(test)]
mod tests {
    use model::RangeSet;

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
    fn networks_with_overlapping_ranges_are_refused() {
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
    fn networks_of_one_bridge_have_the_same_egress_addresses() {
        let default = network("default", "10.1.0.0/16");
        let mut new = network("new", "10.3.0.0/16");
        new.options.egress.v4 = Some([192, 0, 2, 9].into());
        let clash = admit(&new, &default, [].into_iter()).unwrap_err();
        assert!(clash.to_string().contains("share bridge br0"), "{clash}");
        new.bridge = "br1".parse().unwrap();
        assert_eq!(admit(&new, &default, [].into_iter()), Ok(()));
    }

    #[test]
    fn a_configuration_cannot_declare_the_default_network() {
        let default = network("default", "10.1.0.0/16");
        assert_eq!(admit(&default, &default, [].into_iter()), Ok(()));
        let clash = admit(&network("default", "10.3.0.0/16"), &default, [].into_iter());
        assert!(matches!(clash, Err(NetworkClash::Reserved { .. })));
    }
}

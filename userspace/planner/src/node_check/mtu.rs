//! MTUs of networks and bridges that are larger or smaller than those of their packets' way.

use std::collections::BTreeMap;

use model::IfName;
use steps::Observed;

use super::{NodeCondition, RoutedNetwork, link_of};
use crate::alias::is_gateway_port;
use crate::own_links::LOCAL_TABLE;
use crate::{Records, network_mtu};

/// Returns the condition that the default route has a smaller MTU than the network: of its link, or
/// of the route itself. Routes to single prefixes (VPNs) are left out: path MTU discovery is the
/// usual way there.
pub(super) fn of_uplinks(
    network: &RoutedNetwork<'_>,
    observed: &Observed,
) -> Option<NodeCondition> {
    let mtu = network_mtu(network.network, observed);
    let defaults = observed
        .routes
        .iter()
        .filter(|route| route.destination.prefix_len() == 0 && route.table != LOCAL_TABLE);
    let least = defaults
        .filter_map(|route| {
            let (name, link) = link_of(route, observed)?;
            let least = route.mtu.map_or(link.mtu, |mtu| mtu.min(link.mtu));
            Some((least, name))
        })
        .min()?;
    let (link_mtu, link) = least;
    (mtu > link_mtu).then(|| NodeCondition::MtuAboveUplink {
        network: network.network.name.clone(),
        mtu,
        link: link.clone(),
        link_mtu,
    })
}

/// Returns the bridges whose MTU is below that of a pod on them. The node drops larger packets to
/// these pods, or answers that they are too big.
pub(super) fn of_bridges(observed: &Observed, records: &Records) -> Vec<NodeCondition> {
    let mut largest: BTreeMap<&IfName, u32> = BTreeMap::new();
    for attachment in records.values().map(|record| &record.attachment) {
        let host = attachment.host_link();
        let Some(link) = observed.links.get(host.name()) else {
            continue;
        };
        let most = largest.entry(&attachment.bridge).or_default();
        *most = link.mtu.max(*most);
    }
    let below = largest.into_iter().filter_map(|(name, pods)| {
        let bridge = observed.links.get(name)?;
        (bridge.mtu < pods).then(|| NodeCondition::MtuOfBridge {
            bridge: name.clone(),
            mtu: bridge.mtu,
            pods,
        })
    });
    below.collect()
}

/// As [`of_bridges`] for one bridge, where no records say which of its ports are pods: all count.
pub(crate) fn of_ports(bridge: &IfName, observed: &Observed) -> Option<NodeCondition> {
    let link = observed.links.get(bridge)?;
    let ports = observed.links.values();
    let pods = ports
        .filter(|port| port.controller == Some(link.index) && !is_gateway_port(port))
        .map(|port| port.mtu)
        .max()?;
    (link.mtu < pods).then(|| NodeCondition::MtuOfBridge {
        bridge: bridge.clone(),
        mtu: link.mtu,
        pods,
    })
}

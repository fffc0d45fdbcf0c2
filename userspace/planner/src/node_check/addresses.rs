//! Addresses that the node got after a pod had them: an ADD refuses addresses of the node, but
//! nothing refuses the node those of pods.

use std::collections::BTreeMap;
use std::net::IpAddr;

use model::IfName;
use steps::{Observed, RouteEntry};

use super::{NodeCondition, link_of};
use crate::Records;
use crate::own_links::LOCAL_TABLE;

/// Conditions that are reported at most.
const MAX_REPORTED: usize = 8;

/// Returns a condition for each address of a pod that the node receives packets for itself.
pub(super) fn conditions(observed: &Observed, records: &Records) -> Vec<NodeCondition> {
    let of_links: BTreeMap<IpAddr, &IfName> = observed
        .links
        .iter()
        .flat_map(|(name, link)| link.addresses.iter().map(move |own| (own.address, name)))
        .collect();
    let is_local = |route: &&RouteEntry| route.table == LOCAL_TABLE;
    let local: Vec<&RouteEntry> = observed.routes.iter().filter(is_local).collect();
    let owner = |address: IpAddr| {
        let by_route = || {
            let route = local
                .iter()
                .find(|route| route.destination.contains(address))?;
            Some(link_of(route, observed)?.0)
        };
        of_links.get(&address).copied().or_else(by_route)
    };
    let mut found = Vec::new();
    for attachment in records.values().map(|record| &record.attachment) {
        for assigned in &attachment.addresses {
            let address = assigned.address.address;
            found.extend(owner(address).map(|link| NodeCondition::AddressOfNode {
                key: attachment.key.clone(),
                address,
                link: link.clone(),
            }));
        }
    }
    found.truncate(MAX_REPORTED);
    found
}

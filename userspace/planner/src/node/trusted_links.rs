//! Uplinks by which every port of a network's pods is reached from outside.

use std::collections::BTreeSet;

use model::{IfName, Network, NetworkAccess};
use steps::{Entries, Entry, EntryKey, LinkRef};

/// Returns the entries of the uplinks that networks trust. All uplinks reach a network with direct
/// access, and none an internal one.
pub(super) fn trusted_links(networks: &[&Network], uplinks: &BTreeSet<IfName>) -> Entries {
    let is_closed = |network: &&&Network| network.options.port.access == NetworkAccess::Published;
    let entries = networks.iter().filter(is_closed).flat_map(|network| {
        let links = network.options.trusted_links.intersection(uplinks);
        links.map(|link| {
            let key = EntryKey::TrustedLink {
                bridge: LinkRef::Name(network.bridge.clone()),
                link: LinkRef::Name(link.clone()),
            };
            (key, Entry::TrustedLink)
        })
    });
    entries.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{network, parse};

    #[test]
    fn a_closed_network_opens_to_the_uplinks_that_it_trusts() {
        let uplinks = [parse("eth0"), parse("eth1")].into();
        for (access, expected) in [
            (NetworkAccess::Direct, vec![]),
            (NetworkAccess::Published, vec!["trusted link eth1 of cbr0"]),
            (NetworkAccess::Internal, vec![]),
        ] {
            let mut network = network();
            network.options.trusted_links = [parse("eth1"), parse("docker0")].into();
            network.options.port.access = access;
            let entries = trusted_links(&[&network], &uplinks);
            let keys: Vec<String> = entries.keys().map(ToString::to_string).collect();
            assert_eq!(keys, expected, "{access}");
        }
    }
}

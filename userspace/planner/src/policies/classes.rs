//! Classes of addresses: those that the same peers of rules contain.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, Ipv6Addr};

use model::{Cidr, PolicyPeer};

use super::Numbers;
use crate::prefix::covers;

/// First IPv4-mapped IPv6 address (RFC 4291, 2.5.5.2): the tries have IPv4 addresses there.
const MAPPED: Ipv6Addr = Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0);

/// The peers that contain an address.
type Class<'a> = BTreeSet<&'a PolicyPeer>;

/// All classes, with their identities.
#[derive(Debug)]
pub(super) struct Classes<'a> {
    /// Of each prefix whose class is not that of the prefix around it.
    prefixes: BTreeMap<Cidr, Class<'a>>,
    identities: BTreeMap<Class<'a>, u32>,
    /// The identities of the addresses that a peer contains.
    of_peers: BTreeMap<&'a PolicyPeer, BTreeSet<u32>>,
}

impl<'a> Classes<'a> {
    /// Returns the classes of addresses by these peers.
    pub(super) fn of(
        peers: &BTreeSet<&'a PolicyPeer>,
        groups: &BTreeMap<String, BTreeSet<Cidr>>,
    ) -> Self {
        let mut prefixes = BTreeMap::new();
        let mut around: Vec<(Cidr, Class<'a>)> = Vec::new();
        // A prefix comes before those within it.
        for (prefix, changes) in changes(peers, groups) {
            while around
                .last()
                .is_some_and(|(outer, _)| !covers(outer, &prefix))
            {
                around.pop();
            }
            let outer = around.last().map(|(_, class)| class);
            let mut class = outer.cloned().unwrap_or_default();
            for (peer, is_contained) in changes {
                if is_contained {
                    class.insert(peer);
                } else {
                    class.remove(peer);
                }
            }
            if outer.map_or(!class.is_empty(), |outer| *outer != class) {
                prefixes.insert(prefix, class.clone());
            }
            around.push((prefix, class));
        }
        let mut numbers = Numbers::default();
        let distinct: BTreeSet<&Class<'a>> = prefixes.values().collect();
        let named = distinct.into_iter().filter(|class| !class.is_empty());
        let identities: BTreeMap<Class<'a>, u32> = named
            .map(|class| (class.clone(), numbers.of(format!("{class:?}").as_bytes())))
            .collect();
        let mut of_peers: BTreeMap<&PolicyPeer, BTreeSet<u32>> = BTreeMap::new();
        for (class, identity) in &identities {
            for peer in class {
                of_peers.entry(peer).or_default().insert(*identity);
            }
        }
        Self {
            prefixes,
            identities,
            of_peers,
        }
    }

    /// Returns the identity of each prefix.
    pub(super) fn identities(&self) -> BTreeMap<Cidr, u32> {
        let identity = |class| self.identities.get(class).copied().unwrap_or(0);
        let mut found: BTreeMap<Cidr, u32> = self
            .prefixes
            .iter()
            .map(|(prefix, class)| (*prefix, identity(class)))
            .collect();
        // Else a short IPv6 prefix would have the IPv4 addresses as well.
        let all_v4 = Cidr::containing(Ipv4Addr::UNSPECIFIED.into(), 0);
        if let Some(all_v4) = all_v4
            && found.keys().any(|prefix| prefix.contains(MAPPED.into()))
        {
            found.entry(all_v4).or_insert(0);
        }
        found
    }

    /// Returns the identities of all addresses that any of the peers contains.
    pub(super) fn containing(&self, peers: &[PolicyPeer]) -> BTreeSet<u32> {
        let known = peers.iter().filter_map(|peer| self.of_peers.get(peer));
        known.flatten().copied().collect()
    }
}

/// Where a peer begins or ends to contain addresses, by prefix.
type Changes<'a> = BTreeMap<Cidr, BTreeMap<&'a PolicyPeer, bool>>;

fn changes<'a>(
    peers: &BTreeSet<&'a PolicyPeer>,
    groups: &BTreeMap<String, BTreeSet<Cidr>>,
) -> Changes<'a> {
    let mut changes = Changes::new();
    for peer in peers {
        match peer {
            PolicyPeer::Block { cidr, except } => {
                changes.entry(*cidr).or_default().insert(peer, true);
                for hole in except {
                    changes.entry(*hole).or_default().insert(peer, false);
                }
            }
            PolicyPeer::Group(name) => {
                for prefix in groups.get(name).into_iter().flatten() {
                    changes.entry(*prefix).or_default().insert(peer, true);
                }
            }
        }
    }
    changes
}

//! Admission of peers: which of their prefixes and addresses are used. Each conflict costs only
//! what is in conflict.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use model::{Cidr, Peer, PeerName, Peers};
use steps::Observed;

use super::problem::PeerProblem;
use crate::NodeIntent;

/// Peers without what is in conflict. Of two peers, the newer one wins, which is later in the list.
pub(super) struct Admission<'a> {
    /// Used prefixes, which do not overlap, by their network address.
    used: BTreeMap<IpAddr, (Cidr, &'a PeerName)>,
    /// Used prefixes and addresses of each peer, in the order of the list.
    peers: Vec<Admitted>,
    /// The conflicts.
    pub(super) problems: Vec<PeerProblem>,
}

#[derive(Default)]
struct Admitted {
    prefixes: Vec<Cidr>,
    addresses: Vec<IpAddr>,
    is_this_node: bool,
}

/// What the node itself has.
struct Own {
    /// Subnets of its networks.
    subnets: BTreeSet<Cidr>,
    /// Addresses of its links.
    addresses: BTreeSet<IpAddr>,
}

impl<'a> Admission<'a> {
    pub(super) fn of(peers: &'a Peers, intent: &NodeIntent, observed: &Observed) -> Self {
        let own = Own {
            subnets: (intent.networks.iter())
                .flat_map(model::Network::subnets)
                .collect(),
            addresses: (observed.links.values())
                .flat_map(|link| link.addresses.iter().map(|own| own.address))
                .collect(),
        };
        let of_peers: BTreeMap<IpAddr, &PeerName> = (peers.list().iter())
            .flat_map(|peer| peer.addresses().iter().map(|one| (*one, peer.name())))
            .collect();
        let mut admission = Self {
            used: BTreeMap::new(),
            peers: Vec::with_capacity(peers.list().len()),
            problems: Vec::new(),
        };
        let (mut names, mut addresses) = (BTreeSet::new(), BTreeMap::new());
        for peer in peers.list().iter().rev() {
            let mut admitted = Admitted::default();
            if !names.insert(peer.name()) {
                let peer = peer.name().clone();
                admission.problems.push(PeerProblem::DuplicateName { peer });
            } else if let Some(address) = own.address_of(peer) {
                admitted.is_this_node = own.has_all(peer.prefixes());
                if !admitted.is_this_node {
                    let peer = peer.name().clone();
                    (admission.problems).push(PeerProblem::OwnAddress { peer, address });
                }
            } else {
                admitted.addresses = admission.admit_addresses(peer, &mut addresses);
                admitted.prefixes = admission.admit_prefixes(peer, &own, &of_peers);
            }
            admission.peers.push(admitted);
        }
        admission.peers.reverse();
        admission
    }

    /// Returns the addresses that no newer peer has.
    fn admit_addresses(
        &mut self,
        peer: &'a Peer,
        taken: &mut BTreeMap<IpAddr, &'a PeerName>,
    ) -> Vec<IpAddr> {
        let mut free = Vec::with_capacity(peer.addresses().len());
        for address in peer.addresses() {
            if let Some(other) = taken.get(address) {
                self.problems.push(PeerProblem::DuplicateAddress {
                    peer: peer.name().clone(),
                    address: *address,
                    other: (*other).clone(),
                });
            } else {
                taken.insert(*address, peer.name());
                free.push(*address);
            }
        }
        free
    }

    /// Returns the prefixes that overlap no other and contain no node.
    fn admit_prefixes(
        &mut self,
        peer: &'a Peer,
        own: &Own,
        addresses: &BTreeMap<IpAddr, &PeerName>,
    ) -> Vec<Cidr> {
        let mut used = Vec::with_capacity(peer.prefixes().len());
        for prefix in peer.prefixes() {
            if let Some(problem) = self.conflict(peer.name(), prefix, own, addresses) {
                self.problems.push(problem);
            } else {
                self.used.insert(prefix.network(), (*prefix, peer.name()));
                used.push(*prefix);
            }
        }
        used
    }

    fn conflict(
        &self,
        peer: &PeerName,
        prefix: &Cidr,
        own: &Own,
        addresses: &BTreeMap<IpAddr, &PeerName>,
    ) -> Option<PeerProblem> {
        let (peer, prefix) = (peer.clone(), *prefix);
        if let Some(subnet) = own.subnets.iter().find(|own| own.overlaps(&prefix)) {
            let subnet = *subnet;
            return Some(PeerProblem::OverlapsOwn {
                peer,
                prefix,
                subnet,
            });
        }
        let all = prefix.network()..=prefix.last();
        let of_node = own.addresses.range(all.clone()).next();
        let of_peer = addresses.range(all).map(|(address, _)| address).next();
        if let Some(address) = of_node.or(of_peer) {
            let address = *address;
            return Some(PeerProblem::ContainsNode {
                peer,
                prefix,
                address,
            });
        }
        // The used prefixes are disjoint: one that overlaps is the last that begins before the end.
        let (_, (taken, other)) = self.used.range(..=prefix.last()).next_back()?;
        taken.overlaps(&prefix).then(|| PeerProblem::OverlapsPeer {
            peer,
            prefix,
            other: (*other).clone(),
            taken: *taken,
        })
    }

    /// Returns the used prefixes of the peer at this place in the list.
    pub(super) fn prefixes_of(&self, index: usize) -> &[Cidr] {
        self.peers.get(index).map_or(&[], |one| &one.prefixes)
    }

    /// Returns the used addresses of the peer at this place in the list.
    pub(super) fn addresses_of(&self, index: usize) -> &[IpAddr] {
        self.peers.get(index).map_or(&[], |one| &one.addresses)
    }

    /// Returns whether the entry at this place in the list is the node itself.
    pub(super) fn is_this_node(&self, index: usize) -> bool {
        self.peers.get(index).is_some_and(|one| one.is_this_node)
    }

    /// Returns the used prefixes of all peers.
    pub(super) fn prefixes(&self) -> impl Iterator<Item = Cidr> {
        self.used.values().map(|(prefix, _)| *prefix)
    }

    /// Returns whether a peer's prefix is used as it is.
    pub(super) fn has_prefix(&self, prefix: &Cidr) -> bool {
        let used = self.used.get(&prefix.network());
        used.is_some_and(|(used, _)| used == prefix)
    }
}

impl Own {
    /// Returns an address of the peer that the node has.
    fn address_of(&self, peer: &Peer) -> Option<IpAddr> {
        let mut addresses = peer.addresses().iter().copied();
        addresses.find(|address| self.addresses.contains(address))
    }

    /// Returns whether the prefixes are subnets of the node's own networks.
    fn has_all(&self, prefixes: &[Cidr]) -> bool {
        prefixes.iter().all(|prefix| self.subnets.contains(prefix))
    }
}

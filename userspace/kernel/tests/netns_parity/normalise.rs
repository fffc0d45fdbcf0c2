//! Normalises observations, so that those of the two kernels can be compared.

use std::collections::{BTreeMap, BTreeSet};

use model::Netns;
use steps::{
    AttachmentNetns, Entries, Entry, EntryKey, Link, LinkRef, Observed, ObservedAttachment,
    ObservedHostSide, ObservedNetns, RouteEntry,
};

use crate::PODS;
use crate::support::{is_link_local, parse};

/// Answers of one kernel.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) node: Observed,
    pub(crate) pods: Vec<SeenPod>,
}

/// Answers about one pod.
#[derive(Debug, PartialEq)]
pub(crate) struct SeenPod {
    pub(crate) host_side: ObservedHostSide,
    pub(crate) attachment: ObservedAttachment,
    pub(crate) netns: ObservedNetns,
}

/// Maps interface indexes to numbers that are the same in both kernels.
pub(crate) struct Names {
    indexes: BTreeMap<u32, u32>,
}

impl Names {
    /// Numbers links by their order of names, and links that are gone by their order of indexes.
    pub(crate) fn of(node: &Observed) -> Self {
        let mut indexes: BTreeMap<u32, u32> = node
            .links
            .values()
            .map(|link| link.index)
            .zip(1..)
            .collect();
        let gone: BTreeSet<u32> = node
            .entries
            .iter()
            .flat_map(|(key, entry)| refs(key, entry))
            .filter_map(|link| match link {
                LinkRef::Gone(index) => Some(index),
                LinkRef::Name(_) => None,
            })
            .collect();
        indexes.extend(gone.into_iter().zip(1000..));
        Self { indexes }
    }

    fn index(&self, index: u32) -> u32 {
        self.indexes.get(&index).copied().unwrap_or(0)
    }

    /// Returns the node with indexes and the order of addresses and routes normalised.
    pub(crate) fn node(&self, mut seen: Observed) -> Observed {
        for link in seen.links.values_mut() {
            self.link(link);
            // The kernel lists IPv4 first, and of IPv6 the newest first.
            link.addresses.retain(|own| !is_link_local(own.address));
            link.addresses.sort();
        }
        seen.routes = self.routes(seen.routes);
        // An entry of an earlier script's packet stays in connection tracking until its timeout.
        seen.conntrack_entries = 0;
        seen.entries = self.entries(seen.entries);
        // The real kernel is opened without a cgroup; the other one has no processes.
        seen.has_unseen_sockets = false;
        seen
    }

    pub(crate) fn host_side(&self, mut seen: ObservedHostSide) -> ObservedHostSide {
        for link in [&mut seen.host_link, &mut seen.bridge]
            .into_iter()
            .flatten()
        {
            self.link(link);
        }
        seen.entries = self.entries(seen.entries);
        seen
    }

    pub(crate) fn attachment(&self, mut seen: ObservedAttachment) -> ObservedAttachment {
        seen.host = self.host_side(seen.host);
        if let AttachmentNetns::Same { pod: Some(pod) } = &mut seen.netns {
            pod.peer = pod.peer.map(|index| self.index(index));
        }
        seen
    }

    /// Returns the answer with the namespace named by its position in `pods`.
    pub(crate) fn netns(&self, mut seen: ObservedNetns, pods: &[Netns]) -> ObservedNetns {
        seen.links.values_mut().for_each(|link| self.link(link));
        if let Some(inside) = &mut seen.inside {
            let number = pods.iter().position(|pod| *pod == inside.netns).unwrap();
            inside.netns = Netns {
                path: parse(&format!("/{}", PODS[number])),
                device: 0,
                inode: 0,
            };
            if let Some(pod) = &mut inside.pod {
                pod.peer = pod.peer.map(|index| self.index(index));
            }
        }
        seen
    }

    fn link(&self, link: &mut Link) {
        link.index = self.index(link.index);
        link.controller = link.controller.map(|index| self.index(index));
    }

    fn routes(&self, routes: Vec<RouteEntry>) -> Vec<RouteEntry> {
        let plain = |route: &RouteEntry| !is_link_local(route.destination.network());
        let mut routes: Vec<_> = routes.into_iter().filter(plain).collect();
        for route in &mut routes {
            route.link = self.index(route.link);
        }
        routes.sort();
        routes.dedup();
        routes
    }

    fn entries(&self, entries: Entries) -> Entries {
        let link = |link: &mut LinkRef| {
            if let LinkRef::Gone(index) = link {
                *index = self.index(*index);
            }
        };
        let same = |(mut key, mut entry): (EntryKey, Entry)| {
            key.links_mut().chain(entry.links_mut()).for_each(link);
            (key, entry)
        };
        entries.into_iter().map(same).collect()
    }
}

fn refs(key: &EntryKey, entry: &Entry) -> Vec<LinkRef> {
    let (mut key, mut entry) = (key.clone(), entry.clone());
    key.links_mut()
        .chain(entry.links_mut())
        .map(|link| link.clone())
        .collect()
}

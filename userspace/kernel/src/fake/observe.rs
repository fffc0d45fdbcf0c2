//! Observation of the in-memory kernel: returns for each scope what the real kernel returns.

use std::collections::{BTreeMap, BTreeSet};

use model::{IfName, InterfaceAddress, Netns, NetnsPath};
use steps::{AttachmentQuery, Link, LinkKind, Observed, RouteEntry, Scope};

use super::world::{MAIN, World, netns};

impl World {
    pub(super) fn observe(&self, scope: &Scope) -> Observed {
        match scope {
            Scope::Node { sysctls } => Observed {
                links: self.links.clone(),
                routes: self.all_routes(),
                sysctls: self.chosen_sysctls(sysctls),
                entries: self.seen_entries(),
                port_reservations: self.in_force(),
                xdp_prefilters: self.prefilters.clone(),
                socket_hooks: self.sockets.clone(),
                netfilter: self.netfilter.clone(),
                has_unseen_sockets: (self.facts.cgroup.as_ref())
                    .is_some_and(steps::CgroupCoverage::is_partial),
                flow_entries: abi::maps::FLOWS_CAPACITY,
                ..Observed::default()
            },
            Scope::Checks(query) => Observed {
                checks: self.check_facts(query),
                ..Observed::default()
            },
            Scope::Sysctls(keys) => Observed {
                sysctls: self.chosen_sysctls(keys),
                ..Observed::default()
            },
            Scope::Netns {
                path,
                ifname,
                links,
            } => Observed {
                links: self.chosen_links(links),
                netns: self.one_netns(path),
                pod: self.pod(path, ifname),
                ..Observed::default()
            },
            Scope::Attachment(query) => self.observe_attachment(query),
            Scope::Outside(query) => self.observe_outside(query),
            Scope::Settings { path, ifname, .. } => Observed {
                netns: self.one_netns(path),
                settings: self.settings(path, ifname),
                ..Observed::default()
            },
            Scope::Forwarding => Observed {
                forwarding: self.forwarding.clone(),
                ..Observed::default()
            },
            Scope::Addresses(addresses) => Observed {
                own_addresses: self.own_addresses(addresses),
                ..Observed::default()
            },
            Scope::Ports => Observed {
                port_reservations: self.in_force(),
                ..Observed::default()
            },
            Scope::PortUsers {
                reservations,
                process,
            } => self.observe_port_users(reservations, *process),
        }
    }

    fn observe_attachment(&self, query: &AttachmentQuery) -> Observed {
        let netns = self.one_netns(&query.netns.path);
        let same = netns.values().any(|netns| *netns == query.netns);
        let pod = self.pod(&query.netns.path, &query.key.ifname);
        Observed {
            netns,
            pod: pod.filter(|_| same),
            ..self.observe_outside(query)
        }
    }

    fn observe_outside(&self, query: &AttachmentQuery) -> Observed {
        Observed {
            links: self.chosen_links(&query.links),
            entries: self.entries_of(&query.entries),
            port_reservations: self.held_for(&query.reservations),
            ..Observed::default()
        }
    }

    fn chosen_links(&self, names: &BTreeSet<IfName>) -> BTreeMap<IfName, Link> {
        self.links
            .iter()
            .filter(|(name, _)| names.contains(*name))
            .map(|(name, link)| {
                let mut link = link.clone();
                link.addresses.clear();
                link.avoided.clear();
                link.mac_is_set = false;
                link.hooks.retain(|hook| hook.is_of_pods());
                (name.clone(), link)
            })
            .collect()
    }

    fn one_netns(&self, path: &NetnsPath) -> BTreeMap<NetnsPath, Netns> {
        let inode = self.paths.get(path).copied();
        inode
            .map(|inode| (path.clone(), netns(path.clone(), inode)))
            .into_iter()
            .collect()
    }

    /// Returns the added routes and the subnet routes of addresses.
    pub(super) fn all_routes(&self) -> Vec<RouteEntry> {
        let mut routes = self.routes.clone();
        let links = self.links.values();
        for link in links.filter(|link| link.up && link.kind != LinkKind::Loopback) {
            let subnets = link.addresses.iter().filter_map(InterfaceAddress::subnet);
            routes.extend(subnets.map(|destination| RouteEntry {
                destination,
                gateway: None,
                link: link.index,
                table: MAIN,
                mtu: None,
            }));
        }
        routes
    }
}

//! Answers of the in-memory kernel: to each question what the real kernel returns.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use model::{IfName, InterfaceAddress, Netns, NetnsPath};
use steps::{
    AddressQuery, AttachmentNetns, AttachmentQuery, CheckFacts, CheckQuery, ForwardTables,
    ForwardingQuery, Hook, HostSideQuery, Link, LinkKind, NetnsInside, NetnsQuery, NodeQuery,
    Observed, ObservedAttachment, ObservedHostSide, ObservedNetns, ObservedSettings, PortQuery,
    PortReservations, PortUserQuery, PortUsers, Question, RouteEntry, SettingsQuery, SysctlKey,
    SysctlQuery,
};

use super::world::{MAIN, World, netns};

/// Answers one kind of question.
pub(super) trait Answer<Q: Question> {
    fn answer(&self, question: &Q) -> Q::Answer;
}

impl Answer<NodeQuery> for World {
    fn answer(&self, question: &NodeQuery) -> Observed {
        Observed {
            links: self.links.clone(),
            routes: self.all_routes(),
            tunnels: self.tunnels.clone(),
            sysctls: self.chosen_sysctls(&question.sysctls),
            entries: self.seen_entries(),
            socket_hooks: self.sockets.clone(),
            xdp_prefilters: self.prefilters.clone(),
            heeds_departure: false,
            port_reservations: self.in_force(),
            flow_entries: abi::maps::FLOWS_CAPACITY,
            foreign_rules: BTreeSet::new(),
            foreign_paths: BTreeSet::new(),
            path_tables: Vec::new(),
            netfilter: self.netfilter.clone(),
            routes_by_port: false,
            has_unseen_sockets: (self.facts.cgroup.as_ref())
                .is_some_and(steps::CgroupCoverage::is_partial),
            conntrack_entries: 0,
        }
    }
}

impl Answer<CheckQuery> for World {
    fn answer(&self, question: &CheckQuery) -> CheckFacts {
        self.check_facts(question)
    }
}

impl Answer<SysctlQuery> for World {
    fn answer(&self, question: &SysctlQuery) -> BTreeMap<SysctlKey, Option<String>> {
        self.chosen_sysctls(&question.0)
    }
}

impl Answer<NetnsQuery> for World {
    fn answer(&self, question: &NetnsQuery) -> ObservedNetns {
        let pod = self.pod(&question.path, &question.ifname);
        let host_end = pod.and_then(|pod| pod.peer).filter(|_| question.host_end);
        let mut links = self.links.values().map(|link| &link.link);
        let bridge = links
            .find(|link| Some(link.index) == host_end)
            .and_then(|link| link.controller);
        let is_wanted = |name: &IfName, index: u32| {
            question.links.contains(name) || [host_end, bridge].contains(&Some(index))
        };
        ObservedNetns {
            links: self
                .links
                .iter()
                .filter(|(name, link)| is_wanted(name, link.link.index))
                .map(|(name, link)| (name.clone(), link.link.clone()))
                .collect(),
            inside: self.netns_at(&question.path).map(|netns| NetnsInside {
                netns,
                pod: self.pod(&question.path, &question.ifname),
            }),
        }
    }
}

impl Answer<AttachmentQuery> for World {
    fn answer(&self, question: &AttachmentQuery) -> ObservedAttachment {
        let path = &question.netns.path;
        ObservedAttachment {
            host: self.host_side(question),
            netns: match self.netns_at(path) {
                None => AttachmentNetns::Missing,
                Some(netns) if netns != question.netns => AttachmentNetns::Replaced,
                Some(_) => AttachmentNetns::Same {
                    pod: self.pod(path, &question.key.ifname),
                },
            },
        }
    }
}

impl Answer<HostSideQuery> for World {
    fn answer(&self, question: &HostSideQuery) -> ObservedHostSide {
        self.host_side(&question.0)
    }
}

impl Answer<AddressQuery> for World {
    fn answer(&self, question: &AddressQuery) -> BTreeSet<IpAddr> {
        self.own_addresses(&question.0)
    }
}

impl Answer<PortQuery> for World {
    fn answer(&self, _: &PortQuery) -> PortReservations {
        self.in_force()
    }
}

impl Answer<ForwardingQuery> for World {
    fn answer(&self, _: &ForwardingQuery) -> ForwardTables {
        self.forwarding.clone()
    }
}

impl Answer<PortUserQuery> for World {
    fn answer(&self, question: &PortUserQuery) -> PortUsers {
        self.observe_port_users(&question.reservations, question.process)
    }
}

impl Answer<SettingsQuery> for World {
    fn answer(&self, question: &SettingsQuery) -> Option<ObservedSettings> {
        Some(ObservedSettings {
            netns: self.netns_at(&question.path)?,
            settings: self.settings(&question.path, &question.ifname)?,
        })
    }
}

impl World {
    fn host_side(&self, query: &AttachmentQuery) -> ObservedHostSide {
        let link = |name: &IfName| -> Option<Link> {
            let link = self.links.get(name)?;
            Some(link.link.clone())
        };
        let hooks = self.links.get(&query.host_link).into_iter();
        let hooks = hooks
            .filter(|link| link.kind != LinkKind::Bridge)
            .flat_map(|link| link.hooks.iter().copied());
        ObservedHostSide {
            host_link: link(&query.host_link),
            hooks: hooks
                .filter(|hook| hook.is_of_pods() && *hook != Hook::FromBusyPod)
                .collect(),
            bridge: link(&query.bridge),
            entries: self.entries_of(&query.entries),
            port_reservations: self.held_for(&query.reservations),
        }
    }

    fn netns_at(&self, path: &NetnsPath) -> Option<Netns> {
        let inode = self.paths.get(path).copied();
        inode.map(|inode| netns(path.clone(), inode))
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
                protocol: 2,
            }));
        }
        routes
    }
}

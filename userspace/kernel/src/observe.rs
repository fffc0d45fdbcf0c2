//! Observes the kernel: the whole node, or only what one ADD or DEL needs.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;

use model::{IfName, NetnsPath};
use steps::{
    AddressQuery, AttachmentNetns, AttachmentQuery, CheckFacts, CheckQuery, ForwardTables,
    ForwardingQuery, Hook, HostSideQuery, Link, LinkKind, NetnsInside, NetnsQuery, NodeLink,
    NodeQuery, Observed, ObservedAttachment, ObservedHostSide, ObservedNetns, ObservedSettings,
    PathTable, PodSide, PortQuery, PortReservations, PortUserQuery, PortUsers, SettingsQuery,
    SysctlKey, SysctlQuery,
};

use crate::bpf::tcx_fast_path;
use crate::error::{Attempt as _, Failed};
use crate::firewall::forwarding;
use crate::foreign::{netfilter, tc_programs};
use crate::host::Host;
use crate::netlink::socket::Netlink;
use crate::netlink::{addresses, bridge_vlans, clsact, links, route_lookup, routes, tunnels};
use crate::pod::netns::OpenNetns;
use crate::pod::{host_end, interface, tuning};
use crate::ports::users;
use crate::{Observe, ObserveError};
use crate::{node_checks, sysctl};

impl Observe<NodeQuery> for Host {
    fn observe(&mut self, question: &NodeQuery) -> Result<Observed, ObserveError> {
        Ok(node(self, &question.sysctls)?)
    }
}

impl Observe<CheckQuery> for Host {
    fn observe(&mut self, question: &CheckQuery) -> Result<CheckFacts, ObserveError> {
        Ok(node_checks::facts(self, question)?)
    }
}

impl Observe<SysctlQuery> for Host {
    fn observe(
        &mut self,
        question: &SysctlQuery,
    ) -> Result<BTreeMap<SysctlKey, Option<String>>, ObserveError> {
        Ok(sysctls(&question.0)?)
    }
}

impl Observe<NetnsQuery> for Host {
    fn observe(&mut self, question: &NetnsQuery) -> Result<ObservedNetns, ObserveError> {
        let mut links = some_links(self, &question.links)?;
        let inside = match open(&question.path)? {
            None => None,
            Some(open) => {
                if question.host_end {
                    links.extend(host_side_of(self, &open, &question.ifname)?);
                }
                Some(NetnsInside {
                    pod: pod_side(&open, &question.ifname)?,
                    netns: open.identity().clone(),
                })
            }
        };
        Ok(ObservedNetns { links, inside })
    }
}

impl Observe<AttachmentQuery> for Host {
    fn observe(&mut self, question: &AttachmentQuery) -> Result<ObservedAttachment, ObserveError> {
        let host = host_side(self, question)?;
        let netns = match open(&question.netns.path)? {
            None => AttachmentNetns::Missing,
            Some(open) if *open.identity() != question.netns => AttachmentNetns::Replaced,
            Some(open) => AttachmentNetns::Same {
                pod: pod_side(&open, &question.key.ifname)?,
            },
        };
        Ok(ObservedAttachment { host, netns })
    }
}

impl Observe<HostSideQuery> for Host {
    fn observe(&mut self, question: &HostSideQuery) -> Result<ObservedHostSide, ObserveError> {
        Ok(host_side(self, &question.0)?)
    }
}

impl Observe<AddressQuery> for Host {
    fn observe(&mut self, question: &AddressQuery) -> Result<BTreeSet<IpAddr>, ObserveError> {
        let own = route_lookup::own(&mut self.netlink, &question.0);
        Ok(own.attempt(|| "query the routes of a pod's addresses".to_owned())?)
    }
}

impl Observe<PortQuery> for Host {
    fn observe(&mut self, _: &PortQuery) -> Result<PortReservations, ObserveError> {
        Ok(self.reservations.all())
    }
}

impl Observe<ForwardingQuery> for Host {
    fn observe(&mut self, _: &ForwardingQuery) -> Result<ForwardTables, ObserveError> {
        Ok((self.filters.read()).attempt(|| "read the filter tables".to_owned())?)
    }
}

impl Observe<PortUserQuery> for Host {
    fn observe(&mut self, question: &PortUserQuery) -> Result<PortUsers, ObserveError> {
        let reservations = &question.reservations;
        Ok(PortUsers {
            port_reservations: self.reservations.some(reservations.iter().copied()),
            holders: users::holders(reservations),
            exists: users::exists(question.process),
        })
    }
}

impl Observe<SettingsQuery> for Host {
    fn observe(
        &mut self,
        question: &SettingsQuery,
    ) -> Result<Option<ObservedSettings>, ObserveError> {
        let SettingsQuery {
            path,
            ifname,
            sysctls,
        } = question;
        let Some(open) = open(path)? else {
            return Ok(None);
        };
        let call = || format!("read the settings of {ifname} in {path}");
        Ok(Some(ObservedSettings {
            settings: tuning::observe(&open, ifname, sysctls).attempt(call)?,
            netns: open.identity().clone(),
        }))
    }
}

fn node(host: &mut Host, wanted: &BTreeSet<SysctlKey>) -> Result<Observed, Failed> {
    let pinned = (host.programs.pinned()).attempt(|| "list the pinned links".to_owned())?;
    let links = all_links(host, &pinned)?;
    let names: BTreeMap<u32, IfName> = links
        .iter()
        .map(|(name, link)| (link.index, name.clone()))
        .collect();
    let with_fq = clsact::links_with(&mut host.netlink, clsact::FQ)
        .attempt(|| "list the qdiscs".to_owned())?;
    let tunnels =
        tunnels::observe(&mut host.netlink, &links).attempt(|| "read the tunnels".to_owned())?;
    let routing = routes::all(&mut host.netlink).attempt(|| "list the routes".to_owned())?;
    let listed = || "list foreign rules".to_owned();
    let mut foreign_paths = foreign_paths(host, &links).attempt(listed)?;
    foreign_paths.extend(routing.by_tos);
    let entries = (host.tables.all(&names)).attempt(|| "read the datapath's tables".to_owned())?;
    Ok(Observed {
        heeds_departure: !with_fq.is_empty() && host.probed.keeps_departure_times(),
        routes: routing.entries,
        tunnels,
        routes_by_port: routing.by_port,
        sysctls: sysctls(wanted)?,
        netfilter: (host.netfilter.observe(&entries))
            .attempt(|| "read our netfilter table".to_owned())?,
        entries,
        port_reservations: host.reservations.all(),
        flow_entries: host.flow_entries,
        foreign_rules: netfilter::foreign_rules().attempt(listed)?,
        foreign_paths,
        path_tables: path_tables(host).attempt(listed)?,
        has_unseen_sockets: (host.sockets.coverage())
            .attempt(|| "read the cgroups of processes".to_owned())?
            .is_none_or(|coverage| coverage.is_partial()),
        conntrack_entries: netfilter::tracked()
            .attempt(|| "count tracked connections".to_owned())?,
        xdp_prefilters: (host.prefilters.observe(&links, &pinned))
            .attempt(|| "read the XDP prefilters".to_owned())?,
        links,
        socket_hooks: (host.sockets.observe())
            .attempt(|| "read the programs of the cgroup".to_owned())?,
    })
}

fn path_tables(host: &mut Host) -> io::Result<Vec<PathTable>> {
    let mut tables = host.path_rules.read()?;
    tables.extend(forwarding::legacy_path_tables()?);
    Ok(tables)
}

fn foreign_paths(
    host: &mut Host,
    links: &BTreeMap<IfName, NodeLink>,
) -> io::Result<BTreeSet<String>> {
    let mut paths = netfilter::foreign_paths(host.programs.links())?;
    paths.extend(tc_programs::filters(&mut host.netlink, links)?);
    Ok(paths)
}

pub(crate) fn sysctls(
    wanted: &BTreeSet<SysctlKey>,
) -> Result<BTreeMap<SysctlKey, Option<String>>, Failed> {
    wanted
        .iter()
        .map(|key| {
            let value = sysctl::read(key).attempt(|| format!("read {key}"))?;
            Ok((key.clone(), value))
        })
        .collect()
}

fn all_links(
    host: &mut Host,
    pinned: &BTreeSet<u32>,
) -> Result<BTreeMap<IfName, NodeLink>, Failed> {
    let netlink = &mut host.netlink;
    let list = || "list the links".to_owned();
    let mut all = links_with_addresses(netlink)?;
    let own = all.values_mut().map(|link| &mut link.link);
    bridge_vlans::observe(netlink, own).attempt(|| "list the VLANs".to_owned())?;
    // A link without clsact has no filter of ours: one dump of qdiscs replaces two requests for
    // each link.
    let with_clsact = clsact::links_with(netlink, clsact::CLSACT).attempt(list)?;
    let indexes: Vec<u32> = with_clsact.into_iter().collect();
    let attached = clsact::attached_ids(netlink, &indexes).attempt(list)?;
    let mut attached: BTreeMap<u32, _> = indexes.into_iter().zip(attached).collect();
    let current = (host.programs.ids()).attempt(|| "read the ids of our programs".to_owned())?;
    for (name, link) in &mut all {
        let set = host.set_macs.get(&link.index).copied();
        link.mac_is_set = set.is_some() && set == link.mac;
        let filters = attached.remove(&link.index).unwrap_or_default();
        let found = programs(host, name, link.index, (filters, pinned))
            .attempt(|| format!("read the programs of {name}"))?;
        let other = found
            .iter()
            .filter(|(hook, id)| id.is_some() && **id != current.get(hook).copied());
        link.outdated = other.map(|(hook, _)| *hook).collect();
        link.hooks = found.into_keys().collect();
    }
    Ok(all)
}

/// Returns all links with their addresses, and without VLANs and programs.
pub(crate) fn links_with_addresses(
    netlink: &mut Netlink,
) -> Result<BTreeMap<IfName, NodeLink>, Failed> {
    let found = links::all(netlink)
        .attempt(|| "list the links".to_owned())?
        .into_iter();
    let mut all: BTreeMap<IfName, NodeLink> =
        found.map(|(name, link)| (name, link.into())).collect();
    let addresses = addresses::all(netlink).attempt(|| "list the addresses".to_owned())?;
    for seen in addresses {
        let Some(link) = all.values_mut().find(|link| link.index == seen.link) else {
            continue;
        };
        if seen.is_avoided {
            link.avoided.insert(seen.own.address);
        }
        link.addresses.push(seen.own);
    }
    Ok(all)
}

/// Returns our programs on a link, with their ids. `found` are its clsact filters, `pinned` the
/// indexes of links that have pins.
fn programs(
    host: &Host,
    name: &IfName,
    index: u32,
    (mut found, pinned): (BTreeMap<Hook, Option<u32>>, &BTreeSet<u32>),
) -> io::Result<BTreeMap<Hook, Option<u32>>> {
    if pinned.contains(&index) {
        let pinned = host.programs.attached(name, index)?.into_iter();
        found.extend(pinned.map(|(hook, id)| (hook, Some(id))));
    }
    if found.contains_key(&Hook::FromPod) && host.probed.has_tcx() {
        let fast_path = tcx_fast_path::attached_id(name)?;
        found.extend(fast_path.map(|id| (Hook::FromBusyPod, Some(id))));
    }
    Ok(found)
}

/// Reads the host's side of an attachment. Addresses of the links and programs other than those on
/// pods' links are left out: each would cost one more request in every ADD and DEL, and no plan of
/// an attachment needs them.
fn host_side(host: &mut Host, query: &AttachmentQuery) -> Result<ObservedHostSide, Failed> {
    let AttachmentQuery {
        host_link, bridge, ..
    } = query;
    let names = BTreeSet::from([host_link.clone(), bridge.clone()]);
    let links = some_links(host, &names)?;
    let link = links.get(host_link).cloned();
    let hooks = link.as_ref().map(|link| {
        let hooks = pod_hooks(host, link);
        hooks.attempt(|| format!("read {host_link}"))
    });
    Ok(ObservedHostSide {
        hooks: hooks.transpose()?.unwrap_or_default(),
        host_link: link,
        bridge: links.get(bridge).cloned(),
        entries: (host.tables.some(&query.entries))
            .attempt(|| format!("read the table entries of {}", query.key))?,
        port_reservations: host.reservations.some(query.reservations.iter().copied()),
    })
}

/// Returns the programs of pods on a host's end, without the TCX fast path.
fn pod_hooks(host: &mut Host, link: &Link) -> io::Result<BTreeSet<Hook>> {
    if link.kind == LinkKind::Bridge {
        return Ok(BTreeSet::new());
    }
    let filters = clsact::attached(&mut host.netlink, &[link.index])?;
    let hooks = filters.into_iter().flatten();
    Ok(hooks.filter(|hook| hook.is_of_pods()).collect())
}

fn open(path: &NetnsPath) -> Result<Option<OpenNetns>, Failed> {
    OpenNetns::find(path).attempt(|| format!("open network namespace {path}"))
}

fn pod_side(netns: &OpenNetns, ifname: &IfName) -> Result<Option<PodSide>, Failed> {
    let path = &netns.identity().path;
    interface::observe(netns, ifname).attempt(|| format!("read {ifname} in {path}"))
}

/// Returns the host's end of the pod's interface, and the bridge that it is a port of.
fn host_side_of(
    host: &mut Host,
    netns: &OpenNetns,
    ifname: &IfName,
) -> Result<BTreeMap<IfName, Link>, Failed> {
    let path = &netns.identity().path;
    let index = host_end::find(netns, ifname)
        .attempt(|| format!("find the host's end of {ifname} in {path}"))?;
    let name = index.and_then(links::name_of);
    let mut found = some_links(host, &name.into_iter().collect())?;
    let bridges = found
        .values()
        .filter_map(|link| links::name_of(link.controller?))
        .collect();
    found.extend(some_links(host, &bridges)?);
    Ok(found)
}

/// Returns the links of these names that exist, without a dump of all links.
fn some_links(host: &mut Host, names: &BTreeSet<IfName>) -> Result<BTreeMap<IfName, Link>, Failed> {
    let mut found = BTreeMap::new();
    for name in names {
        let link = links::find(&mut host.netlink, name).attempt(|| format!("read {name}"))?;
        found.extend(link.map(|link| (name.clone(), link)));
    }
    let seen = bridge_vlans::observe(&mut host.netlink, found.values_mut());
    seen.attempt(|| "list the VLANs".to_owned())?;
    Ok(found)
}

//! Observes the kernel: the whole node, or only what one ADD or DEL needs.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use model::{IfName, NetnsPath};
use steps::{
    AttachmentQuery, Hook, Link, LinkKind, Observed, PodSide, PortUsers, Scope, SysctlKey,
};

use crate::bpf::{entries, tcx_fast_path};
use crate::error::{Attempt as _, Failed};
use crate::foreign::{netfilter, tc_programs};
use crate::host::Host;
use crate::netlink::{addresses, bridge_vlans, clsact, links, route_lookup, routes};
use crate::pod::netns::OpenNetns;
use crate::pod::{interface, tuning};
use crate::ports::users;
use crate::{node_checks, sysctl};

pub(crate) fn observe(host: &mut Host, scope: &Scope) -> Result<Observed, Failed> {
    match scope {
        Scope::Node { sysctls } => node(host, sysctls),
        Scope::Checks(query) => Ok(Observed {
            checks: node_checks::facts(host, query)?,
            ..Observed::default()
        }),
        Scope::Sysctls(keys) => Ok(Observed {
            sysctls: sysctls(keys)?,
            ..Observed::default()
        }),
        Scope::Netns {
            path,
            ifname,
            links,
        } => netns(host, path, ifname, links),
        Scope::Attachment(query) => of_attachment(host, query),
        Scope::Outside(query) => outside(host, query),
        Scope::Settings {
            path,
            ifname,
            sysctls,
        } => settings(path, ifname, sysctls),
        Scope::Addresses(addresses) => Ok(Observed {
            own_addresses: route_lookup::own(&mut host.netlink, addresses)
                .attempt(|| "query the routes of a pod's addresses".to_owned())?,
            ..Observed::default()
        }),
        Scope::Ports => Ok(Observed {
            port_reservations: host.reservations.all(),
            ..Observed::default()
        }),
        Scope::Forwarding => Ok(Observed {
            forwarding: (host.filters.read()).attempt(|| "read the filter tables".to_owned())?,
            ..Observed::default()
        }),
        Scope::PortUsers {
            reservations,
            process,
        } => Ok(Observed {
            port_reservations: host.reservations.some(reservations.iter().copied()),
            port_users: PortUsers {
                holders: users::holders(reservations),
                exists: users::exists(*process),
            },
            ..Observed::default()
        }),
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
    let routing = routes::all(&mut host.netlink).attempt(|| "list the routes".to_owned())?;
    let listed = || "list foreign rules".to_owned();
    let mut foreign_paths = foreign_paths(host, &links).attempt(listed)?;
    foreign_paths.extend(routing.by_tos);
    let entries =
        entries::all(&host.tables, &names).attempt(|| "read the datapath's tables".to_owned())?;
    Ok(Observed {
        heeds_departure: !with_fq.is_empty(),
        routes: routing.entries,
        routes_by_port: routing.by_port,
        sysctls: sysctls(wanted)?,
        netfilter: (host.netfilter.observe(&entries))
            .attempt(|| "read our netfilter table".to_owned())?,
        entries,
        port_reservations: host.reservations.all(),
        flow_entries: host.flow_entries,
        foreign_rules: netfilter::foreign_rules().attempt(listed)?,
        foreign_paths,
        path_tables: host.path_rules.read().attempt(listed)?,
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
        ..Observed::default()
    })
}

fn foreign_paths(host: &mut Host, links: &BTreeMap<IfName, Link>) -> io::Result<BTreeSet<String>> {
    let mut paths = netfilter::foreign_paths(host.programs.links())?;
    paths.extend(tc_programs::filters(&mut host.netlink, links)?);
    Ok(paths)
}

pub(crate) fn sysctls(wanted: &BTreeSet<SysctlKey>) -> Result<BTreeMap<SysctlKey, String>, Failed> {
    let mut sysctls = BTreeMap::new();
    for key in wanted {
        let value = sysctl::read(key).attempt(|| format!("read {key}"))?;
        sysctls.extend(value.map(|value| (key.clone(), value)));
    }
    Ok(sysctls)
}

fn all_links(host: &mut Host, pinned: &BTreeSet<u32>) -> Result<BTreeMap<IfName, Link>, Failed> {
    let netlink = &mut host.netlink;
    let list = || "list the links".to_owned();
    let mut all = links::all(netlink).attempt(list)?;
    let addresses = addresses::all(netlink).attempt(|| "list the addresses".to_owned())?;
    for seen in addresses {
        let link = all.iter_mut().find(|(_, link)| link.index == seen.link);
        let Some((_, link)) = link else { continue };
        if seen.is_avoided {
            link.avoided.insert(seen.own.address);
        }
        link.addresses.push(seen.own);
    }
    let own = all.iter_mut().map(|(_, link)| link);
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
    Ok(all.into_iter().collect())
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

fn netns(
    host: &mut Host,
    path: &NetnsPath,
    ifname: &IfName,
    wanted: &BTreeSet<IfName>,
) -> Result<Observed, Failed> {
    let mut observed = Observed {
        links: some_links(host, wanted)?,
        ..Observed::default()
    };
    if let Some(open) = open(path)? {
        observed.pod = pod_side(&open, ifname)?;
        observed.netns.insert(path.clone(), open.identity().clone());
    }
    Ok(observed)
}

fn of_attachment(host: &mut Host, query: &AttachmentQuery) -> Result<Observed, Failed> {
    let mut observed = outside(host, query)?;
    let path = &query.netns.path;
    if let Some(open) = open(path)? {
        if *open.identity() == query.netns {
            observed.pod = pod_side(&open, &query.key.ifname)?;
        }
        observed.netns.insert(path.clone(), open.identity().clone());
    }
    Ok(observed)
}

fn outside(host: &mut Host, query: &AttachmentQuery) -> Result<Observed, Failed> {
    Ok(Observed {
        links: some_links(host, &query.links)?,
        entries: entries::some(&host.tables, &query.entries)
            .attempt(|| format!("read the table entries of {}", query.key))?,
        port_reservations: host.reservations.some(query.reservations.iter().copied()),
        ..Observed::default()
    })
}

fn settings(
    path: &NetnsPath,
    ifname: &IfName,
    sysctls: &BTreeSet<String>,
) -> Result<Observed, Failed> {
    let mut observed = Observed::default();
    if let Some(open) = open(path)? {
        let call = || format!("read the settings of {ifname} in {path}");
        observed.settings = Some(tuning::observe(&open, ifname, sysctls).attempt(call)?);
        observed.netns.insert(path.clone(), open.identity().clone());
    }
    Ok(observed)
}

fn open(path: &NetnsPath) -> Result<Option<OpenNetns>, Failed> {
    OpenNetns::find(path).attempt(|| format!("open network namespace {path}"))
}

fn pod_side(netns: &OpenNetns, ifname: &IfName) -> Result<Option<PodSide>, Failed> {
    let path = &netns.identity().path;
    interface::observe(netns, ifname).attempt(|| format!("read {ifname} in {path}"))
}

/// Returns the links of these names that exist, without a dump of all links. Fills in no more than
/// [`Scope::Attachment`] promises.
fn some_links(host: &mut Host, names: &BTreeSet<IfName>) -> Result<BTreeMap<IfName, Link>, Failed> {
    let mut found = BTreeMap::new();
    for name in names {
        let call = || format!("read {name}");
        let Some(mut link) = links::find(&mut host.netlink, name).attempt(call)? else {
            continue;
        };
        if link.kind != LinkKind::Bridge {
            let filters = clsact::attached(&mut host.netlink, &[link.index]).attempt(call)?;
            let hooks = filters.into_iter().flatten();
            link.hooks = hooks.filter(|hook| hook.is_of_pods()).collect();
        }
        found.insert(name.clone(), link);
    }
    let seen = bridge_vlans::observe(&mut host.netlink, found.values_mut());
    seen.attempt(|| "list the VLANs".to_owned())?;
    Ok(found)
}

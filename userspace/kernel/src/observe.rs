//! Looking at the kernel: all of the node, or just what one ADD or DEL needs.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use model::{Attachment, IfName, NetnsPath};
use planner::{Hook, Link, LinkKind, Observed, PodSide, Scope, SysctlKey};

use crate::error::{Attempt as _, Failed};
use crate::host::Host;
use crate::netns::OpenNetns;
use crate::{
    addresses, behind, busy, entries, filters, links, netfilter, pod, routes, switching, sysctl,
    tuning,
};

pub(crate) fn observe(host: &mut Host, scope: &Scope) -> Result<Observed, Failed> {
    match scope {
        Scope::Node { sysctls } => node(host, sysctls),
        Scope::Sysctls(keys) => Ok(Observed {
            sysctls: sysctls(keys)?,
            ..Observed::default()
        }),
        Scope::Netns {
            path,
            ifname,
            links,
        } => netns(host, path, ifname, links),
        Scope::Attachment(attachment) => of_attachment(host, attachment),
        Scope::Outside(attachment) => outside(host, attachment),
        Scope::Settings {
            path,
            ifname,
            sysctls,
        } => settings(path, ifname, sysctls),
        Scope::Ports => Ok(Observed {
            held: host.holders.all(),
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
    let with_fq = filters::links_with(&mut host.netlink, filters::FQ)
        .attempt(|| "list the queues".to_owned())?;
    let routing = routes::all(&mut host.netlink).attempt(|| "list the routes".to_owned())?;
    let mut foreign_rules =
        foreign_rules(host, &links).attempt(|| "list the rules of others".to_owned())?;
    foreign_rules.extend(routing.by_service);
    Ok(Observed {
        heeds_departure: !with_fq.is_empty(),
        routes: routing.entries,
        routes_by_port: routing.by_port,
        sysctls: sysctls(wanted)?,
        entries: entries::all(&host.tables, &names)
            .attempt(|| "read the datapath's tables".to_owned())?,
        held: host.holders.all(),
        flow_entries: host.flow_entries,
        foreign_rules,
        tracked: netfilter::tracked().attempt(|| "count tracked connections".to_owned())?,
        guards: (host.guards.observe(&links, &pinned))
            .attempt(|| "look at the guards".to_owned())?,
        links,
        socket_hooks: (host.sockets.observe()).attempt(|| "look at the cgroup".to_owned())?,
        ..Observed::default()
    })
}

fn foreign_rules(host: &mut Host, links: &BTreeMap<IfName, Link>) -> io::Result<BTreeSet<String>> {
    let mut rules = netfilter::foreign_rules(host.programs.links())?;
    rules.extend(behind::filters(&mut host.netlink, links)?);
    Ok(rules)
}

fn sysctls(wanted: &BTreeSet<SysctlKey>) -> Result<BTreeMap<SysctlKey, String>, Failed> {
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
    switching::observe(netlink, own).attempt(|| "list the VLANs".to_owned())?;
    // A link without clsact has no filter of ours: one question instead of two for each of them.
    let with_clsact = filters::links_with(netlink, filters::CLSACT).attempt(list)?;
    let asked: Vec<u32> = with_clsact.into_iter().collect();
    let attached = filters::attached_ids(netlink, &asked).attempt(list)?;
    let mut attached: BTreeMap<u32, _> = asked.into_iter().zip(attached).collect();
    let current = (host.programs.ids()).attempt(|| "look at our programs".to_owned())?;
    for (name, link) in &mut all {
        let filters = attached.remove(&link.index).unwrap_or_default();
        let found = programs(host, name, link.index, (filters, pinned))
            .attempt(|| format!("look at the programs of {name}"))?;
        let other = found
            .iter()
            .filter(|(hook, id)| id.is_some() && **id != current.get(hook).copied());
        link.outdated = other.map(|(hook, _)| *hook).collect();
        link.hooks = found.into_keys().collect();
    }
    Ok(all.into_iter().collect())
}

/// Which programs of ours a link has, and their ids; its filters and which links have pins are given.
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
        let busy = busy::attached_id(name)?;
        found.extend(busy.map(|id| (Hook::FromBusyPod, Some(id))));
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
        observed.pod = look(&open, ifname)?;
        observed.netns.insert(path.clone(), open.identity().clone());
    }
    Ok(observed)
}

fn of_attachment(host: &mut Host, attachment: &Attachment) -> Result<Observed, Failed> {
    let mut observed = outside(host, attachment)?;
    let path = &attachment.netns.path;
    if let Some(open) = open(path)? {
        if *open.identity() == attachment.netns {
            observed.pod = look(&open, &attachment.key.ifname)?;
        }
        observed.netns.insert(path.clone(), open.identity().clone());
    }
    Ok(observed)
}

fn outside(host: &mut Host, attachment: &Attachment) -> Result<Observed, Failed> {
    let host_link = attachment.host_link();
    let wanted = BTreeSet::from([host_link.name().clone(), attachment.bridge.clone()]);
    Ok(Observed {
        links: some_links(host, &wanted)?,
        entries: entries::of_attachment(&host.tables, attachment)
            .attempt(|| format!("read the table entries of {}", attachment.key))?,
        held: host.holders.some(planner::attachment_claims(attachment)),
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
        let call = || format!("look at the settings of {ifname} in {path}");
        observed.settings = tuning::look(&open, ifname, sysctls).attempt(call)?;
        observed.netns.insert(path.clone(), open.identity().clone());
    }
    Ok(observed)
}

fn open(path: &NetnsPath) -> Result<Option<OpenNetns>, Failed> {
    OpenNetns::find(path).attempt(|| format!("open network namespace {path}"))
}

fn look(netns: &OpenNetns, ifname: &IfName) -> Result<Option<PodSide>, Failed> {
    let path = &netns.identity().path;
    pod::look(netns, ifname).attempt(|| format!("look at {ifname} in {path}"))
}

/// The links of these names that exist, without listing all others: no more of each than [`Scope::Attachment`] says.
fn some_links(host: &mut Host, names: &BTreeSet<IfName>) -> Result<BTreeMap<IfName, Link>, Failed> {
    let mut found = BTreeMap::new();
    for name in names {
        let call = || format!("look at {name}");
        let Some(mut link) = links::find(&mut host.netlink, name).attempt(call)? else {
            continue;
        };
        if link.kind != LinkKind::Bridge {
            let filters = filters::attached(&mut host.netlink, &[link.index]).attempt(call)?;
            let hooks = filters.into_iter().flatten();
            link.hooks = hooks.filter(|hook| hook.is_of_pods()).collect();
        }
        found.insert(name.clone(), link);
    }
    let seen = switching::observe(&mut host.netlink, found.values_mut());
    seen.attempt(|| "list the VLANs".to_owned())?;
    Ok(found)
}

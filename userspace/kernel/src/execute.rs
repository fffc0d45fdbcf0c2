//! Executes one step: dispatches it to the module that implements it.

use std::collections::BTreeSet;
use std::io;

use model::{IfName, Mac};
use nix::errno::Errno;
use steps::{
    Entry, EntryKey, Hook, LinkRef, NetfilterStep, PortLeave, PortReservation, SocketHook, Step,
    SysctlKey, XdpPrefilterStep,
};

use crate::bpf::tcx_fast_path;
use crate::error::{Attempt as _, Failed};
use crate::host::Host;
use crate::netlink::{addresses, bridge_vlans, clsact, link_changes, peer_routes, tunnels};
use crate::pod::{announcement, interface, tuning};
use crate::sysctl;

pub(crate) fn execute(host: &mut Host, step: &Step) -> Result<(), Failed> {
    let netlink = &mut host.netlink;
    match step {
        Step::SetSysctl { key, value, .. } => set_sysctl(key, value),
        Step::CreateBridge(spec) => link_changes::create_bridge(netlink, spec),
        Step::DeleteBridge { name, alias } => link_changes::delete_bridge(netlink, name, alias),
        Step::Vlan(step) => bridge_vlans::execute(netlink, step),
        Step::SetMac { link, mac } => set_mac(host, link, *mac),
        Step::SetMtu { link, mtu } => link_changes::set_mtu(netlink, link, *mtu),
        Step::SetPodMtu { netns, ifname, mtu } => interface::set_mtu(netns, ifname, *mtu),
        Step::SetLoopback { netns, up } => interface::set_loopback(netns, *up),
        Step::TunePod {
            netns,
            ifname,
            settings,
            ..
        } => tuning::tune(netns, ifname, settings),
        Step::SetPromiscuous { link, on } => link_changes::set_promiscuous(netlink, link, *on),
        Step::SetUp { link } => link_changes::set_up(netlink, link),
        Step::AddAddress { link, address } => addresses::add(netlink, link, *address),
        Step::RemoveAddress { link, address } => addresses::remove(netlink, link, *address),
        Step::CreateVeth(spec) => link_changes::create_veth(netlink, spec),
        Step::DeleteVeth { link, alias } => link_changes::delete_veth(netlink, link, alias),
        Step::JoinBridge {
            link,
            bridge,
            hairpin,
            options,
        } => link_changes::join_bridge(netlink, link, bridge, *hairpin, options),
        Step::SetUpPod(spec) => interface::set_up(spec),
        Step::AwaitAddresses { netns, ifname } => interface::await_addresses(netns, ifname),
        Step::Announce(announcement) => {
            announcement::announce(announcement);
            Ok(())
        }
        Step::Attach { link, hooks } => attach(host, link, hooks),
        Step::Detach { link, hooks } => detach(host, link, hooks),
        Step::AttachSocketHooks { hooks } => attach_sockets(host, hooks),
        Step::DetachSocketHooks { hooks } => detach_sockets(host, hooks),
        Step::XdpPrefilter(step) => change_prefilter(host, step),
        Step::Netfilter(step) => change_netfilter(host, step),
        Step::ReservePort {
            reservation,
            generation,
        } => reserve_port(host, *reservation, *generation),
        Step::LeavePort(leave) => leave_port(host, leave),
        Step::ReleasePort {
            reservation,
            generation,
        } => release_port(host, reservation, *generation),
        Step::PutEntry { key, entry, .. } => put_entry(host, key, entry)
            .inspect(|()| crash::point())
            .attempt(|| format!("write the table entry {key:?}")),
        Step::RemoveEntry { key, .. } => remove_entry(host, key),
        Step::Forwarding(step) => host.filters.write(step).attempt(|| step.to_string()),
        Step::ChangeRoutes(changes) => peer_routes::change(netlink, &host.tables.names, changes),
        Step::Tunnel(step) => tunnels::execute(netlink, &host.tables.names, step),
        Step::Sweep => (host.programs.sweep()).attempt(|| "sweep the flow table".to_owned()),
    }
}

fn set_sysctl(key: &SysctlKey, value: &str) -> Result<(), Failed> {
    sysctl::write(key, value).attempt(|| format!("set {key} to {value}"))
}

/// Sets the Ethernet address of a link, and remembers it: netlink does not report that it was set.
fn set_mac(host: &mut Host, link: &IfName, mac: Mac) -> Result<(), Failed> {
    let index = link_changes::set_mac(&mut host.netlink, link, mac)?;
    host.set_macs.insert(index, mac);
    Ok(())
}

/// Writes an entry. A hostport is written to our netfilter table first, which refuses nothing that
/// the table takes: a failure leaves the table unchanged.
fn put_entry(host: &mut Host, key: &EntryKey, entry: &Entry) -> io::Result<()> {
    let locals = &host.tables.planned.locals;
    host.netfilter
        .put_hostport(key, entry, |address| locals.contains(address))?;
    (host.tables.put(key, entry)).inspect_err(|_| remove_mirrored(host, key))
}

/// Removes a hostport from our netfilter table.
fn remove_mirrored(host: &mut Host, key: &EntryKey) {
    let locals = &host.tables.planned.locals;
    let removed = (host.netfilter).remove_hostport(key, |address| locals.contains(address));
    if let Err(error) = removed {
        tracing::warn!(%error, ?key, "cannot remove a hostport from our netfilter table: the next reconciliation does");
    }
}

fn change_netfilter(host: &mut Host, step: &NetfilterStep) -> Result<(), Failed> {
    let call = || step.to_string();
    match step {
        NetfilterStep::Put { table, .. } => {
            let hostports = host.tables.hostports().attempt(call)?;
            host.netfilter.put(table, &hostports).attempt(call)
        }
        NetfilterStep::Remove { .. } => host.netfilter.remove().attempt(call),
    }
}

fn reserve_port(
    host: &mut Host,
    reservation: PortReservation,
    generation: u32,
) -> Result<(), Failed> {
    let was_left = host.reservations.is_left(&reservation);
    host.reservations.reserve(reservation, generation)?;
    if was_left {
        set_binder(host, &reservation, None)?;
    }
    Ok(())
}

#[expect(clippy::unnecessary_wraps, reason = "returns what each step returns")]
fn release_port(
    host: &mut Host,
    reservation: &PortReservation,
    generation: u32,
) -> Result<(), Failed> {
    host.reservations.release(reservation, generation);
    Ok(())
}

fn leave_port(host: &mut Host, leave: &PortLeave) -> Result<(), Failed> {
    // The permission first: without the agent's socket, the entry protects the port.
    set_binder(host, &leave.reservation, leave.process)?;
    host.reservations.leave(leave);
    Ok(())
}

fn set_binder(
    host: &mut Host,
    reservation: &PortReservation,
    process: Option<u32>,
) -> Result<(), Failed> {
    let hostports = &mut host.tables.planned.hostports;
    hostports
        .set_binder(&reservation.key(), process.unwrap_or(0))
        .attempt(|| format!("write the process that may bind {reservation}"))
}

/// Removes an entry. For an uplink that is gone, removes the pins of its index as well: a link
/// without a name has no other step.
fn remove_entry(host: &mut Host, key: &EntryKey) -> Result<(), Failed> {
    let call = || format!("remove the table entry {key:?}");
    if let EntryKey::Uplink(LinkRef::Gone(index)) = key {
        host.programs.detach_all(*index).attempt(call)?;
    }
    remove_mirrored(host, key);
    let removed = host.tables.remove(key);
    removed.inspect(|()| crash::point()).attempt(call)
}

/// Attaches a pod's programs as filters, and an uplink's as TCX links, or as filters where the
/// kernel has no TCX.
fn attach(host: &mut Host, link: &IfName, hooks: &BTreeSet<Hook>) -> Result<(), Failed> {
    let call = || format!("attach programs to {link}");
    let index = host.tables.names.index(link).attempt(call)?;
    let mut made = Vec::new();
    let mut filters = Vec::new();
    // Egress before ingress: no packet may be received and redirected to a pod before its answer
    // can be translated.
    for hook in hooks.iter().rev() {
        let tcx = match hook {
            Hook::UplinkIn | Hook::UplinkOut if host.probed.has_tcx() => {
                Some(host.programs.attach(link, index, *hook))
            }
            Hook::FromBusyPod => Some(attach_fast_path(host, link, index).map(|()| false)),
            Hook::FromPod | Hook::ToPod | Hook::UplinkIn | Hook::UplinkOut => None,
        };
        match tcx {
            Some(Ok(new)) => made.extend(new.then_some(*hook)),
            Some(Err(error)) => {
                detach_again(host, index, &made);
                return Err(Failed::new(call(), error));
            }
            None => {
                let program = host.programs.descriptor(*hook).attempt(call)?;
                filters.push((*hook, program));
            }
        }
    }
    if filters.is_empty() {
        return Ok(());
    }
    let attached = clsact::attach(&mut host.netlink, index, &filters);
    attached
        .attempt(call)
        .inspect_err(|_| detach_again(host, index, &made))
}

fn attach_fast_path(host: &mut Host, link: &IfName, index: u32) -> io::Result<()> {
    let hook = Hook::FromBusyPod;
    let program = (host.programs.descriptor(hook)?, host.programs.id(hook)?);
    tcx_fast_path::attach(link, index, program)
}

fn change_prefilter(host: &mut Host, step: &XdpPrefilterStep) -> Result<(), Failed> {
    let call = || step.to_string();
    let (XdpPrefilterStep::Attach(link) | XdpPrefilterStep::Detach(link)) = step;
    let found = host.tables.names.find(link).attempt(call)?;
    let done = match (step, found) {
        (XdpPrefilterStep::Attach(_), Some(index)) => {
            host.prefilters.attach(host.programs.object(), index)
        }
        (XdpPrefilterStep::Attach(_), None) => Err(Errno::ENODEV.into()),
        (XdpPrefilterStep::Detach(_), Some(index)) => host.prefilters.detach(index),
        (XdpPrefilterStep::Detach(_), None) => Ok(()),
    };
    done.attempt(call)
}

/// Attaches cgroup programs in a safe order: those that report the dialled address first, those
/// that translate it on connect and sendmsg last.
fn attach_sockets(host: &mut Host, hooks: &BTreeSet<SocketHook>) -> Result<(), Failed> {
    let mut hooks: Vec<SocketHook> = hooks.iter().copied().collect();
    hooks.sort_by_key(|hook| translates_address(*hook));
    let object = host.programs.object();
    let mut hooks = hooks.into_iter();
    hooks.try_for_each(|hook| host.sockets.attach(object, hook))
}

fn detach_sockets(host: &Host, hooks: &BTreeSet<SocketHook>) -> Result<(), Failed> {
    (hooks.iter()).try_for_each(|hook| host.sockets.detach(*hook))
}

fn translates_address(hook: SocketHook) -> bool {
    match hook {
        SocketHook::Connect4
        | SocketHook::Connect6
        | SocketHook::Sendmsg4
        | SocketHook::Sendmsg6 => true,
        SocketHook::Recvmsg4
        | SocketHook::Recvmsg6
        | SocketHook::Getpeername4
        | SocketHook::Getpeername6
        | SocketHook::Bind4
        | SocketHook::Bind6
        | SocketHook::Pace => false,
    }
}

fn detach_again(host: &Host, index: u32, made: &[Hook]) {
    for hook in made {
        if let Err(error) = host.programs.detach(index, *hook) {
            tracing::error!(link = index, ?hook, %error, "cannot detach a program after a failed attach: it stays attached");
        }
    }
}

fn detach(host: &mut Host, link: &IfName, hooks: &BTreeSet<Hook>) -> Result<(), Failed> {
    let call = || format!("detach programs from {link}");
    let Some(index) = host.tables.names.find(link).attempt(call)? else {
        return Ok(());
    };
    for hook in hooks {
        detach_one(host, link, index, *hook).attempt(call)?;
    }
    Ok(())
}

fn detach_one(host: &mut Host, link: &IfName, index: u32, hook: Hook) -> io::Result<()> {
    if hook == Hook::FromBusyPod {
        return tcx_fast_path::detach(link, index);
    }
    if !hook.is_of_pods() {
        host.programs.detach(index, hook)?;
    }
    clsact::detach(&mut host.netlink, index, hook)
}

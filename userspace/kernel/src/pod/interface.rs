//! Reads and configures the interface, addresses and routes inside of a pod's network namespace.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "netlink's enums are open: unknown values are skipped"
)]

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use model::{IfName, InterfaceAddress, Netns};
use nix::errno::Errno;
use rtnetlink::MulticastGroup;
use rtnetlink::packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use rtnetlink::packet_route::RouteNetlinkMessage as Message;
use rtnetlink::packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use steps::{PodSide, PodSpec, SysctlKey};

use crate::error::{Attempt as _, Failed, is};
use crate::netlink::addresses::Detection;
use crate::netlink::socket::{Netlink, Request, open_listener, receive};
use crate::netlink::{addresses, link_changes, links, routes};
use crate::pod::local_route;
use crate::pod::netns::OpenNetns;
use crate::sysctl;

/// The multicast group of IPv6 addresses.
const IPV6_ADDRESSES: u32 = MulticastGroup::Ipv6Ifaddr as u32;

/// Index of the loopback interface: always the first link of a namespace.
const LOOPBACK: u32 = 1;

/// Sysctl for the size of paced TCP segments: TCP adds `gso_max_size >> (min_rtt_us >> value)`
/// bytes to them (`tcp_tso_autosize` in `net/ipv4/tcp_output.c`).
const TSO_RTT_LOG: &str = "net/ipv4/tcp_tso_rtt_log";
/// The kernel's default: only peers nearer than half a millisecond get the largest segments.
const DEFAULT_TSO_RTT_LOG: &str = "9";
/// Large segments up to round trips of a second.
const RAISED_TSO_RTT_LOG: &str = "20";

/// Reads the interface `ifname` of `netns`, with its addresses and routes. `None` when there is no
/// such interface.
pub(crate) fn observe(netns: &OpenNetns, ifname: &IfName) -> io::Result<Option<PodSide>> {
    let mut netlink = netns.run(Netlink::open)?;
    let Some((index, mut side)) = find(&mut netlink, ifname)? else {
        return Ok(None);
    };
    let all = addresses::of_link(&mut netlink, index)?;
    side.addresses = all.into_iter().filter(|own| !is_link_local(own)).collect();
    side.routes = routes::of_link(&mut netlink, index)?.into_iter().collect();
    Ok(Some(side))
}

/// Reads the pod's interface without its addresses and routes.
pub(crate) fn interface(netns: &OpenNetns, ifname: &IfName) -> io::Result<Option<PodSide>> {
    let mut netlink = netns.run(Netlink::open)?;
    Ok(find(&mut netlink, ifname)?.map(|(_, side)| side))
}

/// Returns the index of the other end of a veth, in that end's namespace.
pub(crate) fn peer(message: &LinkMessage) -> Option<u32> {
    let mut attributes = message.attributes.iter();
    attributes.find_map(|attribute| match attribute {
        LinkAttribute::Link(index) => Some(*index),
        _ => None,
    })
}

fn find(netlink: &mut Netlink, ifname: &IfName) -> io::Result<Option<(u32, PodSide)>> {
    let Some(message) = links::find_message(netlink, ifname)? else {
        return Ok(None);
    };
    let link = links::link(&message);
    let side = PodSide {
        mac: link.mac,
        mtu: link.mtu,
        up: link.up,
        addresses: BTreeSet::new(),
        routes: BTreeSet::new(),
        peer: peer(&message),
    };
    Ok(Some((link.index, side)))
}

fn is_link_local(own: &InterfaceAddress) -> bool {
    matches!(own.address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// Sets the pod's interface and loopback up, and adds addresses and routes. After a failure, the
/// parts that were added are removed.
pub(crate) fn set_up(spec: &PodSpec) -> Result<(), Failed> {
    let PodSpec { netns, ifname, .. } = spec;
    let open =
        OpenNetns::open(netns).attempt(|| format!("open network namespace {}", netns.path))?;
    let mut netlink = open
        .run(|| {
            if spec.addresses.iter().any(|own| own.address.is_ipv6()) {
                enable_ipv6(ifname)?;
            }
            if spec.detects_duplicates {
                sysctl::write_if_present(&format!("net/ipv6/conf/{ifname}/accept_dad"), "1")?;
            }
            if spec.large_packets {
                allow_large_packets(netns);
            }
            Netlink::open()
        })
        .attempt(|| format!("enter network namespace {}", netns.path))?;
    let found = links::find_message(&mut netlink, ifname)
        .attempt(|| format!("read {ifname} in {}", netns.path))?;
    let Some(before) = found else {
        let call = format!("find {ifname} in {}", netns.path);
        return Err(Failed::new(call, Errno::ENODEV));
    };
    let changes = changes(spec, &before)
        .attempt(|| format!("describe the routes of {ifname} in {}", netns.path))?;
    PodSetUp {
        netlink: &mut netlink,
        spec,
        index: before.header.index,
    }
    .configure(changes)?;
    // With duplicate address detection, a step of its own waits for the addresses.
    let addresses = spec
        .addresses
        .iter()
        .filter(|_| !spec.detects_duplicates)
        .map(|own| own.address);
    if let Err(error) = local_route::wait(&mut netlink, addresses) {
        tracing::warn!(%ifname, netns = %netns.path, %error, "a pod's address may not receive packets yet; continuing the ADD");
    }
    Ok(())
}

/// Enables IPv6 on loopback and the interface in the calling thread's namespace, where a runtime
/// has disabled it, and keeps addresses while the interface is down: as the reference plugins do
/// before an IPv6 address.
fn enable_ipv6(ifname: &IfName) -> io::Result<()> {
    for link in ["lo", ifname.as_str()] {
        sysctl::write_if_present(&format!("net/ipv6/conf/{link}/disable_ipv6"), "0")?;
    }
    sysctl::write_if_present(&format!("net/ipv6/conf/{ifname}/keep_addr_on_down"), "1")
}

/// Lets TCP of the calling thread's namespace send segments as large to distant peers as to near
/// ones. A value other than the kernel's default is kept. The sysctl is missing before Linux 5.18,
/// where segments are as small as the pacing rate implies; the pod works without it.
fn allow_large_packets(netns: &Netns) {
    let key = SysctlKey(TSO_RTT_LOG.to_owned());
    let allowed = sysctl::read(&key).and_then(|value| match value.as_deref() {
        Some(DEFAULT_TSO_RTT_LOG) => sysctl::write(&key, RAISED_TSO_RTT_LOG),
        _ => Ok(()),
    });
    if let Err(error) = allowed {
        tracing::warn!(netns = %netns.path, %error, "cannot raise tcp_tso_rtt_log: TCP segments of the rate-limited pod stay small");
    }
}

/// Sets the MTU of a pod's interface.
pub(crate) fn set_mtu(netns: &Netns, ifname: &IfName, mtu: u32) -> Result<(), Failed> {
    let call = || format!("set MTU {mtu} of {ifname} in {}", netns.path);
    let open = OpenNetns::open(netns).attempt(call)?;
    let mut inside = open.run(Netlink::open).attempt(call)?;
    link_changes::set_mtu(&mut inside, ifname, mtu)
}

/// Longest wait for duplicate address detection, as the reference bridge plugin has it.
const DETECTION_TIMEOUT: Duration = Duration::from_secs(10);

/// Waits until duplicate address detection has ended for all IPv6 addresses of a pod's interface.
/// Fails with `EADDRINUSE` for a duplicate address and with `ETIMEDOUT` after ten seconds.
pub(crate) fn await_addresses(netns: &Netns, ifname: &IfName) -> Result<(), Failed> {
    let call = || {
        format!(
            "detect duplicates of the addresses of {ifname} in {}",
            netns.path
        )
    };
    let open = OpenNetns::open(netns).attempt(call)?;
    let opened = open.run(|| Ok((open_listener(&[IPV6_ADDRESSES])?, Netlink::open()?)));
    let (listener, mut inside) = opened.attempt(call)?;
    let found = find(&mut inside, ifname).attempt(call)?;
    let (index, _) = found.ok_or_else(|| Failed::new(call(), Errno::ENODEV))?;
    let end = Instant::now() + DETECTION_TIMEOUT;
    let mut buffer = Vec::new();
    loop {
        let detection = addresses::detection(&mut inside, index).attempt(call)?;
        match detection {
            Detection::Done => return Ok(()),
            Detection::Duplicate(address) => {
                let call = format!("use {address} for {ifname}: duplicate address detected");
                return Err(Failed::new(call, Errno::EADDRINUSE));
            }
            Detection::Pending if Instant::now() >= end => {
                return Err(Failed::new(call(), Errno::ETIMEDOUT));
            }
            // The kernel sends a notification when an address stops being tentative. One about
            // another address costs one more dump.
            Detection::Pending => receive(&listener, &mut buffer).attempt(call)?,
        }
    }
}

/// Sets a pod's loopback up or down.
pub(crate) fn set_loopback(netns: &Netns, up: bool) -> Result<(), Failed> {
    let state = if up { "up" } else { "down" };
    let call = || format!("set lo {state} in {}", netns.path);
    let open = OpenNetns::open(netns).attempt(call)?;
    let mut inside = open.run(Netlink::open).attempt(call)?;
    let builder = links::indexed(LOOPBACK);
    let message = if up { builder.up() } else { builder.down() };
    let done = inside.change(Message::SetLink(message.build()), 0);
    done.attempt(call)
}

/// One netlink change inside of a pod's namespace.
struct SetUpChange {
    what: String,
    change: Request,
    /// Change that removes it again; `None` where none is needed.
    undo: Option<Request>,
    /// Whether a failure is ignored, because the pod works without it.
    is_optional: bool,
}

impl SetUpChange {
    fn new(what: impl Into<String>, change: Request, undo: Option<Request>) -> Self {
        Self {
            what: what.into(),
            change,
            undo,
            is_optional: false,
        }
    }

    fn address(index: u32, address: InterfaceAddress, is_sure: bool) -> Self {
        let new = addresses::new_message(index, address, is_sure);
        let old = Message::DelAddress(addresses::message(index, address));
        Self::new(
            format!("add address {address}"),
            Request::change(new, NLM_F_CREATE | NLM_F_EXCL),
            Some(change(old)),
        )
    }
}

fn changes(spec: &PodSpec, before: &LinkMessage) -> io::Result<Vec<SetUpChange>> {
    let (index, is_sure) = (before.header.index, !spec.detects_duplicates);
    let was_up = before.header.flags.contains(LinkFlags::Up);
    let up = change(links::set_up_message(LOOPBACK));
    let mut changes = vec![SetUpChange::new("set lo up", up, None)];
    // The spoof check takes the pod to have the address that derives from its MAC address.
    if addresses::generates_other_link_local(before) && !was_up {
        let message = Message::SetLink(addresses::derive_link_local(index));
        changes.push(SetUpChange {
            is_optional: true,
            ..SetUpChange::new("derive the link-local address", change(message), None)
        });
    }
    // Added before the link is up, so that the kernel generates no link-local address of its own,
    // which would wait for duplicate address detection. A namespace without IPv6 refuses it.
    let link_local = addresses::link_local(before).filter(|_| is_sure && !was_up);
    changes.extend(link_local.map(|address| SetUpChange {
        is_optional: true,
        ..SetUpChange::address(index, address, is_sure)
    }));
    let addresses = spec.addresses.iter();
    changes.extend(addresses.map(|address| SetUpChange::address(index, *address, is_sure)));
    let down = Message::SetLink(links::indexed(index).down().build());
    changes.push(SetUpChange::new(
        "set the link up",
        change(links::set_up_message(index)),
        (!was_up).then(|| change(down)),
    ));
    for route in &spec.routes {
        let message = routes::message(index, route)?;
        changes.push(SetUpChange::new(
            format!("add a route to {}", route.destination),
            // Not exclusive: a pod on two networks may have two default routes.
            Request::change(Message::NewRoute(message.clone()), NLM_F_CREATE),
            Some(change(Message::DelRoute(message))),
        ));
    }
    Ok(changes)
}

fn change(message: Message) -> Request {
    Request::change(message, 0)
}

struct PodSetUp<'a> {
    netlink: &'a mut Netlink,
    spec: &'a PodSpec,
    index: u32,
}

impl PodSetUp<'_> {
    /// Sends all changes in one call. `EEXIST` is no failure if all addresses and routes are
    /// present afterwards. After any other failure, the new parts are removed in reverse order.
    fn configure(&mut self, changes: Vec<SetUpChange>) -> Result<(), Failed> {
        let mut failure = None;
        let mut undo = Vec::new();
        let (changes, rest): (Vec<_>, Vec<_>) = changes
            .into_iter()
            .map(|part| (part.change, (part.what, part.undo, part.is_optional)))
            .unzip();
        let PodSpec { ifname, netns, .. } = self.spec;
        let place = |what: &str| format!("{what} ({ifname} in {})", netns.path);
        let answers = self
            .netlink
            .request_all(changes)
            .attempt(|| place("configure the pod's interface"))?;
        for (answer, (what, part_undo, is_optional)) in answers.into_iter().zip(rest) {
            match answer {
                Ok(_) => undo.extend(part_undo),
                Err(_) if is_optional => {}
                Err(error) if is(&error, Errno::EEXIST) && self.is_complete() => {}
                Err(error) => {
                    failure.get_or_insert_with(|| Failed::new(place(&what), error));
                }
            }
        }
        let Some(failure) = failure else {
            return Ok(());
        };
        undo.reverse();
        if let Err(error) = self.netlink.request_all(undo) {
            tracing::error!(%ifname, netns = %netns.path, %error, "cannot clear a pod interface after a failed set-up: some addresses or routes remain");
        }
        Err(failure)
    }

    /// Whether all requested addresses and routes are present.
    fn is_complete(&mut self) -> bool {
        let addresses = addresses::of_link(self.netlink, self.index).unwrap_or_default();
        let routes = routes::of_link(self.netlink, self.index).unwrap_or_default();
        let spec = self.spec;
        spec.addresses.iter().all(|own| addresses.contains(own))
            && spec.routes.iter().all(|own| routes.contains(own))
    }
}

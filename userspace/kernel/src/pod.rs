//! The inside of a pod's namespace: its interface, addresses and routes.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "netlink's vocabulary is open: what we do not know is skipped"
)]

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use model::{IfName, InterfaceAddress, Netns};
use nix::errno::Errno;
use planner::{PodSide, PodSpec, SysctlKey};
use rtnetlink::MulticastGroup;
use rtnetlink::packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use rtnetlink::packet_route::RouteNetlinkMessage as Message;
use rtnetlink::packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};

use crate::addresses::Detection;
use crate::error::{Attempt as _, Failed, is};
use crate::netlink::{Netlink, Request, open_listener, receive};
use crate::netns::OpenNetns;
use crate::{addresses, links, routes, sysctl, usable};

/// The multicast group of IPv6 addresses.
const IPV6_ADDRESSES: u32 = MulticastGroup::Ipv6Ifaddr as u32;

/// The loopback is always the first link of a namespace.
const LOOPBACK: u32 = 1;

/// By how many bits a round trip in microseconds is shifted to the right, to tell how often what is added to the size of a
/// paced packet is halved (`tcp_tso_autosize` in `net/ipv4/tcp_output.c`).
const TSO_RTT_LOG: &str = "net/ipv4/tcp_tso_rtt_log";
/// The kernel's own value: only those nearer than half a millisecond get the largest.
const NOBODYS_CHOICE: &str = "9";
const FOR_ROUND_TRIPS_OF_A_SECOND: &str = "20";

/// What is inside of `netns` under the name `ifname`; `None` when there is no such interface.
pub(crate) fn look(netns: &OpenNetns, ifname: &IfName) -> io::Result<Option<PodSide>> {
    let mut netlink = netns.run(Netlink::open)?;
    let Some((index, mut side)) = find(&mut netlink, ifname)? else {
        return Ok(None);
    };
    let all = addresses::of_link(&mut netlink, index)?;
    side.addresses = all.into_iter().filter(|own| !is_link_local(own)).collect();
    side.routes = routes::of_link(&mut netlink, index)?.into_iter().collect();
    Ok(Some(side))
}

/// The pod's end alone, without addresses and routes.
pub(crate) fn end(netns: &OpenNetns, ifname: &IfName) -> io::Result<Option<PodSide>> {
    let mut netlink = netns.run(Netlink::open)?;
    Ok(find(&mut netlink, ifname)?.map(|(_, side)| side))
}

fn find(netlink: &mut Netlink, ifname: &IfName) -> io::Result<Option<(u32, PodSide)>> {
    let Some(message) = links::find_message(netlink, ifname)? else {
        return Ok(None);
    };
    let link = links::link(&message);
    let peer = message
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            LinkAttribute::Link(index) => Some(*index),
            _ => None,
        });
    let side = PodSide {
        mac: link.mac,
        mtu: link.mtu,
        up: link.up,
        addresses: BTreeSet::new(),
        routes: BTreeSet::new(),
        peer,
    };
    Ok(Some((link.index, side)))
}

fn is_link_local(own: &InterfaceAddress) -> bool {
    matches!(own.address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// Sets up the inside of a pod.
pub(crate) fn set_up(spec: &PodSpec) -> Result<(), Failed> {
    let PodSpec { netns, ifname, .. } = spec;
    let open =
        OpenNetns::open(netns).attempt(|| format!("open network namespace {}", netns.path))?;
    let mut netlink = open
        .run(|| {
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
        .attempt(|| format!("look at {ifname} in {}", netns.path))?;
    let Some(before) = found else {
        let call = format!("find {ifname} in {}", netns.path);
        return Err(Failed::new(call, Errno::ENODEV));
    };
    let parts = parts(spec, &before)
        .attempt(|| format!("describe the routes of {ifname} in {}", netns.path))?;
    Inside {
        netlink: &mut netlink,
        spec,
        index: before.header.index,
    }
    .configure(parts)?;
    // Where duplicates are looked for, that is waited for by itself.
    let addresses = spec
        .addresses
        .iter()
        .filter(|_| !spec.detects_duplicates)
        .map(|own| own.address);
    if let Err(error) = usable::wait(&mut netlink, addresses) {
        tracing::warn!(%ifname, netns = %netns.path, %error, "the pod is made all the same");
    }
    Ok(())
}

/// Lets TCP of the namespace that the calling thread is in send packets as large to those far away as to those near, unless
/// somebody has decided about that. A kernel before 5.18 makes them as small as they are paced, and a pod works without.
fn allow_large_packets(netns: &Netns) {
    let key = SysctlKey(TSO_RTT_LOG.to_owned());
    let allowed = sysctl::read(&key).and_then(|value| match value.as_deref() {
        Some(NOBODYS_CHOICE) => sysctl::write(&key, FOR_ROUND_TRIPS_OF_A_SECOND),
        _ => Ok(()),
    });
    if let Err(error) = allowed {
        tracing::warn!(netns = %netns.path, %error, "what the pod sends far away costs more than it could");
    }
}

/// Gives a pod's interface another MTU.
pub(crate) fn set_mtu(netns: &Netns, ifname: &IfName, mtu: u32) -> Result<(), Failed> {
    let call = || format!("set MTU {mtu} of {ifname} in {}", netns.path);
    let open = OpenNetns::open(netns).attempt(call)?;
    let mut inside = open.run(Netlink::open).attempt(call)?;
    links::set_mtu(&mut inside, ifname, mtu)
}

/// How long to wait for the neighbours of a pod's addresses, as the bridge plugin does.
const DETECTION: Duration = Duration::from_secs(10);

/// Waits until IPv6 is sure that nobody else has the addresses of a pod's interface.
pub(crate) fn await_addresses(netns: &Netns, ifname: &IfName) -> Result<(), Failed> {
    let call = || format!("use the addresses of {ifname} in {}", netns.path);
    let open = OpenNetns::open(netns).attempt(call)?;
    let opened = open.run(|| Ok((open_listener(&[IPV6_ADDRESSES])?, Netlink::open()?)));
    let (listener, mut inside) = opened.attempt(call)?;
    let found = find(&mut inside, ifname).attempt(call)?;
    let (index, _) = found.ok_or_else(|| Failed::new(call(), Errno::ENODEV))?;
    let end = Instant::now() + DETECTION;
    let mut buffer = Vec::new();
    loop {
        let detection = addresses::detection(&mut inside, index).attempt(call)?;
        match detection {
            Detection::Done => return Ok(()),
            Detection::Duplicate(address) => {
                let call = format!("use {address} for {ifname}: somebody else has it");
                return Err(Failed::new(call, Errno::EADDRINUSE));
            }
            Detection::Pending if Instant::now() >= end => {
                return Err(Failed::new(call(), Errno::ETIMEDOUT));
            }
            // The kernel tells when an address stops being tentative; what is told of others costs another look.
            Detection::Pending => receive(&listener, &mut buffer).attempt(call)?,
        }
    }
}

/// Sets a pod's loopback up or down.
pub(crate) fn set_loopback(netns: &Netns, up: bool) -> Result<(), Failed> {
    let call = || format!("set lo in {}", netns.path);
    let open = OpenNetns::open(netns).attempt(call)?;
    let mut inside = open.run(Netlink::open).attempt(call)?;
    let builder = links::indexed(LOOPBACK);
    let message = if up { builder.up() } else { builder.down() };
    let done = inside.change(Message::SetLink(message.build()), 0);
    done.attempt(call)
}

/// One change inside of a pod.
struct Part {
    what: String,
    change: Request,
    /// What takes it away again, where that is needed.
    undo: Option<Request>,
    /// Whether the pod is whole without it.
    is_optional: bool,
}

impl Part {
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

fn parts(spec: &PodSpec, before: &LinkMessage) -> io::Result<Vec<Part>> {
    let (index, is_sure) = (before.header.index, !spec.detects_duplicates);
    let was_up = before.header.flags.contains(LinkFlags::Up);
    let up = change(links::set_up_message(LOOPBACK));
    let mut parts = vec![Part::new("set lo up", up, None)];
    // Where it is before the link is up, the kernel makes none that has to wait for duplicates. One without IPv6 takes none.
    let link_local = addresses::link_local(before).filter(|_| is_sure && !was_up);
    parts.extend(link_local.map(|address| Part {
        is_optional: true,
        ..Part::address(index, address, is_sure)
    }));
    let addresses = spec.addresses.iter();
    parts.extend(addresses.map(|address| Part::address(index, *address, is_sure)));
    let down = Message::SetLink(links::indexed(index).down().build());
    parts.push(Part::new(
        "set the link up",
        change(links::set_up_message(index)),
        (!was_up).then(|| change(down)),
    ));
    for route in &spec.routes {
        let message = routes::message(index, route)?;
        parts.push(Part::new(
            format!("add a route to {}", route.destination),
            // Not exclusive: a pod on two networks may have two default routes.
            Request::change(Message::NewRoute(message.clone()), NLM_F_CREATE),
            Some(change(Message::DelRoute(message))),
        ));
    }
    Ok(parts)
}

fn change(message: Message) -> Request {
    Request::change(message, 0)
}

struct Inside<'a> {
    netlink: &'a mut Netlink,
    spec: &'a PodSpec,
    index: u32,
}

impl Inside<'_> {
    /// All in one call to the kernel. What is there already is no failure if it is the same; after any other failure
    /// all that was new is taken away, the last first.
    fn configure(&mut self, parts: Vec<Part>) -> Result<(), Failed> {
        let mut failure = None;
        let mut undo = Vec::new();
        let (changes, rest): (Vec<_>, Vec<_>) = parts
            .into_iter()
            .map(|part| (part.change, (part.what, part.undo, part.is_optional)))
            .unzip();
        let PodSpec { ifname, netns, .. } = self.spec;
        let place = |what: &str| format!("{what} ({ifname} in {})", netns.path);
        let answers = self
            .netlink
            .ask_all(changes)
            .attempt(|| place("set up the inside"))?;
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
        if let Err(error) = self.netlink.ask_all(undo) {
            tracing::error!(%ifname, netns = %netns.path, %error, "a half-made pod stays behind");
        }
        Err(failure)
    }

    /// Whether all addresses and routes that are asked for are there.
    fn is_complete(&mut self) -> bool {
        let addresses = addresses::of_link(self.netlink, self.index).unwrap_or_default();
        let routes = routes::of_link(self.netlink, self.index).unwrap_or_default();
        let spec = self.spec;
        spec.addresses.iter().all(|own| addresses.contains(own))
            && spec.routes.iter().all(|own| routes.contains(own))
    }
}

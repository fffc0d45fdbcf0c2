//! What a CPU knows: rows that one packet after the other asks for.
//!
//! A node has few uplinks and bridges, and packets that follow each other are often of the same pod. To look a row up
//! again is most of what a short connection's packets cost, so each CPU keeps the last row of each of these tables
//! beside its notes, the time, and what the kernel has said last: which way packets go, and what fits there.
//!
//! All of it is forgotten with the kernel's next tick, and with every change of a table by the agent: no row outlives
//! the [epoch](Shortcuts::epoch_of_tables) that it was read in.

use abi::{
    Address, Endpoint, Hostport, HostportKey, Interface, Mac, SettingsFlags, Tuple, UplinkFlags,
};

use crate::hostport;
use crate::node::Node;
use crate::packet::Packet;
use crate::sender::ETHERNET;
use crate::shape::Shaper;
use crate::shortcut::Shortcuts;
use crate::work::Work;

/// In place of an interface index: no link has it. 0 is asked for, where a packet leads nowhere.
const NOBODY: u32 = u32::MAX;

/// The last row of each table.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Known {
    /// [`Shortcuts::ticks`] when the rows were read.
    ticks: u64,
    /// [`Shortcuts::epoch_of_tables`] then.
    epoch: u64,
    /// Seconds of `CLOCK_MONOTONIC` then.
    now: u32,
    /// The pod's interface that `of` is about.
    interface: u32,
    of: Interface,
    uplink: Link,
    /// The interface index of the bridge that has the address `mac`.
    bridge: u32,
    mac: Mac,
    reserved: u16,
    /// Who has the address `to`.
    to: Address,
    endpoint: Endpoint,
    /// Which port of the node `leads` is about.
    dialled: HostportKey,
    leads: Hostport,
    /// An address that the node does not have.
    elsewhere: Address,
    /// An address that this node does not give to pods.
    outside: Address,
    /// The way out of the node.
    pub(crate) out: Route,
    /// The way back to who has asked from outside.
    pub(crate) back: Route,
    /// What fits out of the node.
    pub(crate) leaves: Fit,
    /// What fits into a pod.
    pub(crate) reaches: Fit,
}

/// A way that the kernel has named.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Route {
    /// Interface index of the link that packets come in by.
    from: u32,
    mark: u32,
    source: Address,
    destination: Address,
    /// Interface index of the link that they leave by.
    link: u32,
    /// How many bytes from the IP header on the way takes; 0 where the kernel does not say.
    pub(crate) takes: u32,
    /// The next hop.
    pub(crate) hop: Address,
}

/// The longest packet that the kernel has said fits through a link.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Fit {
    interface: u32,
    length: u32,
}

/// What a packet's way asks of an uplink.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Link {
    /// Interface index.
    interface: u32,
    /// [`abi::Uplink::l2_len`].
    pub(crate) l2_len: u32,
    /// [`abi::Uplink::mtu`].
    pub(crate) mtu: u32,
    flags: u32,
}

impl Link {
    /// Whether it has Ethernet, and our programs are on it.
    #[inline(always)]
    pub(crate) const fn is_translating(&self) -> bool {
        self.l2_len == ETHERNET && self.flags & UplinkFlags::OPEN != 0
    }
}

/// Begins a packet: the seconds of `CLOCK_MONOTONIC`.
#[inline(always)]
pub(crate) fn begin<E: Node + Shortcuts>(env: &E, work: &mut Work) {
    let (ticks, epoch) = (env.ticks(), env.epoch_of_tables());
    let known = &mut work.known;
    if known.ticks != ticks || known.epoch != epoch {
        known.ticks = ticks;
        known.epoch = epoch;
        known.now = env.now();
        known.interface = NOBODY;
        known.uplink.interface = NOBODY;
        known.bridge = NOBODY;
        known.to = Address::ANY;
        known.dialled = HostportKey::default();
        known.elsewhere = Address::ANY;
        known.outside = Address::ANY;
        known.out.from = NOBODY;
        known.back.from = NOBODY;
        known.leaves.interface = NOBODY;
        known.reaches.interface = NOBODY;
    }
    work.now = known.now;
}

/// Whose an interface is.
#[inline(always)]
pub(crate) fn interface<E: Node>(node: &E, work: &mut Work, interface: u32) -> Option<Interface> {
    let known = &mut work.known;
    if known.interface != interface {
        known.of = *node.interface(interface)?;
        known.interface = interface;
    }
    Some(known.of)
}

/// An uplink.
#[inline(always)]
pub(crate) fn uplink<E: Node>(node: &E, work: &mut Work, interface: u32) -> Option<Link> {
    let known = &mut work.known.uplink;
    if known.interface != interface {
        let uplink = node.uplink(interface)?;
        known.l2_len = uplink.l2_len;
        known.mtu = uplink.mtu;
        known.flags = uplink.flags;
        known.interface = interface;
    }
    Some(*known)
}

/// The Ethernet address of a bridge of ours.
#[inline(always)]
pub(crate) fn bridge_mac<E: Node>(node: &E, work: &mut Work, bridge: u32) -> Option<Mac> {
    let known = &mut work.known;
    if known.bridge != bridge {
        known.mac = node.network(bridge)?.mac;
        known.bridge = bridge;
    }
    Some(known.mac)
}

/// Puts who has an address into [`Work::endpoint`]; false where nobody has it.
#[inline(always)]
pub(crate) fn find_endpoint<E: Node>(node: &E, work: &mut Work, to: &Address) -> bool {
    let known = &mut work.known;
    if known.to != *to || to.is_any() {
        let Some(endpoint) = node.endpoint(to) else {
            return false;
        };
        known.endpoint = *endpoint;
        known.to = *to;
    }
    work.endpoint = known.endpoint;
    true
}

/// Puts the hostport that the packet's destination is into [`Work::hostport`]; false where it is none.
#[inline(always)]
pub(crate) fn find_hostport<E: Node>(node: &E, work: &mut Work) -> bool {
    let (to, known) = (&work.headers.tuple, &mut work.known);
    if known.elsewhere == to.destination && !to.destination.is_any() {
        return false;
    }
    // Its family is never 0, as that of a key that is none.
    let dialled = HostportKey::new(to.destination, to.destination_port, to.protocol);
    if known.dialled != dialled {
        if !node.is_local(&to.destination) {
            known.elsewhere = to.destination;
            return false;
        }
        let Some(leads) = hostport::owner(node, &dialled) else {
            return false;
        };
        known.leads = *leads;
        known.dialled = dialled;
    }
    work.hostport = known.leads;
    true
}

/// Whether the packet's source is an address that this node gives to pods.
#[inline(always)]
pub(crate) fn is_of_pods<E: Node>(node: &E, work: &mut Work) -> bool {
    let (from, known) = (&work.headers.tuple.source, &mut work.known);
    if known.outside == *from && !from.is_any() {
        return false;
    }
    let is_of_pods = hostport::is_of_pods(node, from);
    if !is_of_pods {
        known.outside = *from;
    }
    is_of_pods
}

/// The link that the kernel would send a packet out by that came in by the link `from`, or 0; next hop and length are in
/// `route` then. The kernel is asked for each packet where routes may depend on ports.
#[inline(always)]
pub(crate) fn way_out<E: Node + Shortcuts>(
    env: &mut E,
    route: &mut Route,
    from: u32,
    tuple: &Tuple,
) -> u32 {
    if !is_route(env, route, from, tuple) {
        route.from = NOBODY;
        route.link = env.way_out(from, tuple, &mut route.hop, &mut route.takes);
        if route.link != 0 {
            route.from = from;
            route.mark = env.mark();
            route.source = tuple.source;
            route.destination = tuple.destination;
        }
    }
    route.link
}

/// Whether this is what the kernel has said of such packets.
#[inline(always)]
pub(crate) fn is_route<E: Node + Shortcuts>(
    env: &E,
    route: &Route,
    from: u32,
    tuple: &Tuple,
) -> bool {
    route.from == from
        && route.mark == env.mark()
        && route.source == tuple.source
        && route.destination == tuple.destination
        && are_by_address(env)
}

#[inline(always)]
fn are_by_address<E: Node>(node: &E) -> bool {
    node.settings()
        .is_some_and(|settings| settings.flags & SettingsFlags::ROUTES_BY_ADDRESS != 0)
}

/// Whether the packet fits through the link. What will be cut up is asked about each time.
#[inline(always)]
pub(crate) fn fits<E: Packet + Shaper>(env: &E, fit: &mut Fit, interface: u32) -> bool {
    let (length, segment) = (env.len(), env.segment_size());
    let whole = segment == 0;
    if whole && fit.interface == interface && length <= fit.length {
        return true;
    }
    let fits = env.fits(interface);
    if whole && fits {
        fit.interface = interface;
        fit.length = length;
    }
    fits
}

#[cfg(test)]
mod tests;

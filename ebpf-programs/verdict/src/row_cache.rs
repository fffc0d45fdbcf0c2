//! The per-CPU row cache: the last row read from each table, and the last answers of the kernel.
//!
//! A node has few uplinks and bridges, and consecutive packets often belong to the same pod. Table
//! lookups are most of the cost of a short connection's packets. So each CPU keeps, in its scratch
//! memory, the last row of each of these tables, the time, and the last route and MTU check of the
//! kernel.
//!
//! All of it is dropped with the next jiffy, and with every change of a table by the agent: no row
//! outlives the [epoch](FlowCache::epoch_of_tables) in which it was read.

use abi::{
    Address, Endpoint, Hostport, HostportKey, Interface, Mac, PrefixClass, SettingsFlags, Tuple,
    UplinkFlags,
};

use crate::flow_cache::{FlowCache, lifetime};
use crate::hostport;
use crate::node::Node;
use crate::packet::Packet;
use crate::sender::ETHERNET;
use crate::shape::Shaper;
use crate::work::Work;

/// An interface index that no link has. Not 0, because 0 is looked up where a packet has no route.
const NO_INTERFACE: u32 = u32::MAX;

/// The last row of each table; a key beside each row.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct RowCache {
    /// [`FlowCache::jiffies`] when the rows were read.
    jiffies: u64,
    /// [`FlowCache::epoch_of_tables`] when the rows were read.
    epoch: u64,
    /// Jiffies for which a verdict is valid that is recorded now.
    pub(crate) lifetime: u64,
    /// Seconds of `CLOCK_MONOTONIC` when the rows were read.
    now: u32,
    /// Interface index that `interface_row` is for.
    interface: u32,
    interface_row: Interface,
    uplink: UplinkRow,
    /// Interface index of the bridge that `bridge_mac` is for.
    bridge: u32,
    bridge_mac: Mac,
    reserved: u16,
    /// Address that `endpoint` is for.
    endpoint_address: Address,
    endpoint: Endpoint,
    /// Key that `hostport` is for.
    hostport_key: HostportKey,
    hostport: Hostport,
    /// The last address that was not one of the node's.
    non_local: Address,
    /// The last source address that was not one of the node's.
    non_local_source: Address,
    /// The last source address that was not in a pod prefix.
    non_pod: Address,
    /// The last destination that was not an unknown address of a complete prefix.
    known: Address,
    /// Route out of the node.
    pub(crate) egress: Route,
    /// Route back to the sender of a packet from outside.
    pub(crate) reverse: Route,
    /// MTU check of the egress link.
    pub(crate) egress_mtu: MtuCheck,
    /// MTU check of a pod's link.
    pub(crate) pod_mtu: MtuCheck,
}

/// A route that the kernel has returned, with the fields of the query.
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
    /// The route's MTU in bytes from the IP header on; 0 where the kernel does not report one.
    pub(crate) mtu: u32,
    /// The next hop.
    pub(crate) hop: Address,
}

/// The longest packet that the kernel has reported to fit through a link.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct MtuCheck {
    interface: u32,
    length: u32,
}

/// The fields of an uplink's row that forwarding needs.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct UplinkRow {
    /// Interface index.
    interface: u32,
    /// [`abi::Uplink::l2_len`].
    pub(crate) l2_len: u32,
    /// [`abi::Uplink::mtu`].
    pub(crate) mtu: u32,
    flags: u32,
}

impl UplinkRow {
    /// Returns whether the uplink has Ethernet headers and both of our programs are attached.
    #[inline(always)]
    pub(crate) const fn is_translating(&self) -> bool {
        self.l2_len == ETHERNET && self.flags & UplinkFlags::OPEN != 0
    }

    /// Returns whether the uplink is a tunnel to other nodes.
    #[inline(always)]
    pub(crate) const fn is_tunnel(&self) -> bool {
        self.flags & UplinkFlags::TUNNEL != 0
    }
}

/// Drops the rows if they are outdated, and sets [`Work::now`]. Must come before any other lookup
/// for a packet.
#[inline(always)]
pub(crate) fn refresh<E: Node + FlowCache>(env: &E, work: &mut Work) {
    let (jiffies, epoch) = (env.jiffies(), env.epoch_of_tables());
    let rows = &mut work.rows;
    if rows.jiffies != jiffies || rows.epoch != epoch {
        rows.jiffies = jiffies;
        rows.epoch = epoch;
        rows.now = env.now();
        rows.lifetime = lifetime(env.events_valid_for(), env.nanoseconds_of_jiffy());
        rows.interface = NO_INTERFACE;
        rows.uplink.interface = NO_INTERFACE;
        rows.bridge = NO_INTERFACE;
        rows.endpoint_address = Address::ANY;
        rows.hostport_key = HostportKey::default();
        rows.non_local = Address::ANY;
        rows.non_local_source = Address::ANY;
        rows.non_pod = Address::ANY;
        rows.known = Address::ANY;
        rows.egress.from = NO_INTERFACE;
        rows.reverse.from = NO_INTERFACE;
        rows.egress_mtu.interface = NO_INTERFACE;
        rows.pod_mtu.interface = NO_INTERFACE;
    }
    work.now = rows.now;
}

/// Returns the row of a pod's interface.
#[inline(always)]
pub(crate) fn interface<E: Node>(node: &E, work: &mut Work, interface: u32) -> Option<Interface> {
    let rows = &mut work.rows;
    if rows.interface != interface {
        rows.interface_row = *node.interface(interface)?;
        rows.interface = interface;
    }
    Some(rows.interface_row)
}

/// Returns the uplink with this interface index.
#[inline(always)]
pub(crate) fn uplink<E: Node>(node: &E, work: &mut Work, interface: u32) -> Option<UplinkRow> {
    let row = &mut work.rows.uplink;
    if row.interface != interface {
        let uplink = node.uplink(interface)?;
        row.l2_len = uplink.l2_len;
        row.mtu = uplink.mtu;
        row.flags = uplink.flags;
        row.interface = interface;
    }
    Some(*row)
}

/// Returns the MAC address of the bridge with this interface index.
#[inline(always)]
pub(crate) fn bridge_mac<E: Node>(node: &E, work: &mut Work, bridge: u32) -> Option<Mac> {
    let rows = &mut work.rows;
    if rows.bridge != bridge {
        rows.bridge_mac = node.network(bridge)?.mac;
        rows.bridge = bridge;
    }
    Some(rows.bridge_mac)
}

/// Copies the endpoint of an address to [`Work::endpoint`]; returns false where there is none, and
/// where the node itself has the address.
#[inline(always)]
pub(crate) fn find_endpoint<E: Node>(node: &E, work: &mut Work, to: &Address) -> bool {
    let rows = &mut work.rows;
    if rows.endpoint_address != *to || to.is_any() {
        let Some(endpoint) = node.endpoint(to) else {
            return false;
        };
        if node.is_local(to) {
            return false;
        }
        rows.endpoint = *endpoint;
        rows.endpoint_address = *to;
    }
    work.endpoint = rows.endpoint;
    true
}

/// Copies the hostport of the packet's destination to [`Work::hostport`]; returns false where there
/// is none.
#[inline(always)]
pub(crate) fn find_hostport<E: Node>(node: &E, work: &mut Work) -> bool {
    let (to, rows) = (&work.headers.tuple, &mut work.rows);
    if rows.non_local == to.destination && !to.destination.is_any() {
        return false;
    }
    // Never equal to the default key, whose family is 0.
    let key = HostportKey::new(to.destination, to.destination_port, to.protocol);
    if rows.hostport_key != key {
        if !node.is_local(&to.destination) {
            rows.non_local = to.destination;
            return false;
        }
        let Some(owner) = hostport::owner(node, &key) else {
            return false;
        };
        rows.hostport = *owner;
        rows.hostport_key = key;
    }
    work.hostport = rows.hostport;
    true
}

/// Returns whether the packet's source is one of the node's addresses.
#[inline(always)]
pub(crate) fn is_local_source<E: Node>(node: &E, work: &mut Work) -> bool {
    let (from, rows) = (&work.headers.tuple.source, &mut work.rows);
    if rows.non_local_source == *from && !from.is_any() {
        return false;
    }
    let is_local = node.is_local(from);
    if !is_local {
        rows.non_local_source = *from;
    }
    is_local
}

/// Returns whether the packet's source is in a pod prefix of this node.
#[inline(always)]
pub(crate) fn is_pod_address<E: Node>(node: &E, work: &mut Work) -> bool {
    let (from, rows) = (&work.headers.tuple.source, &mut work.rows);
    if rows.non_pod == *from && !from.is_any() {
        return false;
    }
    let is_pod_address = hostport::is_pod_address(node, from);
    if !is_pod_address {
        rows.non_pod = *from;
    }
    is_pod_address
}

/// Returns whether the packet's destination is an address of a complete prefix
/// ([`PrefixClass::COMPLETE`]) that no pod has. It may be the node's.
#[inline(always)]
pub(crate) fn is_unassigned<E: Node>(node: &E, work: &mut Work) -> bool {
    let (to, rows) = (&work.headers.tuple.destination, &mut work.rows);
    if rows.known == *to && !to.is_any() {
        return false;
    }
    let is_unassigned =
        node.prefix_class(to) & PrefixClass::COMPLETE != 0 && node.endpoint(to).is_none();
    if !is_unassigned {
        rows.known = *to;
    }
    is_unassigned
}

/// Returns the link by which the kernel would forward a packet that came in by the link `from`, or
/// 0. Next hop and MTU are in `route` then. Where routes may depend on ports, the kernel is queried
/// for each packet.
#[inline(always)]
pub(crate) fn egress_route<E: Node + FlowCache>(
    env: &mut E,
    route: &mut Route,
    from: u32,
    tuple: &Tuple,
) -> u32 {
    if !is_cached_route(env, route, from, tuple) {
        route.from = NO_INTERFACE;
        route.link = env.egress_route(from, tuple, &mut route.hop, &mut route.mtu);
        if route.link != 0 {
            route.from = from;
            route.mark = env.mark();
            route.source = tuple.source;
            route.destination = tuple.destination;
        }
    }
    route.link
}

/// Returns whether `route` is the kernel's answer for such packets.
#[inline(always)]
pub(crate) fn is_cached_route<E: Node + FlowCache>(
    env: &E,
    route: &Route,
    from: u32,
    tuple: &Tuple,
) -> bool {
    route.from == from
        && route.mark == env.mark()
        && route.source == tuple.source
        && route.destination == tuple.destination
        && routes_by_address(env)
}

/// Returns whether no route and no routing rule depends on more than ingress link, addresses and
/// mark.
#[inline(always)]
fn routes_by_address<E: Node>(node: &E) -> bool {
    node.settings()
        .is_some_and(|settings| settings.flags & SettingsFlags::ROUTES_BY_ADDRESS != 0)
}

/// Returns whether the packet fits through the link. Queries the kernel each time for packets that
/// will be segmented.
#[inline(always)]
pub(crate) fn fits<E: Packet + Shaper>(env: &E, fit: &mut MtuCheck, interface: u32) -> bool {
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

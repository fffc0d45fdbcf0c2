//! What a CPU knows: rows that one packet after the other asks for.
//!
//! A node has few uplinks and bridges, and packets that follow each other are often of the same pod. To look a row up
//! again is most of what a short connection's packets cost, so each CPU keeps the last row of each of these tables
//! beside its notes, and the time.
//!
//! All of it is forgotten with the kernel's next tick, and with every change of a table by the agent: no row outlives
//! the [epoch](Shortcuts::epoch_of_tables) that it was read in.

use abi::{Address, Endpoint, Interface, Mac, UplinkFlags};

use crate::node::Node;
use crate::sender::ETHERNET;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bypass::tests::{UPLINK, open_node};
    use crate::simulator::TICK;

    #[test]
    fn a_row_is_asked_for_once_in_a_tick_and_again_after_a_change() {
        let (mut world, mut work) = (open_node(), Work::default());
        begin(&world, &mut work);
        assert!(uplink(&world, &mut work, UPLINK).is_some());
        world.uplinks.clear();
        begin(&world, &mut work);
        assert!(
            uplink(&world, &mut work, UPLINK).is_some(),
            "nobody said that it is gone"
        );
        world.flows_were_changed();
        begin(&world, &mut work);
        assert!(uplink(&world, &mut work, UPLINK).is_none());
    }

    #[test]
    fn what_is_known_is_forgotten_with_the_next_tick() {
        let (mut world, mut work) = (open_node(), Work::default());
        begin(&world, &mut work);
        let bridge = *world.networks.keys().next().expect("a network");
        assert!(bridge_mac(&world, &mut work, bridge).is_some());
        world.networks.clear();
        (world.clock, world.now) = (world.clock + TICK, world.now + 1);
        begin(&world, &mut work);
        assert!(bridge_mac(&world, &mut work, bridge).is_none());
        assert_eq!(work.now, world.now);
    }

    #[test]
    fn what_nobody_has_is_not_mistaken_for_what_is_not_known_yet() {
        let (world, mut work) = (open_node(), Work::default());
        begin(&world, &mut work);
        assert!(uplink(&world, &mut work, 0).is_none());
        assert!(bridge_mac(&world, &mut work, 0).is_none());
        assert!(interface(&world, &mut work, 0).is_none());
        assert!(!find_endpoint(&world, &mut work, &Address::ANY));
    }

    #[test]
    fn one_row_takes_the_place_of_another() {
        let (world, mut work) = (open_node(), Work::default());
        begin(&world, &mut work);
        for (address, endpoint) in world.endpoints.iter().chain(&world.endpoints) {
            assert!(find_endpoint(&world, &mut work, address));
            assert_eq!(work.endpoint, *endpoint);
        }
        for (index, of) in world.interfaces.iter().chain(&world.interfaces) {
            assert_eq!(interface(&world, &mut work, *index), Some(*of));
        }
    }
}

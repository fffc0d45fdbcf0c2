//! Decides which notifications of the kernel outdate cached verdicts.
//!
//! A cached verdict holds a route, the MAC addresses of an uplink and its next hop, and the MTU of
//! a link. All notifications of a pod that comes or goes, and of a neighbour that is only
//! confirmed, must not count: each one that does makes every CPU look up every flow again.

use std::collections::BTreeMap;

use nix::libc;
use rtnetlink::packet_core::{NlaBuffer, NlasIterator};

/// Size of `struct ifinfomsg`.
pub(crate) const LINK: usize = 16;
/// Size of `struct ndmsg`.
pub(crate) const NEIGHBOUR: usize = 12;
/// Size of `struct rtmsg`.
const ROUTE: usize = 12;
/// Size of `struct netconfmsg`, aligned.
const NETCONF: usize = 4;

/// `RTM_DELNETCONF` (`include/uapi/linux/rtnetlink.h`), which libc lacks for musl.
const RTM_DELNETCONF: u16 = 81;

/// `IFF_UP` and `IFF_LOWER_UP`.
const UP: u32 = 1 | 1 << 16;

/// State of links and neighbours at the last notification.
#[derive(Debug, Default)]
pub(crate) struct RouteWatch {
    /// Links by interface index.
    links: BTreeMap<u32, LinkState>,
    /// Link-layer addresses of resolved neighbours, by interface index and address.
    neighbours: BTreeMap<(u32, Vec<u8>), Vec<u8>>,
}

/// The fields of a link that verdicts depend on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct LinkState {
    mtu: u32,
    address: Vec<u8>,
    /// Whether the link is up and has a carrier.
    up: bool,
    /// Whether the link is a port of another one, and so usually has no routes.
    enslaved: bool,
}

impl RouteWatch {
    /// Applies an rtnetlink message of this type, given without `struct nlmsghdr`. Returns whether
    /// cached verdicts may be outdated by it. Messages that cannot be parsed count.
    ///
    /// `is_uplink` returns whether programs cache verdicts for packets that leave by the link with
    /// this interface index.
    pub(crate) fn apply(
        &mut self,
        kind: u16,
        body: &[u8],
        is_uplink: impl Fn(u32) -> bool,
    ) -> bool {
        let outdates = match kind {
            libc::RTM_NEWLINK => self.link(body, is_uplink),
            libc::RTM_DELLINK => self.deleted_link(body, is_uplink),
            libc::RTM_NEWNEIGH | libc::RTM_DELNEIGH => {
                self.neighbour(kind == libc::RTM_NEWNEIGH, body, is_uplink)
            }
            libc::RTM_NEWROUTE | libc::RTM_DELROUTE => is_forwarding_route(body),
            // The kernel notifies the routes of a new address, but not all that it removes with it.
            libc::RTM_NEWADDR | RTM_DELNETCONF => Some(false),
            libc::RTM_DELADDR => is_routed_address(body),
            libc::RTM_NEWNETCONF => self.is_routing_setting(body, is_uplink),
            // Routing rules and next hop objects.
            _ => Some(true),
        };
        outdates.unwrap_or(true)
    }

    fn link(&mut self, body: &[u8], is_uplink: impl Fn(u32) -> bool) -> Option<bool> {
        // The state of a bridge port, with a family of its own.
        if i32::from(*body.first()?) == libc::AF_BRIDGE {
            return Some(false);
        }
        let (index, flags) = (word(body, 4)?, word(body, 8)?);
        let mut new = LinkState {
            up: flags & UP == UP,
            ..LinkState::default()
        };
        for attribute in attributes(body, LINK)? {
            match attribute.kind() {
                libc::IFLA_ADDRESS => new.address = attribute.value().to_vec(),
                libc::IFLA_MTU => new.mtu = word(attribute.value(), 0)?,
                libc::IFLA_MASTER => new.enslaved = word(attribute.value(), 0)? != 0,
                _ => {}
            }
        }
        let old = self.links.insert(index, new.clone());
        // No verdict depends on a new link: its routes are notified.
        Some(old.is_some_and(|old| {
            let carries = |link: &LinkState| link.up && (!link.enslaved || is_uplink(index));
            old.mtu != new.mtu
                || carries(&old) != carries(&new)
                || (carries(&new) && old.address != new.address)
        }))
    }

    fn deleted_link(&mut self, body: &[u8], is_uplink: impl Fn(u32) -> bool) -> Option<bool> {
        if i32::from(*body.first()?) == libc::AF_BRIDGE {
            return Some(false);
        }
        let index = word(body, 4)?;
        self.neighbours.retain(|(link, _), _| *link != index);
        let old = self.links.remove(&index);
        Some(old.is_some_and(|old| old.up && (!old.enslaved || is_uplink(index))))
    }

    /// A neighbour that was resolved, and has another MAC address or none now.
    fn neighbour(
        &mut self,
        exists: bool,
        body: &[u8],
        is_uplink: impl Fn(u32) -> bool,
    ) -> Option<bool> {
        /// Offset of `ndm_flags`, and its bit `NTF_PROXY`.
        const FLAGS: usize = 10;
        const PROXY: u8 = 1 << 3;
        let (family, flags) = (i32::from(*body.first()?), *body.get(FLAGS)?);
        let is_resolved = [libc::AF_INET, libc::AF_INET6].contains(&family) && flags & PROXY == 0;
        if !is_resolved {
            return Some(false);
        }
        let index = word(body, 4)?;
        let find = |wanted| {
            let mut attributes = attributes(body, NEIGHBOUR)?;
            let found = attributes.find(|it| it.kind() == wanted)?;
            Some(found.value().to_vec())
        };
        let key = (index, find(libc::NDA_DST)?);
        // Absent while the neighbour is being resolved, and where that has failed.
        let new = find(libc::NDA_LLADDR).filter(|_| exists);
        let old = match new.clone() {
            Some(address) => self.neighbours.insert(key, address),
            None => self.neighbours.remove(&key),
        };
        Some(old.is_some() && old != new && is_uplink(index))
    }

    /// A setting of all links, or of one that may have routes.
    fn is_routing_setting(&self, body: &[u8], is_uplink: impl Fn(u32) -> bool) -> Option<bool> {
        /// `NETCONFA_IFINDEX` and its value for the settings of new links.
        const INDEX: u16 = 1;
        const DEFAULT: u32 = u32::MAX - 1;
        let mut attributes = attributes(body, NETCONF)?;
        let index = attributes.find(|attribute| attribute.kind() == INDEX)?;
        Some(match word(index.value(), 0)? {
            u32::MAX => true,
            DEFAULT => false,
            index => self
                .links
                .get(&index)
                .is_some_and(|link| !link.enslaved || is_uplink(index)),
        })
    }
}

/// Returns whether packets may be forwarded by a route. Those of multicast and of link-local
/// addresses come with every link.
fn is_forwarding_route(body: &[u8]) -> Option<bool> {
    /// Offsets of `rtm_type` and `rtm_flags`.
    const TYPE: usize = 7;
    const FLAGS: usize = 8;
    /// `RTN_BROADCAST`, `RTN_ANYCAST` and `RTN_MULTICAST`.
    const NOT_FORWARDED: [u8; 3] = [3, 4, 5];
    /// `RTM_F_CLONED`: a route of one destination that the kernel has cached.
    const CLONED: u32 = 0x200;
    let kind = *body.get(TYPE)?;
    if NOT_FORWARDED.contains(&kind) || word(body, FLAGS)? & CLONED != 0 {
        return Some(false);
    }
    if i32::from(*body.first()?) != libc::AF_INET6 {
        return Some(true);
    }
    let mut attributes = attributes(body, ROUTE)?;
    let destination = attributes.find(|attribute| attribute.kind() == libc::RTA_DST);
    // `fe80::/10` and `ff00::/8`.
    Some(!destination.is_some_and(|it| {
        matches!(it.value(), [0xfe, second, ..] if second & 0xc0 == 0x80)
            || it.value().first() == Some(&0xff)
    }))
}

/// Returns whether an address may be the source address of routes: its scope is not a link.
fn is_routed_address(body: &[u8]) -> Option<bool> {
    /// Offset of `ifa_scope`, and `RT_SCOPE_LINK`.
    const SCOPE: usize = 3;
    const LINK_SCOPE: u8 = 253;
    Some(*body.get(SCOPE)? < LINK_SCOPE)
}

/// Returns the attributes behind a structure of `size` bytes.
fn attributes(body: &[u8], size: usize) -> Option<impl Iterator<Item = NlaBuffer<&[u8]>>> {
    Some(NlasIterator::new(body.get(size..)?).flatten())
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..)?.first_chunk::<4>()?;
    Some(u32::from_ne_bytes(*bytes))
}

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(bytes: &[u8]) {
    let mut watch = RouteWatch::default();
    for (kind, body) in crate::netlink::messages::messages(bytes) {
        watch.apply(kind, body, |index| index % 2 == 0);
    }
}

#[cfg(test)]
mod tests;

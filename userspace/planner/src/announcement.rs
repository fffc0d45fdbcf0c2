//! Announcements of pods' addresses that had another MAC address before.
//!
//! Neighbours keep the MAC address of an address's last owner, and would send to it until their
//! probes fail: seconds. So a pod that gets such an address announces it to all of them (decision
//! 98). An address that nothing has had needs none: neighbours have no entry for it.

use std::collections::BTreeMap;
use std::net::IpAddr;

use model::{Attachment, Mac};
use steps::{Announcement, Link, Step};

use crate::alias::is_our_alias;

/// Addresses that are remembered at most. Beyond that, all of them are forgotten, and the next ones
/// are announced.
const CAPACITY: usize = 1 << 16;

/// The MAC address that each address of a pod had last, as far as this agent knows.
#[derive(Clone, Debug)]
pub struct LastMacs {
    macs: BTreeMap<IpAddr, Mac>,
    /// Whether no address beside these has had an owner on the bridges of ours.
    is_complete: bool,
}

impl LastMacs {
    /// Returns the knowledge of an agent that has just started. It `is_complete` if no agent has
    /// attached a pod on this node since the boot.
    pub fn new(is_complete: bool) -> Self {
        Self {
            macs: BTreeMap::new(),
            is_complete,
        }
    }

    /// Records the addresses of an attachment.
    pub fn record(&mut self, attachment: &Attachment) {
        if self.macs.len() + attachment.addresses.len() > CAPACITY {
            *self = Self::new(false);
        }
        let addresses = attachment.addresses.iter();
        let macs = addresses.map(|assigned| (assigned.address.address, attachment.mac));
        self.macs.extend(macs);
    }

    /// Returns whether a neighbour may have another MAC address for the address.
    fn may_differ(&self, address: IpAddr, mac: Mac, on_own_bridge: bool) -> bool {
        match self.macs.get(&address) {
            Some(last) => *last != mac,
            None => !(self.is_complete && on_own_bridge),
        }
    }
}

/// Plans the announcement of the addresses of an attachment, after all else: the pod can send only
/// then. `bridge` is its bridge.
pub(crate) fn announce(
    attachment: &Attachment,
    bridge: Option<&Link>,
    last: &LastMacs,
) -> Option<Step> {
    let is_set_up = !attachment.port.left_down && !attachment.is_moved_by_runtime();
    if attachment.adopted.is_some() || !is_set_up {
        return None;
    }
    // On a bridge of other software, other software's containers may have had the address.
    let on_own_bridge = bridge.is_some_and(|link| is_our_alias(link.alias.as_deref()));
    let addresses: Vec<IpAddr> = attachment
        .addresses
        .iter()
        .map(|assigned| assigned.address.address)
        .filter(|address| last.may_differ(*address, attachment.mac, on_own_bridge))
        .collect();
    (!addresses.is_empty()).then(|| {
        Step::Announce(Announcement {
            netns: attachment.netns.clone(),
            ifname: attachment.key.ifname.clone(),
            mac: attachment.mac,
            addresses,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan_attach;
    use crate::testing::{World, attachment, empty_netns, intent, node, parse};

    fn announced(world: &World, observed: &steps::Observed) -> Vec<IpAddr> {
        let (_, plan) =
            plan_attach(&intent("c2"), &empty_netns(observed), &world.context()).unwrap();
        match plan.steps().last() {
            Some(Step::Announce(announcement)) => {
                assert_eq!(announcement.mac, intent("c2").key.pod_mac());
                announcement.addresses.clone()
            }
            _ => Vec::new(),
        }
    }

    #[test]
    fn an_address_is_announced_if_it_had_another_mac_address() {
        let mut world = World::empty();
        let none: Vec<IpAddr> = Vec::new();
        assert_eq!(announced(&world, &node()), none, "they had no owner");
        world.last_macs.record(&attachment(&intent("c1")));
        let both: Vec<IpAddr> = vec![parse("10.1.0.2"), parse("fd00:1::2")];
        assert_eq!(announced(&world, &node()), both);
        // The same MAC address again.
        let (again, _) =
            plan_attach(&intent("c2"), &empty_netns(&node()), &world.context()).unwrap();
        world.last_macs.record(&again);
        assert_eq!(announced(&world, &node()), none);
    }

    #[test]
    fn addresses_with_an_unknown_past_are_announced() {
        let mut world = World::empty();
        world.last_macs = LastMacs::new(false);
        assert_eq!(announced(&world, &node()).len(), 2);
        // A bridge that other software has made.
        world.last_macs = LastMacs::new(true);
        let mut observed = node();
        observed.links.get_mut(&parse("cbr0")).unwrap().alias = None;
        assert_eq!(announced(&world, &observed).len(), 2);
    }

    #[test]
    fn remembered_mac_addresses_are_bounded() {
        let mut last = LastMacs::new(true);
        let mut owner = attachment(&intent("c1"));
        owner.addresses.truncate(1);
        for number in 0..=u32::try_from(CAPACITY).unwrap() {
            owner.addresses[0].address.address = IpAddr::from((0x0a00_0000 + number).to_be_bytes());
            last.record(&owner);
        }
        assert!(last.macs.len() <= CAPACITY && !last.is_complete);
    }
}

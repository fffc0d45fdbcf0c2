//! [`FragmentStore`] for the simulator.

use abi::{Datagram, FragmentKey, HeldHeader, HeldKey, LONGEST_HELD, RING, maps};

use super::World;
use crate::fragment;
use crate::fragment_store::FragmentStore;

/// The last datagrams of a share, and how many fragments were held for it.
#[derive(Clone, Default, Debug, PartialEq, Eq)]
pub struct Ring {
    keys: Vec<FragmentKey>,
    datagrams: usize,
    held: u64,
}

impl World {
    /// Removes held fragments whose first one has not arrived, as the agent's periodic sweep does.
    pub(super) fn sweep_held(&mut self) {
        let now = self.now;
        let headers: Vec<_> = self
            .held
            .iter()
            .map(|(key, (header, _))| (*key, *header))
            .collect();
        for (key, header) in headers {
            if fragment::has_expired(&header, now) {
                fragment::count_lost(self, &header);
                self.held.remove(&key);
            }
        }
    }
}

impl FragmentStore for World {
    type DatagramRef = FragmentKey;

    fn datagram(&self, key: &FragmentKey) -> Option<FragmentKey> {
        self.fragments.contains_key(key).then_some(*key)
    }

    fn read_datagram(&self, datagram: FragmentKey, to: &mut Datagram) {
        *to = self.fragments[&datagram];
    }

    fn write_datagram(&mut self, datagram: FragmentKey, from: &Datagram) {
        if let Some(old) = self.fragments.get_mut(&datagram) {
            let held = old.held;
            *old = Datagram { held, ..*from };
        }
    }

    fn insert_datagram(&mut self, key: &FragmentKey, datagram: &Datagram) -> bool {
        let fits = self.fragments.len() < maps::FRAGMENTS.capacity as usize;
        if !fits || self.fragments.contains_key(key) {
            return false;
        }
        self.fragments.insert(*key, *datagram);
        true
    }

    fn remove_datagram(&mut self, key: &FragmentKey) {
        self.fragments.remove(key);
    }

    fn push_datagram(&mut self, key: &FragmentKey, replaced: &mut FragmentKey) -> bool {
        let ring = self.rings.entry(key.share).or_default();
        ring.keys.resize(RING as usize, FragmentKey::default());
        let place = ring.datagrams % RING as usize;
        ring.datagrams += 1;
        *replaced = std::mem::replace(&mut ring.keys[place], *key);
        true
    }

    fn next_held(&mut self, share: u32) -> Option<u64> {
        let ring = self.rings.entry(share).or_default();
        ring.held += 1;
        Some(ring.held - 1)
    }

    fn set_held(&mut self, datagram: FragmentKey, bits: u64) {
        if let Some(datagram) = self.fragments.get_mut(&datagram) {
            datagram.held |= bits;
        }
    }

    fn take_held(&mut self, datagram: FragmentKey, bits: u64) -> u64 {
        let Some(datagram) = self.fragments.get_mut(&datagram) else {
            return 0;
        };
        let taken = datagram.held & bits;
        datagram.held &= !bits;
        taken
    }

    fn held(&self, key: &HeldKey) -> Option<&HeldHeader> {
        self.held.get(key).map(|(header, _)| header)
    }

    fn hold(&mut self, key: &HeldKey, header: &HeldHeader) -> bool {
        let fits = self.packet.len() <= LONGEST_HELD;
        if fits {
            let packet = self.packet.clone();
            self.held.insert(*key, (*header, packet));
        }
        fits
    }

    fn remove_held(&mut self, key: &HeldKey) {
        self.held.remove(key);
    }

    fn restore(&mut self, key: &HeldKey) -> bool {
        self.restored = self.held.get(key).map(|(_, packet)| packet.clone());
        self.restored.is_some()
    }

    fn reinject(&mut self) {
        let packet = self.restored.as_ref().unwrap_or(&self.packet);
        self.reinjected.push(packet.clone());
    }

    fn identification(&self, index: u32) -> u64 {
        self.identifications.get(&index).copied().unwrap_or(0)
    }

    fn replace_identification(&mut self, index: u32, old: u64, new: u64) -> bool {
        let same = self.identification(index) == old;
        if same {
            self.identifications.insert(index, new);
        }
        same
    }
}

//! The datapath's tables in memory, with the capacities of the real maps.
//!
//! Entries are stored with links by index and observed with links by name.

use abi::maps::{self, MapKind};
use nix::errno::Errno;
use std::collections::BTreeSet;
use steps::{Entries, Entry, EntryKey, LinkRef};

use super::world::World;

impl World {
    /// Writes an entry, as `bpf_map_update_elem` does.
    pub(super) fn put(&mut self, key: &EntryKey, entry: &Entry) -> Result<(), Errno> {
        if !key.fits(entry) {
            return Err(Errno::EINVAL);
        }
        let key = key_with(key, |link| self.to_index(link))?;
        let entry = entry_with(entry, |link| self.to_index(link))?;
        if !self.entries.contains_key(&key) {
            self.check_room(&key)?;
        }
        if entry == (Entry::FreePod { generation: 0 }) {
            // Generation 0 is a row that was never used.
            self.entries.remove(&key);
        } else {
            self.entries.insert(key, entry);
        }
        Ok(())
    }

    /// Removes an entry. An entry or a link that is gone is success.
    pub(super) fn remove(&mut self, key: &EntryKey) {
        if let Ok(key) = key_with(key, |link| self.to_index(link)) {
            self.entries.remove(&key);
        }
    }

    pub(super) fn clear_entries(&mut self, which: &mut dyn FnMut(&EntryKey, &Entry) -> bool) {
        let seen = self.seen_entries();
        let chosen = seen.iter().filter(|(key, entry)| which(key, entry));
        for (key, _) in chosen {
            self.remove(key);
        }
    }

    /// Returns all entries, with links by name.
    pub(super) fn seen_entries(&self) -> Entries {
        let named = |(key, entry): (&EntryKey, &Entry)| {
            let key = key_with(key, |link| Ok(self.to_name(link))).ok()?;
            let entry = entry_with(entry, |link| Ok(self.to_name(link))).ok()?;
            Some((key, entry))
        };
        self.entries.iter().filter_map(named).collect()
    }

    /// Returns the entries under these keys.
    pub(super) fn entries_of(&self, keys: &BTreeSet<EntryKey>) -> Entries {
        let mut seen = self.seen_entries();
        seen.retain(|key, _| keys.contains(key));
        seen
    }

    fn to_index(&self, link: &LinkRef) -> Result<LinkRef, Errno> {
        match link {
            LinkRef::Name(name) => Ok(LinkRef::Gone(self.link(name)?.index)),
            LinkRef::Gone(_) => Ok(link.clone()),
        }
    }

    fn to_name(&self, link: &LinkRef) -> LinkRef {
        let LinkRef::Gone(index) = link else {
            return link.clone();
        };
        let mut links = self.links.iter();
        let found = links.find(|(_, link)| link.index == *index);
        found.map_or_else(|| link.clone(), |(name, _)| LinkRef::Name(name.clone()))
    }

    fn check_room(&self, key: &EntryKey) -> Result<(), Errno> {
        let map = key.map();
        let full = match (map.kind, key) {
            (MapKind::Array, EntryKey::Pod(slot) | EntryKey::Limit(slot)) => {
                let is_inside = *slot != 0 && *slot < maps::PODS_CAPACITY;
                return if is_inside { Ok(()) } else { Err(Errno::E2BIG) };
            }
            (MapKind::Array, _) => return Ok(()),
            (MapKind::LpmTrie, _) => Errno::ENOSPC,
            _ => Errno::E2BIG,
        };
        if u32::try_from(self.entries.len()).is_ok_and(|all| all < map.capacity) {
            return Ok(());
        }
        let table = std::mem::discriminant(key);
        let used = self
            .entries
            .keys()
            .filter(|key| std::mem::discriminant(*key) == table)
            .count();
        if u32::try_from(used).is_ok_and(|used| used < map.capacity) {
            Ok(())
        } else {
            Err(full)
        }
    }
}

fn key_with(
    key: &EntryKey,
    resolve: impl Fn(&LinkRef) -> Result<LinkRef, Errno>,
) -> Result<EntryKey, Errno> {
    let mut key = key.clone();
    for link in key.links_mut() {
        *link = resolve(link)?;
    }
    Ok(key)
}

fn entry_with(
    entry: &Entry,
    resolve: impl Fn(&LinkRef) -> Result<LinkRef, Errno>,
) -> Result<Entry, Errno> {
    let mut entry = entry.clone();
    for link in entry.links_mut() {
        *link = resolve(link)?;
    }
    Ok(entry)
}

//! The datapath's tables in memory, with the capacities of the real maps.
//!
//! Entries are stored with links by index and observed with links by name.

use abi::maps;
use nix::errno::Errno;
use std::collections::BTreeSet;
use steps::{Entries, Entry, EntryKey, LinkRef};

use super::world::World;

impl World {
    /// Writes an entry, as `bpf_map_update_elem` does.
    pub(super) fn put(&mut self, key: &EntryKey, entry: &Entry) -> Result<(), Errno> {
        fits(key, entry)?;
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
        let (capacity, full) = match key {
            EntryKey::Pod(slot) | EntryKey::Limit(slot) => {
                let inside = *slot != 0 && *slot < maps::PODS_CAPACITY;
                return if inside { Ok(()) } else { Err(Errno::E2BIG) };
            }
            EntryKey::Settings => return Ok(()),
            EntryKey::Interface(_) => (maps::INTERFACES_CAPACITY, Errno::E2BIG),
            EntryKey::Endpoint(_) => (maps::ENDPOINTS_CAPACITY, Errno::E2BIG),
            EntryKey::Hostport { .. } => (maps::HOSTPORTS_CAPACITY, Errno::E2BIG),
            EntryKey::Network(_) => (maps::NETWORKS_CAPACITY, Errno::E2BIG),
            EntryKey::Egress(_) => (maps::EGRESS_CAPACITY, Errno::E2BIG),
            EntryKey::Uplink(_) => (maps::UPLINKS_CAPACITY, Errno::E2BIG),
            EntryKey::Local(_) => (maps::LOCALS_CAPACITY, Errno::E2BIG),
            EntryKey::Prefix(_) => (maps::PREFIXES_CAPACITY, Errno::ENOSPC),
        };
        if u32::try_from(self.entries.len()).is_ok_and(|all| all < capacity) {
            return Ok(());
        }
        let table = std::mem::discriminant(key);
        let used = self
            .entries
            .keys()
            .filter(|key| std::mem::discriminant(*key) == table)
            .count();
        if u32::try_from(used).is_ok_and(|used| used < capacity) {
            Ok(())
        } else {
            Err(full)
        }
    }
}

/// Fails with `EINVAL` if the entry does not belong to the table of its key.
fn fits(key: &EntryKey, entry: &Entry) -> Result<(), Errno> {
    let fits = match key {
        EntryKey::Pod(_) => matches!(entry, Entry::Pod { .. } | Entry::FreePod { .. }),
        EntryKey::Limit(_) => matches!(entry, Entry::Limit { .. }),
        EntryKey::Interface(_) => matches!(entry, Entry::Interface { .. }),
        EntryKey::Endpoint(_) => matches!(entry, Entry::Endpoint { .. }),
        EntryKey::Hostport { .. } => matches!(entry, Entry::Hostport { .. }),
        EntryKey::Network(_) => matches!(entry, Entry::Network { .. }),
        EntryKey::Egress(_) => matches!(entry, Entry::Egress { .. }),
        EntryKey::Uplink(_) => {
            matches!(entry, Entry::Uplink { sources, .. } if sources.len() <= abi::SOURCES)
        }
        EntryKey::Local(_) => matches!(entry, Entry::Local),
        EntryKey::Prefix(_) => matches!(entry, Entry::Prefix { .. }),
        EntryKey::Settings => matches!(entry, Entry::Settings(_)),
    };
    if fits { Ok(()) } else { Err(Errno::EINVAL) }
}

fn key_with(
    key: &EntryKey,
    mut link: impl FnMut(&LinkRef) -> Result<LinkRef, Errno>,
) -> Result<EntryKey, Errno> {
    Ok(match key {
        EntryKey::Interface(named) => EntryKey::Interface(link(named)?),
        EntryKey::Network(named) => EntryKey::Network(link(named)?),
        EntryKey::Egress(named) => EntryKey::Egress(link(named)?),
        EntryKey::Uplink(named) => EntryKey::Uplink(link(named)?),
        EntryKey::Pod(_)
        | EntryKey::Limit(_)
        | EntryKey::Endpoint(_)
        | EntryKey::Hostport { .. }
        | EntryKey::Local(_)
        | EntryKey::Prefix(_)
        | EntryKey::Settings => key.clone(),
    })
}

fn entry_with(
    entry: &Entry,
    mut resolve: impl FnMut(&LinkRef) -> Result<LinkRef, Errno>,
) -> Result<Entry, Errno> {
    let mut entry = entry.clone();
    match &mut entry {
        Entry::Pod { link, bridge, .. } => {
            *link = resolve(link)?;
            *bridge = resolve(bridge)?;
        }
        Entry::Endpoint { link, .. } => *link = resolve(link)?,
        Entry::FreePod { .. }
        | Entry::Limit { .. }
        | Entry::Interface { .. }
        | Entry::Hostport { .. }
        | Entry::Network { .. }
        | Entry::Egress { .. }
        | Entry::Uplink { .. }
        | Entry::Local
        | Entry::Prefix { .. }
        | Entry::Settings(_) => {}
    }
    Ok(entry)
}

//! Rows of the pod table: which one the next pod gets, and under which generation.
//!
//! A flow remembers slot and generation of its pod. A row is therefore given again only under a generation that it
//! never had, and the row that rested longest (by generation) goes first. Knows nothing of what a row holds besides.

use std::collections::{BTreeMap, BTreeSet};

use abi::maps::PODS_CAPACITY;

use crate::{Entries, Entry, EntryKey, Records, Refusal};

/// A row of the pod table for a new pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Slot {
    /// Number of the row; never 0.
    pub number: u32,
    /// Generation of the new pod.
    pub generation: u32,
}

/// The row for the next pod: not in any record, not in use in `entries` (those of [`crate::Scope::Node`]).
pub fn free_slot(records: &Records, entries: &Entries) -> Result<Slot, Refusal> {
    let recorded = records.values().map(|record| &record.attachment);
    let mut used: BTreeSet<u32> = recorded.map(|attachment| attachment.slot).collect();
    let mut generations: BTreeMap<u32, u32> = BTreeMap::new();
    for (key, entry) in entries {
        match (key, entry) {
            (EntryKey::Pod(slot), Entry::FreePod { generation }) => {
                generations.insert(*slot, *generation);
            }
            (EntryKey::Pod(slot), _) => {
                used.insert(*slot);
            }
            _ => {}
        }
    }
    let free = (1..PODS_CAPACITY).filter(|slot| !used.contains(slot));
    let rested = free
        .map(|slot| (generations.get(&slot).copied().unwrap_or(0), slot))
        .min();
    let (generation, number) = rested.ok_or(Refusal::NoSlot {
        capacity: PODS_CAPACITY - 1,
    })?;
    Ok(Slot {
        number,
        generation: generation.wrapping_add(1).max(1),
    })
}

//! Which entry of the flow cache is used next: each CPU goes round a ring of its entries.
//!
//! The ring begins small and is as large as the flows need. So the entries of few flows lie side by
//! side: each page of memory that a packet touches needs a translation of its address, and
//! processors keep those of some hundred pages only.
//!
//! An entry in use is never given to another key. With more flows than entries, some keep theirs,
//! and the others have none; in turns, all of them would make entries, and none would find its own.

/// Entries of the smallest ring.
const LEAST: u32 = 1_024;
/// Entries that are tried.
const TRIES: u32 = 4;
/// A round that takes longer, in jiffies, has met fewer flows than the ring has entries.
const SLOW: u64 = 400;

/// State of the ring of one CPU. Zeros are a ring that nothing was taken from.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct CacheRing {
    /// [`super::FlowCache::jiffies`] at the begin of the round.
    begun_at: u64,
    /// The next entry.
    next: u32,
    /// Number of entries, a power of two.
    size: u32,
    /// How often all entries that were tried in this round were in use.
    refused: u32,
    reserved: u32,
}

impl CacheRing {
    /// Takes the next entry that is not in use, of `capacity`; none if all that are tried are.
    #[inline(always)]
    pub(super) fn take(
        &mut self,
        now: u64,
        capacity: u32,
        is_in_use: impl Fn(u32) -> bool,
    ) -> Option<u32> {
        for _ in 0..TRIES {
            let entry = self.step(now, capacity);
            if !is_in_use(entry) {
                return Some(entry);
            }
        }
        self.refused += 1;
        None
    }

    #[inline(always)]
    fn step(&mut self, now: u64, capacity: u32) -> u32 {
        if self.next >= self.size {
            self.start_round(now, capacity);
        }
        let entry = self.next;
        self.next = entry + 1;
        entry
    }

    /// Doubles the ring if it had no entry too often, and halves it if that was never so and the
    /// round was slow. Entries behind its end stay valid until they expire.
    #[inline(always)]
    fn start_round(&mut self, now: u64, capacity: u32) {
        if self.refused > self.size / 16 {
            self.size *= 2;
        } else if self.refused == 0 && now.wrapping_sub(self.begun_at) > SLOW {
            self.size /= 2;
        }
        self.size = self.size.clamp(LEAST.min(capacity), capacity);
        self.begun_at = now;
        self.next = 0;
        self.refused = 0;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const CAPACITY: u32 = 65_536;
    /// Jiffies for which an entry is in use.
    const LIFETIME: u64 = 100;

    /// A ring, and until when each entry is in use.
    #[derive(Default)]
    struct Cache {
        ring: CacheRing,
        until: BTreeMap<u32, u64>,
        refused: u32,
    }

    impl Cache {
        fn take(&mut self, now: u64) -> Option<u32> {
            let until = &self.until;
            let is_in_use = |entry: u32| until.get(&entry).is_some_and(|until| *until > now);
            let entry = self.ring.take(now, CAPACITY, is_in_use);
            match entry {
                Some(entry) => {
                    assert!(!is_in_use(entry), "{entry}");
                    self.until.insert(entry, now + LIFETIME);
                }
                None => self.refused += 1,
            }
            entry
        }

        fn end(&self) -> u32 {
            self.until.keys().next_back().map_or(0, |last| last + 1)
        }
    }

    #[test]
    fn few_flows_have_entries_side_by_side() {
        let mut cache = Cache::default();
        for _ in 0..1_000 {
            cache.take(7);
        }
        assert_eq!((cache.end(), cache.refused), (1_000, 0));
    }

    /// Flows that stay renew their entry in its place; others come and go beside them.
    #[test]
    fn short_flows_take_turns_beside_flows_that_stay() {
        let mut cache = Cache::default();
        let stay: Vec<u32> = (0..500).filter_map(|_| cache.take(0)).collect();
        assert_eq!(stay.len(), 500);
        for now in 1..20_000 {
            for entry in &stay {
                cache.until.insert(*entry, now + LIFETIME);
            }
            cache.take(now);
        }
        let refused = cache.refused;
        assert!(refused < 20_000 / 8, "{refused} flows had no entry");
        assert!(cache.end() <= 2 * LEAST, "{}", cache.end());
    }

    #[test]
    fn the_ring_grows_with_the_flows_and_shrinks_after_them() {
        let mut cache = Cache::default();
        for _ in 0..4 * CAPACITY {
            cache.take(0);
        }
        assert_eq!(cache.ring.size, CAPACITY);
        let used = cache.until.len();
        assert_eq!(used, CAPACITY as usize, "each entry is in use");
        cache.until.clear();
        for now in 1..400_000 {
            cache.take(LIFETIME + now);
        }
        assert_eq!(cache.ring.size, LEAST);
    }

    proptest! {
        #[test]
        fn an_entry_is_within_the_capacity_and_not_in_use(
            in_use in proptest::collection::vec(any::<bool>(), 64),
            steps in proptest::collection::vec(0_u64..1_000, 1..500),
            shift in 2_u32..12,
        ) {
            let capacity = 1 << shift;
            let (mut ring, mut now) = (CacheRing::default(), 0);
            for step in steps {
                now += step;
                let is_in_use = |entry: u32| in_use[entry as usize % 64];
                if let Some(entry) = ring.take(now, capacity, is_in_use) {
                    prop_assert!(entry < capacity && !is_in_use(entry));
                }
            }
        }

        #[test]
        fn a_ring_without_entries_in_use_has_one_each_time(takes in 1_u32..3_000) {
            let mut ring = CacheRing::default();
            for number in 0..takes {
                prop_assert_eq!(ring.take(0, CAPACITY, |_| false), Some(number % LEAST));
            }
        }
    }
}

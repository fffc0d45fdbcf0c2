//! Buckets of the flow cache: which of four entries is a key's.
//!
//! A key's hash selects a bucket and a tag. The four tags of a bucket are one word, which is read
//! before any entry: a key that is not in the cache costs no other memory access, and flows whose
//! hashes collide do not replace each other until a fifth comes.

/// Entries of a bucket.
pub const WAYS: u32 = abi::maps::CACHE_WAYS;
/// Bits of a tag.
const TAG_BITS: u32 = 16;
/// A word with 1 in each tag.
const EACH: u64 = 0x0001_0001_0001_0001;

/// Where a key's entry may be: in one bucket, under one tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CachePlace {
    /// Index of the bucket's first entry on the CPU, before [`CachePlace::within`] reduces it.
    bucket: u32,
    /// The tag, never 0: that is a free entry's.
    tag: u16,
}

impl CachePlace {
    /// Returns the place of a hash. The bucket depends on bits 32 to 47, the tag on bits 48 to 63:
    /// the upper bits of a product depend on all bits of its factors.
    #[inline(always)]
    pub(super) const fn of_hash(hash: u64) -> Self {
        Self {
            bucket: (hash >> 32) as u32,
            tag: (hash >> 48) as u16 | 1,
        }
    }

    /// Returns the index of the bucket's first entry, in a part of `capacity` entries, a power of
    /// two.
    #[inline(always)]
    pub(crate) const fn within(self, capacity: u32) -> u32 {
        self.bucket & capacity.wrapping_sub(WAYS)
    }

    /// Returns the entry of the bucket with the tag, 0 to 3. `tags` has that of the first entry in
    /// its lowest bits.
    #[inline(always)]
    pub(super) fn find(self, tags: u64) -> Option<u32> {
        way_of(tags, self.tag)
    }

    /// Returns the entry of the bucket that a new entry is written to: the one with the tag, else a
    /// free one, else `victim` modulo 4.
    #[inline(always)]
    pub(super) fn choose(self, tags: u64, victim: u64) -> u32 {
        let [victim, ..] = victim.to_le_bytes();
        self.find(tags)
            .or_else(|| way_of(tags, 0))
            .unwrap_or(u32::from(victim) & (WAYS - 1))
    }

    /// Returns `tags` with the tag at an entry of the bucket.
    #[inline(always)]
    pub const fn mark(self, tags: u64, way: u32) -> u64 {
        let shift = (way & (WAYS - 1)) * TAG_BITS;
        tags & !((u16::MAX as u64) << shift) | (self.tag as u64) << shift
    }
}

#[inline(always)]
fn way_of(tags: u64, tag: u16) -> Option<u32> {
    let different = tags ^ u64::from(tag).wrapping_mul(EACH);
    let ones = u64::from(u16::MAX);
    (0..WAYS).find(|way| different >> (way * TAG_BITS) & ones == 0)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_marked_entry_is_found_and_the_other_tags_stay(hash: u64, tags: u64, victim: u64) {
            let place = CachePlace::of_hash(hash);
            let way = place.choose(tags, victim);
            let marked = place.mark(tags, way);
            prop_assert!(way < WAYS);
            prop_assert_eq!(place.find(marked), Some(way));
            for other in (0..WAYS).filter(|other| *other != way) {
                let tag = u64::from(u16::MAX) << (other * TAG_BITS);
                prop_assert_eq!(marked & tag, tags & tag);
            }
        }
    }

    #[test]
    fn four_keys_of_one_bucket_have_an_entry_each_and_a_fifth_replaces_one() {
        let place = |tag: u64| CachePlace::of_hash(tag << 49);
        let mut tags = 0;
        let mut ways = BTreeSet::new();
        for tag in 1..=4 {
            let way = place(tag).choose(tags, 0);
            ways.insert(way);
            tags = place(tag).mark(tags, way);
        }
        assert_eq!(ways.len(), 4);
        let way = place(5).choose(tags, 6);
        assert_eq!(way, 2);
        tags = place(5).mark(tags, way);
        let found = (1..=5).filter(|tag| place(*tag).find(tags).is_some());
        assert_eq!(found.count(), 4);
    }

    #[test]
    fn a_free_entry_is_no_keys() {
        assert_eq!(CachePlace::of_hash(0).find(0), None);
    }

    #[test]
    fn buckets_lie_within_the_capacity() {
        for capacity in [4, 1_024, 65_536] {
            for hash in [0, u64::MAX, 0x1234_5678_9abc_def0] {
                let first = CachePlace::of_hash(hash).within(capacity);
                assert!(first.is_multiple_of(WAYS) && first < capacity, "{first}");
            }
        }
    }
}

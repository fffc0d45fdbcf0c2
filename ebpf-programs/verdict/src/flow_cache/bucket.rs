//! Buckets of the flow cache: where the entry of a key is.
//!
//! A key's hash selects a bucket and a tag. A bucket has four tags, and for each the number of the
//! entry. Both are read before any entry: a key that is not in the cache costs no other memory
//! access, and flows whose hashes collide do not replace each other until a fifth comes.
//!
//! Buckets are spread by the hash, and small. Entries are large, so they lie side by side in the
//! order in which they were made ([`super::ring`]): few flows touch few pages of memory.

/// Keys of a bucket.
pub const WAYS: u32 = abi::maps::CACHE_WAYS;
/// Bits of a tag, and of the number of an entry.
const BITS: u32 = 16;
/// The bits of a tag or number.
const ONES: u64 = (1 << BITS) - 1;
/// A word with 1 in each tag.
const EACH: u64 = 0x0001_0001_0001_0001;

/// The keys that one bucket has entries for. The first key is in the lowest bits of each word.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Bucket {
    /// The tags, 16 bits each; 0 where there is none.
    tags: u64,
    /// The numbers of the entries among those of the CPU, 16 bits each. An entry may be another
    /// key's by now.
    entries: u64,
}

impl Bucket {
    /// Returns the number of the entry of one of the keys, 0 to 3.
    #[inline(always)]
    pub const fn entry(self, way: u32) -> u32 {
        (self.entries >> shift(way) & ONES) as u32
    }

    /// Returns the bucket with this key, under the tag of `place`, and its entry.
    #[inline(always)]
    pub(super) const fn with(self, way: u32, place: CachePlace, entry: u32) -> Self {
        let keep = !(ONES << shift(way));
        Self {
            tags: self.tags & keep | (place.tag as u64) << shift(way),
            entries: self.entries & keep | (entry as u64 & ONES) << shift(way),
        }
    }

    #[inline(always)]
    fn way_of(self, tag: u16) -> Option<u32> {
        let different = self.tags ^ u64::from(tag).wrapping_mul(EACH);
        (0..WAYS).find(|way| different >> shift(*way) & ONES == 0)
    }
}

#[inline(always)]
const fn shift(way: u32) -> u32 {
    (way & (WAYS - 1)) * BITS
}

/// Where a key's entry may be: in one bucket, under one tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CachePlace {
    /// The bucket, before [`CachePlace::within`] reduces it.
    bucket: u32,
    /// The tag, never 0: that is a free place's.
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

    /// Returns four times the number of the bucket on a CPU with `capacity` entries, a power of
    /// two.
    #[inline(always)]
    pub(crate) const fn within(self, capacity: u32) -> u32 {
        self.bucket & capacity.wrapping_sub(WAYS)
    }

    /// Returns which key of the bucket has the tag, 0 to 3.
    #[inline(always)]
    pub(super) fn find(self, bucket: Bucket) -> Option<u32> {
        bucket.way_of(self.tag)
    }

    /// Returns which key of the bucket a new one replaces: the one with the tag, else a free place,
    /// else `victim` modulo 4.
    #[inline(always)]
    pub(super) fn choose(self, bucket: Bucket, victim: u64) -> u32 {
        let [victim, ..] = victim.to_le_bytes();
        self.find(bucket)
            .or_else(|| bucket.way_of(0))
            .unwrap_or(u32::from(victim) & (WAYS - 1))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_key_is_found_with_its_entry_and_the_others_stay(
            hash: u64, tags: u64, entries: u64, victim: u64, entry: u16,
        ) {
            let (place, before) = (CachePlace::of_hash(hash), Bucket { tags, entries });
            let way = place.choose(before, victim);
            let after = before.with(way, place, entry.into());
            prop_assert!(way < WAYS);
            prop_assert_eq!(place.find(after), Some(way));
            prop_assert_eq!(after.entry(way), u32::from(entry));
            for other in (0..WAYS).filter(|other| *other != way) {
                prop_assert_eq!(after.entry(other), before.entry(other));
                let tag = ONES << shift(other);
                prop_assert_eq!(after.tags & tag, before.tags & tag);
            }
        }
    }

    #[test]
    fn four_keys_of_one_bucket_have_a_place_each_and_a_fifth_replaces_one() {
        let place = |tag: u64| CachePlace::of_hash(tag << 49);
        let mut bucket = Bucket::default();
        let mut ways = BTreeSet::new();
        for tag in 1..=4 {
            let way = place(tag).choose(bucket, 0);
            ways.insert(way);
            bucket = bucket.with(way, place(tag), 0);
        }
        assert_eq!(ways.len(), 4);
        let way = place(5).choose(bucket, 6);
        assert_eq!(way, 2);
        bucket = bucket.with(way, place(5), 0);
        let found = (1..=5).filter(|tag| place(*tag).find(bucket).is_some());
        assert_eq!(found.count(), 4);
    }

    #[test]
    fn a_free_place_is_no_keys() {
        assert_eq!(CachePlace::of_hash(0).find(Bucket::default()), None);
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

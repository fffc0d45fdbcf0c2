//! Allocates slots: row numbers of the datapath's pod table.

use std::collections::BTreeSet;

/// Returns the first free slot after `last`, wrapping around; `None` if every slot is taken.
///
/// So a released slot is reused as late as possible. Slot 0 is never used for a pod.
pub(crate) fn next(taken: &BTreeSet<u32>, last: u32) -> Option<u32> {
    let capacity = abi::maps::PODS_CAPACITY;
    let start = last.saturating_add(1).min(capacity);
    (start..capacity)
        .chain(1..start)
        .into_iter()
        .find(|slot| !taken.contains(slot))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_first_slot_is_1() {
        assert_eq!(next(&BTreeSet::new(), 0), Some(1));
    }

    #[test]
    fn a_released_slot_is_not_reused_next() {
        assert_eq!(next(&BTreeSet::from([1, 3]), 3), Some(4));
    }

    #[test]
    fn slot_allocation_wraps_around_to_the_first_free_slot() {
        let last = abi::maps::PODS_CAPACITY - 1;
        assert_eq!(next(&BTreeSet::from([1, last]), last), Some(2));
        assert_eq!(next(&(1..=last).collect(), 7), None);
    }

    proptest! {
        #[test]
        fn a_slot_is_allocated_while_one_is_free(
            taken in prop::collection::btree_set(1..abi::maps::PODS_CAPACITY, 0..64),
            last: u32,
        ) {
            let slot = next(&taken, last).unwrap();
            prop_assert!((1..abi::maps::PODS_CAPACITY).contains(&slot));
            prop_assert!(!taken.contains(&slot));
        }
    }
}

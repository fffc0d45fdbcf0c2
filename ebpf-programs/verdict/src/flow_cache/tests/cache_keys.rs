//! Tests of the places of keys in the flow cache.

use std::collections::BTreeMap;

use crate::flow_cache::{CacheKey, WAYS};

const CAPACITY: u32 = 2_048;

#[test]
fn half_as_many_keys_as_entries_nearly_all_have_an_entry() {
    let bucket = |port: u16| {
        let ports = u32::from(port.to_be());
        CacheKey {
            ports,
            ..CacheKey::default()
        }
        .place()
        .within(CAPACITY)
    };
    let mut keys = BTreeMap::<u32, u32>::new();
    for port in 0..1_024 {
        *keys.entry(bucket(port)).or_default() += 1;
    }
    assert!(keys.keys().all(|bucket| *bucket < CAPACITY));
    let without: u32 = keys.values().map(|keys| keys.saturating_sub(WAYS)).sum();
    assert!(without < 1_024 / 20, "{without} keys have no entry");
}

//! Tests of the flow cache's slots.

use std::collections::BTreeSet;

use abi::maps::NOTED_CAPACITY;

use crate::flow_cache::CacheKey;

#[test]
fn cache_keys_are_spread_over_all_slots() {
    let key = |port: u16| {
        let ports = u32::from(port.to_be());
        CacheKey {
            ports,
            ..CacheKey::default()
        }
        .index()
    };
    let places: BTreeSet<u32> = (0..2_048).map(key).collect();
    assert!(
        places.len() > NOTED_CAPACITY as usize / 2,
        "{}",
        places.len()
    );
    assert!(places.iter().all(|place| *place < NOTED_CAPACITY));
}

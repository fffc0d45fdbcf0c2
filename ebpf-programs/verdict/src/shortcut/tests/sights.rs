//! Where shortcuts are kept.

use std::collections::BTreeSet;

use abi::maps::NOTED_CAPACITY;

use crate::shortcut::Sight;

#[test]
fn sights_are_spread_over_all_places() {
    let sight = |port: u16| {
        let ports = u32::from(port.to_be());
        Sight {
            ports,
            ..Sight::default()
        }
        .index()
    };
    let places: BTreeSet<u32> = (0..2_048).map(sight).collect();
    assert!(
        places.len() > NOTED_CAPACITY as usize / 2,
        "{}",
        places.len()
    );
    assert!(places.iter().all(|place| *place < NOTED_CAPACITY));
}

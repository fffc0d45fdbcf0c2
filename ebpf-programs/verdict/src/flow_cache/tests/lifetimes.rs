//! For how long cache entries are valid.

use super::*;
use crate::flow_cache::lifetime;

#[test]
fn a_flow_cache_entry_expires_with_its_time_and_with_every_table_change() {
    let mut twins = Twins::new(open_node());
    let packet = to_neighbour(0, udp(1, 2));
    let takes = |twins: &mut Twins| {
        let before = twins.taken();
        twins.send(INTERFACE, &packet);
        twins.taken() > before
    };
    assert_eq!([takes(&mut twins), takes(&mut twins)], [false, true]);
    twins.wait(MAX_AGE * JIFFY - 1);
    assert!(takes(&mut twins));
    twins.wait(1);
    assert_eq!([takes(&mut twins), takes(&mut twins)], [false, true]);
    twins.change(|world| world.settings.flow_quota += 1);
    assert_eq!([takes(&mut twins), takes(&mut twins)], [false, true]);
    twins.change(|world| world.settings.flags &= !SettingsFlags::BYPASS);
    assert_eq!([takes(&mut twins), takes(&mut twins)], [false, true]);
}

#[test]
fn the_lifetime_of_a_cache_entry_ends_with_the_reports_of_the_agent() {
    const MILLISECOND: u64 = 1_000_000;
    for (jiffy, valid_for, jiffies) in [
        (10, 0, MAX_AGE),
        (10, 99, MAX_AGE),
        (10, 500, 50),
        (10, 1_000, 100),
        (4, 1_000, 250),
        (1, 1_000, 1_000),
        (1, 1_000_000, 1_000),
    ] {
        let lifetime = lifetime(valid_for * MILLISECOND, jiffy * MILLISECOND);
        assert_eq!(lifetime, jiffies, "{valid_for} {jiffy}");
    }
}

#[test]
fn a_cache_entry_lasts_longer_while_the_agent_reports_changes_of_routes() {
    let mut twins = Twins::new(open_node());
    let packet = to_world(0, udp(40_000, 53));
    let hits = |twins: &mut Twins| {
        let before = twins.taken();
        let left = twins.send(INTERFACE, &packet).is_some();
        (left, twins.taken() - before)
    };
    let until = twins.with.world.clock + 1_000_000_000;
    twins.change(|world| world.memory.events_valid_until = until);
    assert_eq!([0; 3].map(|_| hits(&mut twins).1), [0, 1, 2]);
    twins.wait(249 * JIFFY);
    assert_eq!(hits(&mut twins), (true, 2));
    twins.wait(JIFFY);
    assert_eq!(hits(&mut twins), (true, 0), "it has expired");
    assert_eq!(hits(&mut twins), (true, 2));
    // A change is reported, and applies to the next packet.
    twins.change(|world| world.egress_routes.clear());
    assert_eq!(hits(&mut twins).1, 0);
}

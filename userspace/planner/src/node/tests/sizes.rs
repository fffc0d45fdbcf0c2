//! Tests of the flow table's size and of the flow quota per pod.

use super::*;
use crate::cache_entries;

#[test]
fn a_pod_may_have_half_of_the_flow_table() {
    for (entries, quota) in [(131_072, 32_768), (4_096, 1_024), (0, 1_024)] {
        let mut observed = bare_node();
        observed.flow_entries = entries;
        let planned = plan(&node_intent(), &observed).plan;
        let settings = planned.steps().iter().find_map(|step| {
            let Step::PutEntry {
                entry: Entry::Settings(settings),
                ..
            } = step
            else {
                return None;
            };
            Some(settings)
        });
        assert_eq!(settings.unwrap().flow_quota, quota);
    }
}

/// The numbers are those of machines with `nf_conntrack_max` at its default.
#[test]
fn the_flow_table_has_places_for_the_connections_that_netfilter_would_track() {
    const GIB: u64 = 1 << 30;
    assert_eq!(flow_entries(GIB / 4), 32_768);
    assert_eq!(flow_entries(GIB), 32_768);
    assert_eq!(flow_entries(2 * GIB), 2 * 65_536);
    assert_eq!(flow_entries(16 * GIB), 2 * 262_144);
    assert_eq!(flow_entries(64 * GIB), 671_088);
    assert_eq!(flow_entries(1_024 * GIB), 2_097_152);
}

#[test]
fn cpus_share_a_quarter_of_the_flow_tables_size_for_their_caches() {
    assert_eq!(cache_entries(2 * 262_144, 1), 65_536);
    assert_eq!(cache_entries(2 * 262_144, 2), 65_536);
    assert_eq!(cache_entries(2 * 262_144, 6), 16_384);
    assert_eq!(cache_entries(2 * 262_144, 64), 2_048);
    assert_eq!(cache_entries(32_768, 256), 1_024);
    assert_eq!(cache_entries(32_768, 2), 4_096);
}

//! Shortcuts are for flows that go on.

use super::*;

const FIRST: u64 = 4;

#[test]
fn a_flow_takes_shortcuts_behind_its_first_packets() {
    for family in FAMILIES {
        for body in [udp, |from, to| tcp(from, to, flag::ACK)] {
            let mut world = open_node();
            world.memory.young = FIRST;
            let mut twins = Twins::new(world);
            let packet = to_hostport(family, body(40_000, HOSTPORT));
            for sent in 1..=2 * FIRST {
                twins.run(Place::UplinkIn, UPLINK, &packet);
                // The one behind the first ones makes the shortcut.
                let taken = sent.saturating_sub(FIRST + 1);
                assert_eq!(twins.taken(), taken, "packet {sent}");
            }
        }
    }
}

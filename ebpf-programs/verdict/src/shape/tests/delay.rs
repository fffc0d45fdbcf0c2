//! Tests of marks and departure times.

use abi::{Direction, SettingsFlags};

use super::{frame, limit, limited};
use crate::outcome::Verdict;
use crate::simulator::Place;
use crate::simulator::example::{INTERFACE, mac, pod, remote};
use crate::simulator::frame::{Body, Frame};

#[test]
fn packets_beyond_a_quarter_of_the_burst_get_an_ecn_mark_and_a_departure_time() {
    let mut node = limited(Direction::Egress, 8_000);
    node.world.settings.flags |= SettingsFlags::DELIVERY_TIME;
    let mut packet = frame(0);
    packet[15] = 2;
    let checksum = u16::from_be_bytes([packet[24], packet[25]]) - 2;
    packet[24..26].copy_from_slice(&checksum.to_be_bytes());
    // The simulator does not update the IPv4 header checksum when it marks a packet.
    let mut marked_after = None;
    for sent in 1..=10_000_u64 {
        if node.run(Place::FromPod, INTERFACE, &packet).0 != Verdict::Pass {
            break;
        }
        if node.world.congested && marked_after.is_none() {
            marked_after = Some(sent * (packet.len() as u64 - 14));
            let departure = node.world.departure.unwrap();
            assert_eq!(departure, node.world.clock + 5_000_000_000);
        }
    }
    let quarter = limit(8_000).burst / 4;
    let after = marked_after.unwrap();
    assert!(
        (quarter..quarter + 900).contains(&after),
        "{after} of {quarter}"
    );
}

/// `sch_fq` drops what waits beyond 100 packets of a flow, and beyond ten seconds.
#[test]
fn no_packet_waits_longer_than_the_qdisc_holds_it() {
    for (rate, bytes) in [(10_000, 90), (1_000_000, 90), (100_000_000, 1_400)] {
        let mut node = limited(Direction::Egress, rate);
        node.world.settings.flags |= SettingsFlags::DELIVERY_TIME;
        let body = Body::Udp(1, 2, vec![0; bytes]);
        let frame = Frame::new(pod()[0], remote()[0], body).sent_by(mac());
        let packet = frame.bytes();
        let mut longest = 0;
        while node.run(Place::FromPod, INTERFACE, &packet).0 == Verdict::Pass {
            let departure = node.world.departure.unwrap_or(node.world.clock);
            longest = longest.max(departure - node.world.clock);
        }
        let one = (packet.len() as u64 - 14) * 8 * 1_000_000_000 / rate;
        assert!(
            longest > 0 && longest <= (48 * one + 1).min(5_000_000_000),
            "{rate}: {longest}"
        );
    }
}

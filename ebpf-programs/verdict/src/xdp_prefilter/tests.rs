//! Tests of the XDP prefilter: it drops frames that can never be valid on an uplink, and no others.

use abi::{Address, DropReason, Mac, protocol};
use proptest::prelude::*;

use crate::outcome::Verdict;
use crate::simulator::example::{
    self, FAMILIES, HOSTPORT, INTERFACE, bridge_mac, node, pod, remote,
};
use crate::simulator::frame::{Body, Frame, flag};
use crate::simulator::{Place, Simulator, World};

fn node_with_bridge_mac() -> Simulator {
    let mut world = example::world();
    world.settings.bridge_mac = bridge_mac();
    Simulator::new(world)
}

fn bodies() -> [Body; 4] {
    [
        Body::Tcp(40_000, HOSTPORT, flag::SYN, Vec::new()),
        Body::Udp(40_000, HOSTPORT, b"what".to_vec()),
        Body::Other(protocol::SCTP + 1, vec![0; 8]),
        Body::Sctp(40_000, HOSTPORT, vec![1; 16]),
    ]
}

fn datagram() -> Body {
    Body::Udp(1, 2, b"what".to_vec())
}

#[track_caller]
fn assert_dropped(simulator: &mut Simulator, frame: &[u8], reason: DropReason) {
    let before = simulator.world.drops.get(&reason).copied();
    let verdict = simulator.xdp_prefilter(INTERFACE, frame);
    assert_eq!(verdict, Verdict::Drop(reason));
    let (before, now) = (before.unwrap_or_default(), simulator.world.drops[&reason]);
    assert_eq!(now.packets, before.packets + 1);
    assert!(now.bytes > before.bytes);
}

#[test]
fn the_xdp_prefilter_passes_valid_frames_without_side_effects() {
    let mut simulator = node_with_bridge_mac();
    for family in FAMILIES {
        for body in bodies() {
            let frame = Frame::new(remote()[family], node()[family], body);
            assert_eq!(
                simulator.xdp_prefilter(INTERFACE, &frame.bytes()),
                Verdict::Pass
            );
        }
    }
    let mut arp = vec![0xff; 60];
    arp[12..14].copy_from_slice(&[0x08, 0x06]);
    assert_eq!(simulator.xdp_prefilter(INTERFACE, &arp), Verdict::Pass);
    assert!(simulator.world.drops.is_empty() && simulator.world.flows.is_empty());
}

#[test]
fn the_xdp_prefilter_drops_frames_with_a_pods_source_address() {
    let mut simulator = node_with_bridge_mac();
    for family in FAMILIES {
        for body in bodies() {
            let frame = Frame::new(pod()[family], node()[family], body).bytes();
            assert_dropped(&mut simulator, &frame, DropReason::SpoofedFromOutside);
        }
    }
}

#[test]
fn the_xdp_prefilter_drops_frames_with_our_bridges_mac() {
    let mut simulator = node_with_bridge_mac();
    let frame = Frame::new(remote()[0], node()[0], datagram()).sent_by(bridge_mac());
    assert_dropped(
        &mut simulator,
        &frame.bytes(),
        DropReason::SpoofedFromOutside,
    );
    let mut arp = [
        &[0xff; 6][..],
        &bridge_mac().bytes(),
        &[0x08, 0x06],
        &[0; 46],
    ]
    .concat();
    assert_dropped(&mut simulator, &arp, DropReason::SpoofedFromOutside);
    arp[11] ^= 1;
    assert_eq!(simulator.xdp_prefilter(INTERFACE, &arp), Verdict::Pass);
    // Without a bridge the setting is zero, and a zero source MAC address is not its.
    simulator.world.settings.bridge_mac = Mac::default();
    let frame = frame.sent_by(Mac::default());
    assert_eq!(
        simulator.xdp_prefilter(INTERFACE, &frame.bytes()),
        Verdict::Pass
    );
}

#[test]
fn the_xdp_prefilter_drops_loopback_and_multicast_sources() {
    let mut simulator = node_with_bridge_mac();
    let loopback = Address::v4([127, 0, 0, 1]);
    for (source, destination) in [
        (loopback, node()[0]),
        (remote()[0], loopback),
        (Address::v4([224, 0, 0, 1]), node()[0]),
        (Address::v4([255; 4]), node()[0]),
    ] {
        let frame = Frame::new(source, destination, datagram()).bytes();
        assert_dropped(&mut simulator, &frame, DropReason::Martian);
    }
}

#[test]
fn the_xdp_prefilter_ignores_links_that_are_not_uplinks() {
    let mut simulator = node_with_bridge_mac();
    simulator.world.uplinks.clear();
    let frame = Frame::new(pod()[0], node()[0], datagram()).bytes();
    assert_eq!(simulator.xdp_prefilter(INTERFACE, &frame), Verdict::Pass);
}

#[test]
fn too_many_extension_headers_are_not_malformed() {
    let mut simulator = node_with_bridge_mac();
    let mut frame = Frame::new(remote()[1], node()[1], Body::Other(0, vec![0; 56])).bytes();
    // Each extension header announces another one of its kind.
    assert_eq!(frame[20], 0);
    assert_eq!(simulator.xdp_prefilter(INTERFACE, &frame), Verdict::Pass);
    frame.truncate(60);
    assert_dropped(&mut simulator, &frame, DropReason::Malformed);
}

/// Frames from outside with some bytes changed, possibly truncated.
fn mangled() -> impl Strategy<Value = Vec<u8>> {
    let change = (any::<prop::sample::Index>(), any::<u8>());
    let changes = prop::collection::vec(change, 0..4);
    (
        0..2_usize,
        0..4_usize,
        changes,
        any::<prop::sample::Index>(),
    )
        .prop_map(|(family, body, changes, cut)| {
            let body = bodies()[body].clone();
            let mut bytes = Frame::new(remote()[family], node()[family], body).bytes();
            for (at, byte) in changes {
                // Not the destination: frames for other hosts are left to the stack.
                let at = 6 + at.index(bytes.len() - 6);
                bytes[at] = byte;
            }
            if cut.index(4) == 0 {
                bytes.truncate(cut.index(bytes.len()));
            }
            bytes
        })
}

proptest! {
    #[test]
    fn frames_malformed_for_xdp_are_malformed_for_tc(frame in mangled()) {
        let mut simulator = node_with_bridge_mac();
        let verdict = simulator.xdp_prefilter(INTERFACE, &frame);
        let (behind, _) = simulator.run(Place::UplinkIn, INTERFACE, &frame);
        match verdict {
            Verdict::Drop(DropReason::Malformed) => prop_assert_eq!(behind, verdict),
            Verdict::Drop(reason) => prop_assert!(
                matches!(reason, DropReason::Martian | DropReason::SpoofedFromOutside),
                "{:?}", reason
            ),
            Verdict::Pass | Verdict::RedirectPeer(_) | Verdict::RedirectNeigh(_) | Verdict::Redirect(_) => prop_assert!(behind != Verdict::Drop(DropReason::Malformed)),
        }
    }
}

#[test]
fn the_xdp_prefilter_passes_an_empty_frame() {
    let mut simulator = Simulator::new(World::default());
    assert_eq!(simulator.xdp_prefilter(INTERFACE, &[]), Verdict::Pass);
}

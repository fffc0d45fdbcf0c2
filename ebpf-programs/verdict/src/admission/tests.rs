//! Tests of the admission list, with stacks of VLAN tags as a Linux receiver removes them.

use abi::{DropReason, EndpointFlags};
use proptest::prelude::*;

use crate::outcome::Verdict;
use crate::simulator::example::{
    self, FAMILIES, INTERFACE, OTHER_INTERFACE, POD, mac, node, other_mac, other_pod, pod, remote,
};
use crate::simulator::frame::{Body, Frame};
use crate::simulator::{Place, Simulator};

/// A tag on the wire: `EtherType` and VLAN identifier.
type Tag = (u16, u16);

fn untagged(source: usize, family: usize) -> Vec<u8> {
    let sources = [pod(), other_pod(), example::gateway(), remote()];
    let body = Body::Udp(40_000, 53, b"data".to_vec());
    let frame = Frame::new(sources[source][family], remote()[family], body);
    frame.from_to(mac(), example::bridge_mac()).bytes()
}

/// Returns a frame with these tags, the outer one first.
fn wire(tags: &[Tag], frame: &[u8]) -> Vec<u8> {
    let mut bytes = frame[..12].to_vec();
    for (ethertype, tag) in tags {
        bytes.extend(ethertype.to_be_bytes());
        bytes.extend((tag | 0x6000).to_be_bytes());
    }
    bytes.extend(&frame[12..]);
    bytes
}

fn is_removed(ethertype: u16) -> bool {
    matches!(ethertype, 0x8100 | 0x88a8)
}

/// Runs a hook on a frame as it is on the wire: the kernel removes the outer tag before, and
/// `uplink_in` leaves frames of a VLAN alone.
fn run(simulator: &mut Simulator, place: Place, interface: u32, wire: &[u8]) -> Verdict {
    let outer = u16::from_be_bytes([wire[12], wire[13]]);
    let mut bytes = wire.to_vec();
    simulator.world.tagged = is_removed(outer);
    if is_removed(outer) {
        simulator.world.vlan_id = u32::from(u16::from_be_bytes([wire[14], wire[15]]) & 0xfff);
        bytes.drain(12..16);
    }
    if place == Place::UplinkIn && simulator.world.tagged && simulator.world.vlan_id != 0 {
        return Verdict::Pass;
    }
    simulator.run(place, interface, &bytes).0
}

/// Returns whether a Linux receiver without VLAN interfaces processes what is behind the tags.
fn is_received(tags: &[Tag]) -> bool {
    tags.iter()
        .all(|(kind, vlan)| is_removed(*kind) && *vlan == 0)
}

fn tags() -> impl Strategy<Value = Vec<Tag>> {
    let kind = prop::sample::select(vec![0x8100, 0x88a8, 0x9100, 0x9200, 0x9300]);
    let vlan = prop_oneof![Just(0_u16), Just(5), Just(4095)];
    prop::collection::vec((kind, vlan), 0..4)
}

proptest! {
    /// Whatever a receiver processes was checked: forged packets are dropped behind any tags.
    #[test]
    fn no_stack_of_tags_hides_a_forged_source(
        tags in tags(), source in 1..4_usize, family in 0..2_usize,
    ) {
        let mut simulator = Simulator::new(example::world());
        let bytes = wire(&tags, &untagged(source, family));
        let verdict = run(&mut simulator, Place::FromPod, INTERFACE, &bytes);
        prop_assert!(matches!(verdict, Verdict::Drop(_)), "{verdict:?}");
    }

    #[test]
    fn a_pods_own_packets_pass_with_at_most_one_tag_of_vlan_0(
        tags in tags(), family in 0..2_usize,
    ) {
        let mut simulator = Simulator::new(example::world());
        let bytes = wire(&tags, &untagged(0, family));
        let verdict = run(&mut simulator, Place::FromPod, INTERFACE, &bytes);
        let expected = match tags.as_slice() {
            [] => Verdict::Pass,
            tags if is_received(tags) && tags.len() == 1 => Verdict::Pass,
            [(kind, _), ..] if !is_removed(*kind) => Verdict::Drop(DropReason::UnknownVlan),
            [_] => Verdict::Drop(DropReason::UnknownVlan),
            [_, _, ..] => Verdict::Drop(DropReason::TaggedTwice),
        };
        prop_assert_eq!(verdict, expected);
    }

    /// Of a frame from outside, the node receives what is behind tags of VLAN 0; frames of a VLAN
    /// are for an interface of that VLAN.
    #[test]
    fn no_stack_of_tags_hides_a_pods_address_from_outside(
        tags in tags(), family in 0..2_usize,
    ) {
        let mut simulator = Simulator::new(example::world());
        let body = Body::Udp(40_000, 53, b"data".to_vec());
        let frame = Frame::new(pod()[family], node()[family], body);
        let bytes = wire(&tags, &frame.bytes());
        let verdict = run(&mut simulator, Place::UplinkIn, INTERFACE, &bytes);
        let guarded = simulator.xdp_prefilter(INTERFACE, &bytes);
        if is_received(&tags) {
            prop_assert!(matches!(verdict, Verdict::Drop(_)), "{verdict:?}");
            let expected = match tags.len() {
                0 => Verdict::Drop(DropReason::SpoofedFromOutside),
                1 => Verdict::Pass,
                _ => Verdict::Drop(DropReason::TaggedTwice),
            };
            prop_assert_eq!(guarded, expected);
        }
        let has_vlan = tags.iter().any(|(kind, vlan)| is_removed(*kind) && *vlan != 0);
        let doubled = tags.iter().take(2).filter(|tag| is_received(&[**tag])).count() == 2;
        if has_vlan && !doubled {
            prop_assert_eq!(verdict, Verdict::Pass);
            prop_assert_eq!(guarded, Verdict::Pass);
        }
    }
}

/// `EtherTypes` of frames that are on no list: 802.3 (LLC) as the kernel names it, RARP,
/// `AppleTalk`, IPX, MPLS, `PPPoE`, EAPOL, LLDP, `EtherCAT`, TRILL, `FCoE`, PTP, MACsec, batman,
/// ERSPAN.
const OTHERS: [u16; 20] = [
    0x0001, 0x0004, 0x8035, 0x809b, 0x8137, 0x8847, 0x8848, 0x8863, 0x8864, 0x888e, 0x88cc, 0x88a4,
    0x22f3, 0x8906, 0x88f7, 0x88e5, 0x4305, 0x88be, 0x0805, 0xffff,
];

#[test]
fn frames_of_other_protocols_are_dropped_by_name() {
    let mut simulator = Simulator::new(example::world());
    let send = |ethertype: u16, simulator: &mut Simulator| {
        let mut bytes = untagged(0, 0);
        bytes[12..14].copy_from_slice(&ethertype.to_be_bytes());
        simulator.run(Place::FromPod, INTERFACE, &bytes).0
    };
    for ethertype in OTHERS {
        let verdict = send(ethertype, &mut simulator);
        assert_eq!(
            verdict,
            Verdict::Drop(DropReason::ForeignFrame),
            "{ethertype:04x}"
        );
    }
    assert_eq!(simulator.world.drops[&DropReason::ForeignFrame].packets, 20);
    // Without the spoof check all of them pass.
    simulator.world.pods[POD as usize].flags &= !EndpointFlags::SPOOF_CHECK;
    for ethertype in OTHERS.into_iter().chain([0x8100, 0x9100]) {
        assert_eq!(send(ethertype, &mut simulator), Verdict::Pass);
    }
}

#[test]
fn frames_of_vlans_pass_from_pods_without_a_spoof_check() {
    let mut world = example::world();
    world.pods[POD as usize].flags &= !EndpointFlags::SPOOF_CHECK;
    let mut simulator = Simulator::new(world);
    for tags in [
        &[(0x8100, 5)][..],
        &[(0x88a8, 5), (0x8100, 6)],
        &[(0x8100, 0), (0x8100, 0)],
    ] {
        let bytes = wire(tags, &untagged(0, 0));
        let verdict = run(&mut simulator, Place::FromPod, INTERFACE, &bytes);
        assert_eq!(verdict, Verdict::Pass, "{tags:04x?}");
    }
}

/// While a DEL runs, rows are missing, free, or another pod's already.
#[test]
fn frames_of_an_interface_without_its_rows_are_dropped() {
    type Change = Box<dyn Fn(&mut Simulator)>;
    let mut rows_missing: Vec<(&str, Change)> = Vec::new();
    rows_missing.push((
        "no interface",
        Box::new(|node| node.world.interfaces.clear()),
    ));
    rows_missing.push((
        "a free row",
        Box::new(|node| {
            let row = &mut node.world.pods[POD as usize];
            *row = abi::Pod {
                generation: row.generation,
                ..abi::Pod::default()
            };
        }),
    ));
    rows_missing.push((
        "another pod's row",
        Box::new(|node| node.world.pods[POD as usize].interface = 99),
    ));
    for (case, change) in rows_missing {
        for family in FAMILIES {
            let mut simulator = Simulator::new(example::world());
            change(&mut simulator);
            for source in 0..4 {
                let bytes = untagged(source, family);
                let (verdict, _) = simulator.run(Place::FromPod, INTERFACE, &bytes);
                assert_eq!(verdict, Verdict::Drop(DropReason::UnknownPod), "{case}");
            }
            let mut arp = untagged(0, 0);
            arp[12..14].copy_from_slice(&[8, 6]);
            let (verdict, _) = simulator.run(Place::FromPod, INTERFACE, &arp);
            assert_eq!(verdict, Verdict::Drop(DropReason::UnknownPod), "{case}");
        }
    }
}

/// Frames of the second pod's interface; no table changes, whatever they contain.
#[derive(Clone, Debug)]
struct Refused {
    tags: Vec<Tag>,
    source: usize,
    family: usize,
    part: usize,
    protocol: usize,
    wrong_mac: bool,
}

fn refused() -> impl Strategy<Value = Refused> {
    let numbers = (0..4_usize, 0..2_usize, 0..4_usize, 0..4_usize);
    (tags(), numbers, any::<bool>()).prop_map(
        |(tags, (source, family, part, protocol), wrong_mac)| Refused {
            tags,
            source,
            family,
            part,
            protocol,
            wrong_mac,
        },
    )
}

impl Refused {
    /// Returns the frame: whole, or a fragment of it.
    fn bytes(&self) -> Vec<u8> {
        let sources = [other_pod(), pod(), example::gateway(), remote()];
        let source = sources[self.source][self.family];
        let echo = Body::Icmp([8, 128][self.family], 0, [0, 7, 0, 1], vec![3; 100]);
        let bodies = [
            Body::Udp(40_000, example::HOSTPORT, vec![1; 100]),
            Body::Tcp(40_000, example::HOSTPORT, 2, vec![1; 100]),
            echo,
            Body::Other(47, vec![2; 100]),
        ];
        let body = bodies[self.protocol].clone();
        let sender = if self.wrong_mac { mac() } else { other_mac() };
        let frame =
            Frame::new(source, node()[self.family], body).from_to(sender, example::bridge_mac());
        let inner = match self.part {
            0 | 1 => frame.bytes(),
            part => frame.fragments(0x77, 64)[part - 2].clone(),
        };
        wire(&self.tags, &inner)
    }
}

proptest! {
    /// F8: nothing of a packet is written to a table before its sender is checked.
    #[test]
    fn refused_frames_of_a_pod_change_no_table(all in prop::collection::vec(refused(), 1..20)) {
        let mut simulator = Simulator::new(example::world());
        for one in &all {
            let before = simulator.world.clone();
            let bytes = one.bytes();
            let verdict = run(&mut simulator, Place::FromPod, OTHER_INTERFACE, &bytes);
            let is_refused = one.source != 0 || one.wrong_mac;
            prop_assert!(!is_refused || matches!(verdict, Verdict::Drop(_)), "{verdict:?}");
            // Own fragments may be dropped for the state of their datagram.
            if let Verdict::Drop(reason) = verdict && (is_refused || !one.tags.is_empty()) {
                let now = &simulator.world;
                prop_assert_eq!(&now.flows, &before.flows, "{:?}", reason);
                prop_assert_eq!(&now.live, &before.live);
                prop_assert_eq!(&now.turns, &before.turns);
                prop_assert_eq!(&now.fragments, &before.fragments);
                prop_assert_eq!(&now.rings, &before.rings);
                prop_assert_eq!(&now.held, &before.held);
                prop_assert_eq!(&now.identifications, &before.identifications);
                prop_assert_eq!(now.memory.cached_verdicts(), before.memory.cached_verdicts());
            }
        }
    }
}

//! Arbitrary frames and tables through all hooks, with what must hold for each of them: the body of
//! the fuzz target `frames`, and of a test that replays its corpus.

use std::collections::BTreeMap;

use abi::{Address, Direction, DropReason, EndpointFlags, Mac, SettingsFlags, protocol};

use super::example::{
    BRIDGE, INTERFACE, OTHER_INTERFACE, OTHER_POD, POD, gateway, mac, node, other_mac, other_pod,
    pod, world,
};
use super::{Place, Simulator, World};
use crate::address::{is_invalid_source, is_link_local, is_multicast};
use crate::outcome::Verdict;

/// Bytes of the header of a step: place and interface, changes of tables and clock, and the length
/// of the frame.
const HEADER: usize = 4;
/// The longest frame of a step.
const LONGEST: u16 = 2_000;
/// How often a held fragment is sent through its hook again.
const ROUNDS: usize = 4;

/// Runs the frames of an input through the hooks of the example node.
///
/// The first byte chooses tables; see `tables`. Then each step has a header of four bytes and a
/// frame: the hook in bits 0 and 1, the interface in bit 2, a tag in bit 3; seconds that pass
/// before; and the length of the frame, most significant byte first.
///
/// # Panics
///
/// If a frame does not hold what `check` and the verdicts promise.
pub fn run(input: &[u8]) {
    let Some((tables_of, mut rest)) = input.split_first() else {
        return;
    };
    let mut simulator = Simulator::new(tables(*tables_of));
    while let Some((header, behind)) = rest.split_first_chunk::<HEADER>() {
        let [choice, seconds, high, low] = *header;
        let length = usize::from(u16::from_be_bytes([high, low]) % LONGEST).min(behind.len());
        let (frame, following) = behind.split_at(length);
        rest = following;
        simulator.world.now = simulator.world.now.wrapping_add(u32::from(seconds % 64));
        simulator.world.tagged = choice & 8 != 0;
        let place = [
            Place::FromPod,
            Place::ToPod,
            Place::UplinkIn,
            Place::UplinkOut,
        ][usize::from(choice & 3)];
        let interface = match place {
            Place::FromPod | Place::ToPod if choice & 4 != 0 => OTHER_INTERFACE,
            Place::FromPod | Place::ToPod | Place::UplinkIn | Place::UplinkOut => INTERFACE,
        };
        // Every hook of the kernel sees an Ethernet header.
        if frame.len() >= 14 {
            send(&mut simulator, place, interface, frame);
        }
    }
}

/// Returns the example node with properties of one byte: bypass, exit check, ingress policy of both
/// pods (two bits), no spoof check of the second pod, a small flow table, and an uplink without
/// Ethernet header.
fn tables(choice: u8) -> World {
    let mut world = world();
    let has = |bit: u8| choice & (1 << bit) != 0;
    if has(0) {
        world.settings.flags |= SettingsFlags::BYPASS;
    }
    if has(1) {
        world.settings.flags |= SettingsFlags::EXIT_CHECK;
    }
    let mut policy = 0;
    if has(2) {
        policy |= EndpointFlags::SAME_BRIDGE;
    }
    if has(3) {
        policy |= EndpointFlags::SAME_BRIDGE | EndpointFlags::INGRESS_ISOLATED;
    }
    for slot in [POD, OTHER_POD] {
        world.pods[slot as usize].flags |= policy;
    }
    if has(4) {
        world.pods[OTHER_POD as usize].flags &= !EndpointFlags::SPOOF_CHECK;
    }
    if has(5) {
        world.flow_capacity = 4;
    }
    if has(6)
        && let Some(uplink) = world.uplinks.get_mut(&INTERFACE)
    {
        uplink.l2_len = 0;
    }
    world
}

/// Sends a frame, and the fragments that it releases, and checks each verdict.
fn send(simulator: &mut Simulator, place: Place, interface: u32, frame: &[u8]) {
    let mut frames = vec![frame.to_vec()];
    for _ in 0..ROUNDS {
        for frame in std::mem::take(&mut frames) {
            let before = dropped(&simulator.world);
            let (verdict, sent) = simulator.run(place, interface, &frame);
            let after = dropped(&simulator.world);
            assert_eq!(sent.len(), frame.len(), "the length changed");
            let counted = u64::from(matches!(verdict, Verdict::Drop(_)));
            assert!(after >= before + counted, "{verdict:?} was not counted");
            check_drop_counters(&simulator.world);
            check(simulator, place, interface, (&frame, &sent), verdict);
        }
        frames = std::mem::take(&mut simulator.world.reinjected);
    }
}

/// Checks that every drop is counted by reason and by pod: once each, and for the same pod.
fn check_drop_counters(world: &World) {
    let mut pods = BTreeMap::<u32, u64>::new();
    let mut reasons = BTreeMap::<DropReason, u64>::new();
    for ((slot, reason), packets) in &world.pod_drops {
        *pods.entry(*slot).or_default() += packets;
        *reasons.entry(*reason).or_default() += packets;
    }
    for (reason, count) in &world.drops {
        assert_eq!(reasons.get(reason), Some(&count.packets), "{reason:?}");
    }
    for slot in [POD, OTHER_POD] {
        let of = |direction| world.counters.get(&(slot, direction));
        let both = [of(Direction::Egress), of(Direction::Ingress)];
        let counted: u64 = both
            .iter()
            .flatten()
            .map(|count| count.dropped_packets)
            .sum();
        assert_eq!(
            pods.get(&slot).copied().unwrap_or(0),
            counted,
            "slot {slot}"
        );
    }
}

fn dropped(world: &World) -> u64 {
    world.drops.values().map(|count| count.packets).sum()
}

/// Checks what must hold for a frame, before and after the hook, with this verdict.
fn check(
    simulator: &Simulator,
    place: Place,
    interface: u32,
    (frame, sent): (&[u8], &[u8]),
    verdict: Verdict,
) {
    match verdict {
        // In the simulator, no other write fails than one outside of the packet.
        Verdict::Drop(reason) => assert_ne!(
            reason,
            DropReason::RewriteFailed,
            "{place:?}: a write outside of the packet: {frame:02x?}"
        ),
        Verdict::Consume => {}
        Verdict::Pass
        | Verdict::RedirectPeer(_)
        | Verdict::RedirectNeigh(_)
        | Verdict::Redirect(_) => match place {
            Place::FromPod => check_sender(&simulator.world, interface, frame),
            Place::UplinkIn => check_receiver(&simulator.world, sent),
            Place::ToPod | Place::UplinkOut => {}
        },
    }
}

/// Checks that a frame which a pod with a spoof check may send claims nothing that is not the
/// pod's.
fn check_sender(world: &World, interface: u32, frame: &[u8]) {
    let (slot, mac, own) = if interface == INTERFACE {
        (POD, mac(), pod())
    } else {
        (OTHER_POD, other_mac(), other_pod())
    };
    if world.pods[slot as usize].flags & EndpointFlags::SPOOF_CHECK == 0 {
        return;
    }
    assert_eq!(frame[6..12], mac.bytes(), "a false MAC address passed");
    match u16::from_be_bytes([frame[12], frame[13]]) {
        0x0800 => {
            let source = v4(&frame[26..30]);
            let is_dhcp = source == Address::v4([0; 4]) && frame[23] == protocol::UDP;
            assert!(source == own[0] || is_dhcp, "{source:?} passed");
        }
        0x86dd => {
            let source = v6(&frame[22..38]);
            let is_local = is_link_local(&source) || source.is_any();
            let destination = v6(&frame[38..54]);
            let stays = is_link_local(&destination) || is_multicast(&destination);
            assert!(source == own[1] || (is_local && stays), "{source:?} passed");
        }
        0x0806 => {
            assert_eq!(frame[22..28], mac.bytes(), "ARP by a false MAC address");
            let sender = v4(&frame[28..32]);
            let is_own = sender == own[0] || sender == Address::v4([0; 4]);
            assert!(is_own, "ARP by {sender:?} passed");
        }
        _ => {}
    }
}

/// Checks that a packet from outside which a pod may get has no address of this node as its source,
/// and none that is never on a wire.
fn check_receiver(world: &World, sent: &[u8]) {
    let l2_len = world.uplinks[&INTERFACE].l2_len;
    // Not redirected to a pod yet, and for another host: the stack drops it.
    let is_ours = sent.starts_with(&world.mac.bytes()) || sent.starts_with(&mac_of(world));
    if l2_len == 0 || !is_ours {
        return;
    }
    // A receiver drops an incomplete header.
    let (source, destination) = match u16::from_be_bytes([sent[12], sent[13]]) {
        0x0800 if sent.len() >= 34 => (v4(&sent[26..30]), v4(&sent[30..34])),
        0x86dd if sent.len() >= 54 => (v6(&sent[22..38]), v6(&sent[38..54])),
        _ => return,
    };
    if !world.endpoints.contains_key(&destination) || is_other_version(sent) {
        return;
    }
    let own = [pod(), other_pod(), node(), gateway()];
    let is_own = own.iter().any(|both| both.contains(&source));
    assert!(
        !is_own && !is_invalid_source(&source),
        "{source:?} reached a pod: {sent:02x?}"
    );
}

/// Returns the MAC address that redirected packets get.
fn mac_of(world: &World) -> [u8; 6] {
    let network = world.networks.get(&BRIDGE);
    network.map_or(Mac::default(), |it| it.mac).bytes()
}

/// Returns whether the version of the IP header is not that of the `EtherType`.
fn is_other_version(frame: &[u8]) -> bool {
    let is_v4 = frame[12..14] == [8, 0];
    frame[14] >> 4 != if is_v4 { 4 } else { 6 }
}

fn v4(bytes: &[u8]) -> Address {
    Address::v4(bytes.try_into().expect("four bytes"))
}

fn v6(bytes: &[u8]) -> Address {
    Address::v6(bytes.try_into().expect("sixteen bytes"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::simulator::example::{HOSTPORT, remote};
    use crate::simulator::frame::{Body, Frame, TO, flag};

    /// Returns the bytes of one step.
    fn step(choice: u8, seconds: u8, frame: &[u8]) -> Vec<u8> {
        let length = u16::try_from(frame.len()).expect("a short frame");
        let mut bytes = vec![choice, seconds];
        bytes.extend(length.to_be_bytes());
        bytes.extend(frame);
        bytes
    }

    /// Returns frames that each hook knows: of pods, to pods, from outside, and to outside.
    fn known() -> Vec<(u8, Vec<u8>)> {
        let mut all = Vec::new();
        for family in [0, 1] {
            let [own, other, node, remote] =
                [pod(), other_pod(), node(), remote()].map(|both| both[family]);
            let tcp = Body::Tcp(40_000, 443, flag::SYN, b"hello".to_vec());
            let udp = Body::Udp(40_000, HOSTPORT, vec![7; 64]);
            let quote = Frame::new(own, remote, udp.clone()).packet();
            let kind = if family == 0 { 3 } else { 1 };
            let report = Body::Icmp(kind, 1, [0; 4], quote);
            let from = |source: Address, to: Address, body: &Body| {
                Frame::new(source, to, body.clone()).sent_by(mac())
            };
            all.push((0, from(own, remote, &tcp).bytes()));
            all.push((0, from(own, other, &udp).bytes()));
            all.push((0, from(own, node, &udp).bytes()));
            all.push((1, from(remote, own, &report).bytes()));
            all.push((2, from(remote, node, &udp).from_to(mac(), TO).bytes()));
            all.push((2, from(remote, node, &report).from_to(mac(), TO).bytes()));
            all.push((3, from(own, remote, &tcp).bytes()));
            for piece in from(own, node, &udp).fragments(9, 32) {
                all.push((0, piece));
            }
        }
        all
    }

    proptest! {
        /// Frames that the hooks know, with some bytes replaced.
        #[test]
        fn changed_frames_claim_no_address_of_others(
            choice: u8,
            steps in prop::collection::vec(
                (any::<prop::sample::Index>(), any::<u8>(),
                 prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
                 any::<Option<prop::sample::Index>>()),
                1..12,
            ),
        ) {
            let known = known();
            let mut input = vec![choice];
            for (which, extra, changes, cut) in steps {
                let (place, mut frame) = known[which.index(known.len())].clone();
                for (at, byte) in changes {
                    let at = at.index(frame.len());
                    frame[at] = byte;
                }
                if let Some(cut) = cut {
                    frame.truncate(cut.index(frame.len()));
                }
                input.extend(step(place | (extra & 0x0c), extra >> 5, &frame));
            }
            run(&input);
        }

        #[test]
        fn arbitrary_bytes_break_no_hook(input in prop::collection::vec(any::<u8>(), 0..600)) {
            run(&input);
        }
    }

    /// The corpus of the fuzz target, which also has what fuzzing has found.
    #[test]
    fn the_corpus_of_frames_is_replayed() {
        let folder = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../tests/fuzz/corpus/frames"
        );
        let mut count = 0;
        for entry in std::fs::read_dir(folder).expect("a corpus") {
            let path = entry.expect("a file").path();
            run(&std::fs::read(&path).expect("a file that can be read"));
            count += 1;
        }
        assert!(count > 0);
    }
}

//! Tests of whole flows on the simulated node, with arbitrary packets.

use abi::{Address, DropReason, Flow, FlowFlags, Mac, Port, SettingsFlags, Timeouts, UplinkFlags};
use proptest::prelude::*;

use super::example::{
    FAMILIES, HOSTPORT, INTERFACE, POD, bridge_mac, friend, mac, node, other_pod, pod, remote,
    world,
};
use super::frame::{Body, Frame, flag};
use super::{Place, Simulator};
use crate::outcome::Verdict;

#[derive(Clone, Debug)]
struct Sent {
    family: usize,
    second_pod: bool,
    udp: bool,
    port: u16,
    remote_port: u16,
    flags: u8,
}

fn sent() -> impl Strategy<Value = Sent> {
    let port = prop_oneof![Just(40_000), Just(40_001), Just(HOSTPORT), any::<u16>()];
    (0..2_usize, any::<[bool; 2]>(), port, 1..4_u16, any::<u8>()).prop_map(
        |(family, [second_pod, udp], port, remote_port, flags)| Sent {
            family,
            second_pod,
            udp,
            port,
            remote_port,
            flags,
        },
    )
}

impl Sent {
    fn pod(&self) -> Address {
        let pods = if self.second_pod { other_pod() } else { pod() };
        pods[self.family]
    }

    fn body(&self, source: u16, destination: u16) -> Body {
        if self.udp {
            Body::Udp(source, destination, b"payload".to_vec())
        } else {
            Body::Tcp(source, destination, self.flags, b"payload".to_vec())
        }
    }

    fn frame(&self) -> Frame {
        let body = self.body(self.port, self.remote_port);
        Frame::new(self.pod(), remote()[self.family], body)
    }
}

/// Returns addresses that replace the node's own.
fn other_node() -> [Address; 2] {
    let v6 = std::net::Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 0x77);
    [Address::v4([192, 0, 2, 77]), Address::v6(v6.octets())]
}

/// Returns the source port of a frame that has left the node.
fn source_port(bytes: &[u8], family: usize) -> u16 {
    let at = [34, 54][family];
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

proptest! {
    #[test]
    fn every_reply_reaches_its_pod_and_port(all in prop::collection::vec(sent(), 1..60)) {
        let mut simulator = Simulator::new(world());
        for sent in &all {
            let (family, out) = (sent.family, sent.frame());
            let (verdict, wire) = simulator.run(Place::UplinkOut, INTERFACE, &out.bytes());
            prop_assert_eq!(verdict, Verdict::Pass);
            let port = source_port(&wire, family);
            let (us, them) = (node()[family], remote()[family]);
            let expected = out.becoming(us, them, sent.body(port, sent.remote_port));
            prop_assert_eq!(wire, expected.bytes());
            let reply = Frame::new(them, us, sent.body(sent.remote_port, port));
            let (verdict, inside) = simulator.run(Place::UplinkIn, INTERFACE, &reply.bytes());
            prop_assert_eq!(verdict, Verdict::Pass);
            let expected = reply.becoming(them, sent.pod(), sent.body(sent.remote_port, sent.port));
            prop_assert_eq!(inside, expected.bytes());
        }
        for (key, flow) in &simulator.world.flows {
            let opposite = simulator.world.flows.get(&flow.translated.reverse());
            prop_assert_eq!(opposite.map(|flow| flow.translated), Some(key.reverse()));
        }
    }

    #[test]
    fn a_flow_keeps_its_port_for_as_long_as_it_lives(
        sent in sent(),
        others in prop::collection::vec(sent(), 0..40),
    ) {
        let mut simulator = Simulator::new(world());
        let first = simulator.run(Place::UplinkOut, INTERFACE, &sent.frame().bytes());
        for other in &others {
            simulator.run(Place::UplinkOut, INTERFACE, &other.frame().bytes());
        }
        let last = simulator.run(Place::UplinkOut, INTERFACE, &sent.frame().bytes());
        prop_assert_eq!(first, last);
    }

    #[test]
    fn a_sweep_after_all_timeouts_leaves_an_empty_table(
        all in prop::collection::vec(sent(), 1..40),
    ) {
        let mut simulator = Simulator::new(world());
        for sent in &all {
            simulator.run(Place::UplinkOut, INTERFACE, &sent.frame().bytes());
        }
        let flows = simulator.world.flows.len() as u64;
        let swept = simulator.sweep();
        prop_assert_eq!((swept.kept, swept.timed_out), (flows, 0));
        simulator.world.now += Timeouts::default().tcp_established + 1;
        let swept = simulator.sweep();
        prop_assert_eq!((swept.kept, swept.timed_out * 2), (0, flows));
        prop_assert!(simulator.world.flows.is_empty());
    }

    #[test]
    fn no_bytes_at_all_make_a_hook_panic(
        start in prop_oneof![Just(vec![]), sent().prop_map(|sent| sent.frame().bytes())],
        rest in prop::collection::vec(any::<u8>(), 0..120),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
    ) {
        let mut bytes = [start, rest].concat();
        for (at, value) in changes {
            if !bytes.is_empty() {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
        }
        let mut simulator = Simulator::new(world());
        for place in [Place::FromPod, Place::ToPod, Place::UplinkIn, Place::UplinkOut] {
            let (_, after) = simulator.run(place, INTERFACE, &bytes);
            prop_assert_eq!(after.len(), bytes.len());
        }
    }
}

#[test]
fn a_flow_with_a_missing_entry_is_swept() {
    let mut simulator = Simulator::new(world());
    let frame = Frame::new(pod()[0], remote()[0], Body::Udp(1, 2, vec![]));
    simulator.run(Place::UplinkOut, INTERFACE, &frame.bytes());
    let flows = &mut simulator.world.flows;
    flows.retain(|_, flow| flow.flags & FlowFlags::ORIGINAL == 0);
    assert_eq!(simulator.sweep().kept, 1);
    simulator.world.now += 2;
    assert_eq!(simulator.sweep().timed_out, 1);
}

#[test]
fn a_stale_entry_of_another_flow_does_not_remove_that_flow() {
    let mut simulator = Simulator::new(world());
    let frame = Frame::new(pod()[0], remote()[0], Body::Udp(1, 2, vec![]));
    simulator.run(Place::UplinkOut, INTERFACE, &frame.bytes());
    // The flow gets another port, with an entry for its replies; the entry of the old port stays.
    let flows = &mut simulator.world.flows;
    let is_original = |flow: &Flow| flow.flags & FlowFlags::ORIGINAL != 0;
    let (key, original) = flows
        .iter_mut()
        .find(|(_, flow)| is_original(flow))
        .unwrap();
    let old = original.translated.reverse();
    original.translated.source_port = Port::new(99);
    let (new, translated) = (original.translated.reverse(), key.reverse());
    let reply = Flow {
        translated,
        ..flows[&old]
    };
    flows.insert(new, reply);
    simulator.world.now += 2;
    let swept = simulator.sweep();
    assert_eq!((swept.kept, swept.timed_out), (2, 1));
    assert!(!simulator.world.flows.contains_key(&old));
}

#[test]
fn a_syn_on_a_closed_flow_opens_it_again_for_both_directions() {
    let mut simulator = Simulator::new(world());
    for family in FAMILIES {
        for flags in [flag::SYN, flag::RST, flag::SYN, flag::ACK] {
            let body = Body::Tcp(40_000, 443, flags, vec![]);
            let frame = Frame::new(pod()[family], remote()[family], body);
            simulator.run(Place::UplinkOut, INTERFACE, &frame.bytes());
        }
    }
    simulator.world.now += Timeouts::default().tcp_reset + 1;
    assert_eq!(simulator.sweep().timed_out, 0);
}

#[test]
fn a_flow_whose_source_address_is_gone_gets_the_uplinks_new_address() {
    let mut simulator = Simulator::new(world());
    let new = other_node();
    for (family, new) in FAMILIES.into_iter().zip(new) {
        let (own, old, them) = (pod()[family], node()[family], remote()[family]);
        let body = Body::Udp(40_000, 53, vec![]);
        let out = Frame::new(own, them, body.clone());
        let leave =
            |simulator: &mut Simulator| simulator.run(Place::UplinkOut, INTERFACE, &out.bytes()).1;
        let before = out.becoming(old, them, body.clone()).bytes();
        assert_eq!(leave(&mut simulator), before);

        let world = &mut simulator.world;
        world.locals.remove(&old);
        world.locals.insert(new);
        let uplink = world.uplinks.get_mut(&INTERFACE).unwrap();
        uplink.sources.iter_mut().for_each(|source| {
            if source.address == old {
                source.address = new;
            }
        });
        world.now += 1;
        assert_eq!(leave(&mut simulator), out.becoming(new, them, body).bytes());
        let answer = Frame::new(them, new, Body::Udp(53, 40_000, vec![]));
        let (_, inside) = simulator.run(Place::UplinkIn, INTERFACE, &answer.bytes());
        let expected = answer.becoming(them, own, Body::Udp(53, 40_000, vec![]));
        assert_eq!(inside, expected.bytes());
    }
    assert_eq!(simulator.world.flows.len(), 4);
}

#[test]
fn every_icmp_query_is_masqueraded_and_its_reply_reaches_the_pod() {
    let mut simulator = Simulator::new(world());
    let (own, us, them) = (pod()[0], node()[0], remote()[0]);
    for (question, answer) in [(8, 0), (13, 14), (15, 16), (17, 18)] {
        let body = |kind| Body::Icmp(kind, 0, [question, 1, 0, 7], vec![9; 12]);
        let out = Frame::new(own, them, body(question));
        let (_, wire) = simulator.run(Place::UplinkOut, INTERFACE, &out.bytes());
        assert_eq!(wire, out.becoming(us, them, body(question)).bytes());
        let back = Frame::new(them, us, body(answer));
        let (_, inside) = simulator.run(Place::UplinkIn, INTERFACE, &back.bytes());
        assert_eq!(inside, back.becoming(them, own, body(answer)).bytes());
    }
}

#[test]
fn a_later_fragment_that_arrives_first_never_leaves_unmasqueraded() {
    let mut simulator = Simulator::new(world());
    for family in FAMILIES {
        let (own, them) = (pod()[family], remote()[family]);
        for body in [
            Body::Udp(40_000, 53, vec![1; 100]),
            Body::Icmp([8, 128][family], 0, [1, 2, 0, 7], vec![1; 100]),
        ] {
            let [_, later] = Frame::new(own, them, body).fragments(0x77, 64);
            let (verdict, _) = simulator.run(Place::UplinkOut, INTERFACE, &later);
            assert_eq!(verdict, Verdict::Drop(DropReason::FragmentWithoutFirst));
        }
    }
}

#[test]
fn packets_of_an_unknown_interface_are_dropped() {
    let mut simulator = Simulator::new(world());
    let body = Body::Udp(1, 2, vec![]);
    let frame = Frame::new(remote()[0], pod()[0], body).sent_by(Mac::default());
    let (verdict, _) = simulator.run(Place::FromPod, 77, &frame.bytes());
    assert_eq!(verdict, Verdict::Drop(DropReason::UnknownPod));
    assert!(simulator.world.counters.is_empty());
}

/// A forged report would change the path MTU of another pod.
#[test]
fn errors_of_a_pod_are_about_packets_that_were_sent_to_it() {
    let mut simulator = Simulator::new(world());
    for family in FAMILIES {
        let [own, other, remote] = [pod(), other_pod(), remote()].map(|both| both[family]);
        let kind = if family == 0 { (3, 4) } else { (2, 0) };
        let report = |quote: Vec<u8>| {
            let body = Body::Icmp(kind.0, kind.1, [0, 0, 5, 0], quote);
            Frame::new(own, other, body).sent_by(mac()).bytes()
        };
        let about =
            |destination| Frame::new(other, destination, Body::Udp(7, 9, vec![0; 8])).packet();
        let mut send = |frame: &[u8]| simulator.run(Place::FromPod, INTERFACE, frame).0;
        for foreign in [remote, other, node()[family]] {
            let refused = Verdict::Drop(DropReason::SpoofedAddress);
            assert_eq!(send(&report(about(foreign))), refused, "{foreign:?}");
        }
        assert!(!matches!(send(&report(about(own))), Verdict::Drop(_)));
        let cut = about(own)[..16].to_vec();
        assert_eq!(send(&report(cut)), Verdict::Drop(DropReason::Malformed));
    }
}

/// Linux refuses such packets in IPv4, and forwards them in IPv6.
#[test]
fn packets_from_outside_with_an_address_of_the_node_reach_no_pod() {
    let mut simulator = Simulator::new(world());
    for family in FAMILIES {
        for (to, port) in [(node()[family], HOSTPORT), (pod()[family], 80)] {
            let body = Body::Udp(40_000, port, vec![]);
            let frame = Frame::new(node()[family], to, body).bytes();
            let (verdict, _) = simulator.run(Place::UplinkIn, INTERFACE, &frame);
            assert_eq!(verdict, Verdict::Drop(DropReason::Martian), "{to:?}");
        }
    }
    assert!(simulator.world.flows.is_empty());
}

/// A pod's packets leave through open uplinks, and through other links only if they need no
/// masquerading.
#[test]
fn packets_that_need_masquerading_leave_only_through_open_uplinks() {
    const NEW: u32 = 77;
    let mut world = world();
    world.settings.flags |= SettingsFlags::EXIT_CHECK;
    let uplink = world.uplinks[&INTERFACE];
    let own = world.interfaces.iter().find(|(_, of)| of.pod == POD);
    let veth = *own.expect("the pod has a veth").0;
    let everybody = FAMILIES.map(|family| [remote()[family], friend()[family]]);
    for destination in everybody.into_iter().flatten() {
        world.egress_routes.insert(destination, NEW);
    }
    let mut simulator = Simulator::new(world);
    for family in FAMILIES {
        let tcp = Body::Tcp(40_000, 443, flag::SYN, Vec::new());
        let send = |simulator: &mut Simulator, to: Address, via: Mac| {
            let frame = Frame::new(pod()[family], to, tcp.clone()).from_to(mac(), via);
            simulator.run(Place::FromPod, veth, &frame.bytes()).0
        };
        let refused = Verdict::Drop(DropReason::UnknownUplink);
        let (remote, friend) = (remote()[family], friend()[family]);
        simulator.world.uplinks.remove(&NEW);
        assert_eq!(send(&mut simulator, remote, bridge_mac()), refused);
        assert_eq!(send(&mut simulator, friend, bridge_mac()), Verdict::Pass);
        assert_eq!(send(&mut simulator, remote, mac()), Verdict::Pass);
        simulator.world.uplinks.insert(NEW, uplink);
        assert_eq!(send(&mut simulator, remote, bridge_mac()), refused);
        let open = simulator.world.uplinks.get_mut(&NEW);
        open.expect("just inserted").flags |= UplinkFlags::OPEN;
        assert_eq!(send(&mut simulator, remote, bridge_mac()), Verdict::Pass);
    }
}

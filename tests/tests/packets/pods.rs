//! A pod's veth: what a pod may send, and what is counted.

use abi::{Address, Direction, DropReason, EndpointFlags, Mac};
use anyhow::Result;
use verdict::simulator::Place::{FromPod, ToPod};
use verdict::simulator::example::{self, FAMILIES};
use verdict::simulator::frame::{Body, Frame, flag};

use crate::bench::{Bench, on_bench};

fn tcp() -> Body {
    Body::Tcp(40_000, 443, flag::SYN, b"data".to_vec())
}

fn own(source: Address, destination: Address, body: Body) -> Frame {
    Frame::new(source, destination, body).sent_by(example::mac())
}

fn v6(text: &str) -> Address {
    let address: std::net::Ipv6Addr = text.parse().expect("tests write valid addresses");
    Address::v6(address.octets())
}

/// Neighbour discovery about `target`.
fn discovery(icmp_type: u8, target: Address) -> Body {
    Body::Icmp(icmp_type, 0, [0; 4], target.bytes().to_vec())
}

fn arp(mac: Mac, sender: [u8; 4]) -> Vec<u8> {
    let mut bytes = vec![0xff; 6];
    bytes.extend(example::mac().bytes());
    bytes.extend([0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1]);
    bytes.extend(mac.bytes());
    bytes.extend(sender);
    bytes.extend([0; 6]);
    bytes.extend([10, 88, 0, 1]);
    bytes
}

fn arp_passes(bench: &mut Bench, bytes: &[u8]) -> Result<()> {
    bench.turns_into(FromPod, bytes, bytes)
}

#[test]
fn a_pod_sends_as_itself() -> Result<()> {
    on_bench(|bench| {
        for family in FAMILIES {
            let (pod, remote) = (example::pod()[family], example::remote()[family]);
            bench.passes(FromPod, &own(pod, remote, tcp()))?;
            bench.passes(FromPod, &own(pod, remote, Body::echo_request(&pod, 1)))?;
        }
        arp_passes(bench, &arp(example::mac(), [10, 88, 0, 2]))?;
        arp_passes(bench, &arp(example::mac(), [0; 4]))
    })
}

/// behaviour R8: a pod may have several addresses of a family.
#[test]
fn a_pod_sends_as_itself_by_every_address_that_it_has() -> Result<()> {
    let further = [Address::v4([10, 88, 1, 2]), v6("fd00:88:1::2")];
    let (nobody, link, all) = (v6("::"), v6("fe80::2"), v6("ff02::1"));
    let about = |icmp_type| discovery(icmp_type, further[1]);
    let frames = [
        own(further[0], example::remote()[0], tcp()),
        own(further[1], example::remote()[1], tcp()),
        own(nobody, all, about(135)),
        own(link, all, about(136)),
    ];
    let request = arp(example::mac(), [10, 88, 1, 2]);
    on_bench(|bench| {
        bench.change(|world| {
            for (first, address) in example::pod().into_iter().zip(further) {
                let endpoint = world.endpoints[&first];
                world.endpoints.insert(address, endpoint);
            }
        })?;
        for frame in &frames {
            bench.passes(FromPod, frame)?;
        }
        arp_passes(bench, &request)?;
        // The next pod in that slot has not got them.
        bench.change(|world| world.pods[example::POD as usize].generation += 1)?;
        for frame in &frames {
            bench.drops(FromPod, frame, DropReason::SpoofedAddress)?;
        }
        bench.drops_bytes(FromPod, &request, DropReason::SpoofedAddress)
    })
}

/// Row 68: an address that is lent by DHCP is asked for, and later again, from no address.
#[test]
fn a_pod_asks_for_its_address_from_none() -> Result<()> {
    on_bench(|bench| {
        let (nobody, everybody) = (Address::v4([0; 4]), Address::v4([255; 4]));
        let asks = |source, to| Body::Udp(source, to, b"discover".to_vec());
        bench.passes(FromPod, &own(nobody, everybody, asks(68, 67)))?;
        bench.passes(FromPod, &own(nobody, example::node()[0], asks(68, 67)))?;
        for body in [asks(67, 68), asks(68, 53), tcp()] {
            let forged = own(nobody, everybody, body);
            bench.drops(FromPod, &forged, DropReason::SpoofedAddress)?;
        }
        Ok(())
    })
}

/// What one pod sends to the other by its own address, in both families: dropped by the policy of both, or not.
fn is_apart(bench: &mut Bench, flags: [u32; 2], networks: [u32; 2], apart: bool) -> Result<()> {
    bench.change(|world| {
        for (index, slot) in [example::POD, example::OTHER_POD].into_iter().enumerate() {
            let pod = &mut world.pods[slot as usize];
            pod.flags &= !(EndpointFlags::SAME_BRIDGE | EndpointFlags::INGRESS_ISOLATED);
            pod.flags |= flags[index];
            pod.network = networks[index];
        }
    })?;
    for family in FAMILIES {
        let (pod, other) = (example::pod()[family], example::other_pod()[family]);
        for body in [tcp(), Body::echo_request(&pod, 1)] {
            let frame = own(pod, other, body);
            if apart {
                bench.drops(FromPod, &frame, DropReason::IngressPolicy)?;
            } else {
                bench.passes(FromPod, &frame)?;
            }
        }
    }
    Ok(())
}

/// behaviour R17
#[test]
fn pods_are_apart_by_the_policy_of_both() -> Result<()> {
    let same = EndpointFlags::SAME_BRIDGE;
    let alone = same | EndpointFlags::INGRESS_ISOLATED;
    let cases = [
        ([same, same], true, false),
        ([same, alone], true, false),
        ([alone, alone], true, true),
        ([0, alone], false, false),
        ([alone, 0], false, false),
    ];
    // Each in tables of its own: a flow that was opened goes on, whatever the policy is by then.
    for (flags, of_two_bridges, of_one) in cases {
        on_bench(|bench| is_apart(bench, flags, [77, 78], of_two_bridges))?;
        on_bench(|bench| is_apart(bench, flags, [77, 77], of_one))?;
    }
    Ok(())
}

#[test]
fn a_pod_does_not_send_as_anybody_else() -> Result<()> {
    on_bench(|bench| {
        let other_mac = Mac::new([2, 0, 0, 0, 0, 3]);
        for family in FAMILIES {
            let (pod, remote) = (example::pod()[family], example::remote()[family]);
            let stolen = own(pod, remote, tcp()).sent_by(other_mac);
            bench.drops(FromPod, &stolen, DropReason::SpoofedMac)?;
            for source in [example::other_pod(), example::node(), example::remote()] {
                let forged = own(source[family], remote, tcp());
                bench.drops(FromPod, &forged, DropReason::SpoofedAddress)?;
            }
        }
        let request = arp(other_mac, [10, 88, 0, 2]);
        bench.drops_bytes(FromPod, &request, DropReason::SpoofedMac)?;
        let request = arp(example::mac(), [10, 88, 0, 1]);
        bench.drops_bytes(FromPod, &request, DropReason::SpoofedAddress)?;
        bench.drops_bytes(FromPod, &request[..30], DropReason::Malformed)
    })
}

#[test]
fn a_pod_discovers_its_neighbours_but_is_no_router() -> Result<()> {
    on_bench(|bench| {
        let (pod, link) = (example::pod()[1], v6("fe80::2"));
        let (nobody, all) = (v6("::"), v6("ff02::1"));
        let solicited = v6("ff02::1:ff00:2");
        let allowed = [
            (nobody, solicited, discovery(135, pod)),
            (nobody, solicited, discovery(135, link)),
            (pod, solicited, discovery(135, v6("fd00:88::1"))),
            (link, all, discovery(136, pod)),
            (link, v6("ff02::16"), discovery(143, nobody)),
            (link, v6("fe80::1"), Body::echo_request(&pod, 1)),
            (
                link,
                v6("ff02::fb"),
                Body::Udp(5353, 5353, b"mdns".to_vec()),
            ),
        ];
        for (source, destination, body) in allowed {
            bench.passes(FromPod, &own(source, destination, body))?;
        }
        let other = example::other_pod()[1];
        let forged = [
            (nobody, solicited, discovery(135, other)),
            (link, all, discovery(136, other)),
            (pod, all, discovery(134, nobody)),
            (link, all, discovery(134, nobody)),
            (link, v6("fe80::1"), discovery(137, pod)),
            (link, example::remote()[1], tcp()),
            (nobody, example::remote()[1], tcp()),
        ];
        for (source, destination, body) in forged {
            let frame = own(source, destination, body);
            bench.drops(FromPod, &frame, DropReason::SpoofedAddress)?;
        }
        Ok(())
    })
}

#[test]
fn martians_are_dropped_even_from_pods_that_are_not_checked() -> Result<()> {
    on_bench(|bench| {
        bench.change(|world| {
            world.pods[example::POD as usize].flags &= !EndpointFlags::SPOOF_CHECK;
        })?;
        let (pod, remote) = (example::pod(), example::remote());
        let martians = [
            (Address::v4([127, 0, 0, 1]), remote[0]),
            (pod[0], Address::v4([127, 1, 2, 3])),
            (Address::v4([224, 0, 0, 1]), remote[0]),
            (v6("::1"), remote[1]),
            (pod[1], v6("::1")),
            (v6("ff02::1"), remote[1]),
            (pod[1], v6("::2").mapped()),
        ];
        for (source, destination) in martians {
            let frame = own(source, destination, tcp());
            bench.drops(FromPod, &frame, DropReason::Martian)?;
        }
        // Anything else is that pod's own affair.
        let stranger = own(example::other_pod()[0], remote[0], tcp());
        bench.passes(FromPod, &stranger.sent_by(Mac::new([2, 9, 9, 9, 9, 9])))
    })
}

/// An IPv4 address in the clothes of IPv6.
trait Mapped {
    fn mapped(self) -> Self;
}

impl Mapped for Address {
    fn mapped(self) -> Self {
        let [_, _, _, last] = self.words();
        Self::from_v4_word(last)
    }
}

#[test]
fn frames_cut_short_are_dropped() -> Result<()> {
    on_bench(|bench| {
        for family in FAMILIES {
            let (pod, remote) = (example::pod()[family], example::remote()[family]);
            let bytes = own(pod, remote, tcp()).bytes();
            for missing in [1, 5, 20] {
                let cut = &bytes[..bytes.len() - missing];
                bench.drops_bytes(FromPod, cut, DropReason::Malformed)?;
            }
        }
        Ok(())
    })
}

#[test]
fn a_pods_traffic_is_counted_from_the_ip_header_on() -> Result<()> {
    on_bench(|bench| {
        let (pod, remote) = (example::pod()[0], example::remote()[0]);
        let out = own(pod, remote, tcp());
        let length = out.bytes().len() as u64 - 14;
        for _ in 0..3 {
            bench.passes(FromPod, &out)?;
        }
        let forged = own(example::other_pod()[0], remote, tcp());
        bench.drops(FromPod, &forged, DropReason::SpoofedAddress)?;
        let back = Frame::new(remote, pod, tcp());
        bench.passes(ToPod, &back)?;
        let egress = bench.counters(example::POD, Direction::Egress)?;
        assert_eq!((egress.packets, egress.bytes), (3, 3 * length));
        assert_eq!((egress.dropped_packets, egress.dropped_bytes), (1, length));
        let ingress = bench.counters(example::POD, Direction::Ingress)?;
        assert_eq!((ingress.packets, ingress.bytes), (1, length));
        Ok(())
    })
}

#[test]
fn interfaces_that_are_no_pods_are_left_alone() -> Result<()> {
    on_bench(|bench| {
        let world = &mut bench.simulator.world;
        world.interfaces.clear();
        bench
            .object
            .remove::<4, 8>(abi::maps::INTERFACES, &example::INTERFACE)?;
        let frame = own(example::remote()[0], example::node()[0], tcp());
        bench.passes(FromPod, &frame)?;
        bench.passes(ToPod, &frame)?;
        assert!(bench.drop_counts()?.is_empty());
        Ok(())
    })
}

//! The programs on a pod's veth: spoof checks, ingress policy, counters.

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

/// The link-local address of the first pod.
fn own_link_local() -> Address {
    verdict::address::link_local_of(example::mac())
}

/// Neighbour discovery for `target`.
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
fn packets_with_the_pods_own_addresses_pass() -> Result<()> {
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
fn packets_with_any_assigned_address_of_the_pod_pass() -> Result<()> {
    let additional = [Address::v4([10, 88, 1, 2]), v6("fd00:88:1::2")];
    let (unspecified, link, all) = (v6("::"), own_link_local(), v6("ff02::1"));
    let about = |icmp_type| discovery(icmp_type, additional[1]);
    let frames = [
        own(additional[0], example::remote()[0], tcp()),
        own(additional[1], example::remote()[1], tcp()),
        own(unspecified, all, about(135)),
        own(link, all, about(136)),
    ];
    let request = arp(example::mac(), [10, 88, 1, 2]);
    on_bench(|bench| {
        bench.change(|world| {
            for (first, address) in example::pod().into_iter().zip(additional) {
                let endpoint = world.endpoints[&first];
                world.endpoints.insert(address, endpoint);
            }
        })?;
        for frame in &frames {
            bench.passes(FromPod, frame)?;
        }
        arp_passes(bench, &request)?;
        // The next pod in that slot does not have these addresses.
        bench.change(|world| world.pods[example::POD as usize].generation += 1)?;
        for frame in &frames {
            bench.drops(FromPod, frame, DropReason::SpoofedAddress)?;
        }
        bench.drops_bytes(FromPod, &request, DropReason::SpoofedAddress)
    })
}

/// DHCP clients request and renew a lease from the unspecified address.
#[test]
fn dhcp_requests_pass_without_a_source_address() -> Result<()> {
    on_bench(|bench| {
        let (unspecified, broadcast) = (Address::v4([0; 4]), Address::v4([255; 4]));
        let dhcp = |source, to| Body::Udp(source, to, b"discover".to_vec());
        bench.passes(FromPod, &own(unspecified, broadcast, dhcp(68, 67)))?;
        bench.passes(FromPod, &own(unspecified, example::node()[0], dhcp(68, 67)))?;
        for body in [dhcp(67, 68), dhcp(68, 53), tcp()] {
            let forged = own(unspecified, broadcast, body);
            bench.drops(FromPod, &forged, DropReason::SpoofedAddress)?;
        }
        Ok(())
    })
}

/// Asserts that packets of one pod to the other's own address are dropped by the ingress policy, or
/// pass, in both families.
fn assert_isolation(
    bench: &mut Bench,
    flags: [u32; 2],
    networks: [u32; 2],
    isolated: bool,
) -> Result<()> {
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
            if isolated {
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
fn ingress_policy_depends_on_the_flags_of_both_pods() -> Result<()> {
    let same = EndpointFlags::SAME_BRIDGE;
    let alone = same | EndpointFlags::INGRESS_ISOLATED;
    let cases = [
        ([same, same], true, false),
        ([same, alone], true, false),
        ([alone, alone], true, true),
        ([0, alone], false, false),
        ([alone, 0], false, false),
    ];
    // Each case has its own tables: an established flow continues whatever the policy becomes.
    for (flags, of_two_bridges, of_one) in cases {
        on_bench(|bench| assert_isolation(bench, flags, [77, 78], of_two_bridges))?;
        on_bench(|bench| assert_isolation(bench, flags, [77, 77], of_one))?;
    }
    Ok(())
}

#[test]
fn packets_with_foreign_source_addresses_are_dropped() -> Result<()> {
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
        let (pod, link) = (example::pod()[1], own_link_local());
        let (unspecified, all) = (v6("::"), v6("ff02::1"));
        let solicited = v6("ff02::1:ff00:2");
        let allowed = [
            (unspecified, solicited, discovery(135, pod)),
            (unspecified, solicited, discovery(135, link)),
            (pod, solicited, discovery(135, v6("fd00:88::1"))),
            (link, all, discovery(136, pod)),
            (link, v6("ff02::16"), discovery(143, unspecified)),
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
            (unspecified, solicited, discovery(135, other)),
            (link, all, discovery(136, other)),
            (link, all, discovery(136, v6("fe80::1"))),
            (v6("fe80::1"), all, discovery(136, pod)),
            (v6("fe80::1"), all, discovery(134, unspecified)),
            (link, example::remote()[1], tcp()),
            (unspecified, example::remote()[1], tcp()),
        ];
        for (source, destination, body) in forged {
            let frame = own(source, destination, body);
            bench.drops(FromPod, &frame, DropReason::SpoofedAddress)?;
        }
        let of_routers = [
            (pod, all, discovery(134, unspecified)),
            (link, all, discovery(134, unspecified)),
            (link, v6("fe80::1"), discovery(137, pod)),
            (link, all, discovery(130, unspecified)),
        ];
        for (source, destination, body) in of_routers {
            let frame = own(source, destination, body);
            bench.drops(FromPod, &frame, DropReason::RogueRouter)?;
        }
        let offer = own(link, all, Body::Udp(547, 546, b"reply".to_vec()));
        bench.drops(FromPod, &offer, DropReason::RogueDhcp)
    })
}

/// Decision 83: the row of an adopted pod has no MAC address. Its IP addresses are checked.
#[test]
fn an_adopted_pod_sends_from_any_mac_address_and_only_from_its_own_addresses() -> Result<()> {
    on_bench(|bench| {
        bench.change(|world| {
            world.pods[example::POD as usize].mac = Mac::default();
        })?;
        let (pod, remote) = (example::pod(), example::remote());
        let other = Mac::new([2, 9, 9, 9, 9, 9]);
        for family in 0..2 {
            let frame = own(pod[family], remote[family], tcp());
            bench.passes(FromPod, &frame.sent_by(other))?;
            let forged = own(example::other_pod()[family], remote[family], tcp());
            bench.drops(FromPod, &forged.sent_by(other), DropReason::SpoofedAddress)?;
        }
        Ok(())
    })
}

#[test]
fn martians_are_dropped_even_from_pods_without_spoof_check() -> Result<()> {
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
        // Without the spoof check all other sources pass.
        let foreign = own(example::other_pod()[0], remote[0], tcp());
        bench.passes(FromPod, &foreign.sent_by(Mac::new([2, 9, 9, 9, 9, 9])))
    })
}

/// Conversion to the IPv4-mapped address of the last 32 bits.
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
fn truncated_frames_are_dropped() -> Result<()> {
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
fn packets_from_unknown_interfaces_are_dropped_and_packets_to_them_pass() -> Result<()> {
    on_bench(|bench| {
        let world = &mut bench.simulator.world;
        world.interfaces.clear();
        bench
            .object
            .remove::<4, 8>(abi::maps::INTERFACES.name, &example::INTERFACE)?;
        let frame = own(example::remote()[0], example::node()[0], tcp());
        bench.passes(ToPod, &frame)?;
        assert!(bench.drop_counts()?.is_empty());
        bench.drops(FromPod, &frame, DropReason::UnknownPod)
    })
}

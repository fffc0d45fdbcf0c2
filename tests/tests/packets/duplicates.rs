//! Duplicates that a promiscuous bridge sends to a pod (behaviours K20, K21), and similar frames
//! that are not duplicates.

use abi::{Address, Direction, DropReason, Mac, Network, SettingsFlags};
use anyhow::Result;
use verdict::simulator::Place::ToPod;
use verdict::simulator::World;
use verdict::simulator::example::{self, FAMILIES};
use verdict::simulator::frame::{Body, Frame, flag};

use crate::bench::on_bench;

/// Interface index of the bridge.
const BRIDGE: u32 = 7;

fn bridge_mac() -> Mac {
    Mac::new([2, 0, 0, 0xbb, 0xbb, 0xbb])
}

fn gateways() -> [Address; 2] {
    let v6 = std::net::Ipv6Addr::new(0xfd00, 0x88, 0, 0, 0, 0, 0, 1);
    [Address::v4([10, 88, 0, 1]), Address::v6(v6.octets())]
}

fn promiscuous(world: &mut World) {
    let [v4, v6] = gateways();
    let network = Network {
        v4,
        v6,
        mac: bridge_mac(),
        duplicates_v4: 24,
        duplicates_v6: 64,
    };
    world.networks.insert(BRIDGE, network);
    world.settings.flags = SettingsFlags::DUPLICATES;
    for slot in [example::POD, example::OTHER_POD] {
        world.pods[slot as usize].network = BRIDGE;
    }
}

fn from(source: Address, family: usize) -> Frame {
    let body = Body::Tcp(40_000, 80, flag::SYN, b"data".to_vec());
    Frame::new(source, example::pod()[family], body).sent_by(bridge_mac())
}

/// behaviour K20
#[test]
fn a_frame_with_the_bridges_mac_and_a_pods_source_is_a_duplicate() -> Result<()> {
    on_bench(|bench| {
        bench.change(promiscuous)?;
        for family in FAMILIES {
            for source in [example::other_pod()[family], example::no_pod()[family]] {
                bench.drops(ToPod, &from(source, family), DropReason::Duplicate)?;
            }
        }
        let counters = bench.counters(example::POD, Direction::Ingress)?;
        assert_eq!((counters.packets, counters.dropped_packets), (0, 4));
        Ok(())
    })
}

/// behaviour K20: the first copy has the sender's own Ethernet address.
#[test]
fn a_frame_with_the_sending_pods_mac_is_no_duplicate() -> Result<()> {
    on_bench(|bench| {
        bench.change(promiscuous)?;
        for family in FAMILIES {
            let own = Mac::new([2, 0, 0, 0, 0, 3]);
            let frame = from(example::other_pod()[family], family).sent_by(own);
            bench.passes(ToPod, &frame)?;
        }
        Ok(())
    })
}

/// behaviour K20: frames from the gateway and from addresses outside of the pods' subnets pass.
#[test]
fn frames_from_the_node_and_the_world_are_no_duplicates() -> Result<()> {
    on_bench(|bench| {
        bench.change(promiscuous)?;
        for family in FAMILIES {
            for source in [gateways(), example::remote(), example::node()] {
                bench.passes(ToPod, &from(source[family], family))?;
            }
        }
        Ok(())
    })
}

/// behaviour K21: a packet that the node routes from pod to pod looks like a duplicate, but is the
/// only copy.
#[test]
fn a_non_promiscuous_bridge_has_no_duplicates() -> Result<()> {
    on_bench(|bench| {
        bench.change(promiscuous)?;
        bench.change(|world| world.settings.flags = 0)?;
        for family in FAMILIES {
            bench.passes(ToPod, &from(example::other_pod()[family], family))?;
        }
        bench.change(promiscuous)?;
        bench.change(|world| {
            let network = world.networks.entry(BRIDGE).or_default();
            (network.duplicates_v4, network.duplicates_v6) = (0, 0);
        })?;
        for family in FAMILIES {
            bench.passes(ToPod, &from(example::other_pod()[family], family))?;
        }
        Ok(())
    })
}

/// behaviour K22: kubenet's rules were written once, and stale when the bridge got another address.
#[test]
fn duplicates_are_recognised_by_the_bridges_current_mac_address() -> Result<()> {
    on_bench(|bench| {
        bench.change(promiscuous)?;
        let other = Mac::new([2, 0, 0, 0xcc, 0xcc, 0xcc]);
        bench.change(|world| world.networks.entry(BRIDGE).or_default().mac = other)?;
        for family in FAMILIES {
            let frame = from(example::other_pod()[family], family);
            bench.passes(ToPod, &frame)?;
            bench.drops(ToPod, &frame.sent_by(other), DropReason::Duplicate)?;
        }
        Ok(())
    })
}

/// A bridge can have more subnets than its map entry holds, and pods of other bridges do not count.
#[test]
fn duplicates_of_another_subnet_are_dropped_on_their_own_bridge_only() -> Result<()> {
    on_bench(|bench| {
        bench.change(promiscuous)?;
        bench.change(|world| {
            let network = world.networks.entry(BRIDGE).or_default();
            network.v4 = Address::v4([10, 77, 0, 1]);
        })?;
        let frame = from(example::other_pod()[0], 0);
        bench.drops(ToPod, &frame, DropReason::Duplicate)?;
        bench.change(|world| world.pods[example::OTHER_POD as usize].network = BRIDGE + 1)?;
        bench.passes(ToPod, &frame)
    })
}

#[test]
fn an_arp_frame_is_no_duplicate() -> Result<()> {
    on_bench(|bench| {
        bench.change(promiscuous)?;
        let mut bytes = vec![0xff; 6];
        bytes.extend(bridge_mac().bytes());
        bytes.extend([0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1]);
        bytes.extend([0; 20]);
        bench.turns_into(ToPod, &bytes, &bytes)
    })
}

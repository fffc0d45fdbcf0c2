//! What a promiscuous bridge sends to a pod a second time (behaviours K20, K21), and what only looks like it.

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
fn what_the_bridge_sends_with_an_address_of_the_pods_is_a_duplicate() -> Result<()> {
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
fn what_pods_send_each_other_is_none() -> Result<()> {
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

/// behaviour K20: the gateway, and everybody who is no pod.
#[test]
fn what_comes_from_the_node_and_from_the_world_is_none() -> Result<()> {
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

/// behaviour K21: what the node routes from pod to pod looks the same, and is the only copy.
#[test]
fn on_a_bridge_that_is_not_promiscuous_nothing_is() -> Result<()> {
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
fn the_bridges_address_of_today_counts() -> Result<()> {
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

/// A bridge may have more subnets than its entry tells, and other bridges' pods are none of its.
#[test]
fn pods_of_another_subnet_count_on_their_own_bridge_only() -> Result<()> {
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
fn what_is_not_ip_is_none() -> Result<()> {
    on_bench(|bench| {
        bench.change(promiscuous)?;
        let mut bytes = vec![0xff; 6];
        bytes.extend(bridge_mac().bytes());
        bytes.extend([0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1]);
        bytes.extend([0; 20]);
        bench.turns_into(ToPod, &bytes, &bytes)
    })
}

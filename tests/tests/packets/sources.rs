//! Source addresses of masqueraded flows: egress addresses, removed addresses and uplinks, excluded
//! prefixes.

use abi::{Address, DropReason, Egress};
use anyhow::Result;
use verdict::simulator::Place::{UplinkIn, UplinkOut};
use verdict::simulator::example::{self, FAMILIES};
use verdict::simulator::frame::{Body, Frame};

use crate::bench::{Bench, on_bench};

const BRIDGE: u32 = 3;

fn udp(port: u16) -> Body {
    Body::Udp(port, 53, b"query".to_vec())
}

fn leaves_with(bench: &mut Bench, family: usize, port: u16, source: Address) -> Result<()> {
    let remote = example::remote()[family];
    let out = Frame::new(example::pod()[family], remote, udp(port));
    bench.becomes(UplinkOut, &out, &out.becoming(source, remote, udp(port)))
}

#[test]
fn a_networks_packets_use_its_egress_address_while_the_node_has_it() -> Result<()> {
    on_bench(|bench| {
        let fixed = [
            Address::v4([203, 0, 113, 9]),
            Address::from_words([0x0120, 0, 0, 0x0900]),
        ];
        bench.change(|world| {
            world.pods[example::POD as usize].network = BRIDGE;
            let egress = Egress::new(fixed[0], fixed[1]);
            world.egress.insert(BRIDGE, egress);
        })?;
        for family in FAMILIES {
            let out = Frame::new(
                example::pod()[family],
                example::remote()[family],
                udp(1_000),
            );
            bench.drops(UplinkOut, &out, DropReason::NoEgressAddress)?;
        }
        bench.change(|world| world.locals.extend(fixed))?;
        for family in FAMILIES {
            leaves_with(bench, family, 40_000, fixed[family])?;
            let remote = example::remote()[family];
            let reply = Frame::new(remote, fixed[family], Body::Udp(53, 40_000, vec![1]));
            let inside = reply.becoming(remote, example::pod()[family], reply.body.clone());
            bench.becomes(UplinkIn, &reply, &inside)?;
        }
        // A family without an egress address uses the uplink's.
        bench.change(|world| {
            let egress = world.egress.get_mut(&BRIDGE).expect("it was there");
            egress.v6 = Address::ANY;
        })?;
        leaves_with(bench, 1, 41_000, example::node()[1])?;
        leaves_with(bench, 0, 41_000, fixed[0])
    })
}

#[test]
fn a_sweep_removes_only_the_flows_of_a_removed_address() -> Result<()> {
    on_bench(|bench| {
        for family in FAMILIES {
            leaves_with(bench, family, 40_000, example::node()[family])?;
        }
        assert_eq!(bench.sweep()?.address_gone, 0);
        let new = Address::v4([192, 0, 2, 2]);
        bench.change(|world| {
            world.locals.remove(&example::node()[0]);
            world.locals.insert(new);
            for uplink in world.uplinks.values_mut() {
                uplink.sources[0].address = new;
            }
        })?;
        let swept = bench.sweep()?;
        assert_eq!((swept.address_gone, swept.kept), (1, 2));
        leaves_with(bench, 0, 40_000, new)
    })
}

#[test]
fn a_sweep_removes_the_flows_of_a_removed_uplink() -> Result<()> {
    on_bench(|bench| {
        leaves_with(bench, 0, 40_000, example::node()[0])?;
        bench.change(|world| world.uplinks.clear())?;
        assert_eq!(bench.sweep()?.address_gone, 1);
        assert!(bench.flows()?.is_empty());
        Ok(())
    })
}

/// A new non-masquerade prefix applies to new flows; established flows keep their mapping.
#[test]
fn flows_keep_their_mapping_when_masquerading_is_switched_off() -> Result<()> {
    on_bench(|bench| {
        for family in FAMILIES {
            leaves_with(bench, family, 40_000, example::node()[family])?;
        }
        bench.change(|world| {
            let everything = abi::PrefixKey {
                prefix_len: 96,
                address: Address::v4([0; 4]),
            };
            world
                .prefixes
                .insert(everything, abi::PrefixClass::NO_MASQUERADE);
        })?;
        leaves_with(bench, 0, 40_000, example::node()[0])?;
        leaves_with(bench, 0, 41_000, example::pod()[0])?;
        // IPv6 is not covered by the prefix.
        leaves_with(bench, 1, 41_000, example::node()[1])
    })
}

/// A flow to a hostport is not masqueraded, so it outlives the uplink by which it entered.
#[test]
fn flows_to_a_hostport_outlive_an_uplink() -> Result<()> {
    on_bench(|bench| {
        let (client, node, pod) = (example::remote()[0], example::node()[0], example::pod()[0]);
        let body = |port| Body::Udp(50_123, port, b"x".to_vec());
        let query = Frame::new(client, node, body(example::HOSTPORT));
        let inside = query.becoming(client, pod, body(example::POD_PORT));
        bench.becomes(UplinkIn, &query, &inside)?;
        bench.change(|world| world.uplinks.clear())?;
        assert_eq!(bench.sweep()?.kept, 2);
        Ok(())
    })
}

#[test]
fn a_new_owner_of_an_address_and_a_slot_inherits_no_flow_and_no_count() -> Result<()> {
    on_bench(|bench| {
        for family in FAMILIES {
            leaves_with(bench, family, 40_000, example::node()[family])?;
        }
        bench.change(|world| {
            let pod = &mut world.pods[example::POD as usize];
            pod.generation += 1;
            let generation = pod.generation;
            for endpoint in world.endpoints.values_mut() {
                if endpoint.pod == example::POD {
                    endpoint.generation = generation;
                }
            }
        })?;
        for family in FAMILIES {
            let (remote, node) = (example::remote()[family], example::node()[family]);
            let late = Frame::new(remote, node, Body::Udp(53, 40_000, b"late".to_vec()));
            bench.passes(UplinkIn, &late)?;
        }
        assert!(bench.flows()?.is_empty());
        assert_eq!(bench.live(example::POD)?, 0);
        leaves_with(bench, 0, 40_000, example::node()[0])?;
        assert_eq!(bench.live(example::POD)?, 1);
        Ok(())
    })
}

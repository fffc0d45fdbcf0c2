//! Eviction in the flow table: quotas, the clock hand, and the order of eviction in a full table.

use std::time::{Duration, Instant};

use abi::{Address, Direction, DropReason, maps};
use anyhow::{Result, ensure};
use e2e::until;
use verdict::simulator::Place::{UplinkIn, UplinkOut};
use verdict::simulator::example::{self, OTHER_POD, POD};
use verdict::simulator::frame::{Body, Frame, flag};

use crate::bench::{Bench, on_bench};
use crate::expect::on_small_bench;

/// After this time without packets, a flow without a reply is idle (`MIN_IDLE` of the verdicts).
const IDLE: Duration = Duration::from_secs(5);

fn address(pod: u32) -> Address {
    if pod == POD {
        example::pod()[0]
    } else {
        example::other_pod()[0]
    }
}

fn query(pod: u32, port: u16) -> Frame {
    Frame::new(address(pod), example::remote()[0], body(port))
}

fn body(port: u16) -> Body {
    Body::Udp(port, 53, b"query".to_vec())
}

fn opens(bench: &mut Bench, pod: u32, port: u16) -> Result<()> {
    let out = query(pod, port);
    let wire = out.becoming(example::node()[0], example::remote()[0], body(port));
    bench.becomes(UplinkOut, &out, &wire)
}

/// Runs a test with a flow table of 40 entries. Flows without a reply that are idle give way first,
/// so a run that fails after that time says nothing, and is repeated.
fn while_flows_are_young(test: impl Fn(&mut Bench) -> Result<()> + Sync) -> Result<()> {
    until("the test ends before its flows are idle", || {
        let mut took = Duration::ZERO;
        let ended = on_small_bench(40, |bench| {
            let begun = Instant::now();
            let ended = test(bench);
            took = begun.elapsed();
            ended
        });
        if ended.is_err() && took >= IDLE {
            return Ok(None);
        }
        ended.map(Some)
    })
}

/// Opens a TCP connection of a pod.
fn connects(bench: &mut Bench, slot: u32, port: u16) -> Result<()> {
    let pod = address(slot);
    let (node, remote) = (example::node()[0], example::remote()[0]);
    let request = |flags| Body::Tcp(port, 443, flags, vec![]);
    for (flags, is_reply) in [
        (flag::SYN, false),
        (flag::SYN | flag::ACK, true),
        (flag::ACK, false),
    ] {
        if is_reply {
            let reply = Frame::new(remote, node, Body::Tcp(443, port, flags, vec![]));
            let inside = reply.becoming(remote, pod, reply.body.clone());
            bench.becomes(UplinkIn, &reply, &inside)?;
        } else {
            let out = Frame::new(pod, remote, request(flags));
            let wire = out.becoming(node, remote, request(flags));
            bench.becomes(UplinkOut, &out, &wire)?;
        }
    }
    Ok(())
}

fn dialled(port: u16) -> Frame {
    let (client, node) = (example::remote()[0], example::node()[0]);
    let body = Body::Udp(port, example::HOSTPORT, b"x".to_vec());
    Frame::new(client, node, body)
}

/// The compiler silently turns a relaxed atomic addition whose result is used into one that returns
/// no usable result. Quotas would then never be reached, or all at once.
#[test]
fn a_flow_quota_is_exact_and_per_pod() -> Result<()> {
    on_bench(|bench| {
        bench.change(|world| world.settings.flow_quota = 5)?;
        for port in 0..5 {
            connects(bench, POD, 40_000 + port)?;
        }
        for port in 5..8 {
            bench.drops(UplinkOut, &query(POD, 40_000 + port), DropReason::FlowQuota)?;
        }
        opens(bench, OTHER_POD, 41_000)?;
        bench.change(|world| world.pods[POD as usize].flow_quota = 6)?;
        connects(bench, POD, 40_005)?;
        bench.drops(UplinkOut, &query(POD, 40_006), DropReason::FlowQuota)?;
        assert_eq!((bench.live(POD)?, bench.live(OTHER_POD)?), (6, 1));
        Ok(())
    })
}

/// Flows without an answer are evicted for new ones at the quota, so that none is refused. Those
/// that clients outside open have a quota of their own.
#[test]
fn unanswered_flows_give_way_at_the_quota_of_those_who_open_them() -> Result<()> {
    on_bench(|bench| {
        bench.change(|world| world.settings.flow_quota = 5)?;
        for port in 0..20 {
            opens(bench, POD, 40_000 + port)?;
            let frame = dialled(50_000 + port);
            let inside = Body::Udp(50_000 + port, example::POD_PORT, b"x".to_vec());
            let inside = frame.becoming(example::remote()[0], example::pod()[0], inside);
            bench.becomes(UplinkIn, &frame, &inside)?;
        }
        let outside = maps::OUTSIDE_ACCOUNTS + POD;
        assert_eq!((bench.live(POD)?, bench.live(outside)?), (5, 5));
        bench.change(|world| world.settings.timeouts.udp_single = 0)?;
        bench.sweep()?;
        assert_eq!((bench.live(POD)?, bench.live(outside)?), (0, 0));
        Ok(())
    })
}

#[test]
fn timed_out_flows_are_evicted_without_a_sweep() -> Result<()> {
    on_small_bench(200, |bench| {
        bench.change(|world| world.settings.timeouts.udp_single = 0)?;
        for port in 0..1_000 {
            opens(bench, POD, 40_000 + port)?;
        }
        let live = bench.live(POD)?;
        ensure!(live < 5, "{live} flows are left");
        bench.flows()?;
        Ok(())
    })
}

#[test]
fn a_full_flow_table_evicts_unreplied_flows_of_the_largest_pod() -> Result<()> {
    while_flows_are_young(|bench| {
        for port in 0..20 {
            opens(bench, POD, 41_000 + port)?;
        }
        let (node, remote) = (example::node()[0], example::remote()[0]);
        let reply = Frame::new(remote, node, Body::Udp(53, 41_018, b"x".to_vec()));
        let inside = reply.becoming(remote, example::pod()[0], reply.body.clone());
        bench.becomes(UplinkIn, &reply, &inside)?;
        for port in 0..10 {
            opens(bench, OTHER_POD, 42_000 + port)?;
        }
        let flows = [bench.live(POD)?, bench.live(OTHER_POD)?];
        assert_eq!(flows, [10, 10]);
        for port in 10..20 {
            opens(bench, OTHER_POD, 42_000 + port)?;
        }
        let flows = [bench.live(POD)?, bench.live(OTHER_POD)?];
        assert_eq!(flows, [10, 10], "it takes its own places only");
        let counters = bench.counters(POD, Direction::Egress)?;
        assert_eq!(counters.evicted_flows, 10);
        bench.becomes(UplinkIn, &reply, &inside)
    })
}

/// Established connections of one pod fill the table, and give way to those of another one until
/// both have about as many.
#[test]
fn a_full_flow_table_evicts_connections_of_the_greediest_pod() -> Result<()> {
    on_small_bench(40, |bench| {
        for port in 0..20 {
            connects(bench, POD, 41_000 + port)?;
        }
        bench.drops(UplinkOut, &query(POD, 43_000), DropReason::FlowTableFull)?;
        for port in 0..9 {
            connects(bench, OTHER_POD, 42_000 + port)?;
        }
        assert_eq!((bench.live(POD)?, bench.live(OTHER_POD)?), (11, 9));
        Ok(())
    })
}

/// A flood of one pod, by the compiled programs alone: other pods can still open flows.
#[test]
fn a_syn_flood_of_one_pod_leaves_room_for_another() -> Result<()> {
    on_small_bench(4_096, |bench| {
        let (remote, syn) = (example::remote()[0], flag::SYN);
        let tcp = |pod, port| Frame::new(pod, remote, Body::Tcp(port, 443, syn, vec![]));
        bench.change(|world| {
            world.settings.flow_quota = 512;
            world.settings.port_low = 1_024;
            world.settings.port_high = u16::MAX;
        })?;
        for port in 1_024..9_000 {
            let frame = tcp(example::pod()[0], port).bytes();
            bench.object.run_on("uplink_out", bench.interface, &frame)?;
        }
        assert_eq!(bench.object.get::<8, u64>(maps::LIVE.name, POD)?, 512);
        for port in 20_000..20_500 {
            let frame = tcp(example::other_pod()[0], port).bytes();
            let (action, _) = bench.object.run_on("uplink_out", bench.interface, &frame)?;
            assert_eq!(action, crate::object::NEXT);
        }
        Ok(())
    })
}

/// By the compiled programs alone, since they choose the ports at random.
#[test]
fn a_pod_that_has_taken_all_ports_leaves_some_to_others() -> Result<()> {
    on_small_bench(4_096, |bench| {
        bench.change(|world| {
            world.settings.port_low = 50_000;
            world.settings.port_high = 50_111;
        })?;
        for (pod, ports) in [(POD, 50_000..=50_111), (OTHER_POD, 50_000..=50_009)] {
            for port in ports {
                let frame = query(pod, port).bytes();
                let (action, _) = bench.object.run_on("uplink_out", bench.interface, &frame)?;
                assert_eq!(action, crate::object::NEXT, "pod {pod}, port {port}");
            }
        }
        let flows = [POD, OTHER_POD].map(|pod| bench.object.get::<8, u64>(maps::LIVE.name, pod));
        let [first, other] = flows;
        assert_eq!((first?, other?), (102, 10));
        Ok(())
    })
}

//! Eviction in the flow table: quotas, the clock hand, and the order of eviction in a full table.

use abi::{Direction, DropReason, maps};
use anyhow::{Result, ensure};
use verdict::simulator::Place::{UplinkIn, UplinkOut};
use verdict::simulator::example::{self, OTHER_POD, POD};
use verdict::simulator::frame::{Body, Frame};

use crate::bench::{Bench, on_bench};
use crate::expect::on_small_bench;

fn query(pod: u32, port: u16) -> Frame {
    let source = if pod == POD {
        example::pod()[0]
    } else {
        example::other_pod()[0]
    };
    Frame::new(source, example::remote()[0], body(port))
}

fn body(port: u16) -> Body {
    Body::Udp(port, 53, b"query".to_vec())
}

fn opens(bench: &mut Bench, pod: u32, port: u16) -> Result<()> {
    let out = query(pod, port);
    let wire = out.becoming(example::node()[0], example::remote()[0], body(port));
    bench.becomes(UplinkOut, &out, &wire)
}

/// The compiler silently turns a relaxed atomic addition whose result is used into one that returns
/// no usable result. Quotas would then never be reached, or all at once.
#[test]
fn a_flow_quota_is_exact_and_per_pod() -> Result<()> {
    on_bench(|bench| {
        bench.change(|world| world.settings.flow_quota = 5)?;
        for port in 0..5 {
            opens(bench, POD, 40_000 + port)?;
        }
        for port in 5..8 {
            bench.drops(UplinkOut, &query(POD, 40_000 + port), DropReason::FlowQuota)?;
        }
        opens(bench, POD, 40_004)?;
        opens(bench, OTHER_POD, 41_000)?;
        bench.change(|world| world.pods[POD as usize].flow_quota = 6)?;
        opens(bench, POD, 40_005)?;
        bench.drops(UplinkOut, &query(POD, 40_006), DropReason::FlowQuota)?;
        assert_eq!((bench.live(POD)?, bench.live(OTHER_POD)?), (6, 1));
        // Flows to the pod count as well.
        let (client, node) = (example::remote()[0], example::node()[0]);
        let dialled = Body::Udp(50_123, example::HOSTPORT, b"x".to_vec());
        let frame = Frame::new(client, node, dialled);
        bench.drops(UplinkIn, &frame, DropReason::FlowQuota)?;
        bench.change(|world| world.settings.timeouts.udp_single = 0)?;
        bench.sweep()?;
        assert_eq!((bench.live(POD)?, bench.live(OTHER_POD)?), (0, 0));
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
    on_small_bench(40, |bench| {
        for port in 0..19 {
            opens(bench, POD, 41_000 + port)?;
        }
        let (node, remote) = (example::node()[0], example::remote()[0]);
        let reply = Frame::new(remote, node, Body::Udp(53, 41_018, b"x".to_vec()));
        let inside = reply.becoming(remote, example::pod()[0], reply.body.clone());
        bench.becomes(UplinkIn, &reply, &inside)?;
        opens(bench, OTHER_POD, 42_000)?;
        bench.drops(UplinkOut, &query(POD, 43_000), DropReason::FlowTableFull)?;
        for port in 1..10 {
            opens(bench, OTHER_POD, 42_000 + port)?;
        }
        bench.drops(
            UplinkOut,
            &query(OTHER_POD, 42_999),
            DropReason::FlowTableFull,
        )?;
        assert_eq!((bench.live(POD)?, bench.live(OTHER_POD)?), (10, 10));
        let counters = bench.counters(POD, Direction::Egress)?;
        assert_eq!(counters.evicted_flows, 9);
        bench.becomes(UplinkIn, &reply, &inside)
    })
}

/// A flood of one pod, by the compiled programs alone: other pods can still open flows.
#[test]
fn a_syn_flood_of_one_pod_leaves_room_for_another() -> Result<()> {
    on_small_bench(4_096, |bench| {
        let (remote, syn) = (example::remote()[0], verdict::simulator::frame::flag::SYN);
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
        assert_eq!(bench.object.get::<8, u64>(maps::LIVE, POD)?, 512);
        for port in 20_000..20_500 {
            let frame = tcp(example::other_pod()[0], port).bytes();
            let (action, _) = bench.object.run_on("uplink_out", bench.interface, &frame)?;
            assert_eq!(action, crate::object::NEXT);
        }
        Ok(())
    })
}

//! The sweep: removal of idle and stale flows.

use abi::DropReason;
use anyhow::Result;
use verdict::simulator::Place::{UplinkIn, UplinkOut};
use verdict::simulator::example::{self, FAMILIES};
use verdict::simulator::frame::{Body, Frame};

use crate::bench::{Bench, on_bench};
use crate::expect::on_small_bench;

fn open_flows(bench: &mut Bench) -> Result<()> {
    for family in FAMILIES {
        for (pod, port) in [(example::pod(), 40_000), (example::other_pod(), 41_000)] {
            let (node, remote) = (example::node()[family], example::remote()[family]);
            let body = Body::Udp(port, 53, b"query".to_vec());
            let out = Frame::new(pod[family], remote, body.clone());
            bench.becomes(UplinkOut, &out, &out.becoming(node, remote, body))?;
        }
    }
    Ok(())
}

#[test]
fn a_sweep_keeps_flows_that_are_alive() -> Result<()> {
    on_bench(|bench| {
        open_flows(bench)?;
        let swept = bench.sweep()?;
        assert_eq!((swept.kept, swept.timed_out, swept.stale), (8, 0, 0));
        assert_eq!(bench.flows()?.len(), 8);
        Ok(())
    })
}

#[test]
fn a_sweep_removes_idle_flows() -> Result<()> {
    on_bench(|bench| {
        open_flows(bench)?;
        bench.change(|world| world.settings.timeouts.udp_single = 0)?;
        let swept = bench.sweep()?;
        assert_eq!((swept.kept, swept.timed_out, swept.stale), (0, 4, 0));
        assert!(bench.flows()?.is_empty());
        Ok(())
    })
}

#[test]
fn a_sweep_removes_flows_of_deleted_pods() -> Result<()> {
    on_bench(|bench| {
        open_flows(bench)?;
        bench.change(|world| world.pods[example::POD as usize].generation += 1)?;
        let swept = bench.sweep()?;
        assert_eq!((swept.kept, swept.timed_out, swept.stale), (4, 0, 2));
        let left = bench.flows()?;
        assert!(left.values().all(|flow| flow.pod == example::OTHER_POD));
        Ok(())
    })
}

/// In a table with two buckets every other flow has both entries in one bucket: the walk has
/// already read the second entry when it removes it together with the first.
#[test]
fn a_sweep_counts_a_flow_once_wherever_its_entries_are() -> Result<()> {
    on_small_bench(2, |bench| {
        let (node, remote) = (example::node()[0], example::remote()[0]);
        for port in 40_000..40_032 {
            let body = Body::Udp(port, 53, b"query".to_vec());
            let out = Frame::new(example::pod()[0], remote, body.clone());
            bench.becomes(UplinkOut, &out, &out.becoming(node, remote, body))?;
            bench.change(|world| {
                let pod = &mut world.pods[example::POD as usize];
                pod.generation += 1;
                let generation = pod.generation;
                let endpoint = world.endpoints.get_mut(&example::pod()[0]);
                endpoint.expect("the pod's").generation = generation;
            })?;
            let swept = bench.sweep()?;
            assert_eq!((swept.kept, swept.timed_out, swept.stale), (0, 0, 1));
        }
        Ok(())
    })
}

#[test]
fn packets_of_a_freed_pod_slot_are_dropped() -> Result<()> {
    on_bench(|bench| {
        open_flows(bench)?;
        bench.change(|world| world.pods[example::POD as usize].interface = 0)?;
        let body = Body::Udp(42_000, 53, b"query".to_vec());
        let late = Frame::new(example::pod()[0], example::remote()[0], body);
        bench.drops(UplinkOut, &late, DropReason::UnknownPod)?;
        let body = Body::Udp(42_000, example::HOSTPORT, b"query".to_vec());
        let client = Frame::new(example::remote()[0], example::node()[0], body);
        bench.drops(UplinkIn, &client, DropReason::StaleGeneration)?;
        let swept = bench.sweep()?;
        assert_eq!((swept.kept, swept.timed_out, swept.stale), (4, 0, 2));
        Ok(())
    })
}

#[test]
fn a_new_flow_takes_the_port_of_a_timed_out_flow() -> Result<()> {
    on_bench(|bench| {
        open_flows(bench)?;
        bench.change(|world| world.settings.timeouts.udp_single = 0)?;
        for family in FAMILIES {
            // The second pod uses the first pod's port.
            let (node, remote) = (example::node()[family], example::remote()[family]);
            let body = Body::Udp(40_000, 53, b"query".to_vec());
            let out = Frame::new(example::other_pod()[family], remote, body.clone());
            bench.becomes(UplinkOut, &out, &out.becoming(node, remote, body))?;
        }
        let pods = bench.flows()?;
        assert_eq!(pods.len(), 8);
        assert!(pods.values().all(|flow| flow.pod == example::OTHER_POD));
        Ok(())
    })
}

#[test]
fn the_clock_hand_evicts_timed_out_flows() -> Result<()> {
    on_bench(|bench| {
        bench.change(|world| world.settings.timeouts.udp_single = 0)?;
        open_flows(bench)?;
        assert!(bench.flows()?.is_empty());
        Ok(())
    })
}

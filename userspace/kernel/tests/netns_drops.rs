//! Dropped packets: counters by pod and reason, and reports while the agent listens.

mod support;

use std::time::Duration;

use aya::maps::{Map, MapData, RingBuf};
use kernel::{DropReader, Kernel};
use support::*;
use tokio::runtime::Builder;
use tokio::time::timeout;

#[test]
fn drops_are_counted_by_pod_and_reason_and_another_pod_of_the_slot_starts_with_zeros() {
    on_a_node(|node| {
        let mut host = node.host();
        let netns = node.add_netns("pod");
        let attachment = attachment(&netns, 2);
        execute(&mut host, &bridge_steps());
        execute(&mut host, &pod_steps(&attachment));
        execute(&mut host, &entry_steps(&attachment));
        run_in(&netns, "ip link set eth0 address 02:00:00:00:00:77");
        assert!(!succeeds(&format!(
            "nsenter --net={} ping -q -c 1 -W 1 10.88.0.1",
            netns.path
        )));
        run_in(&netns, "ip link set eth0 down");
        let measured = host.measure().unwrap();
        let drops = &measured.pod_drops[&2];
        let pod = &measured.pods[&2];
        assert!(
            drops.contains_key(&abi::DropReason::SpoofedMac),
            "{drops:?}"
        );
        let counted = pod.egress.dropped_packets + pod.ingress.dropped_packets;
        assert_eq!(drops.values().sum::<u64>(), counted, "{measured:?}");
        let next = model::Attachment {
            generation: attachment.generation + 1,
            ..attachment
        };
        execute(&mut host, &entry_steps(&next));
        let measured = host.measure().unwrap();
        assert!(measured.pod_drops[&2].is_empty(), "{measured:?}");
        assert_eq!(measured.pods[&2], kernel::PodCounters::default());
    });
}

#[test]
fn dropped_packets_are_reported_only_while_the_agent_listens() {
    on_a_node(|node| {
        let mut host = node.host();
        let netns = node.add_netns("pod");
        let attachment = attachment(&netns, 2);
        execute(&mut host, &bridge_steps());
        execute(&mut host, &pod_steps(&attachment));
        execute(&mut host, &entry_steps(&attachment));
        run_in(&netns, "ip link set eth0 address 02:00:00:00:00:77");
        let drop_one = || {
            assert!(!succeeds(&format!(
                "nsenter --net={} ping -q -c 1 -W 1 10.88.0.1",
                netns.path
            )));
        };
        let is_empty = || {
            let pin = MapData::from_pin(node.pins("maps/DROP_RECORDS")).unwrap();
            let mut ring = RingBuf::try_from(Map::RingBuf(pin)).unwrap();
            ring.next().is_none()
        };
        drop_one();
        assert!(is_empty(), "no report without a listener");
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let reader = DropReader::new(&node.bpffs());
            let mut listener = reader.listen(Duration::from_millis(100)).unwrap();
            drop_one();
            let reports = timeout(Duration::from_mins(1), listener.next()).await;
            let report = reports.unwrap().unwrap().remove(0);
            let record = &report.record;
            assert_eq!(record.reason, abi::DropReason::SpoofedMac as u32);
            assert_eq!((record.pod, record.generation), (2, attachment.generation));
            assert_eq!(record.count, 1, "counted before the agent listened");
            assert_eq!(record.packet.hook, abi::DropHook::FromPod as u8);
            let interface = report.interface.as_ref().map(ToString::to_string);
            assert_eq!(interface, Some(attachment.host_link().to_string()));
            run_in(&netns, "ip link set eth0 down");
            while timeout(Duration::from_millis(300), listener.next())
                .await
                .is_ok()
            {}
        });
        run_in(&netns, "ip link set eth0 up");
        drop_one();
        assert!(is_empty(), "no report after the listener is gone");
    });
}

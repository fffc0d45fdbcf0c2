//! Migration of the flow table of ABI version 1, whose entries have another layout.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::path::PathBuf;

use abi::{Address, Flow, Port, Tuple};
use kernel::{FlowReader, Host, Kernel as _};
use support::*;
use zerocopy::IntoBytes as _;

/// Number of entries of the old table.
const CAPACITY: u32 = 4096;

/// Time at which a flow was created that no copy may miss, in seconds of `CLOCK_MONOTONIC`.
const NEVER_OLD: u32 = u32::MAX;

/// A node with a pinned flow table of version 1.
struct Older {
    pin: PathBuf,
}

impl Older {
    fn on(node: &Node) -> Self {
        // The host makes the BPF file system.
        drop(node.host());
        std::fs::remove_dir_all(node.pins("")).unwrap();
        let maps = node.bpffs().join("v1/maps");
        std::fs::create_dir_all(&maps).unwrap();
        let pin = maps.join("FLOWS");
        run(&format!(
            "bpftool map create {} type hash key 40 value 88 entries {CAPACITY} name FLOWS",
            pin.display()
        ));
        Self { pin }
    }

    /// Adds a flow in the layout of version 1.
    fn add(&self, tuple: &Tuple, flow: &Flow) {
        let bytes = flow.as_bytes();
        let value = [&bytes[..72], &bytes[80..]].concat();
        let hex = |bytes: &[u8]| {
            let each = bytes.iter().map(|byte| format!("{byte:02x}"));
            each.collect::<Vec<_>>().join(" ")
        };
        run(&format!(
            "bpftool map update pinned {} key hex {} value hex {}",
            self.pin.display(),
            hex(tuple.as_bytes()),
            hex(&value)
        ));
    }

    fn exists(&self) -> bool {
        self.pin.exists()
    }
}

fn tuple(port: u16) -> Tuple {
    Tuple {
        source: Address::v4([10, 0, 0, 2]),
        destination: Address::v4([192, 0, 2, 1]),
        source_port: Port::new(port),
        destination_port: Port::new(443),
        protocol: abi::protocol::TCP,
        reserved: [0; 3],
    }
}

fn flow(port: u16, created: u32) -> Flow {
    Flow {
        translated: tuple(port),
        flags: 1,
        seen: 3,
        created,
        last_seen: created,
        uplink: 4,
        pod: 5,
        generation: 6,
        flow_id: 7,
        packets: 8,
        bytes: 9,
        ..Flow::default()
    }
}

/// Ports and entries of the current flow table.
fn flows(node: &Node) -> Vec<(u16, Flow)> {
    let table = FlowReader::new(&node.bpffs()).read().unwrap();
    let entries = table.entries.into_iter();
    (entries.map(|(tuple, flow)| (tuple.source_port.number(), flow))).collect()
}

#[test]
fn flows_of_version_1_are_copied_and_those_that_its_programs_add_meanwhile() {
    on_a_node(|node| {
        let older = Older::on(node);
        older.add(&tuple(1), &flow(1, 100));
        older.add(&tuple(2), &flow(2, 200));
        let mut host = node.host();
        assert_eq!(flows(node), [(1, flow(1, 100)), (2, flow(2, 200))]);
        let info = aya::maps::MapInfo::from_pin(node.pins("maps/FLOWS")).unwrap();
        assert_eq!(info.max_entries(), CAPACITY, "the capacity is kept");

        older.add(&tuple(3), &flow(3, NEVER_OLD));
        host.finish_migration().unwrap();
        assert_eq!(flows(node).len(), 3);
        assert!(!older.exists(), "the old pins stay");
        host.finish_migration().unwrap();
    });
}

#[test]
fn an_agent_that_dies_before_the_migration_has_ended_loses_no_flow() {
    on_a_node(|node| {
        let older = Older::on(node);
        older.add(&tuple(1), &flow(1, 100));
        drop(node.host());
        assert!(older.exists(), "the next agent has nothing to copy");
        older.add(&tuple(2), &flow(2, 200));
        let mut host: Host = node.host();
        host.finish_migration().unwrap();
        assert_eq!(flows(node), [(1, flow(1, 100)), (2, flow(2, 200))]);
        assert!(!older.exists(), "the old pins stay");
    });
}

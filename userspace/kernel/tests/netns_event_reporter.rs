//! Changes of routes and neighbours that cached verdicts depend on are reported to the programs,
//! and those that come with every pod are not.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::thread::sleep;
use std::time::Duration;

use aya::maps::{Array, Map, MapData};
use kernel::EventReporter;
use nix::time::{ClockId, clock_gettime};
use steps::{Entry, EntryKey, LinkRef, Step};
use support::skip::patient;
use support::*;

/// The event table, read as eight numbers.
struct Table(Array<MapData, [u64; 8]>);

impl Table {
    fn open(node: &Node) -> Self {
        let map = MapData::from_pin(node.pins("maps").join(abi::maps::EVENTS.name)).unwrap();
        Self(Array::try_from(Map::Array(map)).unwrap())
    }

    fn routes(&self) -> u64 {
        self.0.get(&0, 0).unwrap()[0]
    }

    fn is_valid(&self) -> bool {
        let now = clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap();
        let now = u128::try_from(now.tv_sec()).unwrap() * 1_000_000_000;
        u128::from(self.0.get(&0, 0).unwrap()[1]) > now
    }
}

#[test]
fn routes_and_neighbours_of_uplinks_are_reported_and_changes_of_pods_are_not() {
    on_a_node(|node| {
        let mut host = node.host();
        add_uplink(node);
        execute(&mut host, &bridge_steps());
        let uplink = Step::PutEntry {
            key: EntryKey::Uplink(LinkRef::Name(link("up0"))),
            entry: Entry::Uplink {
                ethernet: true,
                mtu: 1500,
                sources: vec![parse("192.0.2.10/24")],
                open: true,
                tunnel: false,
            },
            previous: None,
        };
        execute(&mut host, &[uplink]);
        run("ip neigh replace 192.0.2.1 lladdr 02:00:00:00:00:01 dev up0");
        // Sets the bridge's carrier.
        let first = attachment(&node.add_netns("first"), 2);
        execute(&mut host, &pod_steps(&first));
        let table = Table::open(node);
        assert_eq!(table.routes(), 0);
        let mut reporter = EventReporter::open(&node.bpffs()).unwrap();
        // Inherits the node's namespace, and ends with the process.
        std::thread::spawn(move || reporter.run().map(drop));
        wait_until(|| table.is_valid());
        // Addresses of the last links become usable.
        let mut last = table.routes();
        while {
            sleep(patient(Duration::from_millis(500)));
            let before = std::mem::replace(&mut last, table.routes());
            before != last
        } {}
        let pod = attachment(&node.add_netns("pod"), 3);
        for _ in 0..3 {
            execute(&mut host, &pod_steps(&pod));
            execute(&mut host, &entry_steps(&pod));
            execute(&mut host, &[delete(&pod)]);
        }
        run("ip neigh replace 192.0.2.1 lladdr 02:00:00:00:00:01 dev up0");
        run("ip neigh replace 10.88.0.9 lladdr 02:00:00:00:00:01 dev cbr0");
        run("ip neigh replace 10.88.0.9 lladdr 02:00:00:00:00:02 dev cbr0");
        for line in [
            "ip neigh replace 192.0.2.1 lladdr 02:00:00:00:00:02 dev up0",
            "ip route add 203.0.113.0/24 via 192.0.2.1",
            "ip rule add to 203.0.113.0/24 unreachable",
            "ip link set up0 mtu 1400",
            "ip addr del 192.0.2.10/24 dev up0",
        ] {
            run(line);
            wait_until(|| table.routes() != last);
            last += 1;
            assert_eq!(table.routes(), last, "{line}");
        }
    });
}

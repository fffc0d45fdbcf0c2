//! Cost of network policies: of packets of established flows, few and many, of the first packets of
//! new flows, and of new connections, beside the same agent without policies.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use e2e::WORLD;
use serde_json::{Value, json};

use crate::goals::Goal;
use crate::packet_cost::{self, PAYLOAD};
use crate::pinned;
use crate::plan::Plan;
use crate::row::{Row, Rows, system};
use crate::topology::{self, POD_CIDR, PORTS, Path, Topology, Way};
use crate::{connect, flows};

/// Policies of the measured pods.
const POLICIES: u32 = 1000;
/// Pods that each policy names, in rules of both directions.
const PODS_EACH: u32 = 10;
/// Flows of one sample.
const FLOWS: u16 = 200;
/// Established flows that send in turns.
const MANY: &[u32] = &[1000, 10_000];
/// Source port of the first flow; each flow of a run has its own.
const FIRST_PORT: u16 = 10_000;

/// A packet of an established flow costs what it costs without policies, within noise; the first
/// packet of a flow at most 1.3 times as much.
pub(crate) const GOALS: &[Goal] = &[
    goal("pod → pod", 1.03),
    goal("world → hostport", 1.03),
    goal("pod → world", 1.03),
    goal("first packet, pod → pod", 1.3),
    goal("first packet, world → hostport", 1.3),
    goal("first packet, pod → world", 1.3),
];

const fn goal(subject: &'static str, bound: f64) -> Goal {
    Goal {
        subject,
        other: system::WITHOUT_POLICIES,
        bound,
    }
}

pub(crate) fn measure(plan: &Plan) -> Result<Vec<Row>> {
    let policies = policies();
    let make = || topology::with_and_without_policies(plan.company, &policies);
    let mut rows = flows::measure_sizes(plan, MANY, &make)?;
    let systems = make()?;
    rows.extend(packet_cost::measure_systems(plan, &systems)?);
    for way in Way::ALL {
        rows.extend(first_packets(plan, &systems, way)?);
    }
    rows.extend(connect::measure_named(plan, systems, connect::TITLE)?);
    Ok(rows)
}

/// Returns policies that all select the measured pods. Each one allows the ports of ten pods of the
/// cluster; those of the last are the measured ones. One more policy allows the world.
fn policies() -> Value {
    let many = flows::RECEIVING_PORTS;
    let ports = json!([
        { "protocol": "tcp", "port": PORTS[0], "last_port": PORTS[1] },
        { "protocol": "udp", "port": PORTS[0], "last_port": PORTS[1] },
        { "protocol": "udp", "port": many[0], "last_port": many[1] },
    ]);
    let group = |number: u32| format!("pods-{number}");
    let policy = |number: u32| {
        json!({
            "name": format!("bench/policy-{number}"),
            "pods": [POD_CIDR],
            "ingress": [{ "from": [{ "group": group(number) }], "ports": ports }],
            "egress": [{ "to": [{ "group": group(number) }], "ports": ports }],
        })
    };
    let server = format!("{}/32", WORLD[0]);
    let world = json!([{ "cidr": server }, { "cidr": "198.18.0.0/16" }]);
    let open = json!({
        "name": "bench/world",
        "pods": [POD_CIDR],
        "ingress": [{ "from": world, "ports": ports }],
        "egress": [{ "to": world, "ports": ports }],
    });
    let groups: serde_json::Map<String, Value> = (1..=POLICIES)
        .map(|number| (group(number), json!(addresses(number))))
        .collect();
    let all = (1..=POLICIES).map(policy).chain([open]);
    json!({ "policies": all.collect::<Vec<_>>(), "groups": groups })
}

/// Returns the addresses of the pods that a policy names: for the last one the first addresses of
/// the pod CIDR, else addresses on other nodes.
fn addresses(policy: u32) -> Vec<Ipv4Addr> {
    let first = if policy == POLICIES {
        u32::from(Ipv4Addr::new(10, 244, 0, 1))
    } else {
        u32::from(Ipv4Addr::new(10, 245, 0, 0)) + policy * PODS_EACH
    };
    (first..first + PODS_EACH).map(Ipv4Addr::from).collect()
}

/// Measures the first packet of each of many flows, from the sender's system call to the
/// receiver's.
fn first_packets(plan: &Plan, systems: &[Topology], way: Way) -> Result<Vec<Row>> {
    let name = format!("first packet, {}", way.name());
    let receivers: Vec<_> = systems
        .iter()
        .map(|it| Receiver::open(it.system, it.path(way)))
        .collect::<Result<_>>()?;
    let mut rows = Rows::default();
    plan.interleave(&name, plan.short_rounds(), &receivers, |receiver| {
        let cost = pinned::run_realtime(pinned::last_cpu(), || receiver.cost())
            .with_context(|| format!("{name} through {}", receiver.system))?;
        rows.push(Row::new(&name, receiver.system, "ns per packet"), cost);
        Ok(())
    })?;
    Ok(rows.0)
}

/// The receiver of the flows of one system.
struct Receiver<'a> {
    system: &'static str,
    path: &'a Path,
    socket: UdpSocket,
    /// Source port of the next flow.
    next: AtomicU16,
}

impl<'a> Receiver<'a> {
    fn open(system: &'static str, path: &'a Path) -> Result<Self> {
        let at = path.serves(PORTS[1]);
        let socket = path.to.run(|| UdpSocket::bind(at))?;
        socket.set_read_timeout(Some(Duration::from_secs(3)))?;
        Ok(Self {
            system,
            path,
            socket,
            next: AtomicU16::new(FIRST_PORT),
        })
    }

    /// Returns the nanoseconds per first packet. Sockets are opened before.
    fn cost(&self) -> Result<f64> {
        let first = self.next.fetch_add(FLOWS, Ordering::Relaxed);
        let target = self.path.target(PORTS[1]);
        let senders = self.path.from.run(|| {
            let open = |port| {
                let socket = UdpSocket::bind(SocketAddr::from(([0; 4], port)))?;
                socket.connect(target)?;
                Ok(socket)
            };
            (first..first + FLOWS)
                .map(open)
                .collect::<std::io::Result<Vec<_>>>()
        })?;
        let mut buffer = [0; 64];
        let start = Instant::now();
        for sender in &senders {
            sender.send(&PAYLOAD)?;
            let length = self.socket.recv(&mut buffer).context("a packet was lost")?;
            ensure!(length == PAYLOAD.len(), "{length} bytes arrived");
        }
        Ok(start.elapsed().as_secs_f64() * 1e9 / f64::from(FLOWS))
    }
}

//! A node with one system and one piece of software, and the measurement of a row.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::thread;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::probe::reaches;
use super::row::{Cell, Column, Row};
use super::software::Running;
use super::system::{HOSTPORT, PORT, publishing};
use super::{Order, Software, System};
use crate::chain::Chain;
use crate::{Agent, Echo, Machine, NODE, Sandbox, WORLD, addresses};

/// The addresses of the first pod, in each system.
pub(super) const FIRST: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(10, 244, 1, 2)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0x10, 0x244, 1, 0, 0, 0, 2)),
];

/// A pod that the list has attached.
struct Attached {
    machine: Machine,
    list: Chain,
    result: Value,
    addresses: Vec<IpAddr>,
}

/// The node. Fields are dropped in this order.
struct Scene {
    server: Attached,
    client: Attached,
    running: Running,
    agent: Option<Agent>,
    sandbox: Sandbox,
}

/// A client and the server that it connects to, IPv4 first.
type Path<'a> = (Column, &'a Machine, [SocketAddr; 2]);

/// Measures `system` beside `software`. An error means that the software did not start; what the
/// system does not achieve is in the row.
pub fn measure(software: Software, order: Order, system: System) -> Result<Row> {
    let mut row = Row {
        software,
        version: String::new(),
        order,
        system,
        cells: Vec::new(),
    };
    let scene = match Scene::new(software, order, system)? {
        Ok(scene) => scene,
        Err((version, error)) => {
            row.version = version;
            row.cells
                .push((Column::Add, twice(Cell::of::<()>(&Err(error)))));
            return Ok(row);
        }
    };
    row.version.clone_from(&scene.running.version);
    row.cells = scene.traffic()?;
    row.cells.push((Column::Add, twice(Cell::Good)));
    let node = &scene.sandbox.node;
    let checked = [&scene.server, &scene.client]
        .into_iter()
        .try_for_each(|pod| pod.list.check(node, &pod.machine, &pod.result));
    row.cells.push((Column::Check, twice(Cell::of(&checked))));
    if system.has_status() {
        let status = scene.client.list.status(node);
        row.cells.push((Column::Status, twice(Cell::of(&status))));
    }
    if let Some(agent) = &scene.agent {
        let doctor = twice(doctor(agent)?);
        row.cells.push((Column::Doctor, doctor));
    }
    let detached = scene.detach();
    row.cells.push((Column::Del, twice(Cell::of(&detached))));
    Ok(row)
}

impl Scene {
    /// Creates the node. The inner error is that of an ADD, with the version of the software.
    fn new(
        software: Software,
        order: Order,
        system: System,
    ) -> Result<Result<Self, (String, anyhow::Error)>> {
        let sandbox = Sandbox::new()?;
        let node = &sandbox.node;
        let agent = system.agent(node)?;
        let start = || {
            software
                .start(node, FIRST)
                .with_context(|| format!("cannot start {}", software.name()))
        };
        let before = (order == Order::Before).then(start).transpose()?;
        let pods = Attached::new(&sandbox, "server", publishing(system.list()?))
            .and_then(|server| Ok((server, Attached::new(&sandbox, "client", system.list()?)?)));
        let (server, client) = match pods {
            Ok(pods) => pods,
            Err(error) => {
                let version = before.map(|it| it.version.clone()).unwrap_or_default();
                return Ok(Err((version, error)));
            }
        };
        ensure!(
            FIRST.iter().all(|it| server.addresses.contains(it)),
            "the first pod has {:?}",
            server.addresses
        );
        let running = match before {
            Some(running) => running,
            None => start()?,
        };
        Ok(Ok(Self {
            server,
            client,
            running,
            agent,
            sandbox,
        }))
    }

    /// Measures all paths side by side: most of the time of a lost packet is waiting.
    fn traffic(&self) -> Result<Vec<(Column, [Cell; 2])>> {
        let mut servers = vec![
            Echo::start(&self.server.machine, PORT)?,
            Echo::start(&self.sandbox.world, PORT)?,
        ];
        if let Some(container) = &self.running.container {
            servers.push(Echo::start(&container.machine, container.port)?);
        }
        let paths = self.paths()?;
        Ok(thread::scope(|scope| {
            let probes: Vec<_> = paths
                .iter()
                .map(|(column, client, targets)| {
                    let cells = targets
                        .map(|target| scope.spawn(move || Cell::of(&reaches(client, target))));
                    (*column, cells)
                })
                .collect();
            let join = |probe: thread::ScopedJoinHandle<'_, Cell>| {
                let panicked = |_| Cell::Bad("the probe panicked".to_owned());
                probe.join().unwrap_or_else(panicked)
            };
            probes
                .into_iter()
                .map(|(column, cells)| (column, cells.map(join)))
                .collect()
        }))
    }

    /// Returns all paths that this software has.
    fn paths(&self) -> Result<Vec<Path<'_>>> {
        let (node, world) = (&self.sandbox.node, &self.sandbox.world);
        let client = &self.client.machine;
        let server = self.server.sockets()?;
        let outside = WORLD.map(|address| SocketAddr::new(address, PORT));
        let hostport = NODE.map(|address| SocketAddr::new(address, HOSTPORT));
        let mut paths = vec![
            (Column::PodToPod, client, server),
            (Column::PodToWorld, client, outside),
            (Column::WorldToHostport, world, hostport),
            (Column::NodeToPod, node, server),
        ];
        paths.extend(
            self.running
                .published
                .map(|theirs| (Column::PodToTheirs, client, theirs)),
        );
        let container = self.running.container.as_ref().map(|it| &it.machine);
        let theirs = container
            .zip(Some(hostport))
            .or(Some(world).zip(self.running.entry));
        paths.extend(theirs.map(|(client, entry)| (Column::TheirsToPod, client, entry)));
        Ok(paths)
    }

    /// Executes DEL of both pods.
    fn detach(&self) -> Result<()> {
        for pod in [&self.server, &self.client] {
            pod.list
                .del(&self.sandbox.node, &pod.machine, &pod.result)
                .with_context(|| format!("DEL of {}", pod.machine.name()))?;
        }
        Ok(())
    }
}

impl Attached {
    fn new(sandbox: &Sandbox, name: &str, list: Chain) -> Result<Self> {
        let machine = sandbox.machine(name)?;
        let result = list.add(&sandbox.node, &machine)?;
        Ok(Self {
            addresses: addresses(&result)?,
            machine,
            list,
            result,
        })
    }

    /// Returns where its server listens, IPv4 first.
    fn sockets(&self) -> Result<[SocketAddr; 2]> {
        let of = |is_v4: bool| {
            let mut addresses = self.addresses.iter();
            let found = addresses.find(|address| address.is_ipv4() == is_v4);
            found
                .map(|address| SocketAddr::new(*address, PORT))
                .with_context(|| format!("a pod has {:?}", self.addresses))
        };
        Ok([of(true)?, of(false)?])
    }
}

/// Returns the report of `viaductctl doctor`, with the reasons of the status.
fn doctor(agent: &Agent) -> Result<Cell> {
    let degraded = agent.get("/v1/status")?["degraded"].clone();
    let reasons: Vec<_> = degraded
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|it| it["reason"].as_str())
        .map(|reason| format!("`{reason}`"))
        .collect();
    let is_good = agent.ctl("doctor").is_ok();
    ensure!(
        is_good == reasons.is_empty(),
        "doctor and status disagree: {reasons:?}"
    );
    Ok(if is_good {
        Cell::Good
    } else {
        Cell::Bad(reasons.join(", "))
    })
}

fn twice(cell: Cell) -> [Cell; 2] {
    [cell.clone(), cell]
}

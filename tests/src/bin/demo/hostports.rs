//! Hostports from each client location: the addresses that server and client see, and the cost of
//! an ADD with many hostports.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::hostport_matrix::{Cell, HostportMatrix, Origin};
use e2e::{Config, Sandbox};
use serde_json::{Value, json};

use crate::latency::summary;
use crate::screen::Screen;

/// The first hostport of the other pods.
const FIRST: u16 = 20_000;
/// The hostport of the pods whose ADD is measured.
const OWN: u16 = 8_080;
const ADDS: u16 = 20;

/// Shows the sections, in sandboxes of their own.
pub(crate) fn show(screen: &mut Screen) -> Result<()> {
    let matrix = HostportMatrix::start()?;
    for origin in Origin::ALL {
        screen.section(&format!("Hostports from {}", origin.name()));
        let mut cells = matrix.connect(origin)?;
        if origin.is_on_node() {
            screen.note("without SCTP: the kernel has no cgroup hooks for its sockets");
        } else {
            cells.extend(matrix.send_sctp(origin)?);
        }
        for (target, row) in rows(cells) {
            screen.line(label(target, &row), outcome(row));
        }
    }
    many(screen)
}

/// Groups the cells by target: one row for each address and port, with a cell for each protocol.
fn rows(cells: Vec<Cell>) -> BTreeMap<SocketAddr, Vec<Cell>> {
    let mut rows = BTreeMap::<SocketAddr, Vec<Cell>>::new();
    for cell in cells {
        rows.entry(cell.target).or_default().push(cell);
    }
    rows
}

fn label(target: SocketAddr, row: &[Cell]) -> String {
    let host_ip = row.first().map_or("", |cell| cell.host_ip.name());
    format!("{target}, {host_ip}")
}

/// Formats the protocols that succeeded, and the addresses seen. If any has failed, the error lists
/// the failures.
fn outcome(row: Vec<Cell>) -> Result<String> {
    let (mut good, mut seen, mut bad) = (Vec::new(), BTreeSet::new(), Vec::new());
    for Cell {
        protocol, outcome, ..
    } in row
    {
        match outcome {
            Ok(description) => {
                good.push(protocol);
                seen.insert(description);
            }
            Err(error) => bad.push(format!("{protocol}: {error:#}")),
        }
    }
    ensure!(bad.is_empty(), "{}", bad.join("\n"));
    let seen: Vec<String> = seen.into_iter().collect();
    Ok(format!("{:<38}{}", good.join(" · "), seen.join("; ")))
}

/// Measures ADD of a pod with one hostport, on a node with few and with many hostports.
fn many(screen: &mut Screen) -> Result<()> {
    screen.section("ADD of a pod with a hostport, by the number of hostports of other pods");
    let (sandbox, agent) = Sandbox::with_agent()?;
    let mut next = FIRST;
    for (others, each) in [(1, 10), (9, 1_110)] {
        for _ in 0..others {
            let ports: Vec<Value> = (next..next + each).map(of_one_family).collect();
            let mut pod = sandbox.pod(&format!("with-{next}"))?;
            pod.add_with(Config::new("1.1.0").map_ports(&ports))?;
            next += each;
        }
        let took: Result<Vec<Duration>> = (0..ADDS)
            .map(|number| {
                let mut pod = sandbox.pod(&format!("one-{next}-{number}"))?;
                let took = pod
                    .add_with(Config::new("1.1.0").map_ports(&[of_one_family(OWN)]))?
                    .took;
                pod.del()?;
                Ok(took)
            })
            .collect();
        let report = agent.get("/v1/status")?["last_reconcile"]["duration_ms"].to_string();
        screen.line(
            format!("{} hostports", next - FIRST),
            took.and_then(summary)
                .map(|took| format!("{took}; last reconciliation {report} ms")),
        );
    }
    Ok(())
}

/// Returns a mapping of IPv4 only, which needs one file descriptor of the agent: not every machine
/// allows two for each of ten thousand ports.
fn of_one_family(port: u16) -> Value {
    json!({ "hostPort": port, "containerPort": 80, "protocol": "tcp", "hostIP": "0.0.0.0" })
}

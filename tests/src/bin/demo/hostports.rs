//! Hostports from everywhere: what the server saw and what the client saw, for every way there is.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::matrix::{Cell, Matrix, Origin};
use e2e::{Config, Sandbox};
use serde_json::{Value, json};

use crate::latency::summary;
use crate::screen::Screen;

/// The ports that others publish start here.
const FIRST: u16 = 20_000;
/// The port of the pods whose ADD is measured.
const OWN: u16 = 8_080;
const ADDS: u16 = 20;

/// The sections, in a sandbox of their own.
pub(crate) fn show(screen: &mut Screen) -> Result<()> {
    let matrix = Matrix::start()?;
    for origin in Origin::ALL {
        screen.section(&format!("Hostports from {}", origin.name()));
        let mut cells = matrix.dial(origin)?;
        if origin.is_on_node() {
            screen.note(
                "no SCTP: the kernel has no hooks for such sockets, and pods' packets are above",
            );
        } else {
            cells.extend(matrix.send_sctp(origin)?);
        }
        for (dialled, row) in rows(cells) {
            screen.line(label(dialled, &row), outcome(row));
        }
    }
    many(screen)
}

/// One row for each address and port that was dialled, with a cell for each protocol.
fn rows(cells: Vec<Cell>) -> BTreeMap<SocketAddr, Vec<Cell>> {
    let mut rows = BTreeMap::<SocketAddr, Vec<Cell>>::new();
    for cell in cells {
        rows.entry(cell.dialled).or_default().push(cell);
    }
    rows
}

fn label(dialled: SocketAddr, row: &[Cell]) -> String {
    let host_ip = row.first().map_or("", |cell| cell.host_ip.name());
    format!("{dialled}, {host_ip}")
}

/// The protocols that went as promised, and who saw whom by all of them; an error that names those that did not.
fn outcome(row: Vec<Cell>) -> Result<String> {
    let (mut good, mut seen, mut bad) = (Vec::new(), BTreeSet::new(), Vec::new());
    for Cell {
        protocol, outcome, ..
    } in row
    {
        match outcome {
            Ok(told) => {
                good.push(protocol);
                seen.insert(told);
            }
            Err(error) => bad.push(format!("{protocol}: {error:#}")),
        }
    }
    ensure!(bad.is_empty(), "{}", bad.join("\n"));
    let seen: Vec<String> = seen.into_iter().collect();
    Ok(format!("{:<38}{}", good.join(" · "), seen.join("; ")))
}

/// How long the ADD of a pod with one port takes beside others with few ports and with many.
fn many(screen: &mut Screen) -> Result<()> {
    screen.section("ADD of a pod with a published port, beside other pods' ports");
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
            format!("{} ports", next - FIRST),
            took.and_then(summary)
                .map(|took| format!("{took}; records and tables were compared in {report} ms")),
        );
    }
    Ok(())
}

/// One descriptor of the agent for each port: not every machine allows two for each of ten thousand.
fn of_one_family(port: u16) -> Value {
    json!({ "hostPort": port, "containerPort": 80, "protocol": "tcp", "hostIP": "0.0.0.0" })
}

//! Hostports from everywhere: what the server saw and what the client saw, for every way there is.

use std::time::Duration;

use anyhow::Result;
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
            screen.note("SCTP: only where the kernel has sockets of it; packets of pods and of others are above");
        } else {
            cells.extend(matrix.send_sctp(origin)?);
        }
        for cell in cells {
            screen.line(label(&cell), cell.outcome);
        }
    }
    many(screen)
}

/// How long the ADD of a pod with one port takes beside others with few ports and with many.
fn many(screen: &mut Screen) -> Result<()> {
    screen.section("ADD of a pod with a published port, beside other pods' ports");
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let mut next = FIRST;
    for (others, each) in [(1, 10), (9, 1_110)] {
        for _ in 0..others {
            let ports = (next..next + each).map(of_one_family).collect();
            let mut pod = sandbox.pod(&format!("with-{next}"))?;
            pod.add_with(publishing(ports))?;
            next += each;
        }
        let took = (0..ADDS).map(|number| {
            let mut pod = sandbox.pod(&format!("one-{next}-{number}"))?;
            let took = pod.add_with(publishing(vec![of_one_family(OWN)]))?.took;
            pod.del()?;
            Ok(took)
        });
        let took: Result<Vec<Duration>> = took.collect();
        screen.line(format!("{} ports", next - FIRST), took.and_then(summary));
    }
    Ok(())
}

/// One descriptor of the agent for each port: not every machine allows two for each of ten thousand.
fn of_one_family(port: u16) -> Value {
    json!({ "hostPort": port, "containerPort": 80, "protocol": "tcp", "hostIP": "0.0.0.0" })
}

fn publishing(mappings: Vec<Value>) -> Config {
    Config::new("1.1.0").with("runtimeConfig", json!({ "portMappings": mappings }))
}

fn label(cell: &Cell) -> String {
    let (protocol, host_ip) = (cell.protocol, cell.host_ip.name());
    format!("{} {protocol}, {host_ip}", cell.dialled)
}

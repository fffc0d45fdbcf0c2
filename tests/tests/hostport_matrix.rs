//! BEHAVIOURS K30-K35, R12-R15, E-4: hostports from everywhere. One test for each place that a client may be in.

use anyhow::{Result, ensure};
use e2e::matrix::{Cell, Matrix, Origin};

/// Every way from this origin goes as promised.
fn holds(origin: Origin) -> Result<()> {
    let matrix = Matrix::start()?;
    let mut cells = matrix.dial(origin)?;
    if !origin.is_on_node() {
        cells.extend(matrix.send_sctp(origin)?);
    }
    ensure!(cells.len() >= 18, "{} ways", cells.len());
    let wrong: Vec<String> = cells.iter().filter_map(failure).collect();
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

fn failure(cell: &Cell) -> Option<String> {
    let error = cell.outcome.as_ref().err()?;
    let (protocol, host_ip) = (cell.protocol, cell.host_ip.name());
    Some(format!("{protocol} {}, {host_ip}: {error:#}", cell.dialled))
}

#[test]
fn another_machine_reaches_hostports_as_itself() -> Result<()> {
    holds(Origin::World)
}

#[test]
fn a_pod_of_the_same_network_reaches_hostports_as_itself() -> Result<()> {
    holds(Origin::Near)
}

#[test]
fn a_pod_of_another_network_reaches_hostports_as_itself() -> Result<()> {
    holds(Origin::Far)
}

#[test]
fn a_pod_reaches_its_own_hostport_as_its_gateway() -> Result<()> {
    holds(Origin::Itself)
}

#[test]
fn a_process_of_the_node_reaches_hostports_by_the_nodes_address() -> Result<()> {
    holds(Origin::Node)
}

#[test]
fn a_process_of_the_node_reaches_hostports_by_the_loopback() -> Result<()> {
    holds(Origin::Loopback)
}

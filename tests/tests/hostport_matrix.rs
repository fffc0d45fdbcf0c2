//! Hostports from every kind of client (behaviours K32, R13, F31, F32, F35, F36, F37, F41): one
//! test for each origin.

use anyhow::{Result, ensure};
use e2e::hostport_matrix::{Cell, HostportMatrix, Origin};

/// Asserts every combination of target, protocol and host address from this origin.
fn holds(origin: Origin) -> Result<()> {
    let matrix = HostportMatrix::start()?;
    let mut cells = matrix.connect(origin)?;
    if !origin.is_on_node() {
        cells.extend(matrix.send_sctp(origin)?);
    }
    ensure!(cells.len() >= 18, "{} combinations", cells.len());
    let wrong: Vec<String> = cells.iter().filter_map(failure).collect();
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

fn failure(cell: &Cell) -> Option<String> {
    let error = cell.outcome.as_ref().err()?;
    let (protocol, host_ip) = (cell.protocol, cell.host_ip.name());
    Some(format!("{protocol} {}, {host_ip}: {error:#}", cell.target))
}

/// behaviour F41: the client keeps its address.
#[test]
fn another_machine_reaches_hostports_as_itself() -> Result<()> {
    holds(Origin::World)
}

#[test]
fn a_pod_of_the_same_network_reaches_hostports_as_itself() -> Result<()> {
    holds(Origin::SameNetwork)
}

#[test]
fn a_pod_of_another_network_reaches_hostports_as_itself() -> Result<()> {
    holds(Origin::OtherNetwork)
}

/// behaviours R14, E11, F37
#[test]
fn a_pod_reaches_its_own_hostport_as_its_gateway() -> Result<()> {
    holds(Origin::SamePod)
}

#[test]
fn a_process_of_the_node_reaches_hostports_by_the_nodes_address() -> Result<()> {
    holds(Origin::Node)
}

/// behaviours K33, R14, F35, F36
#[test]
fn a_process_of_the_node_reaches_hostports_by_the_loopback() -> Result<()> {
    holds(Origin::Loopback)
}

/// behaviours K33, R14, F35: `route_localnet` stays off, so neighbours cannot reach loopback
/// addresses.
#[test]
fn no_interface_routes_the_loopbacks_addresses() -> Result<()> {
    let matrix = HostportMatrix::start()?;
    matrix.connect(Origin::Loopback)?;
    let shown = matrix.node().call_words(&[
        "sh",
        "-c",
        "grep -H . /proc/sys/net/ipv4/conf/*/route_localnet",
    ])?;
    ensure!(shown.lines().count() > 5, "{shown}");
    ensure!(shown.lines().all(|line| line.ends_with(":0")), "{shown}");
    Ok(())
}

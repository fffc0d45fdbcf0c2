//! Viaduct beside other software of a node: the two laws of `docs/compatibility.md`, with software
//! that Debian packages and with recorded rules of kube-proxy. `cargo xtask compatibility` measures
//! the whole table.

use anyhow::{Result, ensure};
use e2e::compatibility::{Order, Row, Software, System, laws, measure};
use e2e::skipped;

/// Measures Viaduct beside `software`. The reference is measured only where Viaduct fails, since
/// only then a law compares with it.
fn obeys_the_laws(software: Software, orders: &[Order]) -> Result<()> {
    if let Some(lack) = software.lack()? {
        skipped(&lack);
        return Ok(());
    }
    let mut rows = Vec::new();
    for order in orders {
        for system in [System::Viaduct, System::Renamed] {
            rows.push(measure(software, *order, system)?);
        }
        let has_failed = |row: &Row| row.order == *order && !row.is_good();
        if rows.iter().any(has_failed) {
            let reference = if System::NewestReference.is_available() {
                System::NewestReference
            } else {
                System::Reference
            };
            rows.push(measure(software, *order, reference)?);
        }
    }
    let offences = laws(&rows);
    ensure!(offences.is_empty(), "{}", offences.join("\n"));
    Ok(())
}

#[test]
fn a_node_without_other_software_obeys_the_laws() -> Result<()> {
    obeys_the_laws(Software::Plain, &[Order::Before])
}

#[test]
fn a_node_with_docker_obeys_the_laws() -> Result<()> {
    obeys_the_laws(Software::Docker, &Order::ALL)
}

#[test]
fn a_node_with_firewalld_obeys_the_laws() -> Result<()> {
    obeys_the_laws(Software::Firewalld, &Order::ALL)
}

#[test]
fn a_node_with_ufw_obeys_the_laws() -> Result<()> {
    obeys_the_laws(Software::Ufw, &Order::ALL)
}

#[test]
fn a_node_with_the_rules_of_kube_proxy_obeys_the_laws() -> Result<()> {
    obeys_the_laws(Software::KubeProxyRules, &Order::ALL)
}

#[test]
fn a_node_with_podman_obeys_the_laws() -> Result<()> {
    obeys_the_laws(Software::Podman, &Order::ALL)
}

/// The newest release that `cargo xtask compatibility` has unpacked.
#[test]
fn a_node_with_the_newest_docker_obeys_the_laws() -> Result<()> {
    obeys_the_laws(Software::NewestDocker, &[Order::Before])
}

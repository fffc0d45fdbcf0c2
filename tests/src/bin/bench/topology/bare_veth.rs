//! Two namespaces and a veth pair, the same path for each [`Way`](super::Way).

use std::net::IpAddr;

use anyhow::Result;
use e2e::{NODE, Sandbox, WORLD};

use super::{Path, Topology, serve_clients};
use crate::row::system;

pub(super) fn build() -> Result<Topology> {
    let sandbox = Sandbox::new()?;
    let [at, _]: [IpAddr; 2] = WORLD;
    // Resolves the neighbours before the measurement.
    sandbox.node.call(&format!("ping -c 1 -W 2 {at}"))?;
    serve_clients(&sandbox.node, &sandbox.world, NODE[0])?;
    let path = Path {
        from: sandbox.node.clone(),
        to: sandbox.world.clone(),
        target: at,
        at,
    };
    debug_assert_ne!(NODE[0], at);
    Ok(Topology {
        system: system::BARE,
        paths: vec![path; 4],
        parts: Box::new(sandbox),
    })
}

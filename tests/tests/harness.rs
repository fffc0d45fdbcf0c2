//! Tests of the harness itself: connectivity of the sandbox, residue snapshots, isolation.

use std::net::SocketAddr;

use anyhow::Result;
use e2e::residue::assert_no_residue;
use e2e::{Echo, Iperf, NODE, Residue, Sandbox, WORLD, ping, ping_source, tcp_source, udp_source};

#[test]
fn node_and_world_reach_each_other_in_both_families() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let _echo = Echo::start(&sandbox.world, 7000)?;
    for (node, world) in NODE.into_iter().zip(WORLD) {
        let server = SocketAddr::new(world, 7000);
        assert_eq!(tcp_source(&sandbox.node, 0, server)?.0.ip(), node);
        assert_eq!(
            udp_source(&sandbox.node, 4242, server)?.0,
            SocketAddr::new(node, 4242)
        );
        assert_eq!(ping_source(&sandbox.node, &sandbox.world, world)?, node);
        assert!(!ping(&sandbox.node, world, 3)?.mean.is_zero());
    }
    let iperf = Iperf::serve(&sandbox.world, 5201)?;
    let sent = iperf.send(&sandbox.node, WORLD[0], 1)?;
    assert!(sent.bits_per_second > 1e6, "{sent:?}");
    Ok(())
}

#[test]
fn a_residue_snapshot_shows_changes() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let pod = sandbox.pod("pod")?;
    let snapshot = || Residue::of(&sandbox.node, &[&pod.machine]);
    let before = snapshot()?;
    assert_no_residue(&before, &snapshot()?)?;

    sandbox.node.call("ip link add stray type veth")?;
    sandbox.node.call("nft add table inet stray")?;
    pod.machine.call("ip address add 10.9.9.9/24 dev lo")?;
    let _echo = Echo::start(&sandbox.node, 7000)?;
    let difference = before.difference(&snapshot()?);
    for expected in [
        "links: stray",
        "nft: table inet stray",
        "pod: addresses: lo 10.9.9.9/24",
        "listeners: udp",
    ] {
        assert!(
            difference.contains(expected),
            "no {expected} in\n{difference}"
        );
    }
    Ok(())
}

#[test]
fn a_sandbox_is_not_seen_from_outside() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let path = sandbox.pod("unseen")?.machine.path();
    assert!(
        !std::fs::exists(&path)?,
        "{path} exists outside of the sandbox"
    );
    let inside = sandbox.node.mounts().run(|| std::fs::exists(&path));
    assert!(inside?, "{path} does not exist inside of the sandbox");
    Ok(())
}

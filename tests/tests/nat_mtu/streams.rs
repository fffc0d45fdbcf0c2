//! TCP streams whose segments are larger than the MTU of the pod's network.

use std::net::SocketAddr;

use anyhow::{Context as _, Result};
use e2e::{Pod, Sends, Stream, WORLD};

use super::cell::forget_path_mtu;
use super::{HOSTPORTS, PORT, Scene, hostport};

/// Bytes of each stream.
const BYTES: u64 = 16 << 20;

/// Announces an MSS that the pod's network does not carry, so that the peers' segments are too
/// large.
fn announce_too_large_segments(pod: &Pod) -> Result<()> {
    for (family, segment) in [("-4", 1460), ("-6", 1440)] {
        let shown = pod
            .machine
            .call(&format!("ip {family} route show default"))?;
        let route = shown.lines().next().context("no default route")?;
        pod.machine.call(&format!(
            "ip {family} route replace {route} advmss {segment}"
        ))?;
    }
    Ok(())
}

/// Sends a stream on every path of the scene, in both families.
pub(crate) fn check(scene: &Scene) -> Result<()> {
    announce_too_large_segments(&scene.narrow)?;
    let (narrow, wide) = (&scene.narrow.machine, &scene.wide.machine);
    let world = &scene.sandbox.world;
    for family in [0, 1] {
        let outside = SocketAddr::new(WORLD[family], 7000);
        let own = SocketAddr::new(scene.narrow.addresses[family], PORT);
        let [to_narrow, to_wide] = HOSTPORTS.map(|port| hostport(family, port));
        for (name, client, server, sends) in [
            (
                "world to hostport",
                (world, to_narrow),
                (narrow, PORT),
                Sends::Client,
            ),
            ("world to pod", (world, own), (narrow, PORT), Sends::Client),
            (
                "world to masqueraded pod",
                (narrow, outside),
                (world, 7000),
                Sends::Server,
            ),
            (
                "pod to hostport",
                (wide, to_narrow),
                (narrow, PORT),
                Sends::Client,
            ),
            ("pod to pod", (wide, own), (narrow, PORT), Sends::Client),
            (
                "hostport to pod",
                (narrow, to_wide),
                (wide, PORT),
                Sends::Server,
            ),
        ] {
            let sender = if sends == Sends::Client {
                client.0
            } else {
                server.0
            };
            forget_path_mtu(sender)?;
            Stream::start(client, server, sends, BYTES)
                .and_then(Stream::end)
                .with_context(|| format!("{name}, IPv{}", [4, 6][family]))?;
        }
    }
    Ok(())
}

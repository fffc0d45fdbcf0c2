//! Datagrams to a service by a bridge that netfilter looks into: how many are sent, how many arrive, in every hairpin
//! mode, with nobody dropping duplicates and with Viaduct dropping them.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Result, ensure};
use e2e::{Agent, Pod, Sandbox, delivered, filter_bridges, ping, publish_service};

use crate::screen::Screen;

const VIPS: [&str; 2] = ["10.96.0.10", "fd00:96::10"];
const PORT: u16 = 53;
/// Twice as many still fit into a socket that nobody reads for a while.
const SENT: usize = 100;

struct Stage {
    sandbox: Sandbox,
    agent: Agent,
    client: Pod,
    server: Pod,
}

/// The section, in a sandbox of its own.
pub(crate) fn show(screen: &mut Screen) -> Result<()> {
    let stage = Stage::set()?;
    screen.section("Datagrams to a service on the same node, netfilter looking into bridges");
    let rows = [
        ("hairpin-veth", false, 1),
        ("none", false, 1),
        (
            "none, and the bridge promiscuous by hand: no dedup",
            true,
            2,
        ),
        ("promiscuous-bridge: dedup", false, 1),
    ];
    for (row, promiscuous, copies) in rows {
        let mode = row.split([',', ':']).next().unwrap_or(row);
        stage.choose(mode, promiscuous)?;
        for (family, name) in ["IPv4", "IPv6"].into_iter().enumerate() {
            screen.line(format!("{row}, {name}"), stage.count(family, copies));
        }
    }
    Ok(())
}

impl Stage {
    fn set() -> Result<Self> {
        let (sandbox, agent) = Sandbox::with_agent()?;
        let (mut client, mut server) = (sandbox.pod("pod-a")?, sandbox.pod("pod-b")?);
        client.add()?;
        server.add()?;
        for (vip, address) in VIPS.into_iter().zip(&server.addresses) {
            publish_service(&sandbox.node, vip.parse()?, *address)?;
            ping(&client.machine, *address, 1)?;
        }
        filter_bridges(&sandbox.node, true)?;
        Ok(Self {
            sandbox,
            agent,
            client,
            server,
        })
    }

    fn choose(&self, mode: &str, promiscuous: bool) -> Result<()> {
        let body = format!(r#"{{"mode":"{mode}"}}"#);
        self.agent.put("/v1/hairpin-mode", &body)?;
        if promiscuous {
            self.sandbox.node.call("ip link set cbr0 promisc on")?;
        }
        Ok(())
    }

    fn count(&self, family: usize, copies: usize) -> Result<String> {
        let vip: IpAddr = VIPS[family].parse()?;
        let to = SocketAddr::new(vip, PORT);
        let (from, at) = (&self.client.machine, &self.server.machine);
        let arrived = delivered(from, to, at, self.server.addresses[family], SENT)?;
        let before = format!("{SENT} sent, {arrived} received");
        ensure!(arrived == SENT * copies, "{before}, not {}", SENT * copies);
        let counters = self.agent.get("/v1/counters")?;
        let dropped = counters["drops"]["duplicate"].as_u64().unwrap_or(0);
        Ok(format!("{before}; duplicates dropped so far: {dropped}"))
    }
}

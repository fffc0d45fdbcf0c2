//! Datagrams to a service through a bridge with `bridge-nf-call-iptables`: sent and received
//! numbers in each hairpin mode, with and without Viaduct's duplicate suppression.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Result, ensure};
use e2e::{Agent, Pod, Sandbox, add_service_rule, count_delivered, ping, set_bridge_netfilter};

use crate::screen::Screen;

const VIPS: [&str; 2] = ["10.96.0.10", "fd00:96::10"];
const PORT: u16 = 53;
/// Number of datagrams: twice as many still fit into a socket buffer.
const SENT: usize = 100;

struct HairpinSetup {
    sandbox: Sandbox,
    agent: Agent,
    client: Pod,
    server: Pod,
}

/// Shows the section, in a sandbox of its own.
pub(crate) fn show(screen: &mut Screen) -> Result<()> {
    let setup = HairpinSetup::start()?;
    screen.section("Datagrams to a service on the same node, with bridge-nf-call-iptables");
    let rows = [
        ("hairpin-veth", false, 1),
        ("none", false, 1),
        ("none, bridge promiscuous by hand: no dedup", true, 2),
        ("promiscuous-bridge: dedup", false, 1),
    ];
    for (row, promiscuous, copies) in rows {
        let mode = row.split([',', ':']).next().unwrap_or(row);
        setup.choose(mode, promiscuous)?;
        for (family, name) in ["IPv4", "IPv6"].into_iter().enumerate() {
            screen.line(format!("{row}, {name}"), setup.count(family, copies));
        }
    }
    Ok(())
}

impl HairpinSetup {
    fn start() -> Result<Self> {
        let (sandbox, agent) = Sandbox::with_agent()?;
        let (mut client, mut server) = (sandbox.pod("pod-a")?, sandbox.pod("pod-b")?);
        client.add()?;
        server.add()?;
        for (vip, address) in VIPS.into_iter().zip(&server.addresses) {
            add_service_rule(&sandbox.node, vip.parse()?, *address)?;
            ping(&client.machine, *address, 1)?;
        }
        set_bridge_netfilter(&sandbox.node, true)?;
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
        let arrived = count_delivered(from, to, at, self.server.addresses[family], SENT)?;
        let before = format!("{SENT} sent, {arrived} received");
        ensure!(
            arrived == SENT * copies,
            "{before}, expected {}",
            SENT * copies
        );
        let counters = self.agent.get("/v1/counters")?;
        let dropped = counters["drops"]["duplicate"].as_u64().unwrap_or(0);
        Ok(format!("{before}; duplicates dropped so far: {dropped}"))
    }
}

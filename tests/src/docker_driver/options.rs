//! The options of Docker's networks, in the order of `docs/docker.md`: a value for each, its effect
//! on a container, and values that are refused. The effect is the same whether dockerd creates the
//! network, or a test that calls the driver as dockerd does.

use std::fmt;
use std::net::IpAddr;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::{Container, PORT, PUBLISHED, at};
use crate::{Agent, Echo, NODE, Sandbox, UPLINK, WORLD, connects, tcp_source, until};

/// Gateway mode of IPv4.
pub const MODE_V4: &str = "com.docker.network.bridge.gateway_mode_ipv4";
/// Gateway mode of IPv6.
pub const MODE_V6: &str = "com.docker.network.bridge.gateway_mode_ipv6";
/// Uplinks by which every port is reached.
pub const TRUSTED: &str = "com.docker.network.bridge.trusted_host_interfaces";
/// A port of containers that nothing publishes.
pub const CLOSED: u16 = 81;

const SERVER: u16 = 7000;
const EGRESS: &str = "192.0.2.99";

/// A container of a network of the driver, which publishes [`PORT`] as [`PUBLISHED`]. The world has
/// a route to its subnet.
#[derive(Clone, Copy, Debug)]
pub struct Attached<'a> {
    /// The node, and the world that it is linked to.
    pub sandbox: &'a Sandbox,
    /// The agent.
    pub agent: &'a Agent,
    /// The container, the only one of the agent.
    pub container: &'a Container,
}

impl Attached<'_> {
    /// Checks that the world reaches a port of the container by its own address, or does not.
    pub fn world_reaches(&self, port: u16, reached: bool) -> Result<()> {
        let (world, to) = (&self.sandbox.world, at(self.container.address, port));
        let _serving = Echo::start(&self.container.machine, port)?;
        if !reached {
            ensure!(!connects(world, to)?, "the world reaches {to}");
            return Ok(());
        }
        let (seen, _) = tcp_source(world, 0, to)?;
        ensure!(seen.ip() == WORLD[0], "the client is seen as {seen}");
        Ok(())
    }

    /// Returns the address with which the container reaches the world.
    pub fn seen_by_world(&self) -> Result<IpAddr> {
        let _world = Echo::start(&self.sandbox.world, SERVER)?;
        let (seen, _) = tcp_source(&self.container.machine, 0, at(WORLD[0], SERVER))?;
        Ok(seen.ip())
    }

    /// Checks the address with which the container reaches the world.
    fn is_seen_as(&self, expected: IpAddr) -> Result<()> {
        let seen = self.seen_by_world()?;
        ensure!(
            seen == expected,
            "the world sees {seen}, and not {expected}"
        );
        Ok(())
    }

    fn attachment(&self) -> Result<Value> {
        Ok(self.agent.get("/v1/attachments")?[0].clone())
    }

    fn has(&self, pointer: &str, expected: impl Into<Value>) -> Result<()> {
        let (attachment, expected) = (self.attachment()?, expected.into());
        let found = attachment.pointer(pointer);
        ensure!(found == Some(&expected), "{pointer}: {attachment}");
        Ok(())
    }

    fn link_shows(&self, link: &str, words: &str) -> Result<()> {
        let machine = &self.container.machine;
        let shown = machine.call(&format!("ip link show dev {link}"))?;
        ensure!(shown.contains(words), "{shown}");
        Ok(())
    }
}

/// An option with a value, and a check of its effect.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    /// Name of the option.
    pub option: &'static str,
    /// The value.
    pub value: &'static str,
    /// An error says what does not hold.
    pub holds: fn(&Attached<'_>) -> Result<()>,
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.option, self.value)
    }
}

const fn cell(
    option: &'static str,
    value: &'static str,
    holds: fn(&Attached<'_>) -> Result<()>,
) -> Cell {
    Cell {
        option,
        value,
        holds,
    }
}

/// All options that are honoured.
pub const CELLS: [Cell; 20] = [
    cell("com.docker.network.bridge.name", "apps0", |web| {
        web.has("/bridge", "apps0")
    }),
    cell(
        "com.docker.network.bridge.enable_ip_masquerade",
        "false",
        keeps_its_address,
    ),
    cell(
        "com.docker.network.bridge.enable_ip_masquerade",
        "true",
        is_masqueraded,
    ),
    cell("com.docker.network.bridge.enable_icc", "false", |web| {
        let attachment = web.attachment()?;
        let link = attachment["host_link"].as_str().context("a link")?;
        let node = &web.sandbox.node;
        let port = node.call(&format!("bridge -d link show dev {link}"))?;
        ensure!(port.contains("isolated on"), "{port}");
        Ok(())
    }),
    cell(
        "com.docker.network.bridge.host_binding_ipv4",
        "192.0.2.1",
        |web| {
            let ports = web.agent.get("/v1/hostports")?;
            ensure!(ports[0]["host_address"] == "192.0.2.1", "{ports}");
            let _serving = Echo::start(&web.container.machine, PORT)?;
            tcp_source(&web.sandbox.world, 0, at(NODE[0], PUBLISHED)).map(drop)
        },
    ),
    cell(MODE_V4, "nat", is_closed),
    cell(MODE_V4, "nat", is_masqueraded),
    cell(MODE_V4, "nat-unprotected", |web| {
        is_open(web)?;
        is_masqueraded(web)
    }),
    cell(MODE_V4, "routed", is_closed),
    cell(MODE_V4, "routed", keeps_its_address),
    // The mode of a family that the network lacks has no effect.
    cell(MODE_V6, "routed", is_masqueraded),
    cell(MODE_V6, "nat-unprotected", is_closed),
    cell(TRUSTED, "wg0:up0", is_open),
    cell("com.docker.network.driver.mtu", "1400", |web| {
        web.link_shows("eth0", "mtu 1400")
    }),
    cell("com.docker.network.host_ipv4", EGRESS, |web| {
        let node = &web.sandbox.node;
        node.call(&format!("ip address replace {EGRESS}/24 dev {UPLINK}"))?;
        // The agent learns of the node's new address by an event.
        until("new flows have the egress address", || {
            let seen = web.seen_by_world();
            Ok(seen.is_ok_and(|it| it.to_string() == EGRESS).then_some(()))
        })?;
        let line = format!("ip address del {EGRESS}/24 dev {UPLINK}");
        node.call(&line).map(drop)
    }),
    cell(
        "com.docker.network.host_ipv6",
        "2001:db8::99",
        is_masqueraded,
    ),
    cell("com.docker.network.container_iface_prefix", "app", |web| {
        web.link_shows("app0", "app0")
    }),
    cell("viaduct.ingress-rate", "50M", |web| {
        web.has("/bandwidth/ingress/rate", 50_000_000)
    }),
    cell("viaduct.egress-rate", "40M", |web| {
        web.has("/bandwidth/egress/rate", 40_000_000)
    }),
    // The default of a refused option.
    cell(
        "com.docker.network.bridge.inhibit_ipv4",
        "false",
        is_masqueraded,
    ),
];

fn is_masqueraded(web: &Attached<'_>) -> Result<()> {
    web.is_seen_as(NODE[0])
}

fn keeps_its_address(web: &Attached<'_>) -> Result<()> {
    web.is_seen_as(web.container.address)
}

fn is_closed(web: &Attached<'_>) -> Result<()> {
    web.world_reaches(CLOSED, false)
}

fn is_open(web: &Attached<'_>) -> Result<()> {
    web.world_reaches(CLOSED, true)
}

/// Values that are refused, of known and unknown options.
pub const REFUSED: [(&str, &str); 16] = [
    ("com.docker.network.bridge.default_bridge", "true"),
    ("com.docker.network.bridge.inhibit_ipv4", "true"),
    ("parent", "eth0"),
    ("ipvlan_mode", "l3"),
    ("com.docker.network.bridge.name", "a/name"),
    ("com.docker.network.bridge.enable_ip_masquerade", "perhaps"),
    ("com.docker.network.bridge.enable_icc", "perhaps"),
    ("com.docker.network.bridge.host_binding_ipv4", "::1"),
    (MODE_V4, "bridged"),
    (MODE_V6, "bridged"),
    (TRUSTED, "eth0:a/name"),
    ("com.docker.network.driver.mtu", "67"),
    (
        "com.docker.network.container_iface_prefix",
        "fourteen-bytes",
    ),
    ("viaduct.egress-rate", "fast"),
    ("com.docker.network.bridge.colour", "blue"),
    ("colour", "blue"),
];

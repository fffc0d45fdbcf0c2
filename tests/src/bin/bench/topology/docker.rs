//! A node with dockerd, and a network of Docker's own bridge driver or of the driver viaduct.

use anyhow::Result;
use e2e::company::{Docker, DockerRelease};
use e2e::docker_driver::Client;
use e2e::{Agent, NODE, Sandbox, WORLD};

use super::{PORTS, Path, Topology, idle_driver, serve_clients};
use crate::row::system;

/// The measured network.
const NETWORK: &str = "apps";
/// Containers that the paths lead to.
const SERVER: &str = "server";
const CLIENT: &str = "client";

/// Driver of the measured network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Driver {
    /// Docker's own.
    Bridge,
    /// Docker's own, without a process for each published port.
    BridgeWithoutProxy,
    /// Viaduct's, for network and addresses.
    Viaduct,
    /// One that does nothing.
    Idle,
}

impl Driver {
    /// All, in the order of measurement.
    pub(crate) const ALL: [Self; 4] = [
        Self::Bridge,
        Self::BridgeWithoutProxy,
        Self::Viaduct,
        Self::Idle,
    ];

    /// Returns the name of the system in reports.
    pub(crate) fn system(self) -> &'static str {
        match self {
            Self::Bridge => system::DOCKER,
            Self::BridgeWithoutProxy => system::DOCKER_WITHOUT_PROXY,
            Self::Viaduct => system::VIADUCT,
            Self::Idle => system::DOCKER_ALONE,
        }
    }

    fn options(self) -> &'static str {
        match self {
            Self::Bridge | Self::BridgeWithoutProxy => "--driver bridge",
            Self::Viaduct => "--driver viaduct --ipam-driver viaduct",
            Self::Idle => "--driver idle",
        }
    }
}

/// A node whose dockerd writes its rules, and has one network. Fields are dropped in this order.
pub(crate) struct DockerNode {
    docker: Docker,
    _agent: Option<Agent>,
    sandbox: Sandbox,
    driver: Driver,
}

impl DockerNode {
    /// Starts dockerd, and an agent where the network is Viaduct's.
    pub(crate) fn start(driver: Driver, release: DockerRelease) -> Result<Self> {
        let sandbox = Sandbox::new()?;
        let node = &sandbox.node;
        node.call("mkdir -p /run/docker/plugins")?;
        // First: it mounts the cgroups that the agent's is in.
        let has_proxy = driver != Driver::BridgeWithoutProxy;
        let docker = Docker::with_bridge(node, release, has_proxy)?;
        let agent = match driver {
            Driver::Bridge | Driver::BridgeWithoutProxy => None,
            Driver::Viaduct => Some(Agent::start(node, &Client::FLAGS)?),
            Driver::Idle => {
                idle_driver::serve(node)?;
                None
            }
        };
        let options = driver.options();
        docker.call(&format!("network create {options} {NETWORK}"))?;
        Ok(Self {
            docker,
            _agent: agent,
            sandbox,
            driver,
        })
    }

    /// Returns the name of the system in reports.
    pub(crate) fn system(&self) -> &'static str {
        self.driver.system()
    }

    /// Returns the version of dockerd.
    pub(crate) fn version(&self) -> Result<String> {
        self.docker.version()
    }

    /// Starts a container by `docker run`, on the network with a published port, or on none.
    pub(crate) fn run(&self, name: &str, on_network: bool) -> Result<()> {
        let options = if on_network {
            format!("--network {NETWORK} --publish 8080:80")
        } else {
            "--network none".to_owned()
        };
        self.docker.run_with(name, &options)
    }

    /// Removes a container.
    pub(crate) fn remove(&self, name: &str) -> Result<()> {
        self.docker.call(&format!("rm --force {name}")).map(drop)
    }

    /// Starts a server with published ports and a client, between which the paths lead.
    pub(crate) fn into_topology(self) -> Result<Topology> {
        let docker = &self.docker;
        let published = PORTS
            .map(|port| {
                ["tcp", "udp"].map(|protocol| format!("--publish {port}:{port}/{protocol}"))
            })
            .concat()
            .join(" ");
        docker.run_with(SERVER, &format!("--network {NETWORK} {published}"))?;
        docker.run_with(CLIENT, &format!("--network {NETWORK}"))?;
        let [server, client] = [docker.namespace(SERVER)?, docker.namespace(CLIENT)?];
        let at = docker.address(SERVER, NETWORK)?;
        let (node, world) = (&self.sandbox.node, &self.sandbox.world);
        serve_clients(world, node, WORLD[0])?;
        let path = |from, to, target, at| Path {
            from,
            to,
            target,
            at,
        };
        let paths = vec![
            path(client.clone(), server.clone(), at, at),
            path(world.clone(), server, NODE[0], at),
            path(client, world.clone(), WORLD[0], WORLD[0]),
        ];
        Ok(Topology {
            system: self.system(),
            paths,
            parts: Box::new(self),
        })
    }
}

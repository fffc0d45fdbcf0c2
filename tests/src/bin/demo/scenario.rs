//! The topology of the demo: a node with its agent, a world, and three pods.

use std::fmt::Write as _;
use std::time::Instant;

use anyhow::{Context as _, Result};
use e2e::{Agent, Config, Echo, Mapping, NODE, POD_CIDRS, Pod, Residue, Sandbox, UPLINK, WORLD};

use crate::screen::Screen;

/// Port of the echo servers, which answer with the client's address.
pub(crate) const ECHO: u16 = 7000;

/// Hostports of the third pod.
pub(crate) const PUBLISHED: [Mapping; 3] = [
    Mapping::tcp(8080, 80),
    Mapping::udp(5353, 53),
    Mapping::tcp(5201, 5201),
];

/// Sandbox, agent, pods and servers. Fields are dropped in this order.
pub(crate) struct Scenario {
    pub(crate) servers: Vec<Echo>,
    pub(crate) pods: Vec<Pod>,
    pub(crate) agent: Agent,
    /// Snapshot of the node before the first pod.
    pub(crate) empty: Residue,
    /// Snapshot of the node before the agent started.
    pub(crate) bare: Residue,
    pub(crate) sandbox: Sandbox,
}

impl Scenario {
    pub(crate) fn start(screen: &mut Screen) -> Result<Self> {
        screen.section("A node and an external machine, the world, in network namespaces");
        let sandbox = Sandbox::new()?;
        let [v4, v6] = NODE;
        screen.line("node", Ok(format!("{UPLINK}  {v4}/24  {v6}/64")));
        let [v4, v6] = WORLD;
        screen.line(
            "world, without a route to any pod",
            Ok(format!("eth0 {v4}/24  {v6}/64")),
        );
        let bare = Residue::of(&sandbox.node, &[])?;
        let start = Instant::now();
        let agent = Agent::start(&sandbox.node, &[])?;
        let [v4, v6] = POD_CIDRS;
        let took = start.elapsed();
        screen.line(
            "agent started",
            Ok(format!("in {took:.1?}, pod CIDRs {v4} and {v6}")),
        );
        let empty = Residue::of(&sandbox.node, &[])?;
        let mut scenario = Self {
            servers: Vec::new(),
            pods: Vec::new(),
            agent,
            empty,
            bare,
            sandbox,
        };
        screen.section("Three pods, attached with the CNI plugin");
        for name in ["pod-a", "pod-b", "pod-c"] {
            scenario.attach(screen, name)?;
        }
        scenario.serve()?;
        Ok(scenario)
    }

    /// Returns the client pod.
    pub(crate) fn client_pod(&self) -> &Pod {
        &self.pods[0]
    }

    /// Returns the pod that clients connect to by its own address.
    pub(crate) fn server_pod(&self) -> &Pod {
        &self.pods[1]
    }

    /// Returns the pod with hostports.
    pub(crate) fn hostport_pod(&self) -> &Pod {
        &self.pods[2]
    }

    fn attach(&mut self, screen: &mut Screen, name: &str) -> Result<()> {
        let mut pod = self.sandbox.pod(name)?;
        let mut config = Config::new("1.1.0");
        let mut label = name.to_owned();
        if name == "pod-c" {
            config = config.publish(&PUBLISHED);
            for Mapping {
                host,
                container,
                protocol,
            } in PUBLISHED
            {
                let _ = write!(label, " {protocol} {host}→{container}");
            }
        }
        let answer = pod.add_with(config).context("ADD")?;
        let addresses = pod
            .addresses
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>();
        screen.line(
            label,
            Ok(format!("{}  ADD {:.1?}", addresses.join("  "), answer.took)),
        );
        self.pods.push(pod);
        Ok(())
    }

    fn serve(&mut self) -> Result<()> {
        let places = [
            (&self.sandbox.world, ECHO),
            (&self.pods[1].machine, ECHO),
            (&self.pods[2].machine, 80),
            (&self.pods[2].machine, 53),
        ];
        for (machine, port) in places {
            self.servers.push(Echo::start(machine, port)?);
        }
        Ok(())
    }
}

//! Who takes part: a node with its agent, a world, and three pods.

use std::fmt::Write as _;
use std::time::Instant;

use anyhow::{Context as _, Result};
use e2e::{Agent, Config, Echo, Mapping, NODE, POD_CIDRS, Pod, Residue, Sandbox, UPLINK, WORLD};

use crate::screen::Screen;

/// The port on which everybody answers with the address of who asks.
pub(crate) const ECHO: u16 = 7000;

/// What the third pod publishes.
pub(crate) const PUBLISHED: [Mapping; 3] = [
    Mapping::tcp(8080, 80),
    Mapping::udp(5353, 53),
    Mapping::tcp(5201, 5201),
];

/// Everybody and everything on stage. Fields are dropped in this order.
pub(crate) struct Cast {
    pub(crate) servers: Vec<Echo>,
    pub(crate) pods: Vec<Pod>,
    pub(crate) agent: Agent,
    /// What was on the node before any pod was.
    pub(crate) empty: Residue,
    /// What was on the node before the agent was.
    pub(crate) bare: Residue,
    pub(crate) sandbox: Sandbox,
}

impl Cast {
    pub(crate) fn assemble(screen: &mut Screen) -> Result<Self> {
        screen.section("A node and its world, in network namespaces");
        let sandbox = Sandbox::new()?;
        let [v4, v6] = NODE;
        screen.line("node", Ok(format!("{UPLINK}  {v4}/24  {v6}/64")));
        let [v4, v6] = WORLD;
        screen.line(
            "world, with no route to any pod",
            Ok(format!("eth0 {v4}/24  {v6}/64")),
        );
        let bare = Residue::of(&sandbox.node, &[])?;
        let start = Instant::now();
        let agent = Agent::start(&sandbox.node, &[])?;
        let [v4, v6] = POD_CIDRS;
        let took = start.elapsed();
        screen.line(
            "agent serves",
            Ok(format!("after {took:.1?}, pods get {v4} and {v6}")),
        );
        let empty = Residue::of(&sandbox.node, &[])?;
        let mut cast = Self {
            servers: Vec::new(),
            pods: Vec::new(),
            agent,
            empty,
            bare,
            sandbox,
        };
        screen.section("Three pods, by the CNI plugin");
        for name in ["pod-a", "pod-b", "pod-c"] {
            cast.attach(screen, name)?;
        }
        cast.serve()?;
        Ok(cast)
    }

    /// The pod that calls.
    pub(crate) fn caller(&self) -> &Pod {
        &self.pods[0]
    }

    /// The pod that is called by its own address.
    pub(crate) fn callee(&self) -> &Pod {
        &self.pods[1]
    }

    /// The pod that publishes ports.
    pub(crate) fn publisher(&self) -> &Pod {
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

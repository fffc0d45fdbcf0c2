//! Coming to a node, and leaving it.

use anyhow::{Result, ensure};
use e2e::residue::{assert_no_residue, await_no_residue, make_qdisc};
use e2e::{Agent, GATEWAYS, Points, Residue, Sandbox, UPLINK, until};

use crate::table::Table;

/// A node with nothing of ours on it, and an agent that does not run.
struct Scene {
    sandbox: Sandbox,
    agent: Agent,
    points: Points,
    bare: Residue,
    /// With an agent and no pod.
    installed: Residue,
}

impl Scene {
    fn new() -> Result<Self> {
        let sandbox = Sandbox::new()?;
        // Until the kernel has looked for duplicates of its addresses, the node is not as it will be.
        until("the node has its addresses", || {
            let tentative = sandbox.node.call("ip -6 address show tentative")?;
            Ok(tentative.trim().is_empty().then_some(()))
        })?;
        make_qdisc(&sandbox.node, UPLINK)?;
        let bare = Residue::of(&sandbox.node, &[])?;
        let mut agent = Agent::start(&sandbox.node, &[])?;
        agent.terminate()?;
        let points = Points::of(&sandbox.node, &mut agent)?;
        agent.restart()?;
        until("the bridge's address is one of the node's", || {
            let own = sandbox.node.call("ip -6 route show table local dev cbr0")?;
            Ok(own.contains(&GATEWAYS[1].to_string()).then_some(()))
        })?;
        let installed = Residue::of(&sandbox.node, &[])?;
        agent.terminate()?;
        let mut scene = Self {
            sandbox,
            agent,
            points,
            bare,
            installed,
        };
        scene.remove()?;
        Ok(scene)
    }

    /// Takes everything off the node where no agent runs.
    fn remove(&mut self) -> Result<()> {
        self.agent.run(&["--uninstall"])?;
        assert_no_residue(&self.bare, &Residue::of(&self.sandbox.node, &[])?)
    }

    fn die_in_install(&mut self, point: &str) -> Result<&'static str> {
        self.points.arm(point)?;
        self.agent.start_and_die()?;
        ensure!(self.points.has_struck()?, "the agent died elsewhere");
        self.agent.restart()?;
        // The kernel makes the route of an IPv6 address when it has time.
        await_no_residue(&self.installed, &self.sandbox.node)?;
        self.agent.terminate()?;
        self.remove()?;
        Ok("the next start finishes")
    }

    fn die_in_uninstall(&mut self, point: &str) -> Result<&'static str> {
        self.agent.restart()?;
        self.points.arm(point)?;
        ensure!(self.agent.ctl("uninstall").is_err(), "somebody answered");
        self.agent.wait_for_end()?;
        ensure!(self.points.has_struck()?, "the agent died elsewhere");
        self.remove()?;
        Ok("uninstalling again finishes")
    }
}

#[test]
fn a_crash_while_coming_or_leaving_is_finished_by_the_next_try() -> Result<()> {
    let mut scene = Scene::new()?;
    let points = Points::again(&scene.sandbox.node);
    let install = points.reached_in("start", || scene.agent.restart())?;
    let uninstall = points.reached_in("uninstall", || {
        scene.agent.ctl("uninstall")?;
        scene.agent.wait_for_end().map(drop)
    })?;
    let mut table = Table::new();
    table.verb("install", install, |point| scene.die_in_install(point))?;
    table.verb("uninstall", uninstall, |point| {
        scene.die_in_uninstall(point)
    })?;
    table.show()
}

//! Crashes during installation on a node and during uninstall.

use anyhow::{Result, ensure};
use e2e::residue::{assert_no_residue, await_no_residue, make_qdisc};
use e2e::{Agent, CrashPoints, GATEWAYS, Residue, Sandbox, UPLINK, until};

use crate::table::Table;

/// A node without Viaduct's state, and an agent that does not run.
struct Scene {
    sandbox: Sandbox,
    agent: Agent,
    points: CrashPoints,
    bare: Residue,
    /// The state of the node with an agent and no pod.
    installed: Residue,
}

impl Scene {
    fn new() -> Result<Self> {
        let sandbox = Sandbox::new()?;
        // The node's state is final only after duplicate address detection.
        sandbox.node.await_addresses(UPLINK)?;
        make_qdisc(&sandbox.node, UPLINK)?;
        let bare = Residue::of(&sandbox.node, &[])?;
        let mut agent = Agent::start(&sandbox.node, &[])?;
        agent.terminate()?;
        let points = CrashPoints::enable(&sandbox.node, &mut agent)?;
        agent.restart()?;
        until("the bridge's address is in the local routing table", || {
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

    /// Uninstalls by the agent's program, without a running agent.
    fn remove(&mut self) -> Result<()> {
        self.agent.run(&["--uninstall"])?;
        assert_no_residue(&self.bare, &Residue::of(&self.sandbox.node, &[])?)
    }

    fn die_in_install(&mut self, point: &str) -> Result<&'static str> {
        self.points.arm(point)?;
        self.agent.start_until_exit()?;
        ensure!(self.points.was_hit()?, "the agent died elsewhere");
        self.agent.restart()?;
        // The kernel adds the route of an IPv6 address asynchronously.
        await_no_residue(&self.installed, &self.sandbox.node)?;
        self.agent.terminate()?;
        self.remove()?;
        Ok("the next start finishes")
    }

    fn die_in_uninstall(&mut self, point: &str) -> Result<&'static str> {
        self.agent.restart()?;
        self.points.arm(point)?;
        ensure!(
            self.agent.ctl("uninstall").is_err(),
            "uninstall succeeded without an agent"
        );
        self.agent.wait_for_end()?;
        ensure!(self.points.was_hit()?, "the agent died elsewhere");
        self.remove()?;
        Ok("uninstalling again finishes")
    }
}

#[test]
fn a_crash_during_install_or_uninstall_is_completed_by_the_next_attempt() -> Result<()> {
    let mut scene = Scene::new()?;
    let points = CrashPoints::enabled_before(&scene.sandbox.node);
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

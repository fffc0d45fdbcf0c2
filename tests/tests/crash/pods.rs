//! Crashes during ADD, DEL, CHECK and GC, and during starts and upgrades of an agent with pods.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context as _, Result, ensure};
use e2e::residue::await_no_residue;
use e2e::{
    Agent, Answer, Call, Config, CrashPoints, Mapping, NODE, NumberedDatagrams, Pod, Residue,
    Sandbox, Verb, WORLD, program,
};
use serde_json::{Value, json};

use crate::table::Table;

/// The bystander's port, and those of the pod under test.
const UNTOUCHED: [Mapping; 1] = [Mapping::udp(5353, 53)];
const TRIED: [Mapping; 2] = [Mapping::tcp(8080, 80), Mapping::udp(8081, 81)];

/// A node with a bystander pod, which stays attached throughout, and the pod under test.
struct Scene {
    sandbox: Sandbox,
    agent: Agent,
    points: CrashPoints,
    bystander: Pod,
    pod: Pod,
    /// A pod whose namespace has no path but still exists: its links stay.
    lost: Option<Pod>,
    streams: Vec<NumberedDatagrams>,
    /// The state of the node without the pod under test.
    without: Residue,
}

impl Scene {
    fn new() -> Result<Self> {
        let (sandbox, mut agent) = Sandbox::with_agent()?;
        agent.terminate()?;
        let points = CrashPoints::enable(&sandbox.node, &mut agent)?;
        agent.restart()?;
        let mut bystander = sandbox.pod("bystander")?;
        bystander.add_with(Config::new("1.1.0").publish(&UNTOUCHED))?;
        let any = |port| SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
        let out = SocketAddr::new(WORLD[0], 7001);
        let inward = SocketAddr::new(NODE[0], 5353);
        let (inside, world) = (&bystander.machine, &sandbox.world);
        let streams = vec![
            NumberedDatagrams::start(
                "from the bystander to the world",
                (inside, out),
                (world, any(7001)),
            )?,
            NumberedDatagrams::start(
                "from the world to a port",
                (world, inward),
                (inside, any(53)),
            )?,
        ];
        let pod = sandbox.pod("pod")?;
        let without = Residue::of(&sandbox.node, &[])?;
        Ok(Self {
            sandbox,
            agent,
            points,
            bystander,
            pod,
            lost: None,
            streams,
            without,
        })
    }

    fn add(&mut self) -> Result<()> {
        self.pod
            .add_with(Config::new("1.1.0").publish(&TRIED))
            .map(drop)
    }

    /// Waits for the crash at the armed point, and starts another agent.
    fn recover(&mut self) -> Result<()> {
        self.agent.wait_for_end()?;
        ensure!(self.points.was_hit()?, "the agent died elsewhere");
        self.agent.restart()
    }

    /// Checks the invariants of the node with a running agent.
    fn is_sound(&self) -> Result<()> {
        for stream in &self.streams {
            stream.await_progress()?;
        }
        self.bystander.check()?.success()?;
        let answer = self.agent.get("/v1/leases")?;
        let leases = answer.as_array().context("a list")?;
        let addresses: BTreeSet<_> = leases
            .iter()
            .map(|lease| lease["address"].to_string())
            .collect();
        ensure!(
            addresses.len() == leases.len(),
            "an address is leased twice: {leases:?}"
        );
        Ok(())
    }

    fn is_known(&self) -> Result<bool> {
        let answer = self.agent.get("/v1/attachments")?;
        let mut list = answer.as_array().into_iter().flatten();
        Ok(list.any(|attachment| {
            attachment
                .to_string()
                .contains(&format!("{:?}", self.pod.id()))
        }))
    }

    /// Checks that nothing of the pod is left.
    fn is_gone(&self) -> Result<()> {
        self.is_sound()?;
        // A command of this test that takes three seconds on a busy machine is a process outside of
        // the agent's cgroup: the netfilter table serves it for as long as it is there.
        await_no_residue(&self.without, &self.sandbox.node)
    }

    /// Deletes the pod after a crash; must succeed and leave nothing.
    fn remove(&mut self) -> Result<()> {
        self.pod.del()?;
        self.is_gone()
    }

    /// Crashes the agent in an ADD; the runtime retries.
    fn die_in_add(&mut self, point: &str) -> Result<&'static str> {
        self.points.arm(point)?;
        ensure!(self.add().is_err(), "the ADD was answered with success");
        self.recover()?;
        let outcome = if self.is_known()? {
            // The attachment was made and recorded; only the response was lost.
            self.pod.del()?;
            "was made; DEL and ADD again work"
        } else {
            self.is_gone().context("before the second ADD")?;
            "left nothing; ADD again works"
        };
        self.add().context("the second ADD")?;
        self.pod.check()?.success()?;
        self.is_sound()?;
        self.remove()?;
        Ok(outcome)
    }

    fn die_in_del(&mut self, point: &str) -> Result<&'static str> {
        self.add()?;
        self.points.arm(point)?;
        // The plugin may succeed by spooling the DEL for a later agent.
        let _answer = self.pod.del();
        self.recover()?;
        self.remove()?;
        Ok("DEL again works, nothing left")
    }

    fn die_in_check(&mut self, point: &str) -> Result<&'static str> {
        self.add()?;
        self.points.arm(point)?;
        ensure!(
            self.pod.check()?.code != Some(0),
            "CHECK succeeded without an agent"
        );
        self.recover()?;
        self.pod.check()?.success()?;
        self.is_sound()?;
        self.remove()?;
        Ok("CHECK again works")
    }

    /// GC with the bystander as the only valid attachment; the lost pod has to be removed.
    fn collect(&mut self) -> Result<Answer> {
        let valid = json!([{ "containerID": self.bystander.id(), "ifname": "eth0" }]);
        let config = Config::new("1.1.0").with("cni.dev/valid-attachments", valid);
        Call::new(Verb::Gc, "", "", &config).run(&self.sandbox.node)
    }

    fn lose(&mut self) -> Result<()> {
        // The previous lost pod has the same name.
        self.lost = None;
        let lost = self.lost.insert(self.sandbox.pod("lost")?);
        lost.add_with(Config::new("1.1.0").publish(&TRIED))?;
        lost.machine.unbind()
    }

    fn die_in_gc(&mut self, point: &str) -> Result<&'static str> {
        self.lose()?;
        self.points.arm(point)?;
        ensure!(
            self.collect()?.code != Some(0),
            "GC succeeded without an agent"
        );
        self.recover()?;
        self.collect()?.success()?;
        self.is_gone()?;
        self.lost = None;
        Ok("GC again works, nothing left")
    }

    /// Kills the agent and damages the node: the pod lacks its programs, its bridge and an address,
    /// and another pod vanishes without a DEL.
    fn damage(&mut self) -> Result<()> {
        self.add()?;
        let mut lost = self.sandbox.pod("lost")?;
        lost.add()?;
        self.agent.kill()?;
        let link = self.pod.host_link();
        let node = &self.sandbox.node;
        node.call(&format!("tc filter del dev {link} egress"))?;
        node.call(&format!("ip link set {link} nomaster"))?;
        node.call("ip address del fd00:10:244:1::1/64 dev cbr0")?;
        node.call(&format!("ip link delete {}", lost.host_link()))?;
        lost.machine.unbind()
    }

    fn is_repaired(&mut self) -> Result<()> {
        self.pod.check()?.success()?;
        self.is_sound()?;
        self.remove()
    }

    fn die_in_start(&mut self, point: &str) -> Result<&'static str> {
        self.damage()?;
        self.points.arm(point)?;
        self.agent.start_until_exit()?;
        ensure!(self.points.was_hit()?, "the agent died elsewhere");
        self.agent.restart()?;
        self.is_repaired()?;
        Ok("the next start repairs all")
    }

    fn die_in_upgrade(&mut self, point: &str) -> Result<&'static str> {
        let next = program("../dist-next/bin/viaductd");
        self.agent.terminate()?;
        self.agent.replace(&program("bin/viaductd"));
        self.agent.restart()?;
        self.agent.terminate()?;
        self.agent.replace(&next);
        self.points.arm(point)?;
        self.agent.start_until_exit()?;
        ensure!(self.points.was_hit()?, "the agent died elsewhere");
        self.agent.restart()?;
        self.is_gone()?;
        Ok("the next start takes over")
    }
}

/// Returns the crash points of each verb, as one execution without a crash reaches them.
fn crash_points(scene: &mut Scene) -> Result<[Vec<String>; 6]> {
    let node = scene.sandbox.node.clone();
    let points = CrashPoints::enabled_before(&node);
    let add = points.reached_in("add", || scene.add())?;
    let check = points.reached_in("check", || scene.pod.check()?.success())?;
    let del = points.reached_in("del", || scene.remove())?;
    scene.lose()?;
    let gc = points.reached_in("gc", || scene.collect()?.success())?;
    scene.lost = None;
    scene.damage()?;
    let start = points.reached_in("start", || scene.agent.restart())?;
    scene.is_repaired()?;
    scene.agent.terminate()?;
    let upgrade = points.reached_in("start", || scene.agent.restart())?;
    scene.is_gone()?;
    Ok([add, check, del, gc, start, upgrade])
}

/// behaviours A4, A5, C10
#[test]
fn a_crash_between_any_two_effects_loses_nothing_and_leaves_nothing() -> Result<()> {
    let mut scene = Scene::new()?;
    let mut table = Table::new();
    let [add, check, del, gc, start, upgrade] = crash_points(&mut scene)?;
    table.verb("ADD", add, |point| scene.die_in_add(point))?;
    table.verb("CHECK", check, |point| scene.die_in_check(point))?;
    table.verb("DEL", del, |point| scene.die_in_del(point))?;
    table.verb("GC", gc, |point| scene.die_in_gc(point))?;
    table.verb("reconcile", start, |point| scene.die_in_start(point))?;
    table.verb("upgrade", upgrade, |point| scene.die_in_upgrade(point))?;
    for stream in scene.streams {
        stream.end()?;
    }
    let list = scene.agent.get("/v1/attachments")?;
    ensure!(list.as_array().map(Vec::len) == Some(1), "{list}");
    ensure!(
        scene.agent.get("/v1/status")?["degraded"] == Value::Array(Vec::new()),
        "the agent is degraded"
    );
    table.show()
}

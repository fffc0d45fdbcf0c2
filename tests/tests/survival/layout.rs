//! Upgrades to the next ABI version, in which the layout of one map has changed, and the refusal of
//! downgrades.
//!
//! `cargo xtask dist --next` builds that release under `target/dist-layout`: the same sources with
//! the feature `next-layout` of the crate `abi`. Its egress map has larger rows, with another field
//! in front of the addresses.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use abi::{ABI_VERSION, maps};
use anyhow::{Context as _, Result, ensure};
use e2e::{
    Agent, Config, CrashPoints, Machine, Pod, Sandbox, UPLINK, WORLD, is_slow, program, udp_source,
    until,
};
use serde_json::Value;

use super::{HOSTPORTS, Traffic, programs_of};

/// Addresses of the node that pods leave with.
const EGRESS: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, 99)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 0x99)),
];

/// Sizes of a row of the egress map in bytes, before and after the change.
const OLD_ROW: usize = size_of::<abi::Egress>();
const NEW_ROW: usize = OLD_ROW + 8;

/// The agent that has the changed layout.
const NEXT: &str = "../dist-layout/bin/viaductd";

/// A node under traffic, with the agent of the current release and a row in the map that changes.
struct Scene {
    sandbox: Sandbox,
    agent: Agent,
    pod: Pod,
    traffic: Traffic,
}

impl Scene {
    fn new() -> Result<Self> {
        let sandbox = Sandbox::new()?;
        let mut flags = Vec::new();
        for (address, length) in EGRESS.into_iter().zip(["24", "64 nodad"]) {
            let line = format!("ip address add {address}/{length} dev {UPLINK}");
            sandbox.node.call(&line)?;
            flags.push(format!("--egress-address={address}"));
        }
        let flags = flags.iter().map(String::as_str).collect::<Vec<_>>();
        let agent = Agent::start(&sandbox.node, &flags)?;
        let mut pod = sandbox.pod("server")?;
        pod.add_with(Config::new("1.1.0").publish(&HOSTPORTS))?;
        let traffic = Traffic::start(&sandbox, &pod)?;
        let scene = Self {
            sandbox,
            agent,
            pod,
            traffic,
        };
        scene.leaves_with_egress_address()?;
        Ok(scene)
    }

    /// Stops the agent and replaces its binary by the next release's. Returns its crash points.
    fn install_next(&mut self) -> Result<CrashPoints> {
        let next = program(NEXT);
        ensure!(
            next.is_file(),
            "no {}: `cargo xtask dist --next` makes it",
            next.display()
        );
        self.agent.terminate()?;
        CrashPoints::enable_with(&self.sandbox.node, &mut self.agent, &next)
    }

    /// Fails unless new flows of the pod have the egress address, which is in the changed map.
    fn leaves_with_egress_address(&self) -> Result<()> {
        for (world, own) in WORLD.into_iter().zip(EGRESS) {
            let server = SocketAddr::new(world, 7000);
            until(&format!("the pod leaves with {own}"), || {
                let (seen, _) = udp_source(&self.pod.machine, 0, server)?;
                Ok((seen.ip() == own).then_some(()))
            })?;
        }
        Ok(())
    }

    /// Fails unless pins, maps, rows and egress are those of the next release. Needs no agent.
    fn is_upgraded(&self, before: &BTreeMap<String, Map>) -> Result<()> {
        let node = &self.sandbox.node;
        ensure!(
            versions(node)? == [ABI_VERSION + 1],
            "{:?}",
            versions(node)?
        );
        let after = pinned(node, ABI_VERSION + 1)?;
        for (name, old) in before {
            let new = after.get(name).with_context(|| format!("{name} is gone"))?;
            if name == maps::EGRESS.name {
                ensure!(old.id != new.id && old.row == OLD_ROW, "{old:?}");
                ensure!(new.row == NEW_ROW, "{new:?}");
            } else {
                ensure!(old == new, "{name} was {old:?} and is {new:?}");
            }
        }
        let rows = rows(node, &pin(ABI_VERSION + 1, maps::EGRESS.name))?;
        ensure!(rows == [next_row()], "{rows:02x?}");
        self.leaves_with_egress_address()
    }
}

/// A pinned map: its number in the kernel, and the size of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Map {
    id: u64,
    row: usize,
}

fn directory(version: u32) -> String {
    format!("/sys/fs/bpf/viaduct/v{version}")
}

fn pin(version: u32, map: &str) -> String {
    format!("{}/maps/{map}", directory(version))
}

/// Returns the ABI versions that have a directory of pins.
fn versions(node: &Machine) -> Result<Vec<u32>> {
    let found =
        node.call("find /sys/fs/bpf/viaduct -mindepth 1 -maxdepth 1 -name v* -printf %f\\n")?;
    let numbers = found
        .lines()
        .map(|name| name.trim_start_matches('v').parse());
    Ok(numbers.collect::<Result<_, _>>()?)
}

/// Returns the pinned maps of a version, by name.
fn pinned(node: &Machine, version: u32) -> Result<BTreeMap<String, Map>> {
    let listed = node.call(&format!("ls {}/maps", directory(version)))?;
    let map = |name: &str| -> Result<(String, Map)> {
        let shown = node.call_json(&format!(
            "bpftool -j map show pinned {}",
            pin(version, name)
        ))?;
        let number = |key: &str| {
            shown[key]
                .as_u64()
                .with_context(|| format!("{key}: {shown}"))
        };
        let map = Map {
            id: number("id")?,
            row: usize::try_from(number("bytes_value")?)?,
        };
        Ok((name.to_owned(), map))
    };
    listed.split_whitespace().map(map).collect()
}

/// Returns the values of a map.
fn rows(node: &Machine, pin: &str) -> Result<Vec<Vec<u8>>> {
    let dump = node.call_json(&format!("bpftool -j map dump pinned {pin}"))?;
    let row = |entry: &Value| -> Result<Vec<u8>> {
        let bytes: Vec<String> = serde_json::from_value(entry["value"].clone())?;
        let byte = |text: &String| u8::from_str_radix(text.trim_start_matches("0x"), 16);
        Ok(bytes.iter().map(byte).collect::<Result<_, _>>()?)
    };
    dump.as_array().context("a list")?.iter().map(row).collect()
}

/// Returns the row of the pods' bridge in the next layout: ABI version, four bytes of zero, and the
/// addresses.
fn next_row() -> Vec<u8> {
    let [IpAddr::V4(v4), IpAddr::V6(v6)] = EGRESS else {
        return Vec::new();
    };
    let mut row = (ABI_VERSION + 1).to_be_bytes().to_vec();
    row.extend([0; 4]);
    row.extend(abi::Address::v4(v4.octets()).bytes());
    row.extend(v6.octets());
    row
}

/// Returns the packets that the pod has sent, by the counters of the datapath.
fn sent_packets(agent: &Agent, pod: &Pod) -> Result<u64> {
    let views = agent.get(&format!("/v1/attachments/{}", pod.id()))?;
    let count = views[0]["counters"]["tx_packets"].as_u64();
    count.with_context(|| format!("no counters in {views}"))
}

/// The upgrade under traffic, and then an attempt of the older release to start.
#[test]
fn an_upgrade_that_changes_a_map_layout_loses_nothing_and_cannot_be_undone() -> Result<()> {
    let mut scene = Scene::new()?;
    let node = scene.sandbox.node.clone();
    let before = pinned(&node, ABI_VERSION)?;
    let old_rows = rows(&node, &pin(ABI_VERSION, maps::EGRESS.name))?;
    ensure!(
        old_rows.len() == 1 && old_rows[0].len() == OLD_ROW,
        "{old_rows:?}"
    );
    let programs = programs_of(&scene.sandbox, &scene.pod)?;
    let packets = sent_packets(&scene.agent, &scene.pod)?;
    scene.traffic.await_progress()?;

    scene.install_next()?;
    scene.agent.restart()?;
    ensure!(
        programs_of(&scene.sandbox, &scene.pod)? != programs,
        "the same programs"
    );
    ensure!(
        sent_packets(&scene.agent, &scene.pod)? > packets,
        "counters began anew"
    );
    scene.is_upgraded(&before)?;
    scene
        .traffic
        .await_progress()
        .context("after the upgrade")?;

    scene.agent.terminate()?;
    scene.agent.replace(&program("bin/viaductd"));
    let refusal = scene
        .agent
        .restart()
        .err()
        .context("the older release started")?;
    let refusal = format!("{refusal:#}");
    ensure!(refusal.contains("by a newer agent"), "{refusal}");
    scene
        .traffic
        .await_progress()
        .context("beside the refusal")?;
    scene.is_upgraded(&before)?;

    scene.agent.replace(&program(NEXT));
    scene.agent.restart()?;
    scene.is_upgraded(&before)?;
    scene.pod.check()?.success()?;
    let mut late = scene.sandbox.pod("late")?;
    late.add()?;
    late.del()?;
    scene.traffic.await_progress()?;
    let passed = scene.traffic.end()?;
    eprintln!("an upgrade with a changed layout: {passed}");
    Ok(())
}

/// Steps of such a start, in order: moved pins, the removed directory, new tables, their rows, and
/// programs.
const STEPS: [&str; 5] = [
    "adopt-pin",
    "remove-old-pins",
    "adopt-tables",
    "put-entry",
    "attach",
];

/// Returns the first and the last crash point of each step; of an emulated guest's only the first.
fn chosen(points: &[String]) -> Result<Vec<&String>> {
    let mut chosen = Vec::new();
    for step in STEPS {
        let of_step = format!("start/{step}#");
        let mut named = points.iter().filter(|point| point.starts_with(&of_step));
        chosen.push(
            named
                .next()
                .with_context(|| format!("no {step} in {points:?}"))?,
        );
        chosen.extend(named.next_back().filter(|_| !is_slow()));
    }
    Ok(chosen)
}

#[test]
fn a_crash_in_an_upgrade_that_changes_a_map_layout_is_completed_by_the_next_start() -> Result<()> {
    let points = {
        let mut scene = Scene::new()?;
        let points = scene.install_next()?;
        points.reached_in("start", || scene.agent.restart())?
    };
    for point in chosen(&points)? {
        let mut scene = Scene::new()?;
        let before = pinned(&scene.sandbox.node, ABI_VERSION)?;
        let points = scene.install_next()?;
        points.arm(point)?;
        scene.agent.start_until_exit()?;
        ensure!(points.was_hit()?, "{point}: the agent died elsewhere");
        scene
            .traffic
            .await_progress()
            .with_context(|| format!("after {point}"))?;
        scene.agent.restart()?;
        scene.is_upgraded(&before).with_context(|| point.clone())?;
        scene.pod.check()?.success()?;
        scene
            .traffic
            .await_progress()
            .with_context(|| format!("{point}: after the next start"))?;
        scene.traffic.end().with_context(|| point.clone())?;
    }
    Ok(())
}

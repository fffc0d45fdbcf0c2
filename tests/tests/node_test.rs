//! `viaductctl test`: passes on a healthy node, names the fault of a broken one, leaves nothing.

use std::net::{IpAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e::{
    Agent, Machine, Process, Residue, Sandbox, UPLINK, WORLD, in_cgroup, program, residue, until,
};
use nix::sys::signal::Signal;
use serde_json::Value;

/// Options of tests that need no limits.
const SHORT: [&str; 1] = ["--no-limits"];

/// A node, and what is on it before the test.
struct Scene {
    sandbox: Sandbox,
    agent: Agent,
    before: Residue,
}

impl Scene {
    fn new() -> Result<Self> {
        let (sandbox, agent) = Sandbox::with_agent()?;
        residue::make_qdisc(&sandbox.node, UPLINK)?;
        // The first attachment makes the bridge, which stays.
        let mut first = sandbox.pod("first")?;
        first.add()?;
        first.del()?;
        let before = Residue::of(&sandbox.node, &[])?;
        Ok(Self {
            sandbox,
            agent,
            before,
        })
    }

    /// Runs the test, and returns its report.
    fn test(&self, options: &[&str]) -> Result<Value> {
        let ctl = program("bin/viaductctl").display().to_string();
        let words = [&[ctl.as_str(), "test", "--json"], options].concat();
        let output = self.sandbox.node.output(&words)?;
        let text = String::from_utf8_lossy(&output.stdout);
        let report: Value = serde_json::from_str(&text)
            .with_context(|| format!("{text}{}", String::from_utf8_lossy(&output.stderr)))?;
        let is_success = report["passed"] == true;
        ensure!(output.status.success() == is_success, "{report:#}");
        Ok(report)
    }

    fn is_clean(&self) -> Result<()> {
        let mut difference = String::new();
        let clean = until("the test leaves nothing", || {
            // Fails if a link goes while it is read.
            difference = match Residue::of(&self.sandbox.node, &[]) {
                Ok(residue) => self.before.difference(&residue),
                Err(error) => format!("{error:#}"),
            };
            Ok(difference.is_empty().then_some(()))
        });
        clean.with_context(|| difference)
    }

    /// Starts the test with a host of the world that does not answer, and waits until both pods are
    /// attached.
    fn start(&self) -> Result<Process> {
        let ctl = program("bin/viaductctl").display().to_string();
        let words = [ctl.as_str(), "test", "--world", "192.0.2.99"];
        let process = Process::start(&self.sandbox.node, &words)?;
        until("both pods are attached", || {
            ensure!(process.ended()?.is_none(), "{}", process.output());
            Ok((self.attached()? == 2).then_some(()))
        })?;
        Ok(process)
    }

    fn attached(&self) -> Result<usize> {
        let views = self.agent.get("/v1/attachments")?;
        Ok(views.as_array().map_or(0, Vec::len))
    }
}

/// Returns the checks whose outcome is not `ok`.
fn faults(report: &Value) -> Vec<&Value> {
    let checks = report["checks"].as_array().into_iter().flatten();
    checks.filter(|check| check["outcome"] != "ok").collect()
}

fn check<'a>(report: &'a Value, name: &str) -> Result<&'a Value> {
    let mut checks = report["checks"].as_array().into_iter().flatten();
    checks
        .find(|check| check["name"] == name)
        .with_context(|| format!("no check {name} in {report:#}"))
}

#[test]
fn the_test_of_a_healthy_node_passes_in_both_families_and_leaves_nothing() -> Result<()> {
    let scene = Scene::new()?;
    let cgroup = scene.agent.cgroup().context("there is no cgroup2")?;
    // In the cgroup of the node, as all of its processes are.
    let report = in_cgroup(cgroup, || scene.test(&[]))??;
    ensure!(faults(&report).is_empty(), "{report:#}");
    let checks = report["checks"].as_array().context("no checks")?;
    for family in ["IPv4", "IPv6"] {
        let of_family = checks.iter().filter(|check| check["family"] == family);
        ensure!(of_family.count() >= 15, "{family}: {report:#}");
    }
    for name in [
        "limit of 20 Mbit/s to a pod",
        "limit of 20 Mbit/s from a pod",
    ] {
        check(&report, name)?;
    }
    check(&report, &format!("gateway {}", WORLD[0]))?;
    scene.is_clean()
}

#[test]
fn the_test_names_a_rule_that_drops_forwarded_packets() -> Result<()> {
    let scene = Scene::new()?;
    let node = &scene.sandbox.node;
    node.call("iptables-nft -I FORWARD -s 10.244.1.0/24 -o up0 -j DROP")?;
    let report = scene.test(&SHORT)?;
    node.call("iptables-nft -D FORWARD -s 10.244.1.0/24 -o up0 -j DROP")?;
    ensure!(report["passed"] == false, "{report:#}");
    let lost = check(&report, &format!("gateway {}", WORLD[0]))?;
    ensure!(lost["outcome"] == "fail", "{report:#}");
    let reason = lost["reason"].as_str().unwrap_or_default();
    ensure!(reason.contains("FORWARD"), "{lost:#}");
    // Packets of the other family, and between pods, meet no such rule.
    for name in ["pod to pod".to_owned(), format!("gateway {}", WORLD[1])] {
        ensure!(check(&report, &name)?["outcome"] == "ok", "{report:#}");
    }
    node.call("nft flush ruleset")?;
    until("the agent restores its rules", || {
        let now = Residue::of(node, &[])?;
        let difference = scene.before.difference(&now);
        Ok((!difference.contains("attachments")).then_some(()))
    })
}

#[test]
fn the_test_finds_the_mtu_of_a_link_that_drops_longer_packets() -> Result<()> {
    let scene = Scene::new()?;
    // A veth discards frames that are longer than the MTU of its peer with a VLAN tag.
    scene.sandbox.world.call("ip link set eth0 mtu 1400")?;
    let report = scene.test(&SHORT)?;
    let name = format!("gateway {}, 1500 bytes", WORLD[0]);
    let lost = check(&report, &name)?;
    ensure!(lost["outcome"] == "fail", "{report:#}");
    let message = lost["message"].as_str().unwrap_or_default();
    ensure!(message.contains("lost if longer than 140"), "{lost:#}");
    let small = check(&report, &format!("gateway {}", WORLD[0]))?;
    ensure!(small["outcome"] == "ok", "{report:#}");
    scene.is_clean()
}

#[test]
fn an_interrupted_test_leaves_nothing() -> Result<()> {
    let scene = Scene::new()?;
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let (status, output) = scene.start()?.end(signal)?;
        ensure!(status.code() == Some(1), "{status}: {output}");
        ensure!(output.contains("Result: interrupted."), "{output}");
        scene.is_clean()?;
    }
    Ok(())
}

#[test]
fn a_killed_test_leaves_nothing_and_does_not_disturb_the_next_one() -> Result<()> {
    let scene = Scene::new()?;
    scene.start()?.end(Signal::SIGKILL)?;
    // With the namespaces the links go, so the agent releases the records.
    scene.is_clean()?;
    scene.start()?.end(Signal::SIGKILL)?;
    let report = scene.test(&SHORT)?;
    check(&report, "pod to pod")?;
    scene.is_clean()
}

#[test]
fn a_second_test_at_the_same_time_is_refused() -> Result<()> {
    let scene = Scene::new()?;
    let first = scene.start()?;
    let refused = scene.agent.ctl("test").unwrap_err().to_string();
    ensure!(
        refused.contains("another viaductctl test runs"),
        "{refused}"
    );
    first.end(Signal::SIGINT)?;
    scene.is_clean()
}

/// A DNS server with one name, for queries of any name.
struct DnsServer {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl DnsServer {
    fn start(world: &Machine, address: IpAddr) -> Result<Self> {
        let socket = world.run(|| UdpSocket::bind((address, 53)))?;
        socket.set_read_timeout(Some(Duration::from_millis(50)))?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let serve = move || {
            let mut buffer = [0; 512];
            while !stopped.load(Ordering::Relaxed) {
                if let Ok((length, from)) = socket.recv_from(&mut buffer) {
                    // A client that is gone is no fault of the server.
                    let _sent = socket.send_to(&answer(&buffer[..length]), from);
                }
            }
        };
        Ok(Self {
            stop,
            thread: Some(std::thread::spawn(serve)),
        })
    }
}

impl Drop for DnsServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic has been printed already.
            let _ = thread.join();
        }
    }
}

/// Returns the query as a response, with 192.0.2.7 if it is for IPv4 addresses (RFC 1035).
fn answer(query: &[u8]) -> Vec<u8> {
    let mut response = query.to_vec();
    response[2..4].copy_from_slice(&[0x81, 0x80]);
    if query.ends_with(&[0, 1, 0, 1]) {
        response[7] = 1;
        response.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 30, 0, 4, 192, 0, 2, 7]);
    }
    response
}

#[test]
fn the_test_resolves_a_name_from_a_pod() -> Result<()> {
    let scene = Scene::new()?;
    let _server = DnsServer::start(&scene.sandbox.world, WORLD[0])?;
    let server = WORLD[0].to_string();
    let options = [
        "--no-limits",
        "--dns",
        "www.example.org",
        "--dns-server",
        &server,
    ];
    let report = scene.test(&options)?;
    let resolved = check(&report, &format!("name www.example.org at {server}"))?;
    ensure!(resolved["outcome"] == "ok", "{report:#}");
    ensure!(resolved["message"] == "192.0.2.7", "{report:#}");
    scene.is_clean()
}

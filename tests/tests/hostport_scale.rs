//! Ten thousand hostports on one node.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use e2e::residue::assert_no_residue;
use e2e::{Agent, Config, Echo, NODE, Residue, Sandbox, tcp_source};
use serde_json::{Value, json};

const PODS: u16 = 10;
const EACH: u16 = 1_000;
const FIRST: u16 = 20_000;

/// IPv4 mappings only: each port needs a descriptor of the agent per family, and not every machine
/// allows twenty thousand.
fn publishing(pod: u16) -> Config {
    let first = FIRST + pod * EACH;
    let mapping = |host: u16| json!({ "hostPort": host, "containerPort": 80, "protocol": "tcp", "hostIP": "0.0.0.0" });
    let mappings: Vec<Value> = (first..first + EACH).map(mapping).collect();
    Config::new("1.1.0").map_ports(&mappings)
}

/// behaviour F31
#[test]
fn ten_thousand_hostports_reach_their_pods_and_are_reserved() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let mut agent = Agent::start(&sandbox.node, &[])?;
    let mut pods = Vec::new();
    for number in 0..PODS {
        let mut pod = sandbox.pod(&format!("pod-{number}"))?;
        if number == 0 {
            pod.add_with(publishing(0))?;
            pod.del()?;
        }
        pods.push(pod);
    }
    let machines: Vec<_> = pods.iter().map(|pod| &pod.machine).collect();
    let before = Residue::of(&sandbox.node, &machines)?;
    let mut servers = Vec::new();
    for (number, pod) in (0..).zip(&mut pods) {
        pod.add_with(publishing(number))?;
        servers.push(Echo::start(&pod.machine, 80)?);
    }
    let reached = |agent: &Agent| -> Result<()> {
        let claimed = agent.get("/v1/hostports")?.as_array().map_or(0, Vec::len);
        ensure!(claimed == usize::from(PODS * EACH), "{claimed} ports");
        for port in (FIRST..FIRST + PODS * EACH).step_by(997) {
            tcp_source(&sandbox.world, 0, SocketAddr::new(NODE[0], port))?;
        }
        Ok(())
    };
    reached(&agent)?;
    agent.kill()?;
    agent.restart()?;
    reached(&agent)?;
    let held = agent.get("/v1/hostports")?.to_string();
    ensure!(!held.contains("nothing"), "a port is not reserved again");
    for pod in &pods {
        pod.del()?;
    }
    let machines: Vec<_> = pods.iter().map(|pod| &pod.machine).collect();
    assert_no_residue(&before, &Residue::of(&sandbox.node, &machines)?)
}

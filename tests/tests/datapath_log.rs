//! The datapath log: lines with the names of pods, switched while packets flow.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use e2e::{
    Agent, ENDLESS, Echo, GATEWAYS, NumberedDatagrams, Pod, Sandbox, Sends, Stream, Verb, WORLD,
    ping, tcp_source, until,
};
use serde_json::Value;

const PORT: u16 = 7000;
const OTHER_PORT: u16 = 7001;
const FILE: &str = "/run/viaductd.toml";
const NAMED: &str = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web";

fn write(sandbox: &Sandbox, level: &str) -> Result<()> {
    let text = format!("datapath-log = \"{level}\"\n");
    sandbox.node.run(|| std::fs::write(FILE, text))?;
    Ok(())
}

/// Attaches a pod with the name `shop/web`.
fn named_pod(sandbox: &Sandbox) -> Result<Pod> {
    let pod = sandbox.pod("client")?;
    let add = pod.prepare(Verb::Add, pod.config()).set("CNI_ARGS", NAMED);
    add.run(&sandbox.node)?.success()?;
    Ok(pod)
}

/// Returns the lines of the datapath log in JSON whose packets go to this address.
fn lines(agent: &Agent, message: &str, destination: SocketAddr) -> Vec<Value> {
    let log = agent.log();
    let objects = log
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    objects
        .filter(|line: &Value| {
            line["target"] == "datapath"
                && line["fields"]["message"] == message
                && line["fields"]["destination"] == destination.to_string()
        })
        .collect()
}

#[test]
fn a_new_flow_is_logged_with_the_pods_name_while_the_datapath_log_is_on() -> Result<()> {
    let sandbox = Sandbox::new()?;
    write(&sandbox, "off")?;
    let flags = [&format!("--config={FILE}"), "--log-format=json"];
    let agent = Agent::start(&sandbox.node, &flags)?;
    let pod = named_pod(&sandbox)?;
    let _echoes = [PORT, OTHER_PORT].map(|port| Echo::start(&sandbox.world, port));
    let [to, unlogged] = [PORT, OTHER_PORT].map(|port| SocketAddr::new(WORLD[0], port));
    tcp_source(&pod.machine, 0, unlogged)?;

    write(&sandbox, "debug")?;
    let reloaded = agent.ctl("reload")?;
    ensure!(reloaded.contains("datapath-log"), "{reloaded}");
    ensure!(agent.ctl("status")?.contains("Datapath log debug"));
    let (seen, stream) = tcp_source(&pod.machine, 0, to)?;
    let line = until("the new flow is logged", || {
        Ok(lines(&agent, "flow opened", to).pop())
    })?;
    let fields = &line["fields"];
    ensure!(line["level"] == "DEBUG", "{line}");
    ensure!(fields["pod"] == "shop/web", "{line}");
    ensure!(fields["protocol"] == "tcp", "{line}");
    ensure!(
        fields["source"] == stream.local_addr()?.to_string(),
        "{line}"
    );
    ensure!(fields["translated_source"] == seen.to_string(), "{line}");

    // Off again: nothing is logged, which the next flow that is logged shows.
    write(&sandbox, "off")?;
    agent.ctl("reload")?;
    ensure!(!agent.ctl("status")?.contains("Datapath log"));
    let logged = lines(&agent, "flow opened", to).len();
    tcp_source(&pod.machine, 0, unlogged)?;
    agent.ctl("log-level --datapath trace")?;
    ensure!(agent.ctl("status")?.contains("Datapath log trace"));
    tcp_source(&pod.machine, 0, to)?;
    until("a flow is logged again", || {
        Ok((lines(&agent, "flow opened", to).len() > logged).then_some(()))
    })?;
    ensure!(lines(&agent, "flow opened", unlogged).is_empty());
    // A verdict of the slow path, with the hook.
    until("the verdict of the first packet is logged", || {
        let verdicts = lines(&agent, "verdict", to);
        let of_pod = verdicts
            .iter()
            .find(|line| line["fields"]["hook"] == "from_pod");
        Ok(of_pod.map(|line| line["fields"]["pod"] == "shop/web"))
    })
    .and_then(|is_named| is_named.then_some(()).context("the verdict has no pod"))?;

    let refused = agent.ctl("log-level --datapath loud");
    ensure!(refused.is_err(), "a level that does not exist is accepted");
    Ok(())
}

#[test]
fn a_dropped_packet_is_a_warning_with_its_reason() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let flags = ["--datapath-log=warn", "--log-format=json"];
    let agent = Agent::start(&sandbox.node, &flags)?;
    let pod = named_pod(&sandbox)?;
    // The pod knows the MAC address of its gateway: it resolves none with the forged address.
    ping(&pod.machine, GATEWAYS[0], 1)?;
    // An address that is not the pod's.
    let forged = "10.244.1.200";
    pod.machine
        .call(&format!("ip address add {forged}/32 dev eth0"))?;
    let to = SocketAddr::new(WORLD[0], PORT);
    let line = until("the dropped packet is logged", || {
        let socket = pod.machine.run(|| std::net::UdpSocket::bind((forged, 0)))?;
        socket.send_to(b"forged", to)?;
        Ok(lines(&agent, "packet dropped", to).pop())
    })?;
    ensure!(line["level"] == "WARN", "{line}");
    let fields = &line["fields"];
    ensure!(fields["pod"] == "shop/web", "{line}");
    ensure!(fields["reason"] == "spoofed-address", "{line}");
    ensure!(fields["hook"] == "from_pod", "{line}");
    Ok(())
}

#[test]
fn no_packet_is_lost_when_the_datapath_log_changes_or_its_reader_is_killed() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let mut agent = Agent::start(&sandbox.node, &[])?;
    let mut pod = sandbox.pod("client")?;
    pod.add()?;
    let to = SocketAddr::new(WORLD[0], PORT);
    let stream = Stream::start(
        (&pod.machine, to),
        (&sandbox.world, PORT),
        Sends::Client,
        ENDLESS,
    )?;
    let udp = SocketAddr::new(WORLD[0], OTHER_PORT);
    let datagrams =
        NumberedDatagrams::start("to the world", (&pod.machine, udp), (&sandbox.world, udp))?;
    for level in ["trace", "off", "debug", "trace"] {
        agent.ctl(&format!("log-level --datapath {level}"))?;
        stream.await_progress(1 << 20)?;
        datagrams.await_progress()?;
    }
    agent.kill()?;
    stream.await_progress(1 << 20)?;
    datagrams.await_progress()?;
    // The level was set until the next start, which attaches programs without a log.
    agent.restart()?;
    ensure!(!agent.ctl("status")?.contains("Datapath log"));
    agent.ctl("log-level --datapath trace")?;
    ensure!(agent.ctl("status")?.contains("Datapath log trace"));
    datagrams.await_progress()?;
    let sent = datagrams.end()?;
    ensure!(sent > 0, "no datagram was sent");
    stream.stop()
}

#[test]
fn a_restarted_agent_reads_the_log_of_the_programs_that_it_finds() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let flags = ["--datapath-log=debug", "--log-format=json"];
    let mut agent = Agent::start(&sandbox.node, &flags)?;
    let pod = named_pod(&sandbox)?;
    let _echo = Echo::start(&sandbox.world, PORT)?;
    let to = SocketAddr::new(WORLD[0], PORT);
    agent.kill()?;
    // Logged by the programs while no agent reads.
    tcp_source(&pod.machine, 0, to)?;
    agent.restart()?;
    let line = until("the flow of the meantime is logged", || {
        Ok(lines(&agent, "flow opened", to).pop())
    })?;
    ensure!(line["fields"]["pod"] == "shop/web", "{line}");
    Ok(())
}

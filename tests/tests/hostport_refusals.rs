//! Refused hostports: each ADD returns the reason, and reserves none of its ports.

use anyhow::{Context as _, Result, ensure};
use e2e::residue::assert_no_residue;
use e2e::{Agent, Answer, Config, Pod, Residue, Sandbox, Verb, program, until};
use serde_json::{Value, json};

fn publishing(mappings: &[Value]) -> Config {
    Config::new("1.1.0").map_ports(mappings)
}

fn tcp(host: i64, container: i64) -> Value {
    json!({ "hostPort": host, "containerPort": container, "protocol": "tcp" })
}

fn add(pod: &Pod, sandbox: &Sandbox, mappings: &[Value]) -> Result<Answer> {
    pod.prepare(Verb::Add, &publishing(mappings))
        .run(&sandbox.node)
}

/// Bad mappings, each put after a valid one: the mapping, the error code, and the text that the
/// error must contain.
fn bad_mappings() -> Vec<(Value, u64, &'static str)> {
    let with = |key: &str, value: Value| {
        let mut mapping = tcp(8081, 80);
        mapping[key] = value;
        mapping
    };
    vec![
        (tcp(0, 80), 7, "Invalid host port number: 0"),
        (tcp(65_536, 80), 7, "Invalid host port number: 65536"),
        (tcp(-1, 80), 7, "Invalid host port number: -1"),
        (tcp(8081, 0), 7, "Invalid container port number: 0"),
        (tcp(8081, 65_536), 7, "Invalid container port number: 65536"),
        (with("protocol", json!("icmp")), 7, "icmp"),
        (with("protocol", json!(6)), 6, "portMappings[1].protocol"),
        (with("hostIP", json!("node")), 7, "portMappings[1].hostIP"),
        (
            with("hostIP", json!("192.0.2.300")),
            7,
            "portMappings[1].hostIP",
        ),
        // The valid mapping's hostport, to another port of the pod.
        (tcp(8080, 81), 7, "8080"),
    ]
}

/// behaviours K30, R12
#[test]
fn a_bad_port_mapping_is_named_and_no_port_of_the_add_is_reserved() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let pod = sandbox.pod("pod")?;
    let before = Residue::of(&sandbox.node, &[&pod.machine])?;
    let mut wrong = Vec::new();
    for (mapping, code, names) in bad_mappings() {
        let error = add(&pod, &sandbox, &[tcp(8080, 80), mapping.clone()])?.error()?;
        let text = format!("{}: {}", error.msg, error.details);
        if error.code != code || !text.contains(names) {
            wrong.push(format!("{mapping}: {error:?}"));
        }
        let after = Residue::of(&sandbox.node, &[&pod.machine])?;
        assert_no_residue(&before, &after).with_context(|| mapping.to_string())?;
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// behaviour R12: runtimes send mappings twice.
#[test]
fn a_repeated_port_mapping_counts_once() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let mut pod = sandbox.pod("pod")?;
    pod.add_with(publishing(&[tcp(8080, 80), tcp(8080, 80)]))?;
    let answer = agent.get("/v1/hostports")?;
    let ports = answer.as_array().context("a list")?;
    ensure!(ports.len() == 1, "{ports:?}");
    pod.check()?.success()
}

/// behaviour F31: runtimes pass a port range as single ports.
#[test]
fn more_ports_than_the_hostport_map_holds_are_refused_and_none_is_reserved() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let pod = sandbox.pod("pod")?;
    let before = Residue::of(&sandbox.node, &[&pod.machine])?;
    // Each mapping needs two map entries, one for each family.
    let mappings: Vec<Value> = (1..=16_385).map(|port| tcp(port, port)).collect();
    let error = add(&pod, &sandbox, &mappings)?.error()?;
    ensure!(
        error.msg.starts_with("no room for 32770 host ports"),
        "{error:?}"
    );
    assert_no_residue(&before, &Residue::of(&sandbox.node, &[&pod.machine])?)
}

/// Starts an agent that cannot raise its limit of open files.
fn limited(sandbox: &Sandbox, descriptors: u32) -> Result<Agent> {
    let mut agent = Agent::start(&sandbox.node, &[])?;
    let (path, agent_program) = ("/run/limited", program("bin/viaductd"));
    let script = format!(
        "#!/bin/sh\nulimit -n {descriptors}\nexec setpriv --bounding-set=-sys_resource --inh-caps=-sys_resource {} \"$@\"\n",
        agent_program.display()
    );
    let draft = "/run/limited.draft";
    sandbox
        .node
        .mounts()
        .run(|| std::fs::write(draft, script))?;
    sandbox
        .node
        .install_program(draft.as_ref(), path.as_ref())?;
    agent.kill()?;
    agent.replace(path.as_ref());
    agent.restart()?;
    Ok(agent)
}

#[test]
fn more_ports_than_the_agent_has_descriptors_are_refused_and_none_is_reserved() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let agent = limited(&sandbox, 256)?;
    let mut pod = sandbox.pod("pod")?;
    let before = Residue::of(&sandbox.node, &[&pod.machine])?;
    let mappings: Vec<Value> = (8_000..8_300).map(|port| tcp(port, 80)).collect();
    let error = add(&pod, &sandbox, &mappings)?.error()?;
    let text = format!("{}: {}", error.msg, error.details);
    ensure!(text.contains("Too many open files"), "{text}");
    assert_no_residue(&before, &Residue::of(&sandbox.node, &[&pod.machine])?)?;
    // As many ports as there are descriptors still work.
    pod.add_with(publishing(&mappings[..50]))?;
    until("the low limit of open files is logged", || {
        Ok(agent
            .log()
            .contains("few ports can be reserved")
            .then_some(()))
    })?;
    pod.del().map(drop)
}

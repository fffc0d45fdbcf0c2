//! Invalid input and failures: each gives a CNI error that names the cause, and leaves nothing
//! behind.

use std::time::Duration;

use anyhow::{Context as _, Result};
use e2e::residue::assert_no_residue;
use e2e::{Answer, Call, Config, Machine, Mapping, Residue, Sandbox, Verb, patient};
use serde_json::json;

/// A call that must fail.
struct Refusal {
    what: &'static str,
    call: Call,
    /// The expected CNI error code.
    code: Option<u64>,
    /// Text that the message or the details must contain.
    names: &'static str,
}

fn refused(what: &'static str, call: Call, code: u64, names: &'static str) -> Refusal {
    Refusal {
        what,
        call,
        code: (code != 0).then_some(code),
        names,
    }
}

fn assert_refused(answer: &Answer, code: Option<u64>, names: &str) -> Result<()> {
    let error = answer.error()?;
    let text = format!("{}: {}", error.msg, error.details);
    assert!(!error.msg.is_empty(), "{error:?}");
    assert!(text.contains(names), "{names} is not in {error:?}");
    if let Some(code) = code {
        assert_eq!(error.code, code, "{error:?}");
    }
    Ok(())
}

fn small(subnet: &str) -> Config {
    let ipam = json!({ "type": "host-local", "subnet": subnet });
    Config::new("1.1.0")
        .with("name", json!("small"))
        .with("bridge", json!("br-small"))
        .with("ipam", ipam)
}

/// Errors in the environment of the call.
fn bad_calls(add: &Call) -> Vec<Refusal> {
    let env = |key, value| add.clone().set(key, value);
    vec![
        refused("an unknown verb", env("CNI_COMMAND", "FROB"), 4, "FROB"),
        refused(
            "no interface name",
            add.clone().without("CNI_IFNAME"),
            4,
            "CNI_IFNAME",
        ),
        refused(
            "no container",
            add.clone().without("CNI_CONTAINERID"),
            4,
            "CNI_CONTAINERID",
        ),
        refused(
            "no namespace",
            add.clone().without("CNI_NETNS"),
            4,
            "CNI_NETNS",
        ),
        refused(
            "a container ID that is a path",
            env("CNI_CONTAINERID", "../etc"),
            4,
            "../etc",
        ),
        refused(
            "an interface name too long",
            env("CNI_IFNAME", "sixteen-letters-"),
            4,
            "sixteen-letters-",
        ),
        refused(
            "an interface name with a slash",
            env("CNI_IFNAME", "e/0"),
            4,
            "e/0",
        ),
    ]
}

/// Errors in `CNI_ARGS` and in the namespace.
fn bad_arguments(add: &Call) -> Vec<Refusal> {
    let env = |key, value| add.clone().set(key, value);
    vec![
        refused(
            "an unknown argument",
            env("CNI_ARGS", "WHAT=ever"),
            0,
            "WHAT",
        ),
        refused(
            "an argument without a value",
            env("CNI_ARGS", "IgnoreUnknown=1;lonely"),
            0,
            "lonely",
        ),
        refused(
            "a namespace that does not exist",
            env("CNI_NETNS", "/run/netns/gone"),
            0,
            "/run/netns/gone",
        ),
        refused(
            "a namespace path that is another file",
            env("CNI_NETNS", "/etc/passwd"),
            0,
            "/etc/passwd",
        ),
        refused(
            "the node's own namespace",
            env("CNI_NETNS", "/proc/self/ns/net"),
            8,
            "/proc/self/ns/net",
        ),
    ]
}

/// Errors in the configuration as a whole.
fn bad_configs(add: &Call) -> Vec<Refusal> {
    let stdin = |text: &str| add.clone().stdin(text);
    let config = |config: Config| add.clone().stdin(&config.0.to_string());
    let with = |key, value| config(Config::new("1.1.0").with(key, value));
    vec![
        refused("no configuration", stdin(""), 6, ""),
        refused(
            "half a configuration",
            stdin("{ \"cniVersion\": \"1.1.0\", "),
            6,
            "line 1",
        ),
        refused("a list for a configuration", stdin("[]"), 6, ""),
        refused(
            "a version of the future",
            with("cniVersion", json!("9.9.9")),
            1,
            "9.9.9",
        ),
        refused(
            "a network without a name",
            with("name", json!("")),
            7,
            "name",
        ),
        refused(
            "a network name with a slash",
            with("name", json!("a/b")),
            7,
            "a/b",
        ),
    ]
}

/// Errors in IPAM, ports and bridge of the configuration.
fn bad_values(add: &Call) -> Vec<Refusal> {
    let config = |config: Config| add.clone().stdin(&config.0.to_string());
    let with = |key, value| config(Config::new("1.1.0").with(key, value));
    let no_port = Config::new("1.1.0").publish(&[Mapping::tcp(8080, 0)]);
    vec![
        refused(
            "host bits in a subnet",
            config(small("10.99.0.1/24")),
            7,
            "10.99.0.0",
        ),
        refused(
            "an invalid subnet",
            config(small("10.99.0/33")),
            7,
            "10.99.0/33",
        ),
        refused(
            "a subnet that is too small",
            config(small("10.99.0.0/31")),
            7,
            "10.99.0.0/31",
        ),
        refused("an invalid port", config(no_port), 7, "containerPort"),
        refused(
            "a number for a bridge",
            with("bridge", json!(7)),
            0,
            "bridge",
        ),
    ]
}

fn assert_all_refused(node: &Machine, pod: &Machine, refusals: &[Refusal]) -> Result<()> {
    let before = Residue::of(node, &[pod])?;
    let mut wrong = Vec::new();
    for Refusal {
        what,
        call,
        code,
        names,
    } in refusals
    {
        let answer = call.run(node)?;
        let verdict = std::panic::catch_unwind(|| assert_refused(&answer, *code, names));
        if !matches!(verdict, Ok(Ok(()))) {
            wrong.push(format!("{what}: {answer:?}"));
        }
        if let Err(error) = assert_no_residue(&before, &Residue::of(node, &[pod])?) {
            wrong.push(format!("{what}: {error}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

#[test]
fn a_bad_call_is_refused_by_name_and_leaves_nothing() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let pod = sandbox.pod("pod")?;
    let add = pod.prepare(Verb::Add, pod.config());
    assert_all_refused(&sandbox.node, &pod.machine, &bad_calls(&add))?;
    assert_all_refused(&sandbox.node, &pod.machine, &bad_arguments(&add))
}

#[test]
fn a_bad_configuration_is_refused_by_name_and_leaves_nothing() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let pod = sandbox.pod("pod")?;
    let add = pod.prepare(Verb::Add, pod.config());
    assert_all_refused(&sandbox.node, &pod.machine, &bad_configs(&add))?;
    assert_all_refused(&sandbox.node, &pod.machine, &bad_values(&add))
}

#[test]
fn an_existing_interface_is_not_touched() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let pod = sandbox.pod("pod")?;
    pod.machine
        .call("ip link add eth0 type veth peer name foreign")?;
    let before = Residue::of(&sandbox.node, &[&pod.machine])?;
    let answer = pod.prepare(Verb::Add, pod.config()).run(&sandbox.node)?;
    assert_refused(&answer, None, "eth0")?;
    assert_no_residue(&before, &Residue::of(&sandbox.node, &[&pod.machine])?)?;
    pod.del()?;
    assert_no_residue(&before, &Residue::of(&sandbox.node, &[&pod.machine])?)
}

#[test]
fn a_taken_hostport_is_refused_with_its_number() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let publish = Config::new("1.1.0").publish(&[Mapping::tcp(8080, 80)]);
    let mut owner = sandbox.pod("owner")?;
    owner.add_with(publish.clone())?;
    let late = sandbox.pod("late")?;
    let before = Residue::of(&sandbox.node, &[&late.machine])?;
    let answer = late.prepare(Verb::Add, &publish).run(&sandbox.node)?;
    assert_refused(&answer, None, "8080")?;
    assert_no_residue(&before, &Residue::of(&sandbox.node, &[&late.machine])?)?;
    owner.del()?;
    let mut late = late;
    late.add_with(publish).map(drop)
}

#[test]
fn an_exhausted_address_pool_is_reported_and_works_after_a_del() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let mut only = sandbox.pod("only")?;
    only.add_with(small("10.99.0.0/30"))?;
    let mut late = sandbox.pod("late")?;
    let before = Residue::of(&sandbox.node, &[&late.machine])?;
    let answer = late
        .prepare(Verb::Add, &small("10.99.0.0/30"))
        .run(&sandbox.node)?;
    assert_refused(&answer, None, "no IP addresses available in range set")?;
    assert_no_residue(&before, &Residue::of(&sandbox.node, &[&late.machine])?)?;
    only.del()?;
    late.add_with(small("10.99.0.0/30")).map(drop)
}

#[test]
fn add_without_an_agent_returns_try_again_within_a_second() -> Result<()> {
    let (sandbox, mut agent) = Sandbox::with_agent()?;
    let pod = sandbox.pod("pod")?;
    let add = pod.prepare(Verb::Add, pod.config());
    agent.kill()?;
    let answer = add.run(&sandbox.node)?;
    assert_refused(&answer, Some(11), "/run/viaduct/viaduct.sock").context("after kill -9")?;
    assert!(
        answer.took < patient(Duration::from_secs(1)),
        "{:?}",
        answer.took
    );

    sandbox.node.call("rm -f /run/viaduct/viaduct.sock")?;
    let answer = add.run(&sandbox.node)?;
    assert_refused(&answer, Some(11), "/run/viaduct/viaduct.sock").context("no socket")?;
    assert!(
        answer.took < patient(Duration::from_secs(1)),
        "{:?}",
        answer.took
    );
    Ok(())
}

//! Pod CIDRs that are set and changed while the agent runs (behaviours K10, K11, K12, K13, K14,
//! K15).

use anyhow::Result;
use e2e::{Agent, Call, Config, Machine, Pod, Sandbox, Verb, until};

const FILE: &str = "/run/pod-cidrs";

fn agent_with(sandbox: &Sandbox, flags: &[&str]) -> Result<Agent> {
    let flags = flags.iter().map(ToString::to_string).collect();
    Agent::start_with(&sandbox.node, flags)
}

fn write(node: &Machine, text: &str) -> Result<()> {
    // Atomically, as kubelet and most other programs write files.
    let script = format!("printf '{text}' > {FILE}.new && mv {FILE}.new {FILE}");
    node.call_words(&["sh", "-c", &script]).map(drop)
}

fn addresses(node: &Machine) -> Result<Vec<String>> {
    let shown = node.call("ip -o address show dev cbr0 scope global")?;
    let words = shown
        .lines()
        .filter_map(|line| line.split_whitespace().nth(3));
    Ok(words.map(str::to_owned).collect())
}

fn becomes(node: &Machine, expected: &[&str]) -> Result<()> {
    until(&format!("cbr0 has {expected:?}"), || {
        let found = addresses(node).unwrap_or_default();
        Ok((found == expected).then_some(()))
    })
}

fn added(sandbox: &Sandbox, name: &str) -> Result<Pod> {
    let mut pod = sandbox.pod(name)?;
    pod.add()?;
    Ok(pod)
}

/// behaviours K11, K12, K15
#[test]
fn a_pod_cidr_file_that_appears_later_is_read() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let mut agent = agent_with(&sandbox, &["--pod-cidr-file", FILE])?;
    let node = &sandbox.node;
    assert!(sandbox.pod("early")?.add().is_err());
    write(node, "10.1.0.0/24,nonsense")?;
    write(node, "10.1.0.7/24,fd00:1::/64")?;
    becomes(node, &["10.1.0.1/24", "fd00:1::1/64"])?;

    node.call("ip address add 172.30.0.1/24 dev cbr0")?;
    write(node, "10.2.0.0/24")?;
    becomes(node, &["172.30.0.1/24", "10.2.0.1/24"])?;

    let pod = added(&sandbox, "pod")?;
    write(node, "10.3.0.0/24")?;
    until("the warning", || {
        let warned = agent.log().contains("Ignoring subsequent pod CIDR update");
        Ok(warned.then_some(()))
    })?;
    assert_eq!(addresses(node)?, ["172.30.0.1/24", "10.2.0.1/24"]);
    agent.kill()?;
    agent.restart()?;
    assert_eq!(addresses(node)?, ["172.30.0.1/24", "10.2.0.1/24"]);
    pod.check()?.success()?;
    pod.del()?;
    Ok(())
}

/// A restarted agent keeps the pod CIDRs that were set by the API.
#[test]
fn pod_cidrs_that_were_put_survive_the_agent() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let mut agent = agent_with(&sandbox, &[])?;
    let degraded = || -> Result<String> { Ok(agent.get("/v1/status")?["degraded"].to_string()) };
    assert!(
        !degraded()?.contains("no-pod-cidr"),
        "nothing needs one yet"
    );
    let status = Call::new(Verb::Status, "", "", &Config::new("1.1.0"));
    assert_eq!(status.run(&sandbox.node)?.error()?.code, 50);
    assert!(degraded()?.contains("no-pod-cidr"));
    let body = r#"{"podCIDRs": ["10.1.0.0/24", "fd00:1::/64"]}"#;
    let answer = agent.put("/v1/pod-cidrs", body)?;
    assert_eq!(answer["podCIDRs"][0], "10.1.0.0/24");
    let first = added(&sandbox, "first")?;
    agent.kill()?;
    agent.restart()?;
    let second = added(&sandbox, "second")?;
    assert_ne!(first.addresses, second.addresses);
    let refused = agent.put("/v1/pod-cidrs", r#"{"podCIDRs": ["10.9.0.0/24"]}"#);
    let words = format!("{:#}", refused.unwrap_err());
    assert!(
        words.contains("Ignoring subsequent pod CIDR update"),
        "{words}"
    );
    Ok(())
}

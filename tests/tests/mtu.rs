//! The MTU of bridge, veths and pods follows the node's (behaviour K1).

use anyhow::Result;
use e2e::{Agent, Machine, Pod, Sandbox, UPLINK, until};

fn becomes(machine: &Machine, link: &str, expected: &str) -> Result<()> {
    until(&format!("{link} has MTU {expected}"), || {
        let shown = machine.call(&format!("ip -o link show {link}"))?;
        Ok(shown.contains(&format!("mtu {expected} ")).then_some(()))
    })
}

fn all_become(sandbox: &Sandbox, pod: &Pod, expected: &str) -> Result<()> {
    becomes(&sandbox.node, "cbr0", expected)?;
    becomes(&sandbox.node, pod.host_link(), expected)?;
    becomes(&pod.machine, "eth0", expected)
}

/// behaviours K1, F5
#[test]
fn the_nodes_mtu_is_followed_while_pods_run() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let mut pod = sandbox.pod("pod")?;
    pod.add()?;
    for mtu in ["1400", "1500"] {
        sandbox
            .node
            .call(&format!("ip link set {UPLINK} mtu {mtu}"))?;
        all_become(&sandbox, &pod, mtu)?;
        // The routes have no MTU of their own, because the link has the configured one.
        let route = pod.machine.call("ip route get 198.51.100.1")?;
        assert!(!route.contains("mtu"), "{route}");
        let shown = agent.get("/v1/attachments")?;
        assert_eq!(shown[0]["mtu"].to_string(), mtu);
        pod.check()?.success()?;
    }
    Ok(())
}

#[test]
fn a_configured_mtu_does_not_follow_the_nodes() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let _agent = Agent::start(&sandbox.node, &["--mtu", "1300"])?;
    let mut pod = sandbox.pod("pod")?;
    pod.add()?;
    all_become(&sandbox, &pod, "1300")?;
    sandbox
        .node
        .call(&format!("ip link set {UPLINK} mtu 1280"))?;
    let mut other = sandbox.pod("other")?;
    other.add()?;
    all_become(&sandbox, &other, "1300")
}

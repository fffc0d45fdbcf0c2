//! Ingress policies of the firewall plugin in Viaduct's datapath: reachability between pods by
//! their own addresses, and by published ports, which stay reachable (behaviour R17). The tests
//! check what arrives in the receiver's namespace.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, Result};
use e2e::chain::{Chain, PluginSource};
use e2e::residue::await_no_residue;
use e2e::{Config, Echo, Machine, NODE, Residue, Sandbox, ping, tcp_source, udp_source};
use serde_json::{Value, json};

/// A pod that a plugin list attached, and its servers.
struct Guest {
    machine: Machine,
    list: Chain,
    result: Value,
    address: IpAddr,
    _echo: Echo,
}

impl Guest {
    fn new(sandbox: &Sandbox, name: &str, list: Chain) -> Result<Self> {
        let machine = sandbox.machine(name)?;
        let result = list.add(&sandbox.node, &machine)?;
        let address = result["ips"][0]["address"]
            .as_str()
            .unwrap_or_default()
            .split('/')
            .next()
            .unwrap_or_default()
            .parse()?;
        Ok(Self {
            _echo: Echo::start(&machine, 80)?,
            machine,
            list,
            result,
            address,
        })
    }

    /// Returns whether one echo request is answered.
    fn reaches(&self, to: IpAddr) -> Result<bool> {
        let to = to.to_string();
        let words = ["ping", "-n", "-q", "-c", "1", "-W", "1", &to];
        Ok(self.machine.output(&words)?.status.success())
    }

    fn del(&self, node: &Machine) -> Result<()> {
        self.list.del(node, &self.machine, &self.result)
    }
}

fn list(maker: PluginSource, number: u8, policy: &str, port: Option<u16>) -> Chain {
    let bridge = json!({
        "type": "bridge", "bridge": format!("br{number}"), "isGateway": true, "isDefaultGateway": true,
        "ipam": { "type": "host-local", "subnet": format!("10.{number}.0.0/24") },
    });
    let ports: Vec<Value> = ["tcp", "udp"]
        .into_iter()
        .filter_map(|protocol| {
            Some(json!({ "hostPort": port?, "containerPort": 80, "protocol": protocol }))
        })
        .collect();
    Chain::new("1.0.0", &format!("net{number}"))
        .with(maker, bridge)
        .with(
            PluginSource::Ours,
            json!({ "type": "firewall", "ingressPolicy": policy }),
        )
        .with(
            PluginSource::Ours,
            json!({ "type": "portmap", "capabilities": { "portMappings": true } }),
        )
        .with_capability("portMappings", Value::Array(ports))
}

/// Dials the published port by TCP and UDP. Returns the client address that the pod sees: the
/// client's own or its gateway's.
fn dials(from: &Machine, node: IpAddr, port: u16) -> Result<IpAddr> {
    let to = SocketAddr::new(node, port);
    udp_source(from, 0, to)?;
    let (source, _stream) = tcp_source(from, 0, to)?;
    Ok(source.ip())
}

#[test]
fn bridges_with_an_ingress_policy_are_isolated_except_for_published_ports() -> Result<()> {
    let (sandbox, mut agent) = Sandbox::with_agent()?;
    let node = &sandbox.node;
    let before = Residue::of(node, &[])?;
    let same = |number, port| list(PluginSource::Ours, number, "same-bridge", port);
    let one = Guest::new(&sandbox, "one", same(7, Some(8071)))?;
    let two = Guest::new(&sandbox, "two", same(7, None))?;
    let far = Guest::new(&sandbox, "far", same(8, Some(8081)))?;
    let open = Guest::new(&sandbox, "open", list(PluginSource::Ours, 9, "open", None))?;
    let check = || -> Result<()> {
        assert!(one.reaches(two.address)?, "two pods of one bridge");
        assert!(
            !one.reaches(far.address)? && !far.reaches(one.address)?,
            "pods of two bridges"
        );
        assert!(
            open.reaches(one.address)? && far.reaches(open.address)?,
            "a pod of a bridge with the policy open"
        );
        for gateway in ["10.7.0.1", "10.8.0.1"] {
            assert!(one.reaches(gateway.parse()?)?, "the node by {gateway}");
        }
        assert_eq!(dials(&one.machine, NODE[0], 8081)?, one.address);
        assert_eq!(dials(&far.machine, NODE[0], 8071)?, far.address);
        dials(&sandbox.world, NODE[0], 8071).map(drop)
    };
    check()?;
    agent.kill()?;
    agent.restart()?;
    check()?;
    one.list.check(node, &one.machine, &one.result)?;
    for guest in [&one, &two, &far, &open] {
        guest.del(node)?;
    }
    for number in 7..10 {
        node.call(&format!("ip link delete br{number}"))?;
    }
    await_no_residue(&before, node)
}

#[test]
fn isolated_pods_are_unreachable_except_for_published_ports() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let isolated = |number, port| list(PluginSource::Ours, number, "isolated", port);
    let one = Guest::new(&sandbox, "one", isolated(7, Some(8071)))?;
    let two = Guest::new(&sandbox, "two", isolated(7, Some(8072)))?;
    let far = Guest::new(
        &sandbox,
        "far",
        list(PluginSource::Ours, 8, "same-bridge", None),
    )?;
    for (from, to) in [(&one, &two), (&two, &one), (&one, &far), (&far, &one)] {
        assert!(
            !from.reaches(to.address)?,
            "{} to {}",
            from.address,
            to.address
        );
    }
    ping(&one.machine, "10.7.0.1".parse()?, 1)?;
    for (from, port) in [(&one, 8072), (&two, 8071), (&far, 8071), (&one, 8071)] {
        let seen = dials(&from.machine, NODE[0], port)?;
        let gateway: IpAddr = "10.7.0.1".parse()?;
        let itself = from.address == one.address && port == 8071;
        assert_eq!(seen, if itself { gateway } else { from.address }, "{port}");
    }
    dials(&sandbox.world, NODE[0], 8072)?;
    let counted = agent.get("/v1/counters")?;
    let drops = counted["drops"]["ingress-policy"].as_u64();
    assert!(drops.is_some_and(|drops| drops > 0), "{counted}");
    // Another path to the same pod: by the gateway's MAC address, and back into the bridge.
    two.machine
        .call(&format!("ip route add {}/32 via 10.7.0.1", one.address))?;
    assert!(
        !two.reaches(one.address)?,
        "the pod is reachable by the gateway"
    );
    Ok(())
}

/// Pods of the reference bridge are identified by the host's ends of their veths.
#[test]
fn ingress_policy_isolates_pods_of_the_reference_bridge() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let node = &sandbox.node;
    let isolated = |port| list(PluginSource::Reference, 7, "isolated", port);
    let one = Guest::new(&sandbox, "one", isolated(Some(8071)))?;
    let two = Guest::new(&sandbox, "two", isolated(None))?;
    assert!(!one.reaches(two.address)? && !two.reaches(one.address)?);
    dials(&two.machine, NODE[0], 8071)?;
    one.list.check(node, &one.machine, &one.result)?;
    one.del(node)?;
    two.del(node)?;
    assert_eq!(agent.get("/v1/attachments")?, json!([]));
    Ok(())
}

/// `ingressPolicy` in a single plugin entry that replaces a whole list.
#[test]
fn a_single_plugin_entry_applies_the_ingress_policy() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let config = Config::new("1.0.0")
        .with("name", json!("alone"))
        .with("bridge", json!("br7"))
        .with("isGateway", json!(true))
        .with("ingressPolicy", json!("isolated"))
        .with(
            "ipam",
            json!({ "type": "host-local", "subnet": "10.7.0.0/24" }),
        );
    let mut pods = Vec::new();
    for name in ["one", "two"] {
        let mut pod = sandbox.pod(name)?;
        pod.add_with(config.clone())?;
        pods.push(pod);
    }
    let to = pods[1].addresses.first().context("an address")?.to_string();
    let words = ["ping", "-n", "-q", "-c", "1", "-W", "1", &to];
    assert!(!pods[0].machine.output(&words)?.status.success());
    ping(&pods[0].machine, "10.7.0.1".parse()?, 1)?;
    pods[0].check()?.success()
}

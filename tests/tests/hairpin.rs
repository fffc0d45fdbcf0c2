//! Hairpin modes, and the duplicates that a promiscuous bridge makes (behaviours K19, K20, K21,
//! K22).

use std::net::{IpAddr, SocketAddr};

use anyhow::Result;
use e2e::{
    Agent, Config, GATEWAYS, Machine, NODE, Pod, Sandbox, add_service_rule, count_delivered,
    set_bridge_netfilter, until,
};
use serde_json::{Value, json};

/// Addresses of a service: no machine has them, netfilter translates them to a pod.
const VIPS: [&str; 2] = ["10.96.0.10", "fd00:96::10"];
const PORT: u16 = 5353;
const SENT: usize = 50;

/// A node with two pods, the second one behind a service. All packets take bridge and stack: those
/// that bypass them have no second copy.
struct Scene {
    sandbox: Sandbox,
    agent: Agent,
    client: Pod,
    server: Pod,
}

impl Scene {
    fn new(mode: &str) -> Result<Self> {
        let sandbox = Sandbox::new()?;
        let modes = ["--hairpin-mode", mode, "--bypass-netfilter", "never"];
        let agent = Agent::start(&sandbox.node, &modes)?;
        let (mut client, mut server) = (sandbox.pod("client")?, sandbox.pod("server")?);
        client.add()?;
        server.add()?;
        for (vip, pod) in VIPS.into_iter().zip(&server.addresses) {
            add_service_rule(&sandbox.node, vip.parse()?, *pod)?;
        }
        set_bridge_netfilter(&sandbox.node, true)?;
        let scene = Self {
            sandbox,
            agent,
            client,
            server,
        };
        scene.warm_up()?;
        Ok(scene)
    }

    /// Resolves all neighbours beforehand, so that no counted packet waits for that.
    fn warm_up(&self) -> Result<()> {
        for (address, gateway) in self.server.addresses.iter().zip(GATEWAYS) {
            for to in [*address, gateway] {
                e2e::ping(&self.client.machine, to, 1)?;
            }
            e2e::ping(&self.sandbox.node, *address, 1)?;
        }
        Ok(())
    }

    /// Returns how many packets arrive of those that the client sends to the service.
    fn by_service(&self, family: usize) -> Result<usize> {
        let vip: IpAddr = VIPS[family].parse()?;
        self.arrive(&self.client.machine, vip, family)
    }

    fn arrive(&self, from: &Machine, to: IpAddr, family: usize) -> Result<usize> {
        let to = SocketAddr::new(to, PORT);
        let pod = self.server.addresses[family];
        count_delivered(from, to, &self.server.machine, pod, SENT)
    }

    fn duplicates(&self) -> Result<u64> {
        let counters = self.agent.get("/v1/counters")?;
        Ok(counters["drops"]["duplicate"].as_u64().unwrap_or(0))
    }

    fn put_mode(&self, mode: &str) -> Result<Value> {
        let body = format!(r#"{{"mode":"{mode}"}}"#);
        self.agent.put("/v1/hairpin-mode", &body)
    }

    fn is_promiscuous(&self) -> Result<bool> {
        let shown = self.sandbox.node.call("ip link show cbr0")?;
        Ok(shown.contains("PROMISC"))
    }
}

/// behaviour K20: first the duplicates without the filter, then with it.
#[test]
fn a_promiscuous_bridge_delivers_twice_and_the_second_copy_is_dropped() -> Result<()> {
    let scene = Scene::new("none")?;
    for family in 0..2 {
        assert_eq!(
            scene.by_service(family)?,
            SENT,
            "a bridge that is not promiscuous"
        );
    }
    scene.sandbox.node.call("ip link set cbr0 promisc on")?;
    for family in 0..2 {
        assert_eq!(
            scene.by_service(family)?,
            2 * SENT,
            "duplicates without the filter"
        );
    }
    assert_eq!(scene.duplicates()?, 0);
    scene.put_mode("promiscuous-bridge")?;
    for family in 0..2 {
        assert_eq!(
            scene.by_service(family)?,
            SENT,
            "the second copy is dropped"
        );
    }
    assert_eq!(scene.duplicates()?, 2 * SENT as u64);
    Ok(())
}

/// behaviour K20: only duplicates are dropped.
#[test]
fn a_promiscuous_bridge_drops_only_duplicates() -> Result<()> {
    let scene = Scene::new("promiscuous-bridge")?;
    assert!(scene.is_promiscuous()?);
    let (node, world) = (&scene.sandbox.node, &scene.sandbox.world);
    let routes = [
        format!("ip route add 10.244.1.0/24 via {}", NODE[0]),
        format!("ip -6 route add fd00:10:244:1::/64 via {}", NODE[1]),
    ];
    for route in routes {
        world.call(&route)?;
    }
    for family in 0..2 {
        let pod = scene.server.addresses[family];
        assert_eq!(scene.arrive(node, pod, family)?, SENT, "from the gateway");
        assert_eq!(scene.arrive(world, pod, family)?, SENT, "from the world");
        let client = &scene.client.machine;
        assert_eq!(scene.arrive(client, pod, family)?, SENT, "from a pod");
    }
    assert_eq!(scene.duplicates()?, 0);
    Ok(())
}

/// behaviour K21: the only copy of a packet that the node has routed looks like a duplicate.
#[test]
fn packets_routed_between_pods_arrive_in_the_other_hairpin_modes() -> Result<()> {
    let scene = Scene::new("hairpin-veth")?;
    set_bridge_netfilter(&scene.sandbox.node, false)?;
    for mode in ["hairpin-veth", "none"] {
        scene.put_mode(mode)?;
        for family in 0..2 {
            assert_eq!(scene.by_service(family)?, SENT, "{mode}");
        }
    }
    assert_eq!(scene.duplicates()?, 0);
    Ok(())
}

/// behaviours K19, F6: without new pods and without a reboot.
#[test]
fn ports_and_bridge_follow_the_hairpin_mode_while_pods_run() -> Result<()> {
    let mut scene = Scene::new("hairpin-veth")?;
    let link = scene.server.host_link().to_owned();
    let has_hairpin = |scene: &Scene| -> Result<bool> {
        let shown = scene
            .sandbox
            .node
            .call(&format!("bridge -d link show dev {link}"))?;
        Ok(shown.contains("hairpin on"))
    };
    assert!(has_hairpin(&scene)? && !scene.is_promiscuous()?);
    let modes = [
        ("promiscuous-bridge", false, true),
        ("none", false, false),
        ("hairpin-veth", true, false),
        ("promiscuous-bridge", false, true),
    ];
    for (mode, hairpin, promiscuous) in modes {
        let answer = scene.put_mode(mode)?;
        assert_eq!(answer["mode"], mode);
        assert_eq!(has_hairpin(&scene)?, hairpin, "{mode}");
        assert_eq!(scene.is_promiscuous()?, promiscuous, "{mode}");
    }
    scene.agent.kill()?;
    scene.agent.restart()?;
    let mode = scene.agent.get("/v1/hairpin-mode")?;
    assert_eq!(mode["mode"], "promiscuous-bridge", "{mode}");
    assert!(scene.is_promiscuous()?);
    Ok(())
}

/// behaviour K19: promiscuous mode is restored after other software turns it off.
#[test]
fn a_promiscuous_bridge_is_restored_after_promisc_off() -> Result<()> {
    let scene = Scene::new("promiscuous-bridge")?;
    scene.sandbox.node.call("ip link set cbr0 promisc off")?;
    until("the bridge is promiscuous again", || {
        Ok(scene.is_promiscuous()?.then_some(()))
    })
}

/// behaviour K2: netfilter on bridges is left to the operator.
#[test]
fn the_bridge_netfilter_sysctl_is_left_unchanged() -> Result<()> {
    for value in ["0", "1"] {
        let sandbox = Sandbox::new()?;
        sandbox
            .node
            .sysctl("bridge/bridge-nf-call-iptables", value)?;
        let agent = Agent::start(&sandbox.node, &["--hairpin-mode", "promiscuous-bridge"])?;
        let found = sandbox
            .node
            .call("cat /proc/sys/net/bridge/bridge-nf-call-iptables")?;
        assert_eq!(found.trim(), value, "{}", agent.log());
    }
    Ok(())
}

/// behaviour K19: `promiscMode` of a network in a CNI configuration.
#[test]
fn a_network_configuration_can_make_its_bridge_promiscuous() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let mut pod = sandbox.pod("own")?;
    let ipam = json!({ "type": "host-local", "subnet": "10.77.0.0/24" });
    let config = Config::new("1.1.0")
        .with("name", json!("own"))
        .with("bridge", json!("own0"))
        .with("isGateway", json!(true))
        .with("promiscMode", json!(true))
        .with("ipam", ipam);
    pod.add_with(config)?;
    let shown = sandbox.node.call("ip link show own0")?;
    assert!(shown.contains("PROMISC"), "{shown}");
    Ok(())
}

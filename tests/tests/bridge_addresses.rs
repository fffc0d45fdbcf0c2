//! The bridge's own addresses, gateways and link-local, are usable before the bridge has a port
//! with a carrier, and stay while pods come and go.

use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e::{Agent, Call, Config, GATEWAYS, Machine, Sandbox, Verb, patient, ping, until};
use serde_json::{Value, json};

/// A link as `ip` reports it.
struct Link {
    name: &'static str,
    index: u32,
    mac: String,
    has_carrier: bool,
    locals: Vec<Ipv6Addr>,
    tentative: usize,
}

impl Link {
    fn of(node: &Machine, name: &'static str) -> Result<Self> {
        let shown = node.call_json(&format!("ip -j address show dev {name}"))?;
        let link = &shown[0];
        let flags = link["flags"].as_array().context("no flags")?;
        let addresses = link["addr_info"].as_array().context("no addresses")?;
        let of_link = addresses.iter().filter(|own| own["scope"] == "link");
        let text = |value: &Value| value.as_str().map(str::to_owned).context("no text");
        Ok(Self {
            name,
            index: u32::try_from(link["ifindex"].as_u64().context("no index")?)?,
            mac: text(&link["address"])?,
            has_carrier: flags.contains(&json!("LOWER_UP")),
            locals: of_link
                .map(|own| Ok(text(&own["local"])?.parse()?))
                .collect::<Result<_>>()?,
            tentative: addresses
                .iter()
                .filter(|own| own["tentative"] == true)
                .count(),
        })
    }

    /// Binds a socket to each link-local address, as a server of the node does.
    fn is_usable(&self, node: &Machine) -> Result<()> {
        ensure!(self.tentative == 0, "{} has tentative addresses", self.name);
        ensure!(
            !self.locals.is_empty(),
            "{} has no link-local address",
            self.name
        );
        for own in &self.locals {
            let own = SocketAddrV6::new(*own, 0, 0, self.index);
            node.run(|| UdpSocket::bind(own))
                .with_context(|| format!("bind {own}"))?;
        }
        Ok(())
    }

    fn identity(&self) -> (&str, &[Ipv6Addr]) {
        (&self.mac, &self.locals)
    }
}

/// Sends one echo request from `eth0` of a pod to the bridge's link-local address.
fn reaches_link_local(pod: &Machine, bridge: &Link) -> Result<()> {
    let own = bridge.locals.first().context("no link-local address")?;
    let timeout = patient(Duration::from_secs(2)).as_secs();
    pod.call(&format!("ping -n -q -c 1 -W {timeout} {own}%eth0"))
        .map(drop)
}

/// The kernel gives a bridge whose MAC address is set no carrier before its first port, and so no
/// link-local address of its own.
#[test]
fn gateway_and_link_local_addresses_are_usable_before_the_first_pod() -> Result<()> {
    let (sandbox, mut agent) = Sandbox::with_agent()?;
    let node = &sandbox.node;
    let first = Link::of(node, "cbr0")?;
    assert!(!first.has_carrier, "a bridge without a port");
    first.is_usable(node)?;
    for gateway in GATEWAYS {
        node.run(|| UdpSocket::bind(SocketAddr::new(gateway, 0)))
            .with_context(|| format!("bind {gateway}"))?;
    }

    let mut one = sandbox.pod("one")?;
    one.add()?;
    let with_port = Link::of(node, "cbr0")?;
    assert!(with_port.has_carrier);
    assert_eq!(with_port.identity(), first.identity());
    reaches_link_local(&one.machine, &with_port)?;
    for gateway in GATEWAYS {
        ping(&one.machine, gateway, 1)?;
    }
    one.del()?;
    agent.kill()?;
    agent.restart()?;
    let last = Link::of(node, "cbr0")?;
    assert!(!last.has_carrier, "a bridge that has lost its last port");
    assert_eq!(last.identity(), first.identity());
    last.is_usable(node)
}

/// behaviour B3: the pod's interface is down, so the port has no carrier, nor has the bridge.
#[test]
fn a_switch_whose_ports_are_down_has_a_usable_link_local_address() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let node = &sandbox.node;
    let config = Config(json!({
        "cniVersion": "1.0.0", "name": "switch", "type": "bridge", "bridge": "br7",
        "disableContainerInterface": true,
    }));
    let pod = sandbox.machine("pod")?;
    Call::new(Verb::Add, "pod", &pod.path(), &config)
        .run_as(node, "bridge")?
        .success()?;
    let before = Link::of(node, "br7")?;
    assert!(!before.has_carrier, "a bridge with a port that is down");
    before.is_usable(node)?;
    pod.call("ip link set eth0 up")?;
    // The pod's own address first passes duplicate address detection.
    until("the pod reaches the bridge", || {
        Ok(reaches_link_local(&pod, &before).ok())
    })?;
    let after = Link::of(node, "br7")?;
    assert!(after.has_carrier);
    assert_eq!(after.identity(), before.identity());
    Ok(())
}

/// An administrator who turns IPv6 off, or link-local addresses, gets none from the agent.
#[test]
fn a_node_without_link_local_addresses_gets_none_on_its_bridge() -> Result<()> {
    for key in ["addr_gen_mode", "disable_ipv6"] {
        let sandbox = Sandbox::new()?;
        let node = &sandbox.node;
        node.sysctl(&format!("ipv6/conf/default/{key}"), "1")?;
        let flags = vec!["--pod-cidr=10.244.1.0/24".to_owned()];
        let _agent = Agent::start_with(node, flags)?;
        sandbox.pod("one")?.add()?;
        let bridge = Link::of(node, "cbr0")?;
        assert!(bridge.has_carrier);
        assert_eq!(bridge.locals, [Ipv6Addr::UNSPECIFIED; 0], "{key}");
    }
    Ok(())
}

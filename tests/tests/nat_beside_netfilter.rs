//! NAT beside netfilter rules of a service proxy, of a container runtime with its own firewall, and
//! beside connection tracking. Both sides work as without the other, and no packet is translated
//! twice.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, Result, ensure};
use e2e::{
    Config, Connection, ConnectionLoad, Echo, GATEWAYS, Machine, Mapping, NODE, Pod, Sandbox,
    WORLD, tcp_source, udp_source,
};

const HOSTPORTS: [Mapping; 2] = Mapping::both(8080, 80);

/// A service's address, which no machine has.
const SERVICE: [&str; 2] = ["10.96.0.10", "fd00:96::10"];
/// The service's ports: served by pods, and by the world.
const BY_POD: u16 = 80;
const BY_WORLD: u16 = 81;
/// Node ports of the pod: one that hides the client's address behind the node's, one that preserves
/// it.
const CLUSTER: u16 = 30_080;
const LOCAL: u16 = 30_081;

/// The packet filter that has the rules: iptables-legacy or nftables.
#[derive(Clone, Copy, Debug)]
enum Filter {
    Legacy,
    Nft,
}

impl Filter {
    fn tools(self) -> [&'static str; 2] {
        match self {
            Self::Legacy => ["iptables-legacy", "ip6tables-legacy"],
            Self::Nft => ["iptables-nft", "ip6tables-nft"],
        }
    }

    /// Replaces the tables that the rules name.
    fn restore(self, node: &Machine, family: usize, rules: &str) -> Result<()> {
        let path = "/run/rules";
        node.mounts().run(|| std::fs::write(path, rules))?;
        node.call(&format!("{}-restore {path}", self.tools()[family]))
            .map(drop)
    }

    /// Removes all rules at once.
    fn flush(self, node: &Machine) -> Result<()> {
        match self {
            Self::Nft => node.call("nft flush ruleset").map(drop),
            Self::Legacy => self.tools().into_iter().try_for_each(|tool| {
                node.call(&format!("{tool} -P FORWARD ACCEPT"))?;
                for table in ["nat", "filter"] {
                    node.call(&format!("{tool} -t {table} -F"))?;
                }
                Ok(())
            }),
        }
    }
}

/// Returns the rules of a service proxy for one service with an endpoint in a pod and one in the
/// world, and for two node ports.
fn proxy(family: usize, pod: IpAddr) -> Vec<String> {
    let service = SERVICE[family];
    let to_pod = SocketAddr::new(pod, 80);
    let to_world = SocketAddr::new(WORLD[family], 7000);
    let mut rules = [
        ":SERVICES -",
        ":PORTS -",
        ":MARKED -",
        ":MASKED -",
        "-A PREROUTING -j SERVICES",
        "-A OUTPUT -j SERVICES",
        "-A POSTROUTING -j MASKED",
        "-A MARKED -j MARK --set-xmark 0x4000/0x4000",
        "-A MASKED -m mark ! --mark 0x4000/0x4000 -j RETURN",
        "-A MASKED -j MARK --set-xmark 0x0/0x4000",
        "-A MASKED -j MASQUERADE",
    ]
    .map(ToOwned::to_owned)
    .to_vec();
    for protocol in ["tcp", "udp"] {
        let is = |port: u16| format!("-p {protocol} --dport {port}");
        for (port, to) in [(BY_POD, to_pod), (BY_WORLD, to_world)] {
            let matched = format!("-A SERVICES -d {service} {}", is(port));
            rules.push(format!("{matched} -j DNAT --to-destination {to}"));
        }
        rules.push(format!("-A PORTS {} -j MARKED", is(CLUSTER)));
        for port in [CLUSTER, LOCAL] {
            rules.push(format!(
                "-A PORTS {} -j DNAT --to-destination {to_pod}",
                is(port)
            ));
        }
    }
    rules.push("-A SERVICES -m addrtype --dst-type LOCAL -j PORTS".to_owned());
    rules
}

/// Rules of a container runtime that forwards only for its own bridges and cbr0.
const FORWARDING: [&str; 9] = [
    ":FORWARD DROP",
    ":USER -",
    "-A FORWARD -j USER",
    "-A USER -m conntrack --ctstate INVALID -j DROP",
    "-A USER -j RETURN",
    "-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
    "-A FORWARD -i docker0 ! -o docker0 -j ACCEPT",
    "-A FORWARD -i cbr0 -j ACCEPT",
    "-A FORWARD -o cbr0 -j ACCEPT",
];

/// Returns the rules of both, and the runtime's MASQUERADE for its own containers.
fn rules(family: usize, pod: IpAddr) -> String {
    let own = ["172.17.0.0/16", "fd00:17::/64"][family];
    let masquerade = format!("-A POSTROUTING -s {own} ! -o docker0 -j MASQUERADE");
    let nat = proxy(family, pod).join("\n");
    let filter = FORWARDING.join("\n");
    format!("*nat\n{nat}\n{masquerade}\nCOMMIT\n*filter\n{filter}\nCOMMIT\n")
}

fn settle(filter: Filter, node: &Machine, pod: &Pod) -> Result<()> {
    for (family, pod) in pod.addresses.iter().enumerate() {
        filter.restore(node, family, &rules(family, *pod))?;
    }
    Ok(())
}

/// A node with rules, a pod that publishes ports, and another pod.
struct Scene {
    sandbox: Sandbox,
    _agent: e2e::Agent,
    server: Pod,
    client: Pod,
    _echoes: [Echo; 2],
}

impl Scene {
    fn new(filter: Filter) -> Result<Self> {
        let (sandbox, agent) = Sandbox::with_agent()?;
        let mut server = sandbox.pod("server")?;
        server.add_with(Config::new("1.1.0").publish(&HOSTPORTS))?;
        let mut client = sandbox.pod("client")?;
        client.add()?;
        settle(filter, &sandbox.node, &server)?;
        let echoes = [
            Echo::start(&server.machine, 80)?,
            Echo::start(&sandbox.world, 7000)?,
        ];
        Ok(Self {
            sandbox,
            _agent: agent,
            server,
            client,
            _echoes: echoes,
        })
    }

    /// Returns client, dialled address, and the client address that the server must see.
    fn expectations(&self, family: usize) -> Result<Vec<(&Machine, SocketAddr, IpAddr)>> {
        let (node, world, gateway) = (NODE[family], WORLD[family], GATEWAYS[family]);
        let service = SERVICE[family].parse::<IpAddr>()?;
        let at = SocketAddr::new;
        let (pod, outside) = (&self.client.machine, &self.sandbox.world);
        let client = self.client.address(node)?;
        Ok(vec![
            (pod, at(world, 7000), node),
            (pod, at(service, BY_WORLD), node),
            (pod, at(service, BY_POD), client),
            (&self.sandbox.node, at(service, BY_WORLD), node),
            // The node selects its source address before the proxy translates the destination.
            (&self.sandbox.node, at(service, BY_POD), node),
            (outside, at(node, 8080), world),
            (outside, at(node, CLUSTER), gateway),
            (outside, at(node, LOCAL), world),
        ])
    }

    fn all_clients_are_seen_as_expected(&self) -> Result<()> {
        for family in [0, 1] {
            for (client, server, expected) in self.expectations(family)? {
                let who = || format!("{} dials {server}", client.name());
                let (by_tcp, _) = tcp_source(client, 0, server).with_context(who)?;
                let (by_udp, _) = udp_source(client, 0, server).with_context(who)?;
                ensure!(by_tcp.ip() == expected, "{}: TCP from {by_tcp}", who());
                ensure!(by_udp.ip() == expected, "{}: UDP from {by_udp}", who());
            }
        }
        Ok(())
    }

    /// Opens one flow of each kind that only Viaduct translates.
    fn own_flows(&self) -> Result<Vec<Connection>> {
        let mut open = Vec::new();
        for (node, world) in NODE.into_iter().zip(WORLD) {
            for (client, server) in [
                (&self.client.machine, SocketAddr::new(world, 7000)),
                (&self.sandbox.world, SocketAddr::new(node, 8080)),
            ] {
                open.push(Connection::tcp(client, server)?);
                open.push(Connection::udp(client, server)?);
            }
        }
        Ok(open)
    }
}

#[test]
fn services_and_node_ports_of_an_iptables_legacy_proxy_keep_working() -> Result<()> {
    Scene::new(Filter::Legacy)?.all_clients_are_seen_as_expected()
}

#[test]
fn services_and_node_ports_of_an_nft_proxy_keep_working() -> Result<()> {
    Scene::new(Filter::Nft)?.all_clients_are_seen_as_expected()
}

/// Adds and removes the rules under a load of flows that only Viaduct translates.
fn rules_come_and_go(filter: Filter) -> Result<()> {
    let scene = Scene::new(filter)?;
    let node = &scene.sandbox.node;
    let load = ConnectionLoad::start(scene.own_flows()?);
    load.await_round()?;
    for _ in 0..3 {
        filter.flush(node)?;
        load.await_round().context("without rules")?;
        let late = scene.own_flows().context("new flows without rules")?;
        settle(filter, node, &scene.server)?;
        load.await_round().context("with rules again")?;
        late.iter().try_for_each(Connection::exchange)?;
    }
    assert!(load.end()? > 0);
    scene.all_clients_are_seen_as_expected()
}

#[test]
fn flushing_all_legacy_rules_breaks_no_flow_of_pods() -> Result<()> {
    rules_come_and_go(Filter::Legacy)
}

#[test]
fn flushing_the_whole_nft_ruleset_breaks_no_flow_of_pods() -> Result<()> {
    rules_come_and_go(Filter::Nft)
}

#[test]
fn connection_tracking_sees_pods_by_their_own_addresses_and_no_flow_twice() -> Result<()> {
    let scene = Scene::new(Filter::Nft)?;
    let open = scene.own_flows()?;
    let tracked = "/proc/thread-self/net/nf_conntrack";
    let Ok(table) = scene.sandbox.node.run(|| std::fs::read_to_string(tracked)) else {
        // A kernel can be built without this file; the other tests cover the translation itself.
        return Ok(());
    };
    for (connection, family) in open.iter().zip([0, 0, 0, 0, 1, 1, 1, 1]) {
        let node = NODE[family].to_string();
        let outward = connection.seen().ip() == NODE[family];
        if !outward {
            continue;
        }
        let port = format!("sport={} dport=7000", connection.seen().port());
        let lines = table
            .lines()
            .filter(|line| line.contains(&port))
            .collect::<Vec<_>>();
        ensure!(lines.len() == 1, "not tracked once: {lines:#?}");
        ensure!(
            !lines.iter().any(|line| line.contains(&format!("={node} "))),
            "tracked as the node's: {lines:#?}"
        );
    }
    Ok(())
}

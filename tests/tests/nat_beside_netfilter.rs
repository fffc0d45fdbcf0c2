//! Beside the rules of others: a service proxy, a container runtime with its own firewall, connection tracking. Theirs
//! work as without us, ours as without them, and no packet is translated by both.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, Result, ensure};
use e2e::{
    Config, Conversation, Echo, GATEWAYS, Load, Machine, Mapping, NODE, Pod, Sandbox, WORLD,
    tcp_source, udp_source,
};

const HOSTPORTS: [Mapping; 2] = Mapping::both(8080, 80);

/// A service's address, which no machine has.
const SERVICE: [&str; 2] = ["10.96.0.10", "fd00:96::10"];
/// The service's ports: served by pods, and by the world.
const BY_POD: u16 = 80;
const BY_WORLD: u16 = 81;
/// Ports of the node that lead to the pod: for everybody by way of the node, and with the caller's own address.
const CLUSTER: u16 = 30_080;
const LOCAL: u16 = 30_081;

/// Which of the kernel's two packet filters has the rules.
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

    /// Puts these rules in place of whatever tables they name.
    fn restore(self, node: &Machine, family: usize, rules: &str) -> Result<()> {
        let path = "/run/rules";
        node.mounts().run(|| std::fs::write(path, rules))?;
        node.call(&format!("{}-restore {path}", self.tools()[family]))
            .map(drop)
    }

    /// Removes everything at once, as an administrator does who has had enough.
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

/// What a service proxy writes for one service with an endpoint in a pod and one in the world, and for two of the
/// node's ports.
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

/// What a container runtime writes that forwards for nobody but the bridges it knows.
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

/// The rules of both, and the runtime's MASQUERADE for containers of its own.
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

    /// Who is asked by whom, at which address, and whose address the one who answers must see.
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
            // The node chooses its source before the proxy chooses the destination.
            (&self.sandbox.node, at(service, BY_POD), node),
            (outside, at(node, 8080), world),
            (outside, at(node, CLUSTER), gateway),
            (outside, at(node, LOCAL), world),
        ])
    }

    fn everybody_is_seen_as_expected(&self) -> Result<()> {
        for family in [0, 1] {
            for (client, server, expected) in self.expectations(family)? {
                let who = || format!("{} asks {server}", client.name());
                let (by_tcp, _) = tcp_source(client, 0, server).with_context(who)?;
                let (by_udp, _) = udp_source(client, 0, server).with_context(who)?;
                ensure!(by_tcp.ip() == expected, "{}: TCP from {by_tcp}", who());
                ensure!(by_udp.ip() == expected, "{}: UDP from {by_udp}", who());
            }
        }
        Ok(())
    }

    /// One flow of each kind that is ours alone.
    fn ours(&self) -> Result<Vec<Conversation>> {
        let mut open = Vec::new();
        for (node, world) in NODE.into_iter().zip(WORLD) {
            for (client, server) in [
                (&self.client.machine, SocketAddr::new(world, 7000)),
                (&self.sandbox.world, SocketAddr::new(node, 8080)),
            ] {
                open.push(Conversation::tcp(client, server)?);
                open.push(Conversation::udp(client, server)?);
            }
        }
        Ok(open)
    }
}

#[test]
fn services_and_node_ports_of_a_legacy_proxy_work_beside_us() -> Result<()> {
    Scene::new(Filter::Legacy)?.everybody_is_seen_as_expected()
}

#[test]
fn services_and_node_ports_of_an_nft_proxy_work_beside_us() -> Result<()> {
    Scene::new(Filter::Nft)?.everybody_is_seen_as_expected()
}

/// Rules come and go under a load of flows that are ours.
fn rules_come_and_go(filter: Filter) -> Result<()> {
    let scene = Scene::new(filter)?;
    let node = &scene.sandbox.node;
    let load = Load::start(scene.ours()?);
    load.another_round()?;
    for _ in 0..3 {
        filter.flush(node)?;
        load.another_round().context("without rules")?;
        let late = scene.ours().context("new flows without rules")?;
        settle(filter, node, &scene.server)?;
        load.another_round().context("with rules again")?;
        late.iter().try_for_each(Conversation::go_on)?;
    }
    assert!(load.end()? > 0);
    scene.everybody_is_seen_as_expected()
}

#[test]
fn flushing_all_legacy_rules_breaks_no_flow_of_ours() -> Result<()> {
    rules_come_and_go(Filter::Legacy)
}

#[test]
fn flushing_the_whole_nft_ruleset_breaks_no_flow_of_ours() -> Result<()> {
    rules_come_and_go(Filter::Nft)
}

#[test]
fn connection_tracking_sees_pods_by_their_own_addresses_and_no_flow_twice() -> Result<()> {
    let scene = Scene::new(Filter::Nft)?;
    let open = scene.ours()?;
    let tracked = "/proc/thread-self/net/nf_conntrack";
    let Ok(table) = scene.sandbox.node.run(|| std::fs::read_to_string(tracked)) else {
        // A kernel may be built without this file; what matters is asserted by all other tests as well.
        return Ok(());
    };
    for (conversation, family) in open.iter().zip([0, 0, 0, 0, 1, 1, 1, 1]) {
        let node = NODE[family].to_string();
        let outward = conversation.seen().ip() == NODE[family];
        if !outward {
            continue;
        }
        let port = format!("sport={} dport=7000", conversation.seen().port());
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

//! Network policies: a table of client, server, port, protocol and policy, with the fast path and
//! through the stack; through a service that netfilter translates; and through changes.

#[path = "network_policies/table.rs"]
mod table;

use std::net::{IpAddr, SocketAddr};
use std::thread;

use abi::DropReason;
use anyhow::{Context as _, Result, anyhow, ensure};
use e2e::{
    Agent, Config, Connection, DropListener, Echo, ExpectedDrop, Machine, Mapping, NODE, Pod,
    Sandbox, Verb, WORLD, are_all_provoked, connects, udp_gets_no_answer, udp_socket,
};
use serde_json::{Value, json};

use self::table::{Case, Cell, Client, Lists, Server};

const PORT: u16 = 80;
const OTHER_PORT: u16 = 81;
const HOSTPORT: u16 = 8080;
/// Addresses of a service of the server, which rules of netfilter translate.
const SERVICE: [&str; 2] = ["10.96.0.10", "fd00:96::10"];
/// Name of a pod, as a runtime passes it.
const LATE: &str = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=late";
const PATHS: [&str; 2] = ["--bypass-netfilter=auto", "--bypass-netfilter=never"];

struct Scene {
    sandbox: Sandbox,
    agent: Agent,
    client: Pod,
    other: Pod,
    server: Pod,
    _servers: Vec<Echo>,
}

impl Scene {
    fn new(path: &str) -> Result<Self> {
        let sandbox = Sandbox::new()?;
        let agent = Agent::start(&sandbox.node, &[path])?;
        let pod = |name: &str, config: Config| {
            let mut pod = sandbox.pod(name)?;
            pod.add_with(config)?.success()?;
            anyhow::Ok(pod)
        };
        let server = pod(
            "server",
            Config::new("1.1.0").publish(&Mapping::both(HOSTPORT, PORT)),
        )?;
        let client = pod("client", Config::new("1.1.0"))?;
        let other = pod("other", Config::new("1.1.0"))?;
        for (subnet, node) in e2e::POD_CIDRS.into_iter().zip(NODE) {
            let route = format!("ip route add {subnet} via {node}");
            sandbox.world.call(&route)?;
        }
        let mut servers = vec![Echo::start(&sandbox.world, PORT)?];
        for port in [PORT, OTHER_PORT] {
            servers.push(Echo::start(&server.machine, port)?);
        }
        Ok(Self {
            sandbox,
            agent,
            client,
            other,
            server,
            _servers: servers,
        })
    }

    fn set(&self, policies: &Value) -> Result<Value> {
        self.agent.put("/v1/policies", &policies.to_string())
    }

    fn machine(&self, client: Client) -> &Machine {
        match client {
            Client::Pod => &self.client.machine,
            Client::OtherPod => &self.other.machine,
            Client::World => &self.sandbox.world,
            Client::Node => &self.sandbox.node,
        }
    }

    fn address(&self, server: Server, family: usize) -> Result<IpAddr> {
        match server {
            Server::Pod => self.server.address(NODE[family]),
            Server::Hostport => Ok(NODE[family]),
            Server::World => Ok(WORLD[family]),
        }
    }

    /// Returns whether the client gets an answer.
    fn is_open(&self, cell: Cell, family: usize) -> Result<bool> {
        let Cell {
            client,
            server,
            port,
            is_tcp,
        } = cell;
        let to = SocketAddr::new(self.address(server, family)?, port);
        let from = self.machine(client);
        if is_tcp {
            connects(from, to)
        } else {
            let socket = from.run(|| udp_socket(0, to))?;
            Ok(!udp_gets_no_answer(&socket)?)
        }
    }

    /// Returns a line for a cell that is not as expected.
    fn difference(&self, cell: Cell, family: usize, expected: bool) -> Result<Option<String>> {
        // A refusal is the absence of an answer, which a busy machine has as well.
        let tries = if expected { 3 } else { 1 };
        for _ in 0..tries {
            if self.is_open(cell, family)? {
                let line = format!("{cell:?}, family {family}, is open");
                return Ok((!expected).then_some(line));
            }
        }
        Ok(expected.then(|| format!("{cell:?}, family {family}, is refused")))
    }

    /// Compares all cells of the table with a case.
    fn check(&self, case: &Case) -> Result<()> {
        let lines: Result<Vec<Option<String>>> = thread::scope(|scope| {
            let start = |(cell, family)| {
                scope.spawn(move || self.difference(cell, family, (case.expected)(cell)))
            };
            let cells = table::cells().into_iter();
            let of_both = cells.flat_map(|cell| [(cell, 0), (cell, 1)]);
            let threads: Vec<_> = of_both.map(start).collect();
            let joined = threads.into_iter().map(thread::ScopedJoinHandle::join);
            joined
                .map(|one| one.map_err(|_| anyhow!("a thread panicked"))?)
                .collect()
        });
        let lines: Vec<String> = lines?.into_iter().flatten().collect();
        ensure!(lines.is_empty(), "{}", lines.join("\n"));
        Ok(())
    }

    /// Sends what is addressed to the service to the server, as kube-proxy does.
    fn serve_by_netfilter(&self) -> Result<()> {
        let [v4, v6] = [0, 1].map(|family| self.server.address(NODE[family]));
        let rules = format!(
            "table inet services {{ \
               chain prerouting {{ type nat hook prerouting priority dstnat; \
                 ip daddr {} meta l4proto {{ tcp, udp }} th dport 7000 dnat ip to {}:{PORT}; \
                 ip6 daddr {} meta l4proto {{ tcp, udp }} th dport 7000 dnat ip6 to [{}]:{PORT}; \
               }} ; }}",
            SERVICE[0], v4?, SERVICE[1], v6?
        );
        self.sandbox.node.call_words(&["nft", &rules]).map(drop)
    }
}

fn own(pod: &Pod) -> Result<Vec<String>> {
    let addresses = e2e::addresses(pod.result())?.into_iter();
    Ok(addresses.map(|address| address.to_string()).collect())
}

fn check_table(path: &str) -> Result<()> {
    let scene = Scene::new(path)?;
    let lists = Lists {
        client: own(&scene.client)?,
        server: own(&scene.server)?,
    };
    for case in lists.cases() {
        let view = scene.set(&case.policies)?;
        ensure!(view["policies"].is_array(), "{view}");
        scene
            .check(&case)
            .with_context(|| format!("{path}, {}", case.what))?;
    }
    Ok(())
}

#[test]
fn policies_allow_what_they_say_with_the_fast_path() -> Result<()> {
    check_table(PATHS[0])
}

#[test]
fn policies_allow_what_they_say_through_the_stack() -> Result<()> {
    check_table(PATHS[1])
}

/// The client may reach the server alone, and by its own address: the service's addresses are in no
/// rule.
#[test]
fn a_service_is_reached_by_the_rules_of_its_pods() -> Result<()> {
    let scene = Scene::new(PATHS[0])?;
    scene.serve_by_netfilter()?;
    let [client, server] = [own(&scene.client)?, own(&scene.server)?];
    let allowed = |ports: &Value| {
        json!({
            "groups": { "clients": client, "servers": server },
            "policies": [
                { "name": "client", "pods": client, "ingress": [],
                  "egress": [{ "to": [{ "group": "servers" }], "ports": ports }] },
                { "name": "server", "pods": server, "egress": [],
                  "ingress": [{ "from": [{ "group": "clients" }] }] },
            ],
        })
    };
    scene.set(&allowed(&json!([])))?;
    for (service, address) in SERVICE.into_iter().zip(NODE) {
        ensure!(service.parse::<IpAddr>()?.is_ipv4() == address.is_ipv4());
        let to = SocketAddr::new(service.parse()?, 7000);
        scene.set(&allowed(&json!([])))?;
        let connections = [
            Connection::tcp(&scene.client.machine, to)?,
            Connection::udp(&scene.client.machine, to)?,
        ];
        for connection in &connections {
            (0..50).try_for_each(|_| connection.exchange())?;
        }
        ensure!(!connects(&scene.other.machine, to)?, "another client");
        // The rule for TCP goes, for established connections as well.
        scene.set(&allowed(&json!([{ "protocol": "udp" }])))?;
        connections[1].exchange()?;
        ensure!(!connects(&scene.client.machine, to)?, "TCP");
        ensure!(connections[0].exchange().is_err(), "established");
    }
    Ok(())
}

#[test]
fn a_pod_that_is_named_has_its_policies_from_its_first_packet_on() -> Result<()> {
    let scene = Scene::new(PATHS[0])?;
    scene.set(&json!({ "policies": [
        { "name": "shop/late", "pods": ["shop/late"], "egress": [] }
    ] }))?;
    let late = scene.sandbox.pod("late")?;
    let add = late.prepare(Verb::Add, late.config()).set("CNI_ARGS", LATE);
    add.run(&scene.sandbox.node)?.success()?;
    let view = scene.agent.get("/v1/policies")?;
    assert_eq!(view["policies"][0]["container_ids"], json!([late.id()]));
    for address in WORLD {
        ensure!(!connects(&late.machine, SocketAddr::new(address, PORT))?);
    }
    scene.set(&json!({}))?;
    for address in WORLD {
        ensure!(connects(&late.machine, SocketAddr::new(address, PORT))?);
    }
    Ok(())
}

#[test]
fn policies_hold_without_the_agent_and_after_it_has_come_back() -> Result<()> {
    let mut scene = Scene::new(PATHS[0])?;
    let server = own(&scene.server)?;
    let refused = |scene: &Scene| {
        for family in [0, 1] {
            let to = SocketAddr::new(scene.address(Server::Pod, family)?, PORT);
            ensure!(!connects(&scene.client.machine, to)?);
        }
        anyhow::Ok(())
    };
    scene.set(&json!({ "policies": [{ "name": "server", "pods": server, "ingress": [] }] }))?;
    refused(&scene)?;
    scene.agent.kill()?;
    refused(&scene)?;
    scene.agent.restart()?;
    refused(&scene)?;
    let listed = scene.agent.ctl("policies --output json")?;
    ensure!(listed.contains("\"server\""), "{listed}");
    Ok(())
}

/// Source port of refused datagrams.
const FROM: u16 = 41_000;

fn send(from: &Machine, to: SocketAddr) -> Result<()> {
    let socket = from.run(|| udp_socket(FROM, to))?;
    socket.send(b"never delivered")?;
    Ok(())
}

/// Requires the event about a refused datagram, and its explanation.
fn is_reported(
    scene: &Scene,
    listener: &DropListener,
    (hook, pod): (&'static str, &Pod),
    (from, source): (&Machine, IpAddr),
    to: SocketAddr,
) -> Result<()> {
    let ends = [SocketAddr::new(source, FROM), to];
    let expected = ExpectedDrop {
        reason: DropReason::NetworkPolicy,
        hook,
        pod: Some(pod.id().to_owned()),
        ends: Some(ends.map(|end| end.to_string())),
    };
    let checked = expected.check(&scene.agent, listener, || send(from, to));
    checked.with_context(|| format!("{hook}, {to}"))
}

#[test]
fn refused_packets_are_reported_at_each_hook_and_explained_with_their_policies() -> Result<()> {
    for path in PATHS {
        let scene = Scene::new(path)?;
        let client = own(&scene.client)?;
        let closed = [own(&scene.server)?, own(&scene.other)?].concat();
        scene.set(&json!({ "policies": [
            { "name": "shop/closed", "pods": closed, "ingress": [] },
            { "name": "shop/alone", "pods": client,
              "egress": [{ "to": [{ "group": "closed" }] }] },
        ], "groups": { "closed": closed } }))?;
        let probe = SocketAddr::new(scene.address(Server::Pod, 0)?, PORT);
        let sender = &scene.client.machine;
        let listener =
            DropListener::start(&scene.agent, &probe.to_string(), || send(sender, probe))?;
        let is_bypassed = path == PATHS[0];
        for family in [0, 1] {
            let own = scene.client.address(NODE[family])?;
            let pod = SocketAddr::new(scene.address(Server::Pod, family)?, PORT);
            let hostport = SocketAddr::new(NODE[family], HOSTPORT);
            let world = SocketAddr::new(WORLD[family], PORT);
            let outside = (&scene.sandbox.world, WORLD[family]);
            let reported =
                |hook, at: &Pod, from, to| is_reported(&scene, &listener, (hook, at), from, to);
            if is_bypassed {
                reported("from_pod", &scene.client, (sender, own), pod)?;
                reported("from_pod", &scene.client, (sender, own), world)?;
                reported("uplink_in", &scene.server, outside, hostport)?;
            } else {
                let unpublished = SocketAddr::new(scene.other.address(own)?, PORT);
                reported("to_pod", &scene.other, (sender, own), unpublished)?;
                reported("uplink_out", &scene.client, (sender, own), world)?;
            }
        }
        let ctl = e2e::program("bin/viaductctl").display().to_string();
        let (id, to) = (scene.client.id(), probe.to_string());
        let words = [ctl.as_str(), "why", id, &to, "--proto", "udp"];
        let why = scene.sandbox.node.output(&words)?;
        assert_eq!(why.status.code(), Some(1), "it does not pass");
        let why = String::from_utf8(why.stdout)?;
        for words in ["no rule for ingress", "(shop/closed)"] {
            ensure!(why.contains(words), "{why}");
        }
    }
    let provoked = [DropReason::NetworkPolicy.name()].into();
    are_all_provoked("network_policies", &provoked)
}

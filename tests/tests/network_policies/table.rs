//! The table: clients, servers, ports and protocols, and what policies allow of them.

use e2e::WORLD;
use serde_json::{Value, json};

use super::{HOSTPORT, OTHER_PORT, PORT};

/// A cell of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cell {
    pub(crate) client: Client,
    pub(crate) server: Server,
    pub(crate) port: u16,
    pub(crate) is_tcp: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Client {
    Pod,
    OtherPod,
    World,
    Node,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Server {
    /// The server's own address.
    Pod,
    /// Its published port.
    Hostport,
    World,
}

/// Returns all cells of the table.
pub(crate) fn cells() -> Vec<Cell> {
    let mut cells = Vec::new();
    for client in [Client::Pod, Client::OtherPod, Client::World, Client::Node] {
        for (server, port) in [
            (Server::Pod, PORT),
            (Server::Pod, OTHER_PORT),
            (Server::Hostport, HOSTPORT),
            (Server::World, PORT),
        ] {
            let is_to_itself = client == Client::World && server == Server::World;
            let is_known = !is_to_itself && (client, server) != (Client::Node, Server::Hostport);
            cells.extend(
                [true, false]
                    .into_iter()
                    .filter(|_| is_known)
                    .map(|is_tcp| Cell {
                        client,
                        server,
                        port,
                        is_tcp,
                    }),
            );
        }
    }
    cells
}

/// Policies, and the cells that they allow.
pub(crate) struct Case {
    pub(crate) what: &'static str,
    pub(crate) policies: Value,
    pub(crate) expected: fn(Cell) -> bool,
}

/// The addresses that policies have.
pub(crate) struct Lists {
    pub(crate) client: Vec<String>,
    pub(crate) server: Vec<String>,
}

fn is_server(cell: Cell) -> bool {
    cell.server != Server::World
}

/// Returns whether the rules of the server do not apply: the node reaches it always.
fn is_exempt(cell: Cell) -> bool {
    !is_server(cell) || cell.client == Client::Node
}

fn port(protocol: &str, port: u16) -> Value {
    json!({ "protocol": protocol, "port": port })
}

fn world() -> Value {
    let [v4, v6] = WORLD;
    json!([{ "cidr": format!("{v4}/32") }, { "cidr": format!("{v6}/128") }])
}

impl Lists {
    /// Returns policies with the groups that rules name.
    fn list(&self, policies: &[Value]) -> Value {
        json!({
            "policies": policies,
            "groups": { "clients": self.client, "servers": self.server, "empty": [] },
        })
    }

    /// Returns a policy for the server, with the rules of each direction that it has.
    fn server(&self, rules: &Value) -> Value {
        policy("server", &self.server, rules)
    }

    fn client(&self, rules: &Value) -> Value {
        policy("client", &self.client, rules)
    }

    /// Returns all cases.
    pub(crate) fn cases(&self) -> Vec<Case> {
        let mut cases = self.ingress();
        cases.extend(self.ingress_of_others());
        cases.extend(self.egress());
        cases.extend(self.both());
        cases
    }

    fn ingress(&self) -> Vec<Case> {
        let case = |what, rules: Value, expected| Case {
            what,
            policies: self.list(&[self.server(&json!({ "ingress": rules }))]),
            expected,
        };
        vec![
            case("no rule for the server", json!([]), is_exempt),
            case("a rule for all", json!([{}]), |_| true),
            case(
                "a group that is empty",
                json!([{ "from": [{ "group": "empty" }] }]),
                is_exempt,
            ),
            case(
                "TCP to one port by a group",
                json!([{ "from": [{ "group": "clients" }], "ports": [port("tcp", PORT)] }]),
                |cell| {
                    let is_port = cell.is_tcp && cell.port != OTHER_PORT;
                    is_exempt(cell) || cell.client == Client::Pod && is_port
                },
            ),
            case(
                "UDP to a range of ports by all",
                json!([{ "ports": [
                    { "protocol": "udp", "port": PORT, "last_port": OTHER_PORT }
                ] }]),
                |cell| is_exempt(cell) || !cell.is_tcp,
            ),
        ]
    }

    fn ingress_of_others(&self) -> Vec<Case> {
        let but_client = |prefix: &str, own: &str, length: u8| json!({ "cidr": prefix, "except": [format!("{own}/{length}")] });
        let others = [
            but_client("0.0.0.0/0", &self.client[0], 32),
            but_client("::/0", &self.client[1], 128),
        ];
        let second = json!({ "ingress": [
            { "from": [{ "group": "clients" }], "ports": [port("tcp", OTHER_PORT)] }
        ] });
        vec![
            Case {
                what: "no policies",
                policies: self.list(&[]),
                expected: |_| true,
            },
            Case {
                what: "prefixes outside, beside a group in another policy",
                policies: self.list(&[
                    self.server(&json!({ "ingress": [{ "from": world() }] })),
                    policy("second", &self.server, &second),
                ]),
                expected: |cell| {
                    let is_port = cell.is_tcp && cell.port == OTHER_PORT;
                    let is_allowed = match cell.client {
                        Client::Pod => is_port,
                        Client::OtherPod => false,
                        Client::World | Client::Node => true,
                    };
                    is_exempt(cell) || is_allowed
                },
            },
            Case {
                what: "all but the client",
                policies: self.list(&[self.server(&json!({ "ingress": [{ "from": others }] }))]),
                expected: |cell| !is_server(cell) || cell.client != Client::Pod,
            },
        ]
    }

    fn egress(&self) -> Vec<Case> {
        let case = |what, rules: Value, expected| Case {
            what,
            policies: self.list(&[self.client(&json!({ "egress": rules }))]),
            expected,
        };
        vec![
            case("no egress of the client", json!([]), |cell| {
                cell.client != Client::Pod
            }),
            case(
                "egress of the client to the server's TCP port",
                json!([{ "to": [{ "group": "servers" }], "ports": [port("tcp", PORT)] }]),
                |cell| {
                    let is_port = cell.is_tcp && cell.port != OTHER_PORT;
                    cell.client != Client::Pod || is_server(cell) && is_port
                },
            ),
            case(
                "egress of the client to the world",
                json!([{ "to": world() }]),
                |cell| cell.client != Client::Pod || !is_server(cell),
            ),
        ]
    }

    fn both(&self) -> Vec<Case> {
        let ports = [port("udp", PORT)];
        let client = self.client(&json!({
            "ingress": [],
            "egress": [{ "to": [{ "group": "servers" }], "ports": ports }],
        }));
        let server = self.server(&json!({
            "ingress": [{ "from": [{ "group": "clients" }], "ports": ports }],
            "egress": [],
        }));
        vec![
            Case {
                what: "each pod its part of one connection",
                policies: self.list(&[client, server]),
                expected: |cell| {
                    let is_port = !cell.is_tcp && cell.port != OTHER_PORT;
                    match cell.client {
                        Client::Pod => is_server(cell) && is_port,
                        Client::OtherPod | Client::World | Client::Node => is_exempt(cell),
                    }
                },
            },
            Case {
                what: "no egress of the server, which answers",
                policies: self.list(&[self.server(&json!({ "egress": [] }))]),
                expected: |_| true,
            },
        ]
    }
}

/// Returns a policy for the pods with these addresses.
fn policy(name: &str, pods: &[String], rules: &Value) -> Value {
    let mut policy = json!({ "name": name, "pods": pods });
    for direction in ["ingress", "egress"] {
        if let Some(rules) = rules.get(direction) {
            policy[direction] = rules.clone();
        }
    }
    policy
}

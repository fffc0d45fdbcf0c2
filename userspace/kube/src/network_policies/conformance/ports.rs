//! Cases of ports: numbers, names, ranges and protocols.

use serde_json::json;

use super::*;

pub(super) fn cases() -> Vec<Case> {
    let mut cases = ports();
    cases.extend(several_ports());
    cases.extend(names());
    cases.extend(names_of_egress());
    cases.extend(ranges());
    cases.extend(protocols());
    cases
}

fn from_y(name: &str, port: u16) -> Change {
    let rule = json!({ "from": [{ "namespaceSelector": ns("y") }], "ports": [{ "port": port }] });
    ingress(name, "a", json!([rule]))
}

/// The table in which x/a accepts connections from y only.
fn of_y() -> Table {
    closed().allow("y/", "x/a")
}

/// The table in which x/a opens nothing.
fn silent() -> Table {
    all().deny("x/a", "/")
}

fn ports() -> Vec<Case> {
    let first = || vec![on("TCP", 81, of_y()), on("TCP", 80, closed())];
    let mut of_tcp = first();
    of_tcp.extend([on("UDP", 81, closed()), on("SCTP", 81, closed())]);
    let stacked = one(
        "stacked policies with overlapping podSelectors",
        vec![from_y("p", 81)],
        first(),
    );
    vec![
        one(
            "a port of TCP, the default protocol",
            vec![from_y("p", 81)],
            of_tcp,
        ),
        then(
            stacked,
            vec![from_y("q", 80)],
            vec![on("TCP", 81, of_y()), on("TCP", 80, of_y())],
        ),
    ]
}

fn several_ports() -> Vec<Case> {
    let two_rules = json!([
        { "from": [{ "namespaceSelector": ns("y") }], "ports": [{ "port": 80 }] },
        { "from": [{ "namespaceSelector": ns("z") }], "ports": [{ "port": 81 }] },
    ]);
    let two_ports = json!([{ "ports": [{ "port": 80 }, { "port": 81, "protocol": "UDP" }] }]);
    let whole_protocol = json!([{ "ports": [{ "protocol": "UDP" }] }]);
    let of_z = closed().allow("z/", "x/a");
    vec![
        one(
            "two rules with peers and ports of their own",
            vec![ingress("p", "a", two_rules)],
            vec![on("TCP", 80, of_y()), on("TCP", 81, of_z)],
        ),
        one(
            "several ports of one rule",
            vec![ingress("p", "a", two_ports)],
            vec![
                on("TCP", 80, all()),
                on("UDP", 81, all()),
                on("TCP", 81, closed()),
                on("UDP", 80, closed()),
            ],
        ),
        one(
            "a protocol without a port",
            vec![ingress("p", "a", whole_protocol)],
            vec![
                on("UDP", 80, all()),
                on("UDP", 81, all()),
                on("TCP", 80, closed()),
                on("SCTP", 81, closed()),
            ],
        ),
    ]
}

fn names() -> Vec<Case> {
    let named = |name: &str| vec![ingress("p", "a", json!([{ "ports": [{ "port": name }] }]))];
    let from_y = json!([{ "from": [{ "namespaceSelector": ns("y") }], "ports": [{ "port": "serve-80-tcp" }] }]);
    vec![
        one(
            "ingress on a named port",
            named("serve-81-tcp"),
            vec![
                on("TCP", 81, all()),
                on("TCP", 80, closed()),
                on("UDP", 81, closed()),
            ],
        ),
        one(
            "ingress from a namespace on a named port",
            vec![ingress("p", "a", from_y)],
            vec![on("TCP", 80, of_y()), on("TCP", 81, closed())],
        ),
        one(
            "a named port of another protocol is another port",
            named("serve-80-udp"),
            everywhere(&closed()),
        ),
        one(
            "a named port that no pod has allows nothing",
            named("nothing"),
            everywhere(&closed()),
        ),
    ]
}

fn names_of_egress() -> Vec<Case> {
    let named = |name: &str| vec![egress("p", "a", json!([{ "ports": [{ "port": name }] }]))];
    let to_y = json!([{
        "to": [{ "namespaceSelector": ns("y") }],
        "ports": [{ "port": "serve-80-tcp" }, { "port": 81, "protocol": "UDP" }],
    }]);
    let only_y = || silent().allow("x/a", "y/");
    vec![
        one(
            "egress on a named port",
            named("serve-80-tcp"),
            vec![
                on("TCP", 80, all()),
                on("TCP", 81, silent()),
                on("SCTP", 80, silent()),
            ],
        ),
        one(
            "egress to a namespace on a named port, beside a number",
            vec![egress("p", "a", to_y)],
            vec![
                on("TCP", 80, only_y()),
                on("UDP", 81, only_y()),
                on("TCP", 81, silent()),
                on("UDP", 80, silent()),
            ],
        ),
        one(
            "egress on a named port that no pod has allows nothing",
            named("nothing"),
            everywhere(&silent()),
        ),
    ]
}

fn ranges() -> Vec<Case> {
    let range = |first: u16, last: u16| {
        let rules = json!([{ "ports": [{ "port": first, "endPort": last }] }]);
        vec![ingress("p", "a", rules)]
    };
    let of_egress = json!([{ "ports": [{ "port": 1, "endPort": 80, "protocol": "SCTP" }] }]);
    vec![
        one(
            "a range of ports with both",
            range(80, 81),
            vec![
                on("TCP", 80, all()),
                on("TCP", 81, all()),
                on("UDP", 80, closed()),
            ],
        ),
        one(
            "a range of one port",
            range(81, 81),
            vec![on("TCP", 81, all()), on("TCP", 80, closed())],
        ),
        one(
            "a range without either",
            range(82, 65_535),
            everywhere(&closed()),
        ),
        one(
            "a range of egress",
            vec![egress("p", "a", of_egress)],
            vec![
                on("SCTP", 80, all()),
                on("SCTP", 81, silent()),
                on("TCP", 80, silent()),
            ],
        ),
    ]
}

fn protocols() -> Vec<Case> {
    let allow = |protocol: &str, port: u16| {
        vec![ingress(
            "p",
            "a",
            json!([{ "ports": [{ "protocol": protocol, "port": port }] }]),
        )]
    };
    let of_x =
        json!([{ "from": [{ "podSelector": {} }], "ports": [{ "protocol": "SCTP", "port": 80 }] }]);
    vec![
        one(
            "a policy of UDP does not allow TCP",
            allow("UDP", 81),
            vec![
                on("UDP", 81, all()),
                on("UDP", 80, closed()),
                on("TCP", 81, closed()),
            ],
        ),
        one(
            "a policy of SCTP isolates TCP and UDP",
            allow("SCTP", 81),
            vec![
                on("SCTP", 81, all()),
                on("SCTP", 80, closed()),
                on("TCP", 81, closed()),
                on("UDP", 81, closed()),
            ],
        ),
        one(
            "a policy of SCTP is none of TCP",
            vec![ingress("p", "", of_x)],
            vec![
                on("SCTP", 80, all().deny("y/", "x/").deny("z/", "x/")),
                on("TCP", 80, all().deny("/", "x/")),
            ],
        ),
    ]
}

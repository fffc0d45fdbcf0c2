//! Tests of `setup` and `teardown`: what podman sends, and what CNI's parser reads of it.

use cni::{AddRequest, Command, Environment, Plugin, Request};
use model::{IngressPolicy, Intent, NetworkAccess, Protocol};
use proptest::prelude::*;

use super::*;
use crate::options::{NETWORK_OPTIONS, Support};

/// Returns what podman 5 sends, with lists and maps that it does not have as null.
pub(crate) fn podman() -> Value {
    json!({
        "container_id": "752947ff91f961eb", "container_name": "web",
        "port_mappings": [
            { "container_port": 80, "host_ip": "127.0.0.1", "host_port": 8080, "protocol": "tcp", "range": 1 },
            { "container_port": 53, "host_ip": "", "host_port": 5353, "protocol": "tcp,udp", "range": 2 },
        ],
        "network": {
            "name": "apps", "id": "2f259bab93aaaaa2542ba43ef33eb990d0999ee1b9924b557b7be53c0b7a1bb9",
            "driver": "viaduct", "network_interface": "vd2f259bab93", "created": "2026-11-26T03:00:00Z",
            "dns_enabled": false, "internal": false, "ipv6_enabled": true, "options": null,
            "ipam_options": { "driver": "host-local" }, "network_dns_servers": null, "labels": { "a": "b" },
            "routes": [{ "destination": "10.20.0.0/16", "gateway": "10.90.0.9" }],
            "subnets": [
                { "gateway": "10.90.0.1", "lease_range": { "start_ip": "10.90.0.16", "end_ip": "10.90.0.31" }, "subnet": "10.90.0.0/24" },
                { "gateway": "fd90::1", "lease_range": null, "subnet": "fd90::/64" },
            ],
        },
        "network_options": {
            "aliases": ["752947ff91f9"], "interface_name": "eth0", "options": null,
            "static_ips": ["10.90.0.50", "fd90::50"], "static_mac": "aa:bb:cc:dd:aa:00",
        },
    })
}

fn intent_of(input: &Value) -> Result<Intent, Error> {
    cni::intent(&request_of(input)?, None)
}

fn request_of(input: &Value) -> Result<AddRequest, Error> {
    let setup = Setup::read(&input.to_string())?;
    let environment = Environment {
        command: Command::Add,
        container_id: "752947ff91f961eb".to_owned(),
        netns: "/run/netns/c1".to_owned(),
        ifname: "eth0".to_owned(),
        args: setup.args,
        path: Setup::PATH.to_owned(),
    };
    let request = Request::read(Plugin::Viaduct, &environment, &setup.config)?;
    let Request::Add(request) = request else {
        panic!("{request:?} is no ADD");
    };
    Ok(*request)
}

#[test]
fn a_setup_of_podman_is_an_add_with_its_addresses_and_ports() {
    let intent = intent_of(&podman()).unwrap();
    assert_eq!(intent.pod.unwrap().to_string(), "podman/web");
    assert_eq!(intent.network.bridge.as_str(), "vd2f259bab93");
    assert!(intent.network.masquerade && intent.network.options.gateway);
    let addresses = intent.requested.addresses.iter().map(ToString::to_string);
    assert_eq!(addresses.collect::<Vec<_>>(), ["10.90.0.50", "fd90::50"]);
    assert_eq!(
        intent.requested.mac.unwrap().to_string(),
        "aa:bb:cc:dd:aa:00"
    );
    let ports = intent.port_mappings.iter().map(ToString::to_string);
    let expected = [
        "127.0.0.1:8080->80/tcp",
        "5353->53/tcp",
        "5354->54/tcp",
        "5353->53/udp",
        "5354->54/udp",
    ];
    assert_eq!(ports.collect::<Vec<_>>(), expected);
    assert_eq!(intent.port_mappings[1].protocol, Protocol::Tcp);
}

#[test]
fn routes_have_the_metric_of_the_network_unless_they_have_their_own() {
    let mut input = podman();
    input["network"]["options"] = json!({ "metric": "7" });
    let routes = |input: &Value| -> Vec<(String, Option<u32>)> {
        let network = intent_of(input).unwrap().network;
        network
            .routes
            .iter()
            .map(|route| (route.destination.to_string(), route.options.priority))
            .collect()
    };
    let of = |destination: &str, metric| (destination.to_owned(), Some(metric));
    let default = [of("0.0.0.0/0", 7), of("::/0", 7)];
    assert_eq!(routes(&input)[0], of("10.20.0.0/16", 7));
    assert_eq!(routes(&input)[1..], default);
    input["network"]["routes"][0]["metric"] = json!(3);
    assert_eq!(routes(&input)[0], of("10.20.0.0/16", 3));
    input["network"]["options"] = json!({ "no_default_route": "true" });
    assert_eq!(routes(&input), [of("10.20.0.0/16", 3)]);
    input["network"]["options"] = Value::Null;
    input["network"]["internal"] = json!(true);
    assert_eq!(routes(&input), [of("10.20.0.0/16", 3)]);
}

#[test]
fn options_of_the_network_reach_its_ports() {
    let mut input = podman();
    let plain = intent_of(&input).unwrap().network;
    assert_eq!(
        (plain.mtu, plain.options.port.ingress),
        (None, IngressPolicy::Open)
    );
    assert_eq!(plain.options.port.access, NetworkAccess::Direct);
    input["network"]["options"] =
        json!({ "outbound_addr4": "192.0.2.9", "outbound_addr6": "2001:db8::9" });
    let egress = intent_of(&input).unwrap().network.options.egress;
    let outbound: Vec<String> = egress.iter().map(|own| own.to_string()).collect();
    assert_eq!(outbound, ["192.0.2.9", "2001:db8::9"]);
    input["network"]["internal"] = json!(true);
    let error = intent_of(&input).unwrap_err();
    assert!(error.msg.contains("egressAddresses"), "{}", error.msg);
    input["network"]["options"] = json!({ "isolate": "true", "mtu": "1400" });
    let set = intent_of(&input).unwrap().network;
    assert_eq!(
        (set.mtu, set.options.port.ingress),
        (Some(1400), IngressPolicy::SameBridge)
    );
    assert_eq!(set.options.port.access, NetworkAccess::Internal);
    assert!(!set.masquerade);
}

/// podman allocates the addresses, also outside of the lease range if a user requests one there.
#[test]
fn a_lease_range_limits_the_addresses_that_viaduct_allocates_itself() {
    let mut input = podman();
    let first = |input: &Value| {
        let network = intent_of(input).unwrap().network;
        let config = Setup::read(&input.to_string()).unwrap().config;
        (network.ranges.len(), config.contains("10.90.0.16"))
    };
    assert_eq!(first(&input), (2, false));
    input["network_options"]["static_ips"] = Value::Null;
    assert_eq!(first(&input), (2, true));
}

#[test]
fn what_viaduct_does_not_have_is_refused_by_name() {
    let refused = |path: &str, value: Value| {
        let mut input = podman();
        *input.pointer_mut(path).unwrap() = value;
        intent_of(&input).unwrap_err().msg
    };
    let kind = refused(
        "/network/routes/0",
        json!({ "destination": "10.20.0.0/16", "route_type": "blackhole" }),
    );
    assert_eq!(
        kind,
        "unsupported field route_type of 10.20.0.0/16: blackhole"
    );
    let option = refused(
        "/network_options/options",
        json!({ "host_interface_name": "x" }),
    );
    assert_eq!(
        option,
        "unsupported field container option host_interface_name: x"
    );
    let vrf = refused("/network/options", json!({ "vrf": "red" }));
    assert_eq!(vrf, "unsupported field option vrf: red");
    let range = refused("/port_mappings/0/range", json!(60000));
    assert!(range.contains("60000 ports"), "{range}");
    let protocol = refused("/port_mappings/0/protocol", json!("icmp"));
    assert!(protocol.contains("icmp"), "{protocol}");
    let address = refused("/port_mappings/0/host_ip", json!("all"));
    assert!(address.contains("hostIP"), "{address}");
}

#[test]
fn the_status_block_has_the_interface_as_podman_shows_it() {
    let result = json!({
        "cniVersion": "1.1.0",
        "interfaces": [
            { "name": "vd2f259bab93", "mac": "02:00:00:00:00:01" },
            { "name": "vd1", "mac": "02:00:00:00:00:02", "mtu": 1500 },
            { "name": "eth0", "mac": "aa:bb:cc:dd:aa:00", "mtu": 1500, "sandbox": "/run/netns/c1" },
        ],
        "ips": [
            { "address": "10.90.0.50/24", "gateway": "10.90.0.1", "interface": 2 },
            { "address": "fd90::50/64", "gateway": "fd90::1", "interface": 2 },
        ],
    })
    .to_string();
    let mut input = podman();
    let status = |input: &Value| -> Value {
        let setup = Setup::read(&input.to_string()).unwrap();
        serde_json::from_str(&setup.status(&result).unwrap()).unwrap()
    };
    let shown = status(&input);
    assert_eq!(
        shown,
        json!({
            "dns_search_domains": [], "dns_server_ips": [],
            "interfaces": { "eth0": { "mac_address": "aa:bb:cc:dd:aa:00", "subnets": [
                { "gateway": "10.90.0.1", "ipnet": "10.90.0.50/24" },
                { "gateway": "fd90::1", "ipnet": "fd90::50/64" },
            ] } },
        })
    );
    input["network"]["internal"] = json!(true);
    let subnet = &status(&input)["interfaces"]["eth0"]["subnets"][0];
    assert_eq!(*subnet, json!({ "ipnet": "10.90.0.50/24" }));
}

#[test]
fn a_teardown_needs_the_networks_name_only() {
    let mut input = podman();
    input["network"]["options"] = json!({ "vrf": "red" });
    input["port_mappings"] = json!("none");
    let config: Value = serde_json::from_str(&teardown(&input.to_string()).unwrap()).unwrap();
    assert_eq!(
        (&config["name"], &config["ipam"]["type"]),
        (&json!("apps"), &json!("host-local"))
    );
    assert_eq!(teardown("{}").unwrap_err().code, 6);
}

#[test]
fn a_name_that_is_no_value_of_cni_args_is_left_out() {
    assert_eq!(args("a=b"), "K8S_POD_NAMESPACE=podman;K8S_POD_NAME=a=b");
    assert_eq!((args("a;b").as_str(), args("").as_str()), ("", ""));
}

proptest! {
    #[test]
    fn no_text_makes_the_parsers_panic(text: String) {
        let _ = Setup::read(&text);
        let _ = teardown(&text);
        let _ = crate::complete(&text, &[], None);
    }

    /// Each mapping becomes its ports in order, or is refused.
    #[test]
    fn a_range_of_ports_is_mapped_one_by_one(host: u16, container: u16, range: u16) {
        let mapping = PortMapping {
            container_port: container,
            host_port: host,
            host_ip: String::new(),
            protocol: String::new(),
            range,
        };
        let count = u32::from(range.max(1));
        match port_mappings(&[mapping]) {
            Ok(ports) => {
                prop_assert_eq!(ports.len(), count as usize);
                prop_assert_eq!(&ports[0]["hostPort"], host);
                let last = ports.last().unwrap();
                prop_assert_eq!(&last["containerPort"], u32::from(container) + count - 1);
            }
            Err(_) => prop_assert!(u32::from(host.max(container)) + count - 1 > 65535),
        }
    }
}

/// An option with a value, and what of a network it changes into which text.
type Cell = (
    &'static str,
    &'static str,
    fn(&model::Network) -> String,
    &'static str,
);

const CELLS: [Cell; 7] = [
    ("mtu", "1400", |it| format!("{:?}", it.mtu), "Some(1400)"),
    ("metric", "7", metrics, "Some(7) Some(7) Some(7)"),
    ("no_default_route", "true", metrics, "Some(100)"),
    (
        "isolate",
        "true",
        |it| it.options.port.ingress.to_string(),
        "same-bridge",
    ),
    ("outbound_addr4", "192.0.2.9", egress, "192.0.2.9"),
    ("outbound_addr6", "2001:db8::9", egress, "2001:db8::9"),
    // The plugin reads it: the network is the same.
    (
        "socket",
        "/run/other.sock",
        |it| it.bridge.to_string(),
        "vd2f259bab93",
    ),
];

/// Returns the metric of each route.
fn metrics(network: &model::Network) -> String {
    let metrics = network
        .routes
        .iter()
        .map(|route| format!("{:?}", route.options.priority));
    metrics.collect::<Vec<_>>().join(" ")
}

fn egress(network: &model::Network) -> String {
    let addresses = network.options.egress.iter().map(|own| own.to_string());
    addresses.collect::<Vec<_>>().join(" ")
}

#[test]
fn each_option_of_netavarks_networks_has_its_effect_or_is_refused_by_name() {
    let network = |name: &str, value: &str| {
        let mut input = podman();
        input["network"]["options"] = json!({ name: value });
        intent_of(&input).map(|intent| intent.network)
    };
    let plain = network("mode", "managed").unwrap();
    for (name, value, effect, expected) in CELLS {
        let changed = network(name, value).unwrap();
        assert_eq!(effect(&changed), expected, "{name}={value}");
        assert!(name == "socket" || effect(&plain) != expected, "{name}");
    }
    for option in NETWORK_OPTIONS {
        let is_tested = CELLS.iter().any(|(name, ..)| *name == option.name);
        match option.support {
            Support::Key(_) => assert!(is_tested, "{}", option.name),
            Support::Refused(_) => {
                let error = network(option.name, "x9").unwrap_err();
                assert!(error.msg.contains(option.name), "{}", error.msg);
            }
        }
    }
    let error = network("colour", "red").unwrap_err();
    assert!(error.msg.contains("option colour: red"), "{}", error.msg);
}

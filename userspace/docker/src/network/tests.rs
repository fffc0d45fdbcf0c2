//! Tests of the translation of networks.

use model::Families;
use serde_json::json;

use super::*;

const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

fn request(options: &Value, internal: bool) -> CreateNetwork {
    let value = json!({
        "NetworkID": ID,
        "IPv4Data": [{"AddressSpace": "viaduct-local", "Pool": "10.7.0.0/24",
            "Gateway": "10.7.0.1/24", "AuxAddresses": {"printer": "10.7.0.9/24"}}],
        "IPv6Data": null,
        "Options": {
            "com.docker.network.enable_ipv6": false,
            "com.docker.network.generic": options,
            "com.docker.network.internal": internal,
        },
    });
    serde_json::from_value(value).unwrap()
}

fn network(options: &Value, internal: bool) -> Result<Network, Refused> {
    NetworkSpec::read(&request(options, internal))?.network()
}

#[test]
fn a_docker_network_becomes_a_network_that_only_published_ports_lead_into() {
    let network = network(&json!({}), false).unwrap();
    assert_eq!(network.name.as_str(), "docker-0123456789ab");
    assert_eq!(network.bridge.as_str(), "vd-0123456789ab");
    let gateways: Vec<String> = network.gateways().iter().map(ToString::to_string).collect();
    assert_eq!(gateways, ["10.7.0.1/24"]);
    assert!(network.masquerade && network.options.gateway);
    let port = &network.options.port;
    assert_eq!(
        (port.access, port.ingress),
        (NetworkAccess::Published, IngressPolicy::Open)
    );
    assert!(!port.isolated);
}

#[test]
fn options_change_the_network_of_docker() {
    let icc = json!({"com.docker.network.bridge.enable_icc": "false"});
    let port = network(&icc, false).unwrap().options.port;
    assert!(port.isolated);
    assert_eq!(port.ingress, IngressPolicy::Isolated);

    let open = json!({"com.docker.network.bridge.gateway_mode_ipv4": "nat-unprotected"});
    let port = network(&open, false).unwrap().options.port;
    assert_eq!(
        (port.access, port.ingress),
        (NetworkAccess::Direct, IngressPolicy::SameBridge)
    );

    let routed = json!({"com.docker.network.bridge.gateway_mode_ipv4": "routed",
        "com.docker.network.bridge.trusted_host_interfaces": "eth1:wg0"});
    let options = network(&routed, false).unwrap().options;
    let port = options.port;
    assert_eq!(
        (port.access, port.routed),
        (
            NetworkAccess::Published,
            Families {
                v4: true,
                v6: false
            }
        )
    );
    let trusted: Vec<&str> = options.trusted_links.iter().map(IfName::as_str).collect();
    assert_eq!(trusted, ["eth1", "wg0"]);

    let internal = network(&json!(null), true).unwrap().options;
    assert_eq!(internal.port.access, NetworkAccess::Internal);
    assert!(internal.gateway);

    let isolated = json!({"com.docker.network.bridge.gateway_mode_ipv4": "isolated"});
    assert!(!network(&isolated, true).unwrap().options.gateway);
    assert!(
        network(&isolated, false)
            .unwrap_err()
            .0
            .contains("--internal")
    );
}

#[test]
fn a_network_of_docker_has_one_set_of_ranges_for_each_family() {
    let mut both = request(&json!({}), false);
    both.ipv6 = vec![IpamData {
        pool: "fd00:7::/64".to_owned(),
        gateway: "fd00:7::1/64".to_owned(),
    }];
    both.ipv4.push(IpamData {
        pool: "10.8.0.0/24".to_owned(),
        gateway: String::new(),
    });
    let network = NetworkSpec::read(&both).unwrap().network().unwrap();
    let sets: Vec<usize> = network
        .ranges
        .iter()
        .map(|set| set.ranges().len())
        .collect();
    assert_eq!(sets, [2, 1]);
    // Without a gateway, every address that a container can have is offered.
    let second = network.ranges[0].ranges()[1];
    for host in ["10.8.0.1", "10.8.0.254"] {
        assert!(second.offers(host.parse().unwrap()));
    }
}

#[test]
fn networks_of_docker_without_a_usable_subnet_are_refused() {
    for pool in ["", "0.0.0.0/0", "10.7.0.0/31", "10.7.0.0"] {
        let mut request = request(&json!({}), false);
        request.ipv4[0].pool = pool.to_owned();
        NetworkSpec::read(&request).unwrap_err();
    }
    let mut outer = request(&json!({}), false);
    outer.ipv4[0].gateway = "10.99.0.1/24".to_owned();
    let refused = NetworkSpec::read(&outer).unwrap_err().0;
    assert!(
        refused.contains("gateway 10.99.0.1 not in network"),
        "{refused}"
    );
    let mut none = request(&json!({}), false);
    none.ipv4.clear();
    assert!(NetworkSpec::read(&none).unwrap_err().0.contains("subnet"));
}

#[test]
fn unknown_options_of_dockerd_are_refused_by_name() {
    let mut unknown = request(&json!({}), false);
    unknown
        .options
        .insert("com.docker.network.colour".to_owned(), json!("blue"));
    let refused = NetworkSpec::read(&unknown).unwrap_err();
    assert!(
        refused.0.contains("com.docker.network.colour=blue"),
        "{refused}"
    );
    let mut hint = request(&json!({}), false);
    hint.options.insert("hint".to_owned(), json!("blue"));
    NetworkSpec::read(&hint).unwrap();
}

#[test]
fn dockerd_need_not_reserve_a_gateway_for_isolated_networks() {
    let options = request(
        &json!({"com.docker.network.bridge.gateway_mode_ipv6": "isolated"}),
        true,
    );
    assert_eq!(without_gateway(&options.options), Ok([false, true]));
}

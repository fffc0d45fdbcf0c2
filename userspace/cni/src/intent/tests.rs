//! Tests of intents: ADD requests with and without a network of their own.

use model::NetworkName;
use model::testing::network_of;
use serde_json::{Value, json};

use super::*;
use crate::request::tests::{CONTAINERD, CRIO, MULTUS, add_with, environment};
use crate::{Command, Plugin, Request};

fn default_network() -> Network {
    network_of("default", "cbr0", &["10.244.0.0/24"])
}

fn intent_of(config: &str) -> Result<Intent, Error> {
    intent(&add_with(config, "")?, Some(&default_network()))
}

fn refusal(config: &Value) -> Error {
    intent_of(&config.to_string()).unwrap_err()
}

/// Returns the refusal of a valid configuration whose version cannot express the result.
fn inexpressible(config: &Value) -> Error {
    let request = add_with(&config.to_string(), "").unwrap();
    let intent = intent(&request, Some(&default_network())).unwrap();
    let reason = InexpressibleResult::of(&intent, request.config.header.version);
    reason.expect("a refusal").into()
}

fn own(ipam: Value) -> Value {
    let mut config = json!({"cniVersion": "1.0.0", "name": "own", "ipam": {"type": "host-local"}});
    if let (Value::Object(ipam), Value::Object(more)) = (&mut config["ipam"], ipam) {
        ipam.extend(more);
    }
    config
}

#[test]
fn without_an_ipam_the_pod_joins_the_agents_default_network() {
    let intent = intent_of(r#"{"name":"k8s","cniVersion":"1.0.0","type":"viaduct"}"#).unwrap();
    assert_eq!(intent.network, default_network());
    assert_eq!(intent.key.to_string(), "default/c1/eth0");
    assert_eq!(intent.netns.to_string(), "/run/netns/c1");
}

/// behaviours K27, S13
#[test]
fn without_a_pod_cidr_an_add_is_for_later_and_status_says_unavailable() {
    let config = r#"{"name":"k8s","cniVersion":"1.1.0"}"#;
    let error = intent(&add_with(config, "").unwrap(), None).unwrap_err();
    assert_eq!(error.code, 11);
    assert!(error.msg.contains("lack of PodCIDR"), "{error:?}");
    let Ok(Request::Status(status)) =
        Request::read(Plugin::Viaduct, &environment(Command::Status, ""), config)
    else {
        panic!("a STATUS must be read");
    };
    assert_eq!(status.network(None).unwrap_err().code, 50);
    let empty = Network {
        ranges: Vec::new(),
        ..default_network()
    };
    assert_eq!(status.network(Some(&empty)).unwrap_err().code, 50);
    assert_eq!(
        status.network(Some(&default_network())),
        Ok(default_network())
    );
}

#[test]
fn a_configuration_may_repeat_what_the_agents_network_is() {
    let config = json!({
        "name": "k8s", "bridge": "cbr0", "ipMasq": true, "hairpinMode": true, "promiscMode": false, "isGateway": true,
        "isDefaultGateway": true,
    });
    assert!(intent_of(&config.to_string()).is_ok());
}

#[test]
fn a_configuration_may_not_contradict_the_agents_network() {
    for (key, value) in [
        ("bridge", json!("br7")),
        ("mtu", json!(1400)),
        ("ipMasq", json!(false)),
        ("hairpinMode", json!(false)),
        ("promiscMode", json!(true)),
        ("isDefaultGateway", json!(false)),
        ("isGateway", json!(false)),
        ("forceAddress", json!(true)),
        ("enabledad", json!(true)),
        ("macspoofchk", json!(false)),
        ("portIsolation", json!(true)),
        ("vlan", json!(100)),
        ("vlanTrunk", json!([{"id": 100}])),
    ] {
        let mut config = json!({"name": "k8s"});
        config[key] = value;
        let error = refusal(&config);
        assert_eq!(error.code, 7, "{key}");
        assert!(error.msg.starts_with(key), "{error:?}");
    }
    let config = json!({"name": "k8s", "runtimeConfig": {"ipRanges": [{"subnet": "10.1.0.0/24"}]}});
    assert!(refusal(&config).msg.contains("ipRanges"));
}

/// behaviours C1, B3
#[test]
fn containerds_configuration_is_a_network_whose_ranges_the_runtime_gives() {
    let intent = intent_of(CONTAINERD).unwrap();
    assert_eq!(
        intent.key.network,
        "containerd-net".parse::<NetworkName>().unwrap()
    );
    assert_eq!(intent.network.name, intent.key.network);
    assert!(intent.network.masquerade);
    assert_eq!(intent.network.ranges.len(), 1);
    assert_eq!(intent.port_mappings.len(), 1);
}

/// behaviour B3 (ipRanges are prepended)
#[test]
fn ranges_of_the_runtime_come_first() {
    let error = intent_of(CRIO);
    // Two IPv4 sets and one of IPv6.
    let ranges = error.unwrap().network.ranges;
    assert_eq!(ranges.len(), 3);
    assert_eq!(ranges[0].ranges()[0].subnet().to_string(), "10.86.0.0/24");
}

/// behaviour B3 (legacy form), C14
#[test]
fn the_old_form_of_a_range_is_the_first_set_and_defaults_are_the_bridge_plugins() {
    let network = intent_of(MULTUS).unwrap().network;
    assert_eq!(
        network.ranges[0].ranges()[0].gateway(),
        Some("10.56.217.1".parse().unwrap())
    );
    assert_eq!(network.hairpin, HairpinMode::None);
    assert!(!network.masquerade);
    let network = intent_of(&own(json!({"subnet": "10.1.0.0/24"})).to_string())
        .unwrap()
        .network;
    assert_eq!(network.bridge.as_str(), "cni0");
    assert!(!network.default_route);
}

/// behaviour B3
#[test]
fn pods_of_a_default_gateway_get_a_default_route() {
    let mut config = own(json!({"subnet": "10.1.0.0/24"}));
    config["isDefaultGateway"] = json!(true);
    assert!(
        intent_of(&config.to_string())
            .unwrap()
            .network
            .default_route
    );
}

/// behaviours K14, R8: operators search for host-local's messages.
#[test]
fn ranges_that_make_no_sense_are_refused_in_host_locals_words() {
    for (ipam, words) in [
        (
            json!({"subnet": "10.47.128.1/24"}),
            "subnet: Network has host bits set. For a subnet mask of length 24 the network address is 10.47.128.0",
        ),
        (
            json!({"subnet": "10.1.0.0/31"}),
            "Network 10.1.0.0/31 too small to allocate from",
        ),
        (
            json!({"subnet": "usePodCidr"}),
            "invalid CIDR address: usePodCidr",
        ),
        (json!({}), "no IP ranges specified"),
        (json!({"ranges": [[]]}), "empty range set"),
        (
            json!({"ranges": [[{"rangeStart": "10.0.0.1"}]]}),
            "missing ipam.ranges[0][0].subnet",
        ),
        (
            json!({"ranges": [[{"subnet": "10.1.0.0/24"}, {"subnet": "fd00::/64"}]]}),
            "mixed address families",
        ),
        (
            json!({"ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "10.1.0.0/25"}]]}),
            "range set 1 overlaps with 0",
        ),
        (
            json!({"subnet": "10.1.0.0/24", "routes": [{"dst": "::/0", "gw": "10.1.0.1"}]}),
            "different address families",
        ),
    ] {
        let error = refusal(&own(ipam));
        assert_eq!(error.code, 7, "{error:?}");
        assert!(error.msg.contains(words), "{error:?} without {words:?}");
    }
}

/// behaviour R8: of a gateway, host-local checks no more than that it is an address.
#[test]
fn a_gateway_outside_of_the_subnet_is_accepted() {
    let ipam = json!({"subnet": "10.1.0.0/24", "gateway": "10.8.0.1"});
    let intent = intent_of(&own(ipam).to_string()).unwrap();
    let gateways: Vec<String> = intent
        .network
        .gateways()
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(gateways, ["10.8.0.1/24"], "with the subnet's length");
    let other_family = json!({"subnet": "10.1.0.0/24", "gateway": "fd00::1"});
    let error = refusal(&own(other_family));
    assert_eq!(error.msg, "gateway fd00::1 not in network 10.1.0.0/24");
}

/// behaviours S6, B3
#[test]
fn an_ipam_that_names_no_plugin_is_refused_by_name() {
    let mut path = own(json!({}));
    path["ipam"]["type"] = json!("../bin/sh");
    assert!(refusal(&path).msg.contains("../bin/sh"), "{path}");
    let error = refusal(&json!({"name": "own", "ipam": {"subnet": "10.1.0.0/24"}}));
    assert!(error.msg.contains("missing ipam.type"), "{error:?}");
}

fn leased(config: &Value, answer: Option<&str>) -> Result<Intent, Error> {
    let mut request = add_with(&config.to_string(), "")?;
    request.lease = answer.map(crate::ForeignLease::parse).transpose()?;
    intent(&request, Some(&default_network()))
}

fn foreign() -> Value {
    json!({
        "cniVersion": "1.0.0", "name": "own", "isGateway": true, "ipam": {"type": "whereabouts"},
        "runtimeConfig": {
            "portMappings": [{"hostPort": 80, "containerPort": 80}],
            "ips": ["10.9.0.9"],
        },
    })
}

/// behaviours S14, F68: an external IPAM plugin allocates the addresses, and may need the link for
/// that.
#[test]
fn with_external_ipam_the_first_add_has_no_addresses_or_ports_and_the_second_has_the_lease() {
    let first = leased(&foreign(), None).unwrap();
    assert!(first.requested.awaits_addresses);
    assert!(first.network.ranges.is_empty() && first.port_mappings.is_empty());
    let answer = r#"{"cniVersion":"1.0.0","ips":[{"address":"10.1.0.9/24"},{"address":"10.2.0.9/32","gateway":"169.254.1.1"}],
        "routes":[{"dst":"0.0.0.0/0"}]}"#;
    let second = leased(&foreign(), Some(answer)).unwrap();
    assert!(!second.requested.awaits_addresses && second.requested.addresses.is_empty());
    assert_eq!(second.port_mappings.len(), 1);
    let ranges: Vec<_> = second
        .network
        .ranges
        .iter()
        .flat_map(RangeSet::ranges)
        .map(|range| {
            (
                range.first().to_string(),
                range.gateway().map(|own| own.to_string()),
            )
        })
        .collect();
    let addresses_and_gateways: Vec<_> = ranges
        .iter()
        .map(|(own, by)| (own.as_str(), by.as_deref()))
        .collect();
    let expected = [
        ("10.1.0.9", Some("10.1.0.1")),
        ("10.2.0.9", Some("169.254.1.1")),
    ];
    assert_eq!(addresses_and_gateways, expected);
    assert_eq!(second.network.routes.len(), 1);
}

#[test]
fn an_invalid_ipam_result_is_refused() {
    let own_gateway =
        r#"{"cniVersion":"1.0.0","ips":[{"address":"10.1.0.9/24","gateway":"10.1.0.9"}]}"#;
    let twice =
        r#"{"cniVersion":"1.0.0","ips":[{"address":"10.1.0.9/24"},{"address":"10.1.0.9/24"}]}"#;
    for answer in [own_gateway, twice] {
        assert_eq!(
            leased(&foreign(), Some(answer)).unwrap_err().code,
            7,
            "{answer}"
        );
    }
    let two =
        r#"{"cniVersion":"1.0.0","ips":[{"address":"10.1.0.9/24"},{"address":"10.2.0.9/24"}]}"#;
    let mut oldest = foreign();
    oldest["cniVersion"] = json!("0.2.0");
    let intent = leased(&oldest, Some(two)).unwrap();
    let reason = InexpressibleResult::of(&intent, Version::V0_2_0);
    assert_eq!(
        reason,
        Some(InexpressibleResult::SeveralPerFamily(Version::V0_2_0))
    );
    let first = leased(&oldest, None).unwrap();
    assert_eq!(InexpressibleResult::of(&first, Version::V0_2_0), None);
}

/// IPAM types that Viaduct implements are executed only with `external`.
#[test]
fn own_ipam_types_are_executed_only_with_external() {
    let plugin = |ipam: Value| {
        let config = own(ipam).to_string();
        crate::Header::parse(&config).unwrap().ipam_plugin
    };
    assert_eq!(plugin(json!({})), None);
    assert_eq!(
        plugin(json!({"external": true})).as_deref(),
        Some("host-local")
    );
    assert_eq!(plugin(json!({"type": "static", "external": false})), None);
    assert_eq!(plugin(json!({"type": "dhcp"})).as_deref(), Some("dhcp"));
    assert_eq!(plugin(json!({"type": "a/b"})), None);
}

/// behaviour B3
#[test]
fn an_interface_that_is_left_down_is_on_a_switch_of_its_own() {
    let down = json!({"cniVersion": "1.0.0", "name": "own", "disableContainerInterface": true});
    let intent = leased(&down, None).unwrap();
    assert!(intent.network.options.port.left_down && !intent.requested.awaits_addresses);
    assert_eq!(intent.key.network.as_str(), "own");
    let mut ports = down.clone();
    ports["runtimeConfig"] = json!({"portMappings": [{"hostPort": 80, "containerPort": 80}]});
    assert_eq!(refusal(&ports).code, 7);
    let mut oldest = down;
    oldest["cniVersion"] = json!("0.2.0");
    let error = inexpressible(&oldest);
    assert_eq!(
        (error.code, &*error.msg),
        (1, "cannot convert: no valid IP addresses")
    );
}

/// behaviour F16: also the options that the bridge plugin reads and ignores.
#[test]
fn options_of_a_route_are_kept() {
    let route = |route: Value| {
        let config = own(json!({"subnet": "10.1.0.0/24", "routes": [route]}));
        intent_of(&config.to_string()).map(|intent| intent.network.routes[0].options)
    };
    let all = json!({
        "dst": "10.7.0.0/16", "priority": 50, "table": 100, "scope": 253, "mtu": 1400, "advmss": 1200,
    });
    let expected = model::RouteOptions {
        priority: Some(50),
        table: Some(100),
        scope: Some(253),
        mtu: Some(1400),
        advmss: Some(1200),
    };
    assert_eq!(route(all).unwrap(), expected);
    for (wrong, words) in [
        (
            json!({"dst": "10.7.0.0/16", "scope": 256}),
            "ipam.routes[0].scope: 256",
        ),
        (
            json!({"dst": "10.7.0.0/16", "mtu": -1}),
            "ipam.routes[0].mtu: -1",
        ),
        (
            json!({"dst": "10.7.0.0/16", "gw": "10.1.0.9", "scope": 253}),
            "scope link or host cannot have a gateway",
        ),
    ] {
        let error = route(wrong).unwrap_err();
        assert!(error.msg.contains(words), "{error:?}");
    }
}

/// behaviours F8 to F12, R3: missing keys of a declared network have the bridge plugin's defaults.
#[test]
fn a_declared_network_has_the_configured_port_options() {
    let options = |more: Value| {
        let mut config = own(json!({"subnet": "10.1.0.0/24"}));
        config
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        intent_of(&config.to_string()).unwrap().network.options
    };
    assert!(!options(json!({})).gateway);
    assert!(options(json!({"isDefaultGateway": true})).gateway);
    let all = options(json!({
        "isGateway": true, "forceAddress": true, "enabledad": true, "portIsolation": true, "vlan": 100,
        "preserveDefaultVlan": true, "macspoofchk": true,
    }));
    assert!(all.gateway && all.force_address && all.detects_duplicates && all.port.isolated);
    let vlans = &all.port.vlans;
    assert_eq!(
        (vlans.access.map(model::VlanId::get), vlans.keeps_default),
        (Some(100), true)
    );
}

/// behaviour R8
#[test]
fn the_oldest_versions_have_one_address_per_family() {
    let mut config =
        own(json!({"ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "10.2.0.0/24"}]]}));
    assert!(intent_of(&config.to_string()).is_ok());
    config["cniVersion"] = json!("0.2.0");
    let error = inexpressible(&config);
    let words = "CNI version 0.2.0 does not support more than 1 address per family";
    assert_eq!((error.code, &*error.msg), (1, words));
    config["ipam"]["ranges"][1] = json!([{"subnet": "fd00::/64"}]);
    let intent = intent_of(&config.to_string()).unwrap();
    assert_eq!(InexpressibleResult::of(&intent, Version::V0_2_0), None);
}

/// Other faults are found first, so that nothing is made for a configuration that has some.
#[test]
fn a_version_without_a_result_is_refused_after_all_other_faults() {
    let overlapping = json!({"ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "10.1.0.0/16"}]]});
    let mut config = own(overlapping);
    config["cniVersion"] = json!("0.2.0");
    assert_eq!(refusal(&config).code, 7);
}

/// behaviour B3
#[test]
fn a_bridge_is_not_promiscuous_and_hairpin_at_the_same_time() {
    let mut config = own(json!({"subnet": "10.1.0.0/24"}));
    config["hairpinMode"] = json!(true);
    assert_eq!(
        intent_of(&config.to_string()).unwrap().network.hairpin,
        HairpinMode::HairpinVeth
    );
    config["promiscMode"] = json!(true);
    assert_eq!(
        refusal(&config).msg,
        "cannot set hairpin mode and promiscuous mode at the same time"
    );
}

#[test]
fn a_network_of_its_own_does_not_take_the_name_of_the_agents() {
    let mut config = own(json!({"subnet": "10.1.0.0/24"}));
    config["name"] = json!("default");
    assert_eq!(refusal(&config).code, 7);
}

#[test]
fn an_mtu_that_no_link_can_have_is_refused() {
    for mtu in [-1, 67, 65536] {
        let mut config = own(json!({"subnet": "10.1.0.0/24"}));
        config["mtu"] = json!(mtu);
        let error = refusal(&config);
        assert!(error.msg.starts_with("mtu: "), "{error:?}");
    }
}

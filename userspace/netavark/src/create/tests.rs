//! Tests of `create`.

use super::*;

fn network() -> Value {
    json!({
        "name": "apps", "id": "2f259bab93aaaaa2542ba43ef33eb990d0999ee1b9924b557b7be53c0b7a1bb9",
        "driver": "viaduct", "dns_enabled": true, "internal": false, "ipv6_enabled": false,
        "labels": { "a": "b" },
    })
}

fn complete_with(changes: &Value, used: &[&str]) -> Result<Value, Error> {
    let mut network = network();
    for (key, value) in changes.as_object().unwrap() {
        network[key] = value.clone();
    }
    let used: Vec<Cidr> = used.iter().map(|text| text.parse().unwrap()).collect();
    let text = complete(&network.to_string(), &used, None)?;
    Ok(serde_json::from_str(&text).unwrap())
}

#[test]
fn a_network_without_settings_gets_a_bridge_and_a_subnet() {
    let done = complete_with(&json!({}), &[]).unwrap();
    assert_eq!(done["network_interface"], "vd2f259bab93");
    assert_eq!(done["ipam_options"], json!({ "driver": "host-local" }));
    assert_eq!(done["dns_enabled"], false);
    for key in ["name", "id", "driver", "labels", "internal", "ipv6_enabled"] {
        assert_eq!(done[key], network()[key], "{key} stays");
    }
    let subnet = done["subnets"][0].clone();
    let prefix: Cidr = subnet["subnet"].as_str().unwrap().parse().unwrap();
    assert_eq!(prefix.prefix_len(), 24);
    assert_eq!(subnet["gateway"], json!(Range::default_gateway(prefix)));
    let again = complete_with(&json!({}), &[&prefix.to_string()]).unwrap();
    assert_ne!(again["subnets"][0]["subnet"], subnet["subnet"]);
}

#[test]
fn ipv6_adds_the_family_that_is_missing() {
    let families = |changes: Value| -> Vec<bool> {
        let done = complete_with(&changes, &[]).unwrap();
        assert_eq!(done["ipv6_enabled"], true);
        let subnets = done["subnets"].as_array().unwrap();
        subnets
            .iter()
            .map(|subnet| subnet["subnet"].as_str().unwrap().contains('.'))
            .collect()
    };
    assert_eq!(families(json!({ "ipv6_enabled": true })), [true, false]);
    let v6 = json!([{ "subnet": "fd90::/64" }]);
    assert_eq!(
        families(json!({ "ipv6_enabled": true, "subnets": v6 })),
        [false, true]
    );
    assert_eq!(families(json!({ "subnets": v6 })), [false]);
}

#[test]
fn settings_of_the_user_stay() {
    let subnets = json!([{
        "subnet": "10.90.0.0/24", "gateway": "10.90.0.254",
        "lease_range": { "start_ip": "10.90.0.16", "end_ip": "10.90.0.31" },
    }]);
    let done = complete_with(
        &json!({ "subnets": subnets, "network_interface": "br7", "internal": true, "options": { "mtu": "1400" } }),
        &["10.90.0.0/16"],
    )
    .unwrap();
    assert_eq!(
        (&done["subnets"], &done["network_interface"]),
        (&subnets, &json!("br7"))
    );
    assert_eq!(done["options"], json!({ "mtu": "1400" }));
}

#[test]
fn a_network_that_no_container_could_join_is_refused() {
    for (changes, words) in [
        (json!({ "options": { "vrf": "red" } }), "option vrf: red"),
        (
            json!({ "options": { "mtu": "10" } }),
            "mtu: 10 is not within",
        ),
        (
            json!({ "options": { "colour": "red" } }),
            "option colour: red",
        ),
        (
            json!({ "ipam_options": { "driver": "dhcp" } }),
            "ipam option driver: dhcp",
        ),
        (
            json!({ "ipam_options": { "driver": "none" } }),
            "ipam option driver: none",
        ),
        (
            json!({ "network_dns_servers": ["9.9.9.9"] }),
            "network_dns_servers: 9.9.9.9",
        ),
        (
            json!({ "subnets": [{ "subnet": "10.9.0.0/31" }] }),
            "too small",
        ),
        (
            json!({ "subnets": [{ "subnet": "10.9.0.0/24", "gateway": "10.8.0.1" }] }),
            "gateway 10.8.0.1 not in network",
        ),
        (
            json!({ "subnets": [{ "subnet": "10.9.0.0/24" }, { "subnet": "10.9.0.0/25" }] }),
            "overlaps",
        ),
        (
            json!({ "routes": [{ "destination": "10.20.0.0/16" }] }),
            "10.20.0.0/16 has no gateway",
        ),
        (json!({ "network_interface": "a/b" }), "bridge"),
        (json!({ "name": "a/b" }), "name"),
        (json!({ "id": "short" }), "hexadecimal"),
    ] {
        let error = complete_with(&changes, &[]).unwrap_err();
        assert!(error.msg.contains(words), "{changes}: {}", error.msg);
    }
}

/// A network of the name of the agent's default network would be another one.
#[test]
fn the_name_of_the_agents_default_network_is_refused() {
    let mut default = cni_network();
    default.name = "apps".parse().unwrap();
    let error = complete(&network().to_string(), &[], Some(&default)).unwrap_err();
    assert!(error.msg.contains("default network"), "{error}");
}

fn cni_network() -> model::Network {
    model::Network {
        name: "viaduct".parse().unwrap(),
        bridge: "cbr0".parse().unwrap(),
        ranges: Vec::new(),
        routes: Vec::new(),
        default_route: true,
        mtu: None,
        hairpin: model::HairpinMode::default(),
        masquerade: true,
        options: model::BridgeOptions::default(),
    }
}

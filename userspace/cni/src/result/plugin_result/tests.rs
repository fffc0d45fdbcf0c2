//! Tests of plugin results: no key is lost, and every version has its own shape.

use proptest::prelude::*;

use super::*;

/// A result of the reference bridge plugin in version 1.1.0, with keys outside the protocol.
fn modern() -> Value {
    json!({
        "cniVersion": "1.1.0",
        "interfaces": [
            { "name": "cni0", "mac": "0a:00:00:00:00:01" },
            { "name": "veth1", "mac": "0a:00:00:00:00:02", "mtu": 1500 },
            { "name": "eth0", "mac": "0a:00:00:00:00:03", "sandbox": "/run/netns/a", "socketPath": "/s", "x": [1] },
        ],
        "ips": [
            { "interface": 2, "address": "10.1.0.2/24", "gateway": "10.1.0.1", "y": "kept" },
            { "interface": 2, "address": "fd00::2/64" },
        ],
        "routes": [{ "dst": "0.0.0.0/0", "mtu": 1400, "table": 7 }, { "dst": "::/0", "gw": "fd00::1" }],
        "z": { "ips": "not ours" },
    })
}

fn through(result: &Value, from: Version, to: Version) -> Value {
    let config = json!({ "name": "n", "prevResult": result }).to_string();
    let prev_result = PluginResult::from_config(&config, from).unwrap().unwrap();
    serde_json::from_str(&prev_result.to_json(to).unwrap()).unwrap()
}

/// behaviour S9
#[test]
fn a_plugin_result_of_the_same_version_is_unchanged() {
    assert_eq!(
        through(&modern(), Version::V1_1_0, Version::V1_1_0),
        modern()
    );
}

/// behaviours S8, S9
#[test]
fn a_plugin_result_is_printed_with_the_keys_of_each_version() {
    for version in Version::ALL {
        let result = through(&modern(), Version::V1_1_0, version);
        assert_eq!(result["cniVersion"], version.as_str());
        assert_eq!(result["z"], modern()["z"]);
        let oldest = version < Version::V0_3_0;
        assert_eq!(result.get("ip4").is_some(), oldest);
        assert_eq!(result.get("ips").is_some(), !oldest);
        assert_eq!(result.get("dns").is_some(), version < Version::V1_0_0);
        if oldest {
            let ip4 = json!({ "ip": "10.1.0.2/24", "gateway": "10.1.0.1", "routes": [{ "dst": "0.0.0.0/0" }] });
            assert_eq!(result["ip4"], ip4);
            assert_eq!(result["ip6"]["ip"], "fd00::2/64");
            continue;
        }
        let family = result["ips"][1]["version"].as_str();
        assert_eq!(family, (version < Version::V1_0_0).then_some("6"));
        assert_eq!(result["ips"][0]["y"], "kept");
        let newest = version == Version::V1_1_0;
        assert_eq!(result["interfaces"][1].get("mtu").is_some(), newest);
        assert_eq!(result["routes"][0].get("table").is_some(), newest);
    }
}

/// behaviour S9
#[test]
fn a_legacy_result_round_trips() {
    let old = json!({
        "cniVersion": "0.2.0",
        "ip4": { "ip": "10.1.0.2/24", "gateway": "10.1.0.1", "routes": [{ "dst": "0.0.0.0/0" }] },
        "dns": { "nameservers": ["10.0.0.10"] },
    });
    let raised = through(&old, Version::V0_2_0, Version::V1_0_0);
    assert_eq!(
        raised["ips"],
        json!([{ "address": "10.1.0.2/24", "gateway": "10.1.0.1" }])
    );
    assert_eq!(raised["dns"], old["dns"]);
    assert_eq!(through(&raised, Version::V1_0_0, Version::V0_2_0), old);
}

/// behaviour S8
#[test]
fn a_result_without_an_address_has_no_old_shape() {
    let prev_result = PluginResult::parse(r#"{"cniVersion":"1.0.0","interfaces":[]}"#).unwrap();
    assert!(prev_result.to_json(Version::V0_3_1).is_ok());
    assert_eq!(prev_result.to_json(Version::V0_2_0).unwrap_err().code, 1);
}

/// behaviours B0.1, B0.2
#[test]
fn keys_of_any_case_and_nulls_are_understood() {
    let result = json!({
        "CNIVersion": "0.4.0", "Interfaces": [{ "Name": "eth0", "Sandbox": "/run/netns/a" }],
        "IPs": [{ "Version": "4", "Interface": 0, "Address": "10.1.0.2/24", "Gateway": "10.1.0.1" }],
        "Routes": null,
    });
    let config = json!({ "PrevResult": result }).to_string();
    let prev_result = PluginResult::from_config(&config, Version::V0_4_0)
        .unwrap()
        .unwrap();
    let own = prev_result.addresses_of(&"eth0".parse().unwrap()).unwrap();
    assert_eq!(own[0].gateway, Some(IpAddr::from([10, 1, 0, 1])));
    assert!(
        prev_result
            .addresses_of(&"net1".parse().unwrap())
            .unwrap()
            .is_empty()
    );
    for none in ["null", "\"\"", "7"] {
        let config = format!(r#"{{"prevResult":{none}}}"#);
        assert_eq!(
            PluginResult::from_config(&config, Version::V0_4_0).unwrap(),
            None
        );
    }
}

/// behaviours R2, S9, C11
#[test]
fn an_earlier_result_is_appended_and_its_addresses_refer_to_their_interfaces() {
    let own = PluginResult::parse(&modern().to_string()).unwrap();
    let earlier = json!({
        "cniVersion": "1.0.0",
        "interfaces": [
            { "name": "lo", "sandbox": "/run/netns/a" },
            { "name": "net1", "sandbox": "/run/netns/a" },
        ],
        "ips": [
            { "interface": 0, "address": "127.0.0.1/8" },
            { "interface": 1, "address": "10.9.0.2/24" },
        ],
        "w": true,
    });
    let earlier = PluginResult::parse(&earlier.to_string()).unwrap();
    let merged = own.with_earlier(&earlier);
    let names: Vec<String> = merged.interfaces().into_iter().map(|it| it.name).collect();
    assert_eq!(names, ["cni0", "veth1", "eth0", "net1"]);
    let addresses = merged.addresses().unwrap();
    let last = addresses.last().unwrap();
    assert_eq!(
        (last.address.to_string().as_str(), last.interface),
        ("10.9.0.2/24", Some(3))
    );
    assert_eq!(addresses.len(), 3);
    assert_eq!(merged.0["w"], true);
}

#[test]
fn a_changed_mac_is_set_on_the_pods_interface_alone() {
    let mut prev_result = PluginResult::parse(&modern().to_string()).unwrap();
    prev_result.update_interface(&"eth0".parse().unwrap(), Some(Mac([2; 6])), Some(1300));
    let result: Value =
        serde_json::from_str(&prev_result.to_json(Version::V1_1_0).unwrap()).unwrap();
    assert_eq!(result["interfaces"][2]["mac"], "02:02:02:02:02:02");
    assert_eq!(result["interfaces"][2]["mtu"], 1300);
    assert_eq!(result["interfaces"][1], modern()["interfaces"][1]);
}

proptest! {
    #[test]
    fn no_text_makes_the_reader_panic(text: String) {
        if let Ok(prev_result) = PluginResult::parse(&text) {
            for version in Version::ALL {
                let _ = prev_result.to_json(version);
            }
        }
        let _ = PluginResult::from_config(&text, Version::V1_0_0);
    }
}

/// As the reference `portmap` decides (behaviour R13).
#[test]
fn an_address_that_refers_to_no_interface_of_the_result_is_the_pods() {
    let result = |interface| {
        let result = json!({
            "cniVersion": "0.4.0",
            "interfaces": [{ "name": "veth1" }, { "name": "eth0", "sandbox": "/run/netns/a" }],
            "ips": [{ "version": "4", "interface": interface, "address": "10.1.0.2/24" }],
        });
        let result = PluginResult::parse(&result.to_string()).unwrap();
        result.addresses_of(&"eth0".parse().unwrap()).unwrap().len()
    };
    assert_eq!([result(0), result(1), result(2)], [0, 1, 1]);
}

/// Malformed entries of an earlier plugin's result must not make the parser fail.
#[test]
fn invalid_addresses_of_a_plugin_result_are_skipped() {
    for result in [
        r#"{"cniVersion":"1.0.0","ips":[{"interface":0}]}"#,
        r#"{"cniVersion":"1.0.0","ips":[{"address":7}, 7]}"#,
        r#"{"cniVersion":"0.2.0","ip4":7,"ip6":[]}"#,
    ] {
        let prev_result = PluginResult::parse(result).unwrap();
        for version in Version::ALL {
            let printed = prev_result.to_json(version);
            assert_eq!(
                printed.is_ok(),
                version >= Version::V0_3_0,
                "{result} {version}"
            );
        }
    }
}

/// A result may be as long as a request: the time is linear in its length.
#[test]
fn a_long_earlier_result_is_appended_with_each_route_once() {
    let interface = |at: usize| match at % 2 {
        0 => json!({ "name": "lo" }),
        _ => json!({ "name": format!("net{at}") }),
    };
    let interfaces: Vec<Value> = (0..20_000).map(interface).collect();
    let dst = |at: usize| format!("10.{}.{}.0/24", at / 256, at % 256);
    let routes: Vec<Value> = (0..20_000)
        .map(|at| json!({ "dst": dst(at % 10_000) }))
        .collect();
    let earlier = json!({
        "cniVersion": "1.0.0", "interfaces": interfaces, "routes": routes,
        "ips": [
            { "interface": 19_998, "address": "127.0.0.1/8" },
            { "interface": 19_999, "address": "10.9.0.2/24" },
            { "interface": 20_000, "address": "10.9.0.3/24" },
        ],
    });
    let own = json!({
        "cniVersion": "1.0.0", "interfaces": [{ "name": "eth0" }], "routes": [{ "dst": dst(7) }],
    });
    let parse = |result: &Value| PluginResult::parse(&result.to_string()).unwrap();
    let merged = parse(&own).with_earlier(&parse(&earlier));
    assert_eq!(merged.interfaces().len(), 10_001);
    let addresses = merged.addresses().unwrap();
    let places: Vec<_> = addresses.iter().map(|own| own.interface).collect();
    assert_eq!(places, [Some(10_000)]);
    let routes = list(&merged.0, "routes");
    assert_eq!(routes.len(), 10_000);
    assert_eq!(routes[..3], [7, 0, 1].map(|at| json!({ "dst": dst(at) })));
}

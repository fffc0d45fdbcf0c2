//! Tests of requests: as runtimes send them, and malformed ones.

use model::Protocol;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::*;
use crate::Version;

/// containerd by go-cni: keys as its structs are called, nulls, a flat list of ranges (behaviours
/// B0.1, C1).
pub(crate) const CONTAINERD: &str = r#"{
  "bridge": "cni0", "cniVersion": "1.0.0", "ipMasq": true, "isGateway": true, "name": "containerd-net", "type": "viaduct",
  "capabilities": {"portMappings": true, "ipRanges": true},
  "ipam": {"type": "host-local", "routes": [{"dst": "0.0.0.0/0"}], "ranges": null, "dataDir": "/var/lib/cni"},
  "runtimeConfig": {
    "portMappings": [{"HostPort": 8080, "ContainerPort": 80, "Protocol": "tcp", "HostIP": ""}],
    "ipRanges": [{"Subnet": "10.88.0.0/16", "RangeStart": "10.88.1.0", "RangeEnd": "", "Gateway": ""}],
    "dns": {"Servers": null, "Searches": null, "Options": null},
    "bandwidth": {"IngressRate": 0, "IngressBurst": 0, "EgressRate": 0, "EgressBurst": 0},
    "cgroupPath": "/kubepods/pod1",
    "io.kubernetes.cri.pod-annotations": {"kubernetes.io/config.seen": "now", "Key": "Value"}
  }
}"#;

/// CRI-O by ocicni: a list of lists of ranges (behaviours B0.1, C5).
pub(crate) const CRIO: &str = r#"{
  "cniVersion": "0.4.0", "name": "crio", "type": "viaduct", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
  "ipam": {"type": "host-local", "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0", "gw": "fd00::1"}],
           "ranges": [[{"subnet": "10.85.0.0/16"}], [{"subnet": "fd00::/64"}]]},
  "runtimeConfig": {"ips": ["10.85.0.9/16"], "mac": "02:00:00:00:00:09", "ipRanges": [[{"subnet": "10.86.0.0/24"}]]}
}"#;

/// Multus: what it adds for its own purposes, and settings in `args.cni` (behaviours B0.2, C14).
pub(crate) const MULTUS: &str = r#"{
  "cniVersion": "0.3.1", "name": "mynet", "type": "viaduct", "bridge": "mynet0", "deviceID": "0000:00:1f.6",
  "pciBusID": "", "ipam": {"type": "host-local", "subnet": "10.56.217.0/24", "gateway": ""},
  "args": {"cni": {"ips": ["10.56.217.8"], "mac": "02:00:00:00:00:08"}},
  "prevResult": null, "cni.dev/attachments": []
}"#;

pub(crate) fn environment(command: Command, args: &str) -> Environment {
    Environment {
        command,
        container_id: "c1".into(),
        netns: "/run/netns/c1".into(),
        ifname: "eth0".into(),
        args: args.into(),
        path: "/opt/cni/bin".into(),
    }
}

pub(crate) fn add_with(config: &str, args: &str) -> Result<AddRequest, Error> {
    let Request::Add(add) =
        Request::read(Plugin::Viaduct, &environment(Command::Add, args), config)?
    else {
        panic!("an ADD must be read");
    };
    Ok(*add)
}

fn read(command: Command, config: &str) -> Result<Request, Error> {
    Request::read(Plugin::Viaduct, &environment(command, ""), config)
}

fn default_name() -> NetworkName {
    "default".parse().unwrap()
}

/// behaviours B0.1, B0.2, C1
#[test]
fn a_request_of_containerd_is_parsed() {
    let add = add_with(
        CONTAINERD,
        "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=p;IgnoreUnknown=1;X=y",
    )
    .unwrap();
    let [mapping] = add.requested.port_mappings[..] else {
        panic!("one mapping, not {:?}", add.requested.port_mappings);
    };
    assert_eq!(mapping.to_string(), "8080->80/tcp");
    assert_eq!(add.requested.ranges.len(), 1);
    assert_eq!(
        add.requested.ranges[0].ranges()[0].first().to_string(),
        "10.88.1.0"
    );
    assert_eq!(add.requested.pod.unwrap().to_string(), "ns/p");
    assert!(add.config.ipam.unwrap().ranges.is_empty());
}

/// behaviours B0.1, C5
#[test]
fn a_request_of_crio_is_parsed() {
    let add = add_with(CRIO, "").unwrap();
    assert_eq!(add.requested.ranges.len(), 1);
    assert_eq!(add.requested.mac.unwrap().to_string(), "02:00:00:00:00:09");
    let ipam = add.config.ipam.unwrap();
    assert_eq!(ipam.ranges.len(), 2);
    assert_eq!(ipam.routes[1].gateway.unwrap().to_string(), "fd00::1");
}

/// behaviours B0.2, R1, S16, C14
#[test]
fn a_request_of_multus_is_parsed_and_args_cni_overrides_cni_args() {
    let add = add_with(
        MULTUS,
        "IgnoreUnknown=true;IP=10.56.217.7;MAC=02:00:00:00:00:01",
    )
    .unwrap();
    assert_eq!(
        add.requested
            .addresses
            .iter()
            .map(|own| own.address)
            .collect::<Vec<_>>(),
        [IpAddr::from([10, 56, 217, 8])]
    );
    assert_eq!(add.requested.mac.unwrap().to_string(), "02:00:00:00:00:08");
}

/// behaviour S16: nerdctl requests IPv4 in `CNI_ARGS` and IPv6 in `runtimeConfig`.
#[test]
fn requested_addresses_of_different_families_add_up() {
    let config = r#"{"name":"n","cniVersion":"1.0.0","runtimeConfig":{"ips":["fd00::9"]}}"#;
    let add = add_with(config, "IP=10.4.0.9").unwrap();
    assert_eq!(add.requested.addresses.len(), 2);
}

/// behaviour C9: Nomad sends each port for tcp and udp; twice the same is once.
#[test]
fn duplicate_port_mappings_are_merged() {
    let tcp = json!({"hostPort": 1, "containerPort": 2});
    let udp = json!({"hostPort": 1, "containerPort": 2, "protocol": "UDP", "hostIP": "::"});
    let config = json!({"name": "n", "runtimeConfig": {"portMappings": [tcp, tcp, udp]}});
    let mappings = add_with(&config.to_string(), "")
        .unwrap()
        .requested
        .port_mappings;
    assert_eq!(mappings.len(), 2);
    assert_eq!(mappings[0].protocol, Protocol::Tcp);
    assert_eq!(mappings[1].protocol, Protocol::Udp);
    assert!(mappings[1].host_address.unwrap().is_unspecified());
}

fn refusal(config: &Value) -> Error {
    add_with(&config.to_string(), "").unwrap_err()
}

fn with(key: &str, value: Value) -> Value {
    let mut config = json!({"name": "n", "cniVersion": "1.1.0"});
    config[key] = value;
    config
}

/// behaviours S6, B3, F42: a setting that is not supported is refused by name, not ignored.
#[test]
fn an_unsupported_setting_is_refused_with_its_key_and_value() {
    for (key, value) in [
        ("snat", json!(false)),
        ("masqAll", json!(true)),
        ("conditionsV4", json!(["-s", "10.0.0.0/8"])),
        ("externalSetMarkChain", json!("KUBE-MARK-MASQ")),
        ("markMasqBit", json!(5)),
    ] {
        let error = refusal(&with(key, value.clone()));
        assert_eq!(error.code, 2, "{key}");
        assert_eq!(error.msg, format!("unsupported field {key}: {value}"));
    }
}

/// behaviours B0.2, B3: a setting that requests Viaduct's default, or is not ours, is accepted.
#[test]
fn settings_at_their_defaults_and_keys_of_others_are_accepted() {
    let config = json!({
        "name": "n", "vlan": 0, "vlanTrunk": [], "macspoofchk": true, "isGateway": true, "snat": true,
        "markMasqBit": 13, "conditionsV4": null, "preserveDefaultVlan": true, "ipMasqBackend": "nftables",
        "dns": {}, "deviceID": "x", "cniVersions": ["1.0.0"], "disableCheck": "true", "mtu": 0, "ipam": {},
        "runtimeConfig": {"aliases": {"n": ["a"]}, "bandwidth": {}, "infinibandGUID": "g"},
    });
    let add = add_with(&config.to_string(), "").unwrap();
    assert_eq!(add.config.mtu, None);
    assert_eq!(add.config.ipam, None);
}

/// behaviour R12
#[test]
fn an_invalid_port_is_refused_by_its_key() {
    for (key, port) in [
        ("hostPort", json!(0)),
        ("containerPort", json!(-1)),
        ("containerPort", json!(65536)),
        ("hostPort", Value::Null),
    ] {
        let mut mapping = json!({"hostPort": 1, "containerPort": 1});
        mapping[key] = port;
        let error = refusal(&with("runtimeConfig", json!({"portMappings": [mapping]})));
        assert_eq!(error.code, 7);
        assert!(error.msg.ends_with(&format!(
            "port number: {}",
            mapping[key].as_i64().unwrap_or(0)
        )));
        assert_eq!(
            error.details,
            format!("runtimeConfig.portMappings[0].{key}")
        );
    }
}

/// behaviours S3, S5
#[test]
fn the_name_and_the_version_are_checked_for_every_command() {
    for command in [
        Command::Add,
        Command::Del,
        Command::Check,
        Command::Gc,
        Command::Status,
    ] {
        let code = |config: Value| read(command, &config.to_string()).unwrap_err().code;
        assert_eq!(code(json!({"cniVersion": "1.1.0"})), 7);
        assert_eq!(code(json!({"cniVersion": "1.1.0", "name": ""})), 7);
        assert_eq!(code(json!({"cniVersion": "1.1.0", "name": "a/b"})), 7);
        assert_eq!(code(json!({"cniVersion": "9.9.9", "name": "a"})), 1);
        assert_eq!(code(json!({"cniVersion": 1, "name": "a"})), 6);
    }
}

/// behaviour S5
#[test]
fn a_missing_cni_version_is_0_1_0_and_commands_require_their_version() {
    let add = add_with(r#"{"name":"n"}"#, "").unwrap();
    assert_eq!(add.config.header.version, Version::V0_1_0);
    for (command, newest_without) in [
        (Command::Check, "0.3.1"),
        (Command::Gc, "1.0.0"),
        (Command::Status, "1.0.0"),
    ] {
        let config = json!({"name": "n", "cniVersion": newest_without});
        assert_eq!(read(command, &config.to_string()).unwrap_err().code, 1);
    }
}

/// behaviours S10, C3, C9, C15
#[test]
fn a_del_needs_no_namespace_no_arguments_and_no_sensible_settings() {
    let mut environment = environment(Command::Del, "no args at all");
    environment.netns = String::new();
    let config = json!({
        "name": "n", "cniVersion": "1.0.0", "mtu": "huge", "vlan": 100, "prevResult": {"ips": 7},
        "runtimeConfig": {"portMappings": [{"hostPort": -1}]},
    });
    let Ok(Request::Del(del)) = Request::read(Plugin::Viaduct, &environment, &config.to_string())
    else {
        panic!("a DEL must be read");
    };
    assert_eq!(del.netns, None);
    assert_eq!(
        del.target.key(&default_name()).to_string(),
        "default/c1/eth0"
    );
}

/// behaviour S10: an ADD and its DEL name the same attachment.
#[test]
fn a_configuration_with_an_ipam_is_a_network_of_its_own() {
    let key = |ipam: Value| {
        let config = with("ipam", ipam).to_string();
        let Ok(Request::Del(del)) = read(Command::Del, &config) else {
            panic!("a DEL must be read");
        };
        del.target.key(&default_name()).network.to_string()
    };
    assert_eq!(key(json!({"type": "host-local"})), "n");
    assert_eq!(key(json!({})), "default");
    assert_eq!(key(Value::Null), "default");
}

/// behaviour S11
#[test]
fn a_check_requires_prev_result_and_parses_its_addresses() {
    let mut config = with("prevResult", Value::Null);
    let error = read(Command::Check, &config.to_string()).unwrap_err();
    assert_eq!(
        (error.code, error.msg.as_str()),
        (7, "required prevResult missing")
    );
    config["prevResult"] =
        json!({"IPs": [{"Address": "10.1.0.2/24"}, {"address": "fd00::2/64"}], "dns": {}});
    let Ok(Request::Check(check)) = read(Command::Check, &config.to_string()) else {
        panic!("a CHECK must be read");
    };
    assert_eq!(check.prev_result.addresses.len(), 2);
}

fn valid(config: &Value) -> Option<usize> {
    let Ok(Request::Gc(gc)) = read(Command::Gc, &config.to_string()) else {
        panic!("a GC must be read");
    };
    gc.valid.map(|valid| valid.len())
}

/// behaviour S12
#[test]
fn an_absent_list_of_valid_attachments_is_not_an_empty_one() {
    let key = "cni.dev/valid-attachments";
    assert_eq!(valid(&json!({"name": "n", "cniVersion": "1.1.0"})), None);
    assert_eq!(valid(&with(key, Value::Null)), Some(0));
    assert_eq!(valid(&with(key, json!([]))), Some(0));
    let list =
        json!([{"containerID": "a", "ifname": "eth0"}, {"ContainerID": "b", "IfName": "eth0"}, {}]);
    assert_eq!(valid(&with(key, list.clone())), Some(2));
    let mut both = with(key, list.clone());
    both["cni.dev/attachments"] = list;
    assert_eq!(valid(&both), Some(2));
}

/// Every key that any parser of the crate reads, so that random configurations reach all of them.
const KEYS: [&str; 51] = [
    "internal",
    "directAccess",
    "sysctl",
    "interfaces",
    "interface",
    "sandbox",
    "ingressPolicy",
    "cniVersion",
    "name",
    "socket",
    "bridge",
    "mtu",
    "ipMasq",
    "hairpinMode",
    "promiscMode",
    "isGateway",
    "ipam",
    "type",
    "subnet",
    "rangeStart",
    "rangeEnd",
    "gateway",
    "ranges",
    "routes",
    "dst",
    "gw",
    "resolvConf",
    "dns",
    "nameservers",
    "domain",
    "search",
    "options",
    "args",
    "cni",
    "ips",
    "mac",
    "runtimeConfig",
    "portMappings",
    "hostPort",
    "containerPort",
    "protocol",
    "hostIP",
    "ipRanges",
    "bandwidth",
    "ingressRate",
    "prevResult",
    "address",
    "cni.dev/valid-attachments",
    "containerID",
    "ifname",
    "vlan",
];

/// Values that pass the first check of some parser.
const TEXTS: [&str; 9] = [
    "host-local",
    "10.1.0.0/16",
    "fd00::/64",
    "10.1.0.9",
    "::1",
    "eth0",
    "",
    "tcp",
    "02:00:00:00:00:01",
];

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (0..70_000_i64).prop_map(Value::from),
        prop::sample::select(&TEXTS[..]).prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 64, 6, |inner| {
        let key = prop::sample::select(&KEYS[..]).prop_map(str::to_owned);
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(key, inner, 0..8)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// The same JSON with the case of each key's letters decided by `bits`.
fn recased(value: &Value, bits: &mut impl Iterator<Item = bool>) -> Value {
    match value {
        Value::Object(map) => {
            let entries = map.iter().map(|(key, value)| {
                let key = key.chars().map(|letter| match bits.next() {
                    Some(true) => letter.to_ascii_uppercase(),
                    _ => letter.to_ascii_lowercase(),
                });
                (key.collect(), recased(value, bits))
            });
            Value::Object(entries.collect::<Map<String, Value>>())
        }
        Value::Array(list) => list.iter().map(|value| recased(value, bits)).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}

proptest! {
    #[test]
    fn no_bytes_make_the_reader_panic(bytes: Vec<u8>, args: String) {
        let _ = add_with(&String::from_utf8_lossy(&bytes), &args);
    }

    #[test]
    fn no_configuration_makes_any_command_panic(mut config in any_json(), known in any::<bool>()) {
        if known && let Value::Object(map) = &mut config {
            map.insert("name".into(), "n".into());
            map.insert("cniVersion".into(), "1.1.0".into());
        }
        let text = config.to_string();
        for command in [Command::Add, Command::Del, Command::Check, Command::Gc, Command::Status] {
            for plugin in Plugin::ALL {
                let request = Request::read(plugin, &environment(command, ""), &text);
                if let Ok(Request::Chained(chained)) = request {
                    let _ = chained.adoption();
                }
            }
        }
        if let Ok(add) = add_with(&text, "") {
            let _ = crate::intent(&add, None);
        }
    }

    /// behaviour B0.1
    #[test]
    fn the_case_of_keys_never_matters(
        fixture in prop::sample::select(vec![CONTAINERD, CRIO, MULTUS]),
        bits in prop::collection::vec(any::<bool>(), 1..64),
    ) {
        let value: Value = serde_json::from_str(fixture).unwrap();
        let other = recased(&value, &mut bits.into_iter().cycle()).to_string();
        prop_assert_eq!(add_with(fixture, ""), add_with(&other, ""));
    }
}

//! Tests of requests to chained plugins, as runtimes write them.

use model::{Bandwidth, IngressPolicy, InterfaceSettings};
use serde_json::{Value, json};

use super::*;
use crate::Request;
use crate::request::tests::{add_with, environment};

fn read_with(
    plugin: Plugin,
    command: Command,
    args: &str,
    config: &Value,
) -> Result<ChainedRequest, Error> {
    ChainedRequest::read(plugin, &environment(command, args), &config.to_string())
}

fn add(plugin: Plugin, settings: &Value) -> Result<ChainedRequest, Error> {
    read_with(plugin, Command::Add, "", &chained(settings))
}

/// Returns the configuration of a plugin behind a bridge plugin, with these settings.
fn chained(settings: &Value) -> Value {
    let mut config = json!({
        "cniVersion": "1.0.0",
        "name": "net",
        "prevResult": {
            "cniVersion": "1.0.0",
            "interfaces": [
                { "name": "cni0" },
                { "name": "veth1" },
                { "name": "eth0", "sandbox": "/run/netns/c1" },
                { "name": "net1", "sandbox": "/run/netns/c1" },
            ],
            "ips": [
                { "interface": 3, "address": "10.9.0.2/24" },
                { "interface": 2, "address": "10.1.0.2/24", "gateway": "10.1.0.1" },
                { "interface": 2, "address": "fd00::2/64" },
            ],
        },
    });
    let own = config.as_object_mut().unwrap();
    own.extend(settings.as_object().unwrap().clone());
    config
}

fn refused(plugin: Plugin, settings: &Value) -> (u32, String) {
    let error = add(plugin, settings).unwrap_err();
    (error.code, error.msg)
}

/// behaviours R12, R13, R16
#[test]
fn a_chained_plugin_requires_prev_result() {
    for plugin in [
        Plugin::Portmap,
        Plugin::Bandwidth,
        Plugin::Firewall,
        Plugin::Tuning,
    ] {
        let alone = json!({ "cniVersion": "1.0.0", "name": "net" });
        for command in [Command::Add, Command::Check] {
            let error = read_with(plugin, command, "", &alone).unwrap_err();
            assert_eq!(
                (error.code, error.msg.as_str()),
                (7, "must be called as chained plugin")
            );
        }
        read_with(plugin, Command::Del, "FOO=1", &alone).unwrap();
    }
    let alone = json!({ "cniVersion": "1.0.0", "name": "net" });
    read_with(Plugin::Loopback, Command::Add, "", &alone).unwrap();
}

/// behaviour R13
#[test]
fn a_chained_plugin_adopts_the_interface_that_cni_ifname_names() {
    let request = add(Plugin::Portmap, &json!({})).unwrap();
    let adoption = request.adoption().unwrap();
    let addresses: Vec<String> = adoption
        .addresses
        .iter()
        .map(|own| own.address.to_string())
        .collect();
    assert_eq!(addresses, ["10.1.0.2/24", "fd00::2/64"]);
    assert_eq!(adoption.addresses[1].gateway, None);
    let keys: Vec<String> = request
        .keys(&"default".parse().unwrap())
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(keys, ["net/c1/eth0", "default/c1/eth0"]);
}

/// behaviour R13: results before version 0.3.0 name no interfaces.
#[test]
fn a_chained_plugin_adopts_the_addresses_of_a_result_without_interfaces() {
    let config = json!({
        "cniVersion": "0.2.0", "name": "net",
        "prevResult": {
            "cniVersion": "0.2.0",
            "ip4": { "ip": "10.1.0.2/24", "gateway": "10.1.0.1" },
            "ip6": { "ip": "fd00::2/64" },
        },
    });
    let request = read_with(Plugin::Portmap, Command::Add, "", &config).unwrap();
    let adoption = request.adoption().unwrap();
    let addresses: Vec<String> = adoption
        .addresses
        .iter()
        .map(|own| own.address.to_string())
        .collect();
    assert_eq!(addresses, ["10.1.0.2/24", "fd00::2/64"]);
}

/// behaviour R12: settings of other plugins of the list are theirs to check.
#[test]
fn portmap_reads_its_ports_alone() {
    let settings = json!({
        "args": { "cni": { "ips": ["odd"], "mac": "odd" } },
        "runtimeConfig": {
            "portMappings": [{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp" }],
            "mac": "odd", "ips": "odd", "ipRanges": "odd", "bandwidth": { "ingressRate": -1 },
        },
    });
    let requested = add(Plugin::Portmap, &settings).unwrap().requested;
    let PluginRequest::Ports(ports) = requested else {
        panic!("{requested:?}");
    };
    assert_eq!(ports.len(), 1);
}

/// behaviours R12, C9: Nomad's form of `portMappings`.
#[test]
fn ports_are_read_as_every_runtime_writes_them() {
    let ports = |list: Value| {
        let request = add(
            Plugin::Portmap,
            &json!({ "snat": true, "runtimeConfig": { "portMappings": list } }),
        );
        match request.map(|request| request.requested) {
            Ok(PluginRequest::Ports(ports)) => Ok(ports.len()),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error.msg),
        }
    };
    assert_eq!(ports(json!(null)), Ok(0));
    assert_eq!(
        ports(json!([
            { "HostPort": 8080, "ContainerPort": 80, "Protocol": "tcp", "HostIP": "" },
            { "HostPort": 8080, "ContainerPort": 80, "Protocol": "udp", "HostIP": "192.0.2.1" },
        ])),
        Ok(2)
    );
    let zero = ports(json!([{ "hostPort": 0, "containerPort": 80 }])).unwrap_err();
    assert_eq!(zero, "Invalid host port number: 0");
    assert_eq!(refused(Plugin::Portmap, &json!({ "snat": false })).0, 2);
    assert_eq!(
        refused(Plugin::Portmap, &json!({ "conditionsV4": ["-d", "x"] })).0,
        2
    );
}

/// behaviour R16
#[test]
fn rates_come_from_the_configuration_or_else_from_the_runtime() {
    let rates = |settings: Value| match add(Plugin::Bandwidth, &settings).map(|it| it.requested) {
        Ok(PluginRequest::Limits(limits)) => {
            let Bandwidth {
                ingress, egress, ..
            } = limits.bandwidth;
            Ok([ingress, egress].map(|limit| limit.map_or(0, |limit| limit.rate.get())))
        }
        Ok(other) => panic!("{other:?}"),
        Err(error) => Err(error.msg),
    };
    let runtime = json!({ "bandwidth": { "IngressRate": 8000, "IngressBurst": 9, "EgressRate": 1000, "EgressBurst": 2 } });
    assert_eq!(
        rates(json!({ "runtimeConfig": runtime })),
        Ok([8_000, 1_000])
    );
    let own = json!({ "ingressRate": 5000, "ingressBurst": 5, "runtimeConfig": runtime });
    assert_eq!(rates(own), Ok([5_000, 0]));
    assert_eq!(rates(json!({})), Ok([0, 0]));
    for (settings, words) in [
        (
            json!({ "ingressRate": 5 }),
            "if rate is set, burst must also be set",
        ),
        (
            json!({ "egressBurst": 5 }),
            "if burst is set, rate must also be set",
        ),
        (
            json!({ "egressRate": 5, "egressBurst": 34_359_738_368_u64 }),
            "burst cannot be more than 4GB",
        ),
    ] {
        let error = rates(settings).unwrap_err();
        assert!(error.ends_with(words), "{error}");
    }
}

/// behaviour R17
#[test]
fn ingress_policy_has_the_reference_plugins_three_values() {
    for (policy, read) in [
        ("", IngressPolicy::Open),
        ("open", IngressPolicy::Open),
        ("same-bridge", IngressPolicy::SameBridge),
        ("isolated", IngressPolicy::Isolated),
    ] {
        let settings = json!({ "backend": "iptables", "ingressPolicy": policy });
        let requested = add(Plugin::Firewall, &settings).unwrap().requested;
        assert_eq!(requested, PluginRequest::Policy(read));
    }
    let (code, words) = refused(Plugin::Firewall, &json!({ "ingressPolicy": "x" }));
    assert!(
        code == 7 && words.contains("unrecognized ingress policy"),
        "{words}"
    );
}

fn tuned(settings: &Value, args: &str) -> Result<InterfaceSettings, Error> {
    tuning_request(settings, args).map(|request| request.settings)
}

fn tuning_request(settings: &Value, args: &str) -> Result<TuningRequest, Error> {
    let request = read_with(Plugin::Tuning, Command::Add, args, &chained(settings))?;
    let PluginRequest::Settings(requested) = request.requested else {
        panic!("{:?}", request.requested);
    };
    Ok(*requested)
}

/// The operator's allowlist is for keys as the configuration has them.
#[test]
fn sysctl_keys_of_a_tuning_request_are_kept_as_configured() {
    let settings = json!({
        "sysctl": { "net.ipv4.conf.IFNAME.arp_filter": "1", "net/core/somaxconn": "2" },
        "args": { "cni": { "sysctl": { "net.core.somaxconn": "3" } } },
    });
    let request = tuning_request(&settings, "").unwrap();
    let keys: Vec<[&str; 2]> = request
        .sysctl_keys
        .iter()
        .map(|(path, key)| [path.as_str(), key.as_str()])
        .collect();
    assert_eq!(
        keys,
        [
            ["net/core/somaxconn", "net.core.somaxconn"],
            [
                "net/ipv4/conf/eth0/arp_filter",
                "net.ipv4.conf.IFNAME.arp_filter"
            ],
        ]
    );
    assert!(
        request
            .settings
            .sysctls
            .keys()
            .eq(request.sysctl_keys.keys())
    );
}

#[test]
fn sysctl_keys_keep_their_case_and_ifname_is_replaced() {
    let settings = json!({
        "sysctl": {
            "net.ipv4.conf.IFNAME.arp_filter": "1",
            "net/ipv4/conf/eth0.7/rp_filter": "2",
            "net.netfilter.nf_conntrack_TCP_loose": "0",
        },
        "mtu": 1400, "promisc": true, "allmulti": false, "txQLen": 7, "dataDir": "/run/x",
    });
    let settings = tuned(&settings, "").unwrap();
    let keys: Vec<&str> = settings.sysctls.keys().map(String::as_str).collect();
    assert_eq!(
        keys,
        [
            "net/ipv4/conf/eth0.7/rp_filter",
            "net/ipv4/conf/eth0/arp_filter",
            "net/netfilter/nf_conntrack_TCP_loose",
        ]
    );
    assert_eq!(
        (settings.mtu, settings.tx_queue_length),
        (Some(1400), Some(7))
    );
    assert_eq!(
        (settings.promiscuous, settings.all_multicast),
        (Some(true), Some(false))
    );
}

#[test]
fn only_net_sysctls_are_accepted_and_no_duplicates() {
    for key in [
        "kernel.core_pattern",
        "net/../kernel/x",
        "net..x",
        "/net/x",
        "net",
    ] {
        let error = tuned(&json!({ "sysctl": { key: "1" } }), "").unwrap_err();
        assert_eq!(error.code, 7, "{key}: {error}");
    }
    let twice = chained(&json!({})).to_string().replacen(
        '{',
        r#"{"sysctl":{"net.core.somaxconn":"1","net/core/somaxconn":"2"},"#,
        1,
    );
    let environment = environment(Command::Add, "");
    let error = ChainedRequest::read(Plugin::Tuning, &environment, &twice).unwrap_err();
    assert!(error.msg.contains("duplicated"), "{error}");
}

/// behaviour F65
#[test]
fn args_of_tuning_take_precedence_key_by_key() {
    let config = json!({
        "mtu": 1300, "promisc": true, "allmulti": true, "txQLen": 5, "mac": "02:00:00:00:00:01",
        "sysctl": { "net.core.somaxconn": "1", "net.ipv4.conf.IFNAME.arp_filter": "0" },
        "args": { "cni": {
            "MTU": 1400, "promisc": false, "allmulti": false, "txQLen": 0, "mac": "02:00:00:00:00:02",
            "sysctl": { "net/core/somaxconn": "2", "net.ipv4.conf.IFNAME.arp_notify": "1" },
        }},
    });
    let own = json!({ "mtu": config["mtu"], "promisc": true, "sysctl": config["sysctl"] });
    let settings = tuned(&config, "").unwrap();
    let sysctl = |key: &str| settings.sysctls.get(key).map(String::as_str);
    assert_eq!(sysctl("net/core/somaxconn"), Some("2"));
    assert_eq!(sysctl("net/ipv4/conf/eth0/arp_filter"), Some("0"));
    assert_eq!(sysctl("net/ipv4/conf/eth0/arp_notify"), Some("1"));
    assert_eq!(settings.mtu, Some(1400));
    assert_eq!(settings.mac, "02:00:00:00:00:02".parse().ok());
    assert_eq!(
        (settings.promiscuous, settings.all_multicast),
        (None, Some(false))
    );
    assert_eq!(settings.tx_queue_length, Some(0));
    let alone = tuned(&json!({ "args": { "cni": own } }), "").unwrap();
    assert_eq!((alone.mtu, alone.promiscuous), (Some(1300), Some(true)));
    assert_eq!(alone.sysctls.len(), 2);
    let unset = json!({ "args": null, "sysctl": null, "mtu": 1300 });
    assert_eq!(tuned(&unset, "").unwrap().mtu, Some(1300));
    let wrong = json!({ "args": { "cni": { "sysctl": { "kernel.x": "1" } } } });
    assert_eq!(tuned(&wrong, "").unwrap_err().code, 7);
}

/// behaviour R1
#[test]
fn of_several_ethernet_addresses_the_runtimes_wins() {
    let mac = |settings: Value, args: &str| {
        let config = chained(&settings).to_string();
        add_with(&config, args).unwrap().requested.mac.unwrap().0[5]
    };
    let args = "MAC=02:00:00:00:00:01";
    assert_eq!(mac(json!({}), args), 1);
    let mut all = json!({ "args": { "cni": { "mac": "02:00:00:00:00:03" } } });
    assert_eq!(mac(all.clone(), args), 3);
    all["runtimeConfig"] = json!({ "mac": "02-00-00-00-00-04" });
    assert_eq!(mac(all, args), 4);
}

/// behaviour R1: the order is that of the reference plugin, in which `args.cni` comes last.
#[test]
fn of_several_ethernet_addresses_for_tuning_that_of_args_wins() {
    let mac = |settings: Value, args: &str| tuned(&settings, args).unwrap().mac.unwrap().0[5];
    assert_eq!(mac(json!({}), "MAC=02:00:00:00:00:01"), 1);
    let own = json!({ "mac": "02:00:00:00:00:02" });
    assert_eq!(mac(own.clone(), ""), 2);
    assert_eq!(mac(own, "MAC=02:00:00:00:00:01"), 1);
    let mut all = json!({
        "mac": "02:00:00:00:00:02",
        "runtimeConfig": { "mac": "02-00-00-00-00-04" },
    });
    assert_eq!(mac(all.clone(), "MAC=02:00:00:00:00:01"), 4);
    all["args"] = json!({ "cni": { "mac": "02:00:00:00:00:03" } });
    assert_eq!(mac(all, ""), 3);
}

/// behaviour S9
#[test]
fn an_add_behind_another_plugin_parses_its_prev_result() {
    let config = json!({
        "cniVersion": "1.1.0",
        "name": "n",
        "prevResult": {"cniVersion": "1.1.0", "interfaces": [{"name": "lo"}]},
    });
    let add = add_with(&config.to_string(), "").unwrap();
    assert_eq!(add.prev_result.unwrap().interfaces()[0].name, "lo");
}

/// behaviour R18: under the reference plugin's name the configuration has the reference's meaning.
#[test]
fn a_bridge_without_addresses_is_a_switch_under_the_reference_name_only() {
    let add = |plugin| {
        let environment = environment(Command::Add, "");
        Request::read(plugin, &environment, r#"{"name":"n","cniVersion":"1.0.0"}"#)
    };
    let declares = |plugin| match add(plugin) {
        Ok(Request::Add(add)) => add.config.header.declares_network,
        other => panic!("{other:?}"),
    };
    assert!(declares(Plugin::Bridge) && !declares(Plugin::Viaduct));
    assert_eq!(add(Plugin::HostLocal).unwrap_err().code, 4);
}

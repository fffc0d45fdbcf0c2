//! host-local's leases on disk, which the reference plugin and Viaduct's share.

use std::net::IpAddr;

use anyhow::Result;
use e2e::chain::{Chain, PluginSource, folder};
use e2e::{Answer, Call, Config, Sandbox, Verb, addresses};
use serde_json::{Value, json};

const BOTH: [PluginSource; 2] = [PluginSource::Reference, PluginSource::Ours];

/// Calls host-local of either source as a main plugin delegates to it: with the whole
/// configuration, most of which is for the main plugin.
fn host_local(
    sandbox: &Sandbox,
    verb: Verb,
    maker: PluginSource,
    container: &str,
) -> Result<Answer> {
    let config = json!({
        "cniVersion": "1.0.0", "name": "pool", "type": "other", "vlan": 7,
        "ipam": { "type": "host-local", "dataDir": "/run/leases", "routes": [{ "dst": "0.0.0.0/0" }],
                  "ranges": [[{ "subnet": "10.7.0.0/29" }], [{ "subnet": "fd00:7::/64" }]] },
    });
    let call = Call::new(verb, container, "/run/netns/none", &Config(config));
    call.run_at(&sandbox.node, &folder(maker)?.join("host-local"))
}

/// Returns the keys of a result without `dns`, which later releases of the reference omit when it
/// is empty.
fn keys(result: &Value) -> Vec<String> {
    let object = result.as_object().into_iter().flatten();
    object
        .filter(|(key, _)| *key != "dns")
        .map(|(key, _)| key.clone())
        .collect()
}

/// behaviours R8, R10, R11
#[test]
fn both_host_local_plugins_allocate_from_one_pool() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let mut results = Vec::new();
    for (number, maker) in BOTH.into_iter().chain(BOTH).enumerate() {
        let container = format!("c{number}");
        let result = host_local(&sandbox, Verb::Add, maker, &container)?.result()?;
        let last = number + 2;
        assert_eq!(result["ips"][0]["address"], format!("10.7.0.{last}/29"));
        assert_eq!(result["ips"][1]["address"], format!("fd00:7::{last}/64"));
        results.push(result);
        for checker in BOTH {
            host_local(&sandbox, Verb::Check, checker, &container)?.success()?;
        }
    }
    assert_eq!(keys(&results[0]), keys(&results[1]));
    let files = "/run/leases/pool/10.7.0.2 /run/leases/pool/10.7.0.3";
    let files = sandbox.node.call(&format!("cat -v {files}"))?;
    assert_eq!(files.matches("^M").count(), 2, "{files}");

    host_local(&sandbox, Verb::Add, PluginSource::Ours, "c4")?.result()?;
    for maker in BOTH {
        let full = host_local(&sandbox, Verb::Add, maker, "c5")?.error()?;
        let words = "no IP addresses available in range set: 10.7.0.1-10.7.0.6";
        assert!(full.msg.contains(words), "{full:?}");
    }
    for number in 0..5 {
        let container = format!("c{number}");
        host_local(&sandbox, Verb::Del, BOTH[number % 2], &container)?.success()?;
        host_local(&sandbox, Verb::Del, PluginSource::Ours, &container)?.success()?;
    }
    let left = sandbox.node.call("ls /run/leases/pool")?;
    assert!(!left.lines().any(|name| name.starts_with("10.7")), "{left}");
    Ok(())
}

/// behaviour R11: from the reference plugin to Viaduct's and back.
#[test]
fn host_local_leases_are_shared_with_the_reference_plugin() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let config = |maker| {
        let settings = json!({
            "type": "bridge", "bridge": "br7", "isGateway": true,
            "ipam": { "type": "host-local", "dataDir": "/run/leases", "subnet": "10.7.0.0/24" },
        });
        Chain::new("1.0.0", "net").with(maker, settings)
    };
    let mut pods = Vec::new();
    for (number, maker) in [
        PluginSource::Reference,
        PluginSource::Ours,
        PluginSource::Reference,
    ]
    .into_iter()
    .enumerate()
    {
        let pod = sandbox.machine(&format!("pod{number}"))?;
        let result = config(maker).add(&sandbox.node, &pod)?;
        let expected = IpAddr::from([10, 7, 0, u8::try_from(number)? + 2]);
        assert_eq!(addresses(&result)?, [expected]);
        pods.push((maker, pod, result));
    }
    for (maker, pod, result) in &pods {
        config(*maker).del(&sandbox.node, pod, result)?;
    }
    let left = sandbox.node.call("ls /run/leases/net")?;
    assert!(
        !left.contains("10.7.0.2\n") && !left.contains("10.7.0.3"),
        "{left}"
    );
    Ok(())
}

/// behaviour R11: a node migrates from the reference plugins to Viaduct while the old pods run, and
/// back while the new ones run.
#[test]
fn a_node_migrates_to_viaduct_and_back_while_pods_run() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let list = |maker| {
        let settings = json!({
            "type": "bridge", "bridge": "br7", "isGateway": true,
            "ipam": { "type": "host-local", "dataDir": "/run/leases", "subnet": "10.7.0.0/29" },
        });
        Chain::new("1.0.0", "net").with(maker, settings)
    };
    // The other form of configuration: one entry of type viaduct.
    let mut ours = json!({
        "cniVersion": "1.0.0", "name": "net", "type": "viaduct", "bridge": "br7", "isGateway": true,
        "ipam": { "type": "host-local", "dataDir": "/run/leases", "subnet": "10.7.0.0/29" },
    });
    let pods: Vec<_> = (0..6)
        .map(|number| sandbox.machine(&format!("pod{number}")))
        .collect::<Result<_>>()?;
    let on = |verb, pod: &e2e::Machine, config: &Value| {
        Call::new(verb, pod.name(), &pod.path(), &Config(config.clone())).run(&sandbox.node)
    };
    let before = [
        list(PluginSource::Reference).add(&sandbox.node, &pods[0])?,
        list(PluginSource::Reference).add(&sandbox.node, &pods[1])?,
    ];
    let third = on(Verb::Add, &pods[2], &ours)?.result()?;
    assert_eq!(third["ips"][0]["address"], "10.7.0.4/29");
    // Viaduct releases a lease of the reference, and reuses the released address last.
    list(PluginSource::Ours).del(&sandbox.node, &pods[0], &before[0])?;
    let fourth = on(Verb::Add, &pods[3], &ours)?.result()?;
    assert_eq!(fourth["ips"][0]["address"], "10.7.0.5/29");
    pods[2].call("ping -c 1 -W 5 10.7.0.3")?;

    // Back: the reference respects, checks and releases Viaduct's leases.
    let fifth = list(PluginSource::Reference).add(&sandbox.node, &pods[4])?;
    assert_eq!(addresses(&fifth)?, [IpAddr::from([10, 7, 0, 6])]);
    let folder = folder(PluginSource::Reference)?;
    for verb in [Verb::Check, Verb::Del] {
        let mut config = ours.clone();
        config["type"] = json!("bridge");
        config["prevResult"] = fourth.clone();
        Call::new(verb, pods[3].name(), &pods[3].path(), &Config(config))
            .run_at(&sandbox.node, &folder.join("host-local"))?
            .success()?;
    }
    let left = sandbox.node.call("ls /run/leases/net")?;
    assert!(
        left.contains("10.7.0.4\n") && !left.contains("10.7.0.5"),
        "{left}"
    );
    // Without `dataDir`, the leases are still respected, and none is written.
    ours["ipam"] = json!({ "type": "host-local", "subnet": "10.7.0.0/29" });
    on(Verb::Del, &pods[2], &ours)?.success()?;
    assert_eq!(
        agent.get("/v1/attachments")?.as_array().map(Vec::len),
        Some(1)
    );
    list(PluginSource::Reference).del(&sandbox.node, &pods[4], &fifth)
}

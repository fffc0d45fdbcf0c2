//! Plugins that need no agent, and chained plugins that have nothing to do, while no agent runs.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use e2e::chain::{Chain, PluginSource};
use e2e::{Call, Config, Echo, Machine, NODE, Sandbox, Verb, tcp_source};
use serde_json::{Value, json};

/// Arguments that no plugin knows: the reference plugins ignore them where they use none.
const ODD_ARGS: [&str; 3] = ["none", "FOO=bar", "IgnoreUnknown=perhaps;;=x"];

fn call(verb: Verb, kind: &str, pod: &Machine, settings: &Value) -> Call {
    let mut config = settings.clone();
    config["cniVersion"] = json!("1.1.0");
    config["name"] = json!("net");
    config["type"] = json!(kind);
    Call::new(verb, "c1", &pod.path(), &Config(config))
}

fn is_up(pod: &Machine) -> Result<bool> {
    Ok(pod.call("ip link show lo")?.contains(",UP"))
}

/// behaviour S16
#[test]
fn loopback_needs_no_agent_and_reads_no_cni_args() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let pod = sandbox.machine("pod")?;
    let run = |verb, args| {
        let call = call(verb, "loopback", &pod, &json!({})).set("CNI_IFNAME", "lo");
        call.set("CNI_ARGS", args).run_as(&sandbox.node, "loopback")
    };
    for args in ODD_ARGS {
        pod.call("ip link set lo down")?;
        ensure!(run(Verb::Check, args)?.error()?.msg.contains("lo is down"));
        let result = run(Verb::Add, args)?.result()?;
        ensure!(is_up(&pod)?);
        let ips = result["ips"].as_array().context("addresses")?;
        let addresses: Vec<_> = ips.iter().map(|ip| ip["address"].as_str()).collect();
        assert_eq!(
            addresses,
            [Some("127.0.0.1/8"), Some("::1/128")],
            "{result}"
        );
        assert_eq!(result["interfaces"][0]["name"], "lo");
        run(Verb::Check, args)?.success()?;
        run(Verb::Status, args)?.success()?;
        run(Verb::Gc, args)?.success()?;
        run(Verb::Del, args)?.success()?;
        ensure!(!is_up(&pod)?);
    }
    let earlier =
        json!({ "prevResult": { "cniVersion": "1.1.0", "ips": [{ "address": "10.1.0.2/24" }] } });
    let kept = call(Verb::Add, "loopback", &pod, &earlier).run_as(&sandbox.node, "loopback")?;
    assert_eq!(kept.result()?["ips"][0]["address"], "10.1.0.2/24");
    for (verb, netns) in [
        (Verb::Add, "/run/netns/gone"),
        (Verb::Check, "/run/netns/gone"),
    ] {
        let gone = call(verb, "loopback", &pod, &json!({})).set("CNI_NETNS", netns);
        assert_eq!(gone.run_as(&sandbox.node, "loopback")?.error()?.code, 4);
    }
    let gone = call(Verb::Del, "loopback", &pod, &json!({})).set("CNI_NETNS", "/run/netns/gone");
    gone.run_as(&sandbox.node, "loopback")?.success()?;
    let host = call(Verb::Add, "loopback", &pod, &json!({})).set("CNI_NETNS", "/proc/self/ns/net");
    assert_eq!(host.run_as(&sandbox.node, "loopback")?.error()?.code, 8);
    Ok(())
}

/// Plugins of a chain, each with settings that need the agent.
fn chained() -> [(&'static str, Value); 4] {
    [
        (
            "portmap",
            json!({ "runtimeConfig": { "portMappings": [{ "hostPort": 80, "containerPort": 80 }] } }),
        ),
        (
            "bandwidth",
            json!({ "ingressRate": 1000, "ingressBurst": 1000 }),
        ),
        ("firewall", json!({ "ingressPolicy": "same-bridge" })),
        ("tuning", json!({ "mtu": 1300 })),
    ]
}

fn prev_result() -> Value {
    json!({ "cniVersion": "1.1.0", "interfaces": [{ "name": "eth0", "sandbox": "/run/netns/pod" }],
            "ips": [{ "address": "10.1.0.2/24", "interface": 0 }] })
}

#[test]
fn a_chained_plugin_with_nothing_to_do_works_without_an_agent() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let pod = sandbox.machine("pod")?;
    for (kind, mut effect) in chained() {
        let nothing = json!({ "prevResult": prev_result() });
        let added = call(Verb::Add, kind, &pod, &nothing).run_as(&sandbox.node, kind)?;
        assert_eq!(added.result().context(kind)?, prev_result(), "{kind}");
        let checked = call(Verb::Check, kind, &pod, &nothing).run_as(&sandbox.node, kind)?;
        checked.success().context(kind)?;
        effect["prevResult"] = prev_result();
        let refused = call(Verb::Add, kind, &pod, &effect).run_as(&sandbox.node, kind)?;
        assert_eq!(refused.error()?.code, 11, "{kind}");
        let status = call(Verb::Status, kind, &pod, &json!({})).run_as(&sandbox.node, kind)?;
        assert_eq!(status.error()?.code, 50, "{kind}");
        let alone = call(Verb::Add, kind, &pod, &json!({})).run_as(&sandbox.node, kind)?;
        ensure!(alone.error().is_ok(), "{kind} without a prevResult");
    }
    Ok(())
}

/// behaviour S16
#[test]
fn cni_args_are_checked_only_by_plugins_that_use_them() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let pod = sandbox.machine("pod")?;
    let settings = json!({ "prevResult": prev_result(), "bridge": "br7",
                           "ipam": { "type": "host-local", "ranges": [[{ "subnet": "10.7.0.0/24" }]] } });
    for (kind, is_strict) in [
        ("portmap", false),
        ("bandwidth", false),
        ("firewall", false),
        ("tuning", true),
        ("bridge", true),
        ("host-local", true),
    ] {
        for args in ODD_ARGS {
            let add = call(Verb::Add, kind, &pod, &settings).set("CNI_ARGS", args);
            let answer = add.run_as(&sandbox.node, kind)?;
            let code = answer.error().map(|error| error.code).unwrap_or_default();
            assert_eq!(code, if is_strict { 4 } else { 0 }, "{kind} with {args}");
        }
    }
    Ok(())
}

fn ports() -> Value {
    json!([{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp" }])
}

/// nerdctl's default list, as `nerdctl network create` writes it.
fn nerdctl() -> Chain {
    Chain::new("1.0.0", "bridge")
        .with(
            PluginSource::Ours,
            json!({ "type": "bridge", "bridge": "nerdctl0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
                    "capabilities": { "ips": true },
                    "ipam": { "type": "host-local", "routes": [{ "dst": "0.0.0.0/0" }],
                              "ranges": [[{ "subnet": "10.4.0.0/24", "gateway": "10.4.0.1" }]] } }),
        )
        .with(PluginSource::Ours, json!({ "type": "portmap", "capabilities": { "portMappings": true } }))
        .with(PluginSource::Ours, json!({ "type": "firewall", "ingressPolicy": "same-bridge" }))
        .with(PluginSource::Ours, json!({ "type": "tuning" }))
        .set("CNI_ARGS", "IgnoreUnknown=1;NERDCTL_CNI_DHCP_HOSTNAME=web")
}

/// CRI-O's `11-crio-ipv4-bridge.conflist`, which has a bridge alone.
fn crio() -> Chain {
    Chain::new("1.0.0", "crio").with(
        PluginSource::Ours,
        json!({ "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
                "ipam": { "type": "host-local", "routes": [{ "dst": "0.0.0.0/0" }],
                          "ranges": [[{ "subnet": "10.85.0.0/16" }]] } }),
    )
}

/// behaviours C5, C11
#[test]
fn the_default_lists_of_nerdctl_and_crio_work_unchanged() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let node = &sandbox.node;
    for (name, list, address) in [
        (
            "nerdctl",
            nerdctl().with_capability("portMappings", ports()),
            "10.4.0.2/24",
        ),
        ("crio", crio(), "10.85.0.2/16"),
    ] {
        let pod = sandbox.machine(name)?;
        let result = list.add(node, &pod).context(name)?;
        assert_eq!(result["ips"][0]["address"], address, "{result}");
        let _echo = Echo::start(&pod, 80)?;
        if name == "nerdctl" {
            tcp_source(&sandbox.world, 0, SocketAddr::new(NODE[0], 8080))?;
        }
        list.check(node, &pod, &result).context(name)?;
        list.del(node, &pod, &result).context(name)?;
        assert_eq!(agent.get("/v1/attachments")?, json!([]), "{name}");
    }
    Ok(())
}

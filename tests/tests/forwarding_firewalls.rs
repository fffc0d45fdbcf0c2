//! Pods beside the chain layouts of Docker, ufw and firewalld with policies that drop, and the
//! `firewall` plugin in the lists of podman and Nomad.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, Result, ensure};
use e2e::chain::{Chain, PluginSource};
use e2e::{
    Echo, ForwardingScene, Machine, NODE, Sandbox, WORLD, connects, set_bridge_netfilter,
    tcp_source, until,
};
use serde_json::{Value, json};

const TOOLS: [&str; 2] = ["iptables-nft", "ip6tables-nft"];
const LEGACY: [&str; 2] = ["iptables-legacy", "ip6tables-legacy"];

/// Filter rules of Docker 20.10.
const DOCKER: &str = "*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
:DOCKER - [0:0]
:DOCKER-ISOLATION-STAGE-1 - [0:0]
:DOCKER-ISOLATION-STAGE-2 - [0:0]
:DOCKER-USER - [0:0]
-A FORWARD -j DOCKER-USER
-A FORWARD -j DOCKER-ISOLATION-STAGE-1
-A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -o docker0 -j DOCKER
-A FORWARD -i docker0 ! -o docker0 -j ACCEPT
-A FORWARD -i docker0 -o docker0 -j ACCEPT
-A DOCKER-ISOLATION-STAGE-1 -i docker0 ! -o docker0 -j DOCKER-ISOLATION-STAGE-2
-A DOCKER-ISOLATION-STAGE-1 -j RETURN
-A DOCKER-ISOLATION-STAGE-2 -o docker0 -j DROP
-A DOCKER-ISOLATION-STAGE-2 -j RETURN
-A DOCKER-USER -j RETURN
COMMIT
";

/// Filter rules of Docker 28, where an own chain has all rules, the last of which drops.
const DOCKER_28: &str = "*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
:DOCKER - [0:0]
:DOCKER-BRIDGE - [0:0]
:DOCKER-CT - [0:0]
:DOCKER-FORWARD - [0:0]
:DOCKER-INTERNAL - [0:0]
:DOCKER-USER - [0:0]
-A FORWARD -j DOCKER-USER
-A FORWARD -j DOCKER-FORWARD
-A DOCKER ! -i docker0 -o docker0 -j DROP
-A DOCKER-BRIDGE -o docker0 -j DOCKER
-A DOCKER-CT -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A DOCKER-FORWARD -j DOCKER-CT
-A DOCKER-FORWARD -j DOCKER-INTERNAL
-A DOCKER-FORWARD -j DOCKER-BRIDGE
-A DOCKER-FORWARD -i docker0 -j ACCEPT
COMMIT
";

/// Forward rules of ufw 0.36 with `DEFAULT_FORWARD_POLICY`, whose last chain drops or is empty.
fn ufw(policy: &str, reject: &str) -> String {
    format!(
        "*filter
:INPUT ACCEPT [0:0]
:FORWARD {policy} [0:0]
:OUTPUT ACCEPT [0:0]
:ufw-after-forward - [0:0]
:ufw-after-logging-forward - [0:0]
:ufw-before-forward - [0:0]
:ufw-before-logging-forward - [0:0]
:ufw-reject-forward - [0:0]
:ufw-track-forward - [0:0]
:ufw-user-forward - [0:0]
-A FORWARD -j ufw-before-logging-forward
-A FORWARD -j ufw-before-forward
-A FORWARD -j ufw-after-forward
-A FORWARD -j ufw-after-logging-forward
-A FORWARD -j ufw-reject-forward
-A FORWARD -j ufw-track-forward
-A ufw-after-logging-forward -m limit --limit 3/min --limit-burst 10 -j LOG --log-prefix blocked
-A ufw-before-forward -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A ufw-before-forward -j ufw-user-forward
{reject}
COMMIT
"
    )
}

/// Forward chains of firewalld 1.3 with the zone `public` as default, and the uplink in it.
const FIREWALLD: &str = r#"
table inet firewalld {
    chain filter_FORWARD {
        type filter hook forward priority filter + 10; policy accept;
        ct state { established, related } accept
        ct status dnat accept
        iifname "lo" accept
        ct state invalid drop
        ip6 daddr { ::/96, ::ffff:0.0.0.0/96, 2002:a00::/24 } reject with icmpv6 addr-unreachable
        jump filter_FORWARD_ZONES
        reject with icmpx admin-prohibited
    }
    chain filter_FORWARD_ZONES {
        iifname "up0" goto filter_FWD_public
        goto filter_FWD_public
    }
    chain filter_FWD_public {
        jump filter_FWD_public_pre
        jump filter_FWD_public_log
        jump filter_FWD_public_deny
        jump filter_FWD_public_allow
        jump filter_FWD_public_post
    }
    chain filter_FWD_public_pre {
    }
    chain filter_FWD_public_log {
    }
    chain filter_FWD_public_deny {
    }
    chain filter_FWD_public_allow {
        oifname "up0" accept
    }
    chain filter_FWD_public_post {
    }
}
"#;

fn write(node: &Machine, path: &str, rules: &str) -> Result<()> {
    Ok(node.mounts().run(|| std::fs::write(path, rules))?)
}

fn restore(node: &Machine, tools: [&str; 2], rules: &str) -> Result<()> {
    write(node, "/run/rules", rules)?;
    let mut tools = tools.iter();
    tools.try_for_each(|tool| node.call(&format!("{tool}-restore /run/rules")).map(drop))
}

/// All paths work, twice around a reload of the rules, and these rules are unchanged.
fn works_beside(tools: [&str; 2], rules: &str) -> Result<()> {
    let scene = ForwardingScene::new(&[], |node| restore(node, tools, rules))?;
    let node = &scene.sandbox.node;
    scene.all_paths_work()?;
    scene.the_policy_still_holds()?;
    scene.await_degraded(&[])?;
    restore(node, tools, rules)?;
    scene.await_all_paths()?;
    for tool in tools {
        let bare = scene.sandbox.machine(tool)?;
        restore(&bare, tools, rules)?;
        let listed = node.call(&format!("{tool} -S"))?;
        let foreign: Vec<&str> = listed
            .lines()
            .filter(|line| !line.contains("VIADUCT"))
            .collect();
        let expected = bare.call(&format!("{tool} -S"))?;
        assert_eq!(foreign, expected.lines().collect::<Vec<_>>());
    }
    Ok(())
}

#[test]
fn pods_work_beside_dockers_rules() -> Result<()> {
    works_beside(TOOLS, DOCKER)
}

#[test]
fn pods_work_beside_dockers_legacy_rules() -> Result<()> {
    works_beside(LEGACY, DOCKER)
}

#[test]
fn pods_work_beside_the_rules_of_docker_28() -> Result<()> {
    works_beside(TOOLS, DOCKER_28)
}

#[test]
fn pods_work_beside_ufw_with_a_policy_that_drops() -> Result<()> {
    works_beside(TOOLS, &ufw("DROP", ""))
}

#[test]
fn pods_work_beside_ufw_with_a_policy_that_rejects() -> Result<()> {
    works_beside(TOOLS, &ufw("DROP", "-A ufw-reject-forward -j REJECT"))
}

#[test]
fn pods_work_beside_ufw_of_iptables_legacy() -> Result<()> {
    works_beside(LEGACY, &ufw("DROP", "-A ufw-reject-forward -j REJECT"))
}

#[test]
fn pods_work_beside_firewalld() -> Result<()> {
    let load = |node: &Machine| {
        write(node, "/run/firewalld.nft", FIREWALLD)?;
        node.call("nft -f /run/firewalld.nft").map(drop)
    };
    let scene = ForwardingScene::new(&[], load)?;
    scene.all_paths_work()?;
    scene.the_policy_still_holds()?;
    // A reload of firewalld replaces its table.
    let node = &scene.sandbox.node;
    node.call("nft delete table inet firewalld")?;
    load(node)?;
    scene.await_all_paths()?;
    scene.await_degraded(&[])
}

#[test]
fn drops_in_docker_user_and_in_forward_are_obeyed() -> Result<()> {
    let scene = ForwardingScene::new(&[], |node| restore(node, TOOLS, DOCKER))?;
    let node = &scene.sandbox.node;
    for (tool, world) in TOOLS.into_iter().zip(WORLD) {
        let pod = scene.client.address(world)?;
        for rule in [
            format!("DOCKER-USER -s {pod} -j DROP"),
            format!("FORWARD -s {pod} -j DROP"),
            "FORWARD -i cbr0 -o up0 -j REJECT".to_owned(),
        ] {
            node.call(&format!("{tool} -I {rule}"))?;
            ensure!(!scene.reaches_world(world)?, "{tool} {rule}");
            node.call(&format!("{tool} -D {rule}"))?;
            ensure!(scene.reaches_world(world)?, "without {tool} {rule}");
        }
    }
    Ok(())
}

fn bridge(name: &str, subnets: &[&str]) -> Value {
    let ranges: Vec<Value> = subnets
        .iter()
        .map(|subnet| json!([{ "subnet": subnet }]))
        .collect();
    json!({
        "type": "bridge", "bridge": name, "isGateway": true, "ipMasq": true, "hairpinMode": true,
        "ipam": {
            "type": "host-local", "ranges": ranges,
            "routes": [{ "dst": "0.0.0.0/0" }],
        },
    })
}

/// podman's list. `bridge` is ours or the reference's.
fn podman(source: PluginSource) -> Chain {
    let portmap = json!({ "type": "portmap", "capabilities": { "portMappings": true } });
    Chain::new("0.4.0", "podman")
        .with(source, bridge("cni-podman0", &["10.89.0.0/16"]))
        .with(PluginSource::Ours, portmap)
        .with(PluginSource::Ours, json!({ "type": "firewall" }))
        .with(PluginSource::Ours, json!({ "type": "tuning" }))
}

fn address(result: &Value) -> Result<IpAddr> {
    let text = result["ips"][0]["address"].as_str().context("an address")?;
    Ok(text.split('/').next().unwrap_or(text).parse()?)
}

/// Two pods of podman's list on a node with Docker's rules.
fn podman_works(source: PluginSource) -> Result<()> {
    let sandbox = Sandbox::new()?;
    let node = &sandbox.node;
    set_bridge_netfilter(node, true)?;
    restore(node, TOOLS, DOCKER)?;
    let agent = e2e::Agent::start(node, &[])?;
    let _world = Echo::start(&sandbox.world, 7000)?;
    let ports = json!([{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp" }]);
    let list = podman(source);
    let (one, two) = (sandbox.machine("one")?, sandbox.machine("two")?);
    let published = list.clone().with_capability("portMappings", ports);
    let first = published.add(node, &one)?;
    let second = list.add(node, &two)?;
    let _echo = Echo::start(&one, 80)?;
    let world = SocketAddr::new(WORLD[0], 7000);
    for pod in [&one, &two] {
        tcp_source(pod, 0, world).with_context(|| format!("{} to the world", pod.name()))?;
    }
    tcp_source(&two, 0, SocketAddr::new(address(&first)?, 80)).context("pod to pod")?;
    tcp_source(&sandbox.world, 0, SocketAddr::new(NODE[0], 8080)).context("the hostport")?;
    published.check(node, &one, &first)?;
    // The default chain of the plugin's administrator, in front of all other rules.
    let pod = address(&second)?;
    node.call(&format!("iptables-nft -A CNI-ADMIN -s {pod} -j DROP"))?;
    ensure!(!connects(&two, world)?, "CNI-ADMIN is not obeyed");
    node.call("iptables-nft -F CNI-ADMIN")?;
    ensure!(connects(&two, world)?, "CNI-ADMIN is empty");
    published.del(node, &one, &first)?;
    list.del(node, &two, &second)?;
    until("the plugin's rules are gone", || {
        let rules = node.call("iptables-nft -S")?;
        let gone = !rules.contains("CNI-ADMIN") && !rules.contains(&pod.to_string());
        Ok(gone.then_some(()))
    })?;
    drop(agent);
    Ok(())
}

#[test]
fn podmans_list_works_behind_a_policy_that_drops() -> Result<()> {
    podman_works(PluginSource::Ours)
}

#[test]
fn podmans_list_with_the_references_bridge_works_behind_a_policy_that_drops() -> Result<()> {
    podman_works(PluginSource::Reference)
}

fn nomad() -> Chain {
    let portmap = json!({
        "type": "portmap", "capabilities": { "portMappings": true }, "snat": true,
    });
    let firewall = json!({
        "type": "firewall", "backend": "iptables", "iptablesAdminChainName": "NOMAD-ADMIN",
    });
    let mut bridge = bridge("nomad", &["172.26.64.0/20"]);
    bridge["forceAddress"] = json!(true);
    let ports = json!([{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp" }]);
    Chain::new("0.4.0", "nomad")
        .with(PluginSource::Ours, json!({ "type": "loopback" }))
        .with(PluginSource::Ours, bridge)
        .with(PluginSource::Ours, firewall)
        .with(PluginSource::Ours, portmap)
        .with_capability("portMappings", ports)
}

/// Nomad makes NOMAD-ADMIN itself, with a rule that accepts its bridge.
#[test]
fn nomads_list_works_beside_dockers_rules_and_obeys_its_administrator() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let node = &sandbox.node;
    set_bridge_netfilter(node, true)?;
    restore(node, TOOLS, DOCKER)?;
    node.call("iptables-nft -N NOMAD-ADMIN")?;
    node.call("iptables-nft -A NOMAD-ADMIN -o nomad -j ACCEPT")?;
    let _agent = e2e::Agent::start(node, &[])?;
    let _world = Echo::start(&sandbox.world, 7000)?;
    let alloc = sandbox.machine("alloc")?;
    let list = nomad();
    let result = list.add(node, &alloc)?;
    let _echo = Echo::start(&alloc, 80)?;
    let (world, hostport) = (
        SocketAddr::new(WORLD[0], 7000),
        SocketAddr::new(NODE[0], 8080),
    );
    tcp_source(&alloc, 0, world).context("to the world")?;
    tcp_source(&sandbox.world, 0, hostport).context("the hostport")?;
    for policy in ["DROP", "ACCEPT"] {
        node.call(&format!("iptables-nft -P FORWARD {policy}"))?;
        node.call("iptables-nft -I NOMAD-ADMIN -i nomad -j DROP")?;
        until("NOMAD-ADMIN is obeyed", || {
            Ok((!connects(&alloc, world)?).then_some(()))
        })?;
        node.call("iptables-nft -D NOMAD-ADMIN -i nomad -j DROP")?;
        ensure!(connects(&alloc, world)?, "policy {policy}");
    }
    list.del(node, &alloc, &result)?;
    let rules = node.call("iptables-nft -S")?;
    assert!(
        rules.contains("-A NOMAD-ADMIN -o nomad -j ACCEPT"),
        "{rules}"
    );
    Ok(())
}

/// Without any other rules, a rule of the administrator drops as well, and packets bypass the
/// packet filter as long as there is none.
#[test]
fn a_rule_of_the_administrator_drops_on_a_node_without_other_rules() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let node = &sandbox.node;
    let _world = Echo::start(&sandbox.world, 7000)?;
    let pod = sandbox.machine("pod")?;
    let list = podman(PluginSource::Ours);
    let result = list.add(node, &pod)?;
    let world = SocketAddr::new(WORLD[0], 7000);
    let active = || Ok::<_, anyhow::Error>(agent.get("/v1/status")?["bypass"]["active"] == true);
    ensure!(
        active()?,
        "an empty chain of the administrator turns the bypass off"
    );
    ensure!(connects(&pod, world)?, "before the rule");
    node.call("iptables-nft -A CNI-ADMIN -i cni-podman0 -j DROP")?;
    until("the administrator's rule is obeyed", || {
        Ok((!connects(&pod, world)?).then_some(()))
    })?;
    node.call("iptables-nft -F CNI-ADMIN")?;
    until("the rule is gone", || {
        Ok(connects(&pod, world)?.then_some(()))
    })?;
    list.del(node, &pod, &result)?;
    until("the created chains are gone", || {
        Ok((!node.call("nft list ruleset")?.contains("CNI-ADMIN")).then_some(()))
    })
}

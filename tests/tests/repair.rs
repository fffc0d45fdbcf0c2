//! Repair: state of Viaduct that other software removes or changes is restored within seconds and
//! reported (behaviours K5, K27). State of other software stays unchanged.

use std::net::SocketAddr;

use abi::maps;
use anyhow::Result;
use e2e::{
    Agent, Config, Echo, GATEWAYS, Machine, Mapping, NODE, Pod, Sandbox, UPLINK, WORLD, ping,
    tcp_source, until,
};
use serde_json::Value;

/// One damage: the command that causes it, and a command whose output contains `words` after the
/// repair. `LINK` stands for the host's end of the pod's veth.
struct Damage {
    name: &'static str,
    command: &'static str,
    probe: &'static str,
    words: &'static str,
}

const DAMAGES: [Damage; 9] = [
    Damage {
        name: "the bridge",
        command: "ip link delete cbr0",
        probe: "ip -d link show LINK",
        words: "master cbr0",
    },
    Damage {
        name: "the bridge's address",
        command: "ip address del 10.244.1.1/24 dev cbr0",
        probe: "ip address show cbr0",
        words: "10.244.1.1/24",
    },
    Damage {
        name: "the bridge's IPv6 address",
        command: "ip address del fd00:10:244:1::1/64 dev cbr0",
        probe: "ip address show cbr0",
        words: "fd00:10:244:1::1/64",
    },
    Damage {
        name: "the hairpin flag",
        command: "ip link set LINK type bridge_slave hairpin off",
        probe: "bridge -d link show dev LINK",
        words: "hairpin on",
    },
    Damage {
        name: "the port",
        command: "ip link set LINK nomaster",
        probe: "ip link show LINK",
        words: "master cbr0",
    },
    Damage {
        name: "the pod's programs",
        command: "tc filter del dev LINK egress",
        probe: "tc filter show dev LINK egress",
        words: "viaduct/to_pod",
    },
    Damage {
        name: "the bridge's MTU",
        command: "ip link set cbr0 mtu 1400",
        probe: "ip link show cbr0",
        words: "mtu 1500",
    },
    Damage {
        name: "forwarding",
        command: "sysctl -qw net.ipv4.ip_forward=0",
        probe: "cat /proc/sys/net/ipv4/ip_forward",
        words: "1",
    },
    Damage {
        name: "the veth's state",
        command: "ip link set LINK down",
        probe: "ip link show LINK",
        words: ",UP",
    },
];

/// Commands that create foreign state.
const FOREIGN: [&str; 5] = [
    "ip link add br-other type bridge",
    // Before the bridge has a route: from then on Viaduct may take it for an uplink, and needs a
    // clsact qdisc there on a kernel without TCX.
    "tc qdisc add dev br-other clsact",
    "ip address add 10.50.0.1/24 dev br-other",
    "ip link set br-other up promisc on",
    "tc filter add dev br-other egress protocol ip prio 5 u32 match u32 0 0 classid 1:1",
];

const VIEWS: [&str; 4] = [
    "ip -o link show br-other",
    "ip -4 -o address show br-other",
    "tc filter show dev br-other egress",
    "ip rule show",
];

fn view(node: &Machine) -> Result<Vec<String>> {
    VIEWS.into_iter().map(|line| node.call(line)).collect()
}

fn is_repaired(node: &Machine, damage: &Damage, link: &str) -> Result<Option<()>> {
    let probe = damage.probe.replace("LINK", link);
    let output = node.output(&probe.split(' ').collect::<Vec<&str>>())?;
    let shown = String::from_utf8_lossy(&output.stdout);
    Ok(shown.contains(damage.words).then_some(()))
}

/// Returns the number of events with the outcome `repaired`.
fn repairs(agent: &Agent) -> Result<usize> {
    let lines = agent.ctl("events --json")?;
    let events = lines.lines().map(serde_json::from_str::<Value>);
    let repaired = events.filter(|event| {
        event
            .as_ref()
            .is_ok_and(|event| event["outcome"] == "repaired")
    });
    Ok(repaired.count())
}

/// Causes the damage and waits for its repair, its log line, its event, and a successful CHECK.
fn await_repair(sandbox: &Sandbox, agent: &Agent, pod: &Pod, damage: &Damage) -> Result<()> {
    let (node, link) = (&sandbox.node, pod.host_link());
    let logged = agent.log().matches("repaired:").count();
    let known = repairs(agent)?;
    node.call(&damage.command.replace("LINK", link))?;
    until(&format!("{} is repaired", damage.name), || {
        is_repaired(node, damage, link)
    })?;
    until(
        &format!("the repair of {} is reported", damage.name),
        || {
            let more = agent.log().matches("repaired:").count() > logged;
            let events = repairs(agent)? > known;
            Ok((more && events).then_some(()))
        },
    )?;
    until(&format!("the pod works after {}", damage.name), || {
        Ok(pod.check()?.success().ok())
    })?;
    for gateway in GATEWAYS {
        ping(&pod.machine, gateway, 1)?;
    }
    Ok(())
}

/// behaviours K5, K27
#[test]
fn damaged_links_and_settings_are_repaired_and_foreign_ones_left_alone() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let mut pod = sandbox.pod("pod")?;
    pod.add()?;
    for line in FOREIGN {
        sandbox.node.call(line)?;
    }
    let before = view(&sandbox.node)?;
    for damage in &DAMAGES {
        await_repair(&sandbox, &agent, &pod, damage)?;
        assert_eq!(view(&sandbox.node)?, before, "after {}", damage.name);
    }
    Ok(())
}

/// behaviour K27: the status names the reasons.
#[test]
fn the_status_of_a_degraded_agent_names_the_reasons() -> Result<()> {
    let sandbox = Sandbox::new()?;
    sandbox.node.call(&format!("ip link delete {UPLINK}"))?;
    let flags = ["--uplink=gone0", "--pod-cidr=10.244.1.0/29"]
        .map(str::to_owned)
        .into();
    let agent = Agent::start_with(&sandbox.node, flags)?;
    for number in 0..5 {
        sandbox.pod(&format!("pod{number}"))?.add()?;
    }
    let status = agent.get("/v1/status")?;
    let reasons = status["degraded"].to_string();
    for reason in ["no-uplink", "uplink-missing", "pool-exhausted"] {
        assert!(reasons.contains(reason), "{reason}: {reasons}");
    }
    Ok(())
}

/// behaviours K23, K24: the record of a container, or the state of its namespace where there is no
/// record. IPv4 comes first.
#[test]
fn a_container_is_inspected_by_its_record_or_by_its_namespace() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let mut pod = sandbox.pod("pod")?;
    pod.add()?;
    let shown = agent.ctl("inspect pod")?;
    for address in &pod.addresses {
        assert!(shown.contains(&address.to_string()), "{shown}");
    }
    let missing = agent.ctl("inspect other").unwrap_err().to_string();
    let words = "cannot find the network namespace, skipping pod network status";
    assert!(missing.contains(words), "{missing}");

    let path = pod.machine.path();
    let found = agent.get(&format!("/v1/attachments/other?netns={path}"))?;
    assert_eq!(found[0]["state"], "not on record");
    for (index, address) in pod.addresses.iter().enumerate() {
        let text = found[0]["addresses"][index]["address"].to_string();
        assert!(text.contains(&format!("{address}/")), "{found}");
    }
    Ok(())
}

/// Maps whose entries other software can delete. The others are arrays, or are filled by packets.
const TABLES: [&str; 7] = [
    maps::INTERFACES.name,
    maps::ENDPOINTS.name,
    maps::HOSTPORTS.name,
    maps::NETWORKS.name,
    maps::UPLINKS.name,
    maps::LOCALS.name,
    maps::PREFIXES.name,
];

fn table(name: &str) -> String {
    format!("/sys/fs/bpf/viaduct/v{}/maps/{name}", abi::ABI_VERSION)
}

/// Returns the sorted keys of a map, each as bytes in hexadecimal digits.
fn keys(node: &Machine, name: &str) -> Result<Vec<Vec<String>>> {
    let dump = node.call_json(&format!("bpftool -j map dump pinned {}", table(name)))?;
    let entries = dump.as_array().cloned().unwrap_or_default();
    let key = |entry: &Value| serde_json::from_value(entry["key"].clone());
    let mut keys: Vec<Vec<String>> = entries.iter().map(key).collect::<Result<_, _>>()?;
    keys.sort();
    Ok(keys)
}

/// Deletes all entries of a map, and returns their keys.
fn clear(node: &Machine, name: &str) -> Result<Vec<Vec<String>>> {
    let keys = keys(node, name)?;
    for key in &keys {
        let key = key.join(" ");
        node.call(&format!(
            "bpftool map delete pinned {} key {key}",
            table(name)
        ))?;
    }
    Ok(keys)
}

/// behaviour K5
#[test]
fn deleted_map_entries_are_restored() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let node = &sandbox.node;
    let mut pod = sandbox.pod("pod")?;
    let port = [Mapping::tcp(8080, 80)];
    pod.add_with(Config::new("1.1.0").publish(&port))?;
    let before: Vec<_> = TABLES
        .iter()
        .map(|name| clear(node, name))
        .collect::<Result<_>>()?;
    let row = "key 1 0 0 0 value".to_owned() + &" 0".repeat(size_of::<abi::Pod>());
    node.call(&format!(
        "bpftool map update pinned {} {row}",
        table(maps::PODS.name)
    ))?;
    for (name, before) in TABLES.iter().zip(&before) {
        assert!(!before.is_empty(), "{name} is empty before the damage");
        until(&format!("{name} has its entries again"), || {
            Ok((keys(node, name)? == *before).then_some(()))
        })?;
    }
    until("a CHECK of the pod succeeds", || {
        Ok(pod.check()?.success().ok())
    })?;
    until("the repair is logged", || {
        Ok(agent.log().contains("repaired:").then_some(()))
    })?;
    let _echo = Echo::start(&pod.machine, 80)?;
    tcp_source(&sandbox.world, 0, SocketAddr::new(NODE[0], 8080))?;
    for world in WORLD {
        ping(&pod.machine, world, 1)?;
    }
    Ok(())
}

/// Commands that add foreign state to Viaduct's links.
const ADDITIONS: [&str; 6] = [
    "ip address add 10.99.0.1/24 dev cbr0",
    "ip route add 198.51.100.0/24 dev cbr0",
    "ip neigh add 10.99.0.7 lladdr 02:00:00:00:00:07 dev cbr0",
    "tc qdisc add dev LINK root pfifo limit 55",
    "tc filter add dev LINK ingress protocol ip prio 7 u32 match u32 0 0 classid 1:1",
    "tc filter add dev cbr0 ingress protocol ip prio 8 u32 match u32 0 0 classid 1:2",
];

const ADDITION_VIEWS: [&str; 6] = [
    "ip -o -4 address show dev cbr0",
    "ip route show 198.51.100.0/24",
    "ip neigh show dev cbr0 nud permanent",
    "tc qdisc show dev LINK",
    "tc filter show dev LINK ingress pref 7",
    "tc filter show dev cbr0 ingress",
];

/// behaviour K15: Viaduct's state is restored, and what other software added stays untouched.
#[test]
fn foreign_additions_to_bridge_and_veths_survive_every_repair() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let mut pod = sandbox.pod("pod")?;
    pod.add()?;
    let link = pod.host_link().to_owned();
    sandbox.node.call("tc qdisc add dev cbr0 clsact")?;
    for line in ADDITIONS {
        sandbox.node.call(&line.replace("LINK", &link))?;
    }
    let view = || -> Result<Vec<String>> {
        let views = ADDITION_VIEWS
            .iter()
            .map(|line| line.replace("LINK", &link));
        views
            .map(|line| {
                let shown = sandbox.node.call(&line)?;
                // A restored address is listed after the others.
                let mut lines: Vec<&str> = shown.lines().map(str::trim).collect();
                lines.sort_unstable();
                Ok(lines.join("\n"))
            })
            .collect()
    };
    let before = view()?;
    let ours = [
        "the bridge's address",
        "the hairpin flag",
        "the pod's programs",
        "the bridge's MTU",
    ];
    let damages: Vec<&Damage> = DAMAGES
        .iter()
        .filter(|damage| ours.contains(&damage.name))
        .collect();
    assert_eq!(damages.len(), ours.len());
    for damage in damages {
        await_repair(&sandbox, &agent, &pod, damage)?;
        assert_eq!(view()?, before, "after {}", damage.name);
    }
    pod.del()?;
    let left = sandbox.node.call(ADDITION_VIEWS[0])?;
    assert!(left.contains("10.99.0.1/24"), "{left}");
    Ok(())
}

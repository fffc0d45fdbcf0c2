//! What somebody takes away behind our back comes back within seconds, and is told (behaviours K5, K27). What belongs to
//! somebody else is left as it is.

use std::net::SocketAddr;

use abi::maps;
use anyhow::Result;
use e2e::{
    Agent, Config, Echo, GATEWAYS, Machine, Mapping, NODE, Pod, Sandbox, UPLINK, WORLD, ping,
    tcp_source, until,
};
use serde_json::Value;

/// Damage, and a command whose output shows that it is undone, with words of that output. `LINK` stands for the host's
/// end of the pod's veth.
struct Wound {
    name: &'static str,
    harm: &'static str,
    look: &'static str,
    words: &'static str,
}

const WOUNDS: [Wound; 9] = [
    Wound {
        name: "the bridge",
        harm: "ip link delete cbr0",
        look: "ip -d link show LINK",
        words: "master cbr0",
    },
    Wound {
        name: "the bridge's address",
        harm: "ip address del 10.244.1.1/24 dev cbr0",
        look: "ip address show cbr0",
        words: "10.244.1.1/24",
    },
    Wound {
        name: "the bridge's IPv6 address",
        harm: "ip address del fd00:10:244:1::1/64 dev cbr0",
        look: "ip address show cbr0",
        words: "fd00:10:244:1::1/64",
    },
    Wound {
        name: "the hairpin flag",
        harm: "ip link set LINK type bridge_slave hairpin off",
        look: "bridge -d link show dev LINK",
        words: "hairpin on",
    },
    Wound {
        name: "the port",
        harm: "ip link set LINK nomaster",
        look: "ip link show LINK",
        words: "master cbr0",
    },
    Wound {
        name: "the pod's programs",
        harm: "tc filter del dev LINK egress",
        look: "tc filter show dev LINK egress",
        words: "viaduct/to_pod",
    },
    Wound {
        name: "the bridge's MTU",
        harm: "ip link set cbr0 mtu 1400",
        look: "ip link show cbr0",
        words: "mtu 1500",
    },
    Wound {
        name: "forwarding",
        harm: "sysctl -qw net.ipv4.ip_forward=0",
        look: "cat /proc/sys/net/ipv4/ip_forward",
        words: "1",
    },
    Wound {
        name: "the veth's state",
        harm: "ip link set LINK down",
        look: "ip link show LINK",
        words: ",UP",
    },
];

const STRANGERS: [&str; 5] = [
    "ip link add br-other type bridge",
    // Before it has a route: then it may be an uplink to us, and a kernel without TCX needs this there.
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

fn is_well(node: &Machine, wound: &Wound, link: &str) -> Result<Option<()>> {
    let words: Vec<String> = wound
        .look
        .split(' ')
        .map(|word| word.replace("LINK", link))
        .collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let shown = node.output(&words)?;
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    Ok(shown.contains(wound.words).then_some(()))
}

/// How many of the events are repairs.
fn repairs(agent: &Agent) -> Result<usize> {
    let events = agent.ctl("events --json")?;
    let events = events.lines().map(serde_json::from_str::<Value>);
    let repaired = events.filter(|event| {
        event
            .as_ref()
            .is_ok_and(|event| event["outcome"] == "repaired")
    });
    Ok(repaired.count())
}

fn heal(sandbox: &Sandbox, agent: &Agent, pod: &Pod, wound: &Wound) -> Result<()> {
    let (node, link) = (&sandbox.node, pod.host_link());
    let told = agent.log().matches("repaired:").count();
    let known = repairs(agent)?;
    node.call(&wound.harm.replace("LINK", link))?;
    until(&format!("{} is back", wound.name), || {
        is_well(node, wound, link)
    })?;
    until(&format!("{} is told of", wound.name), || {
        let more = agent.log().matches("repaired:").count() > told;
        let events = repairs(agent)? > known;
        Ok((more && events).then_some(()))
    })?;
    until(&format!("the pod works after {}", wound.name), || {
        Ok(pod.check()?.success().ok())
    })?;
    for gateway in GATEWAYS {
        ping(&pod.machine, gateway, 1)?;
    }
    Ok(())
}

/// behaviours K5, K27
#[test]
fn what_is_taken_away_comes_back_and_strangers_are_left_alone() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let mut pod = sandbox.pod("pod")?;
    pod.add()?;
    for line in STRANGERS {
        sandbox.node.call(line)?;
    }
    let before = view(&sandbox.node)?;
    for wound in &WOUNDS {
        heal(&sandbox, &agent, &pod, wound)?;
        assert_eq!(view(&sandbox.node)?, before, "after {}", wound.name);
    }
    Ok(())
}

/// behaviour K27: with reasons.
#[test]
fn an_agent_without_what_it_needs_says_what_that_is() -> Result<()> {
    let sandbox = Sandbox::new()?;
    sandbox.node.call(&format!("ip link delete {UPLINK}"))?;
    let flags = ["--uplink=gone0", "--pod-cidr=10.244.1.0/29"];
    let flags = flags.map(str::to_owned).into();
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

/// behaviours K23, K24: everything that is known, and where nothing is, what is in the namespace. IPv4 comes first.
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

/// Tables whose entries somebody may delete. The others are arrays, or hold what only packets know.
const TABLES: [&str; 7] = [
    maps::INTERFACES,
    maps::ENDPOINTS,
    maps::HOSTPORTS,
    maps::NETWORKS,
    maps::UPLINKS,
    maps::LOCALS,
    maps::PREFIXES,
];

fn table(name: &str) -> String {
    format!("/sys/fs/bpf/viaduct/v{}/maps/{name}", abi::ABI_VERSION)
}

/// The keys of a table in order, each as bytes in hexadecimal digits.
fn keys(node: &Machine, name: &str) -> Result<Vec<Vec<String>>> {
    let dump = node.call_json(&format!("bpftool -j map dump pinned {}", table(name)))?;
    let entries = dump.as_array().cloned().unwrap_or_default();
    let key = |entry: &Value| serde_json::from_value(entry["key"].clone());
    let mut keys: Vec<Vec<String>> = entries.iter().map(key).collect::<Result<_, _>>()?;
    keys.sort();
    Ok(keys)
}

fn empty(node: &Machine, name: &str) -> Result<Vec<Vec<String>>> {
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
fn table_entries_that_somebody_deletes_are_written_again() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let node = &sandbox.node;
    let mut pod = sandbox.pod("pod")?;
    let port = [Mapping::tcp(8080, 80)];
    pod.add_with(Config::new("1.1.0").publish(&port))?;
    let before: Vec<_> = TABLES
        .iter()
        .map(|name| empty(node, name))
        .collect::<Result<_>>()?;
    let row = "key 1 0 0 0 value".to_owned() + &" 0".repeat(size_of::<abi::Pod>());
    node.call(&format!(
        "bpftool map update pinned {} {row}",
        table(maps::PODS)
    ))?;
    for (name, before) in TABLES.iter().zip(&before) {
        assert!(!before.is_empty(), "{name} has nothing to lose");
        until(&format!("{name} is as it was"), || {
            Ok((keys(node, name)? == *before).then_some(()))
        })?;
    }
    until("the pod is as it was", || Ok(pod.check()?.success().ok()))?;
    let log = agent.log();
    assert!(log.contains("repaired:"), "it is told: {log}");
    let _echo = Echo::start(&pod.machine, 80)?;
    tcp_source(&sandbox.world, 0, SocketAddr::new(NODE[0], 8080))?;
    for world in WORLD {
        ping(&pod.machine, world, 1)?;
    }
    Ok(())
}

/// What others add to what is ours.
const GUESTS: [&str; 6] = [
    "ip address add 10.99.0.1/24 dev cbr0",
    "ip route add 198.51.100.0/24 dev cbr0",
    "ip neigh add 10.99.0.7 lladdr 02:00:00:00:00:07 dev cbr0",
    "tc qdisc add dev LINK root pfifo limit 55",
    "tc filter add dev LINK ingress protocol ip prio 7 u32 match u32 0 0 classid 1:1",
    "tc filter add dev cbr0 ingress protocol ip prio 8 u32 match u32 0 0 classid 1:2",
];

const GUEST_VIEWS: [&str; 6] = [
    "ip -o -4 address show dev cbr0",
    "ip route show 198.51.100.0/24",
    "ip neigh show dev cbr0 nud permanent",
    "tc qdisc show dev LINK",
    "tc filter show dev LINK ingress pref 7",
    "tc filter show dev cbr0 ingress",
];

/// behaviour K15: our own comes back beside what others have added, and theirs is not touched.
#[test]
fn what_others_add_to_ours_survives_every_repair() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let mut pod = sandbox.pod("pod")?;
    pod.add()?;
    let link = pod.host_link().to_owned();
    sandbox.node.call("tc qdisc add dev cbr0 clsact")?;
    for line in GUESTS {
        sandbox.node.call(&line.replace("LINK", &link))?;
    }
    let view = || -> Result<Vec<String>> {
        let views = GUEST_VIEWS.iter().map(|line| line.replace("LINK", &link));
        views
            .map(|line| {
                let shown = sandbox.node.call(&line)?;
                // An address that came back stands behind the others.
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
    let wounds: Vec<&Wound> = WOUNDS
        .iter()
        .filter(|wound| ours.contains(&wound.name))
        .collect();
    assert_eq!(wounds.len(), ours.len());
    for wound in wounds {
        heal(&sandbox, &agent, &pod, wound)?;
        assert_eq!(view()?, before, "after {}", wound.name);
    }
    pod.del()?;
    let left = sandbox.node.call(GUEST_VIEWS[0])?;
    assert!(left.contains("10.99.0.1/24"), "{left}");
    Ok(())
}

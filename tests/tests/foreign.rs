//! State of other software stays unchanged, byte for byte, whatever Viaduct does.

use anyhow::Result;
use e2e::{Config, Machine, Mapping, Sandbox, UPLINK};

/// Commands that create foreign state, some of which resembles Viaduct's.
const FOREIGN: [&str; 13] = [
    "ip link add br-other type bridge",
    "ip address add 10.50.0.1/24 dev br-other",
    "ip link set br-other up",
    "ip link add veth0badcafe type veth peer name other-end",
    "ip link set veth0badcafe master br-other up",
    "ip address add 192.0.2.200/24 dev up0",
    "ip route add 198.51.100.0/24 via 192.0.2.2",
    "ip rule add from 10.50.0.0/24 lookup 99",
    "tc qdisc add dev veth0badcafe root pfifo limit 77",
    "tc qdisc add dev up0 clsact",
    // The bridge has a route, so Viaduct may take it for an uplink and need a clsact qdisc there on
    // a kernel without TCX.
    "tc qdisc add dev br-other clsact",
    "tc filter add dev up0 ingress protocol ip prio 5 u32 match u32 0 0 classid 1:1",
    "tc filter add dev up0 egress protocol ip prio 49152 u32 match ip dst 198.51.100.7 classid 1:2",
];

const RULES: &str = "table inet other { chain forward { type filter hook forward priority 10; policy accept; ip saddr 10.50.0.0/24 drop; }; }";

/// Commands that print the foreign state.
const VIEWS: [&str; 13] = [
    "ip -d link show br-other",
    "ip -d link show veth0badcafe",
    "ip address show br-other",
    "ip -4 address show up0",
    "ip route show 198.51.100.0/24",
    "ip rule show",
    "tc qdisc show dev br-other",
    "tc qdisc show dev veth0badcafe",
    "tc qdisc show dev up0",
    "tc filter show dev up0 ingress pref 5",
    "tc filter show dev up0 egress pref 49152",
    // Not the whole ruleset: the bridge gets a table of ours, `inet viaduct`.
    "nft list table inet other",
    "iptables-save -t nat",
];

fn settle(node: &Machine) -> Result<()> {
    for line in FOREIGN {
        node.call(&line.replace("up0", UPLINK))?;
    }
    node.call_words(&["nft", RULES]).map(drop)
}

fn view(node: &Machine) -> Result<Vec<String>> {
    VIEWS
        .into_iter()
        .map(|line| Ok(format!("$ {line}\n{}", steady(&node.call(line)?))))
        .collect()
}

/// Removes what changes by itself: timers of the bridge, the state `tentative` of addresses, times.
fn steady(shown: &str) -> String {
    let is_stable = |word: &&str| !word.is_empty() && word.trim() != "tentative";
    let mut words = shown.split(' ').filter(is_stable);
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        kept.push(word);
        if word.ends_with("_timer") {
            words.next();
        }
    }
    let text = kept.join(" ");
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .collect::<Vec<_>>()
        .join("\n")
}

#[test]
fn foreign_state_survives_start_add_restart_del_and_stop() -> Result<()> {
    let sandbox = Sandbox::new()?;
    settle(&sandbox.node)?;
    let before = view(&sandbox.node)?;
    let assert_untouched = |when: &str| -> Result<()> {
        for (before, after) in before.iter().zip(view(&sandbox.node)?) {
            assert_eq!(*before, after, "{when}");
        }
        Ok(())
    };

    let mut agent = e2e::Agent::start(&sandbox.node, &[])?;
    assert_untouched("after the start")?;
    let mut pod = sandbox.pod("pod")?;
    pod.add_with(Config::new("1.1.0").publish(&[Mapping::tcp(8080, 80)]))?;
    assert_untouched("after ADD")?;
    agent.kill()?;
    agent.restart()?;
    assert_untouched("after kill -9 and restart")?;
    pod.del()?;
    assert_untouched("after DEL")?;
    agent.terminate()?;
    assert_untouched("after the stop")
}

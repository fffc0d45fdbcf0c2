//! Statements of rules are read from the kernel as `nft`, `iptables-nft` and `iptables-legacy` have
//! written them, and classified by the planner.

mod support;

use kernel::Host;
use planner::holding_rules;
use support::*;

/// Rules of a chain at the forward hook, and whether they must see every packet.
const NFTABLES: [(&str, bool); 18] = [
    ("ct state established,related counter accept", false),
    (
        "ct state vmap { established : accept, invalid : drop }",
        false,
    ),
    ("ct state new limit rate 5/second accept", false),
    ("ip saddr 10.0.0.0/8 tcp dport { 80, 443 } accept", false),
    ("ip6 daddr fd00::/8 udp sport 53 accept", false),
    ("iifname \"up0\" oifname != \"cbr0\" accept", false),
    ("ether saddr 02:00:00:00:00:01 accept", false),
    ("tcp flags & (fin|syn|rst|ack) == syn accept", false),
    ("meta mark set 1", false),
    ("meta mark 1 accept", false),
    ("limit rate 5/second accept", true),
    ("quota over 10 mbytes drop", true),
    ("log prefix \"company\"", true),
    ("ip ttl 5 drop", true),
    ("ip dscp 5 accept", true),
    ("meta length > 100 drop", true),
    ("tcp flags psh drop", true),
    ("ct packets > 100 drop", true),
];

const IPTABLES: [(&str, bool); 8] = [
    (
        "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
        false,
    ),
    ("-m conntrack --ctstate INVALID -j DROP", false),
    (
        "-s 10.0.0.0/8 -i up0 -p tcp -m multiport --dports 80,443 -j ACCEPT",
        false,
    ),
    ("-p tcp --syn -j ACCEPT", false),
    (
        "-m mark --mark 0x4000/0x4000 -m comment --comment x -j ACCEPT",
        false,
    ),
    ("-m limit --limit 5/s -j ACCEPT", true),
    ("-p tcp --tcp-flags ALL PSH -j DROP", true),
    ("-j LOG", true),
];

/// Returns the rules that need every packet, as texts.
fn holding(host: &mut Host) -> Vec<String> {
    let rules = holding_rules(&observe(host));
    rules.iter().map(ToString::to_string).collect()
}

#[test]
fn rules_of_nftables_that_need_every_packet_are_found() {
    on_a_node(|node| {
        let mut host = node.host();
        let mut known = 0;
        for (rule, needs) in NFTABLES {
            run("nft add table inet company ; \
                add chain inet company forward { type filter hook forward priority 0 ; }");
            // Kernels have some statements as modules.
            if succeeds(&format!("nft add rule inet company forward {rule}")) {
                known += 1;
                let found = holding(&mut host);
                assert_eq!(!found.is_empty(), needs, "{rule}: {found:?}");
                let place = "nftables: table inet company, chain forward, rule 1: ";
                assert!(
                    found.iter().all(|rule| rule.starts_with(place)),
                    "{found:?}"
                );
            }
            run("nft delete table inet company");
        }
        assert!(known > NFTABLES.len() / 2, "{known} statements");
    });
}

#[test]
fn rules_of_iptables_that_need_every_packet_are_found() {
    on_a_node(|node| {
        let mut host = node.host();
        for tool in ["iptables-legacy", "iptables-nft"] {
            let mut known = 0;
            for (rule, needs) in IPTABLES {
                if succeeds(&format!("{tool} -A FORWARD {rule}")) {
                    known += 1;
                    let found = holding(&mut host);
                    assert_eq!(!found.is_empty(), needs, "{tool} {rule}: {found:?}");
                }
                run(&format!("{tool} -F FORWARD"));
            }
            // First packets only are evaluated in this table.
            if succeeds(&format!(
                "{tool} -t nat -A POSTROUTING -m limit --limit 5/s -j ACCEPT"
            )) {
                assert_eq!(holding(&mut host), [""; 0]);
            }
            assert!(known > IPTABLES.len() / 2, "{tool}: {known} rules");
        }
    });
}

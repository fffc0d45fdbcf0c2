//! Forwarding rules in real filter tables: iptables-nft, iptables-legacy and nft of their own.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind::WouldBlock;

use kernel::{Host, Kernel as _, Observe as _, RuleReader};
use planner::{ForwardingIntent, ForwardingMode, Probe, plan_forwarding, plan_forwarding_removal};
use steps::{
    AcceptRule, FilterBackend, FilterFamily, FilterTable, ForwardTables, ForwardingQuery,
    ForwardingStep, Step,
};
use support::*;

fn tables(host: &mut Host) -> ForwardTables {
    host.observe(&ForwardingQuery).expect("tables")
}

fn intent() -> ForwardingIntent {
    let link = || "cbr0".parse().expect("a name");
    let (v4, v6) = ("10.88.0.2".parse().unwrap(), "fd00::2".parse().unwrap());
    let mut rules = vec![
        AcceptRule::AnswersTo(link()),
        AcceptRule::AnswersToAddress(v4),
        AcceptRule::AnswersToAddress(v6),
        AcceptRule::From(link()),
        AcceptRule::FromAddress(v4),
        AcceptRule::FromAddress(v6),
    ];
    for prefix in ["10.0.0.0/8", "10.16.0.0/12", "fd00::/8", "fd00::/61"] {
        rules.push(AcceptRule::Direct(prefix.parse().unwrap(), link()));
    }
    for source in [
        None,
        Some("10.81.2.0/24"),
        Some("10.81.4.0/23"),
        Some("fd00:81:2::/64"),
    ] {
        rules.push(AcceptRule::Peers {
            input: "lan0".parse().unwrap(),
            source: source.map(|prefix| prefix.parse().unwrap()),
            link: link(),
        });
    }
    for protocol in [
        model::Protocol::Tcp,
        model::Protocol::Udp,
        model::Protocol::Sctp,
    ] {
        for address in [v4, v6] {
            for ports in [(80, 80), (8000, 8999)] {
                rules.push(AcceptRule::ToPorts {
                    address,
                    protocol,
                    ports,
                });
            }
        }
    }
    ForwardingIntent {
        mode: ForwardingMode::Auto,
        rules,
        admin_chains: BTreeSet::new(),
        created: BTreeSet::new(),
        refused: BTreeMap::new(),
        families: [FilterFamily::Ip, FilterFamily::Ip6].into(),
        probes: vec![Probe::new(FilterFamily::Ip, link(), BTreeSet::new(), v4)],
    }
}

fn with_admin() -> ForwardingIntent {
    let chains = [FilterFamily::Ip, FilterFamily::Ip6].map(|it| (it, "CNI-ADMIN".to_owned()));
    ForwardingIntent {
        admin_chains: chains.into(),
        ..intent()
    }
}

/// Executes what `plan` returns until it returns nothing. A step changes the generation of the
/// other tables of nftables, whose steps are refused then.
fn settle_by(host: &mut Host, plan: impl Fn(&ForwardTables) -> Vec<ForwardingStep>) {
    for _ in 0..8 {
        let steps = plan(&tables(host));
        if steps.is_empty() {
            return;
        }
        for step in steps {
            match host.execute(&Step::Forwarding(step)) {
                Err(error) if error.source.kind() == WouldBlock => {}
                done => done.expect("a step"),
            }
        }
    }
    let seen = tables(host);
    panic!("{:#?} is left of {seen:#?}", plan(&seen));
}

fn settle(host: &mut Host, intent: &ForwardingIntent) {
    settle_by(host, |tables| plan_forwarding(intent, tables).steps);
}

fn remove(host: &mut Host, created: &BTreeSet<(FilterTable, String)>) {
    settle_by(host, |tables| plan_forwarding_removal(tables, created));
}

/// Rules as Docker writes them, and one of the operator.
fn docker(tool: &str) {
    for line in [
        "-N DOCKER-USER",
        "-N DOCKER",
        "-N Z-LAST",
        "-P FORWARD DROP",
        "-A FORWARD -j DOCKER-USER",
        "-A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
        "-A FORWARD -o docker0 -j DOCKER",
        "-A FORWARD -i docker0 ! -o docker0 -j ACCEPT",
        "-A FORWARD -i veth+ -p tcp -m limit --limit 3/min -j LOG --log-prefix forwarded",
        "-A DOCKER-USER -i evil -j DROP",
        "-A DOCKER-USER -j RETURN",
        "-A DOCKER -g Z-LAST",
        "-A Z-LAST -p udp -m multiport --dports 1,2,3 -j REJECT",
        "-A INPUT -i lo -j ACCEPT",
    ] {
        run(&format!("{tool} {line}"));
    }
}

/// Output of a command, with counters: `[packets:bytes]` of chains are left out.
fn save(tool: &str) -> String {
    let text = run(&format!("{tool}-save -c -t filter"));
    let lines = text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.starts_with(':'));
    lines.collect::<Vec<_>>().join("\n")
}

fn works_with_docker(tool: &'static str, backend: FilterBackend) {
    on_a_node(move |node| {
        let mut host = node.host();
        docker(tool);
        let before = save(tool);
        settle(&mut host, &intent());
        let listed = run(&format!("{tool} -S"));
        assert!(listed.contains("-A FORWARD -m comment --comment \"viaduct: packets of pods, before the default\" -j VIADUCT-FORWARD"), "{listed}");
        let last = listed.lines().rfind(|line| line.starts_with("-A FORWARD"));
        assert!(last.unwrap().contains("VIADUCT-FORWARD"), "{listed}");
        for rule in [
            "-i cbr0 ",
            "-o cbr0 -m conntrack --ctstate RELATED,ESTABLISHED ",
            // Of the prefix with 24 bits, or 64.
            "4 -i lan0 -o cbr0 -m comment",
            "VIADUCT-FORWARD -i lan0 -o cbr0 -m comment",
            "-p tcp -m ",
            "dports 80",
            "-p sctp -m multiport --dports 80",
        ] {
            assert!(listed.contains(rule), "{rule}: {listed}");
        }
        let own = save(tool);
        let foreign: Vec<&str> = own
            .lines()
            .filter(|line| !line.contains("VIADUCT"))
            .collect();
        assert_eq!(foreign.join("\n"), before);
        // A rule behind ours, and one in front.
        run(&format!("{tool} -A FORWARD -i evil2 -j DROP"));
        settle(&mut host, &intent());
        let listed = run(&format!("{tool} -S FORWARD"));
        assert!(
            listed.trim_end().ends_with("-j VIADUCT-FORWARD"),
            "{listed}"
        );
        run(&format!("{tool} -D FORWARD -i evil2 -j DROP"));
        settle(&mut host, &with_admin());
        let listed = run(&format!("{tool} -S FORWARD"));
        assert!(
            listed.lines().nth(1).unwrap().contains("VIADUCT-ADMIN"),
            "{listed}"
        );
        // Without the default, nothing but the administrator's chain is left.
        run(&format!("{tool} -P FORWARD ACCEPT"));
        settle(&mut host, &intent());
        run(&format!("{tool} -P FORWARD DROP"));
        settle(&mut host, &with_admin());
        let family = if tool.starts_with("ip6") {
            FilterFamily::Ip6
        } else {
            FilterFamily::Ip
        };
        let table = FilterTable {
            backend,
            ..FilterTable::iptables(family)
        };
        remove(&mut host, &[(table, "CNI-ADMIN".to_owned())].into());
        assert_eq!(save(tool), before);
    });
}

#[test]
fn rules_of_iptables_nft_are_kept_and_listed() {
    works_with_docker("iptables-nft", FilterBackend::Nftables);
}

#[test]
fn rules_of_ip6tables_nft_are_kept_and_listed() {
    works_with_docker("ip6tables-nft", FilterBackend::Nftables);
}

#[test]
fn rules_of_iptables_legacy_are_kept_and_listed() {
    works_with_docker("iptables-legacy", FilterBackend::Xtables);
}

#[test]
fn rules_of_ip6tables_legacy_are_kept_and_listed() {
    works_with_docker("ip6tables-legacy", FilterBackend::Xtables);
}

#[test]
fn counters_of_legacy_rules_survive_a_write() {
    on_a_node(|node| {
        let mut host = node.host();
        run("iptables-legacy -A INPUT -i lo -m comment --comment counted");
        run("iptables-legacy -P FORWARD DROP");
        run("ping -c 3 -i 0.01 127.0.0.1");
        let counted = || {
            let text = run("iptables-legacy-save -c -t filter");
            let line = text
                .lines()
                .find(|line| line.contains("counted"))
                .expect("the rule");
            line.split(']').next().unwrap_or("").to_owned()
        };
        let before = counted();
        assert!(!before.starts_with("[0:"), "{before}");
        settle(&mut host, &intent());
        assert_eq!(counted(), before);
    });
}

/// A user's own table, firewalld's layout, and a table of bridges.
const NATIVE: &str = r#"
table inet mine {
    chain forward {
        type filter hook forward priority 0; policy drop;
        ct state vmap { established : accept, related : accept, invalid : drop }
        iifname "a" oifname { "b", "c" } accept
    }
}
table inet zones {
    chain zone {
        iifname "eth0" accept
    }
    chain filter_FORWARD {
        type filter hook forward priority 10;
        ct status dnat accept
        jump zone
        reject with icmpx admin-prohibited
    }
}
table bridge guard {
    chain forward {
        type filter hook forward priority 0; policy drop;
    }
}
"#;

#[test]
fn native_tables_of_nftables_get_native_rules() {
    on_a_node(|node| {
        let mut host = node.host();
        std::fs::write(node.path().join("rules"), NATIVE).unwrap();
        run(&format!("nft -f {}", node.path().join("rules").display()));
        let before = run("nft list ruleset");
        settle(&mut host, &intent());
        let listed = run("nft list ruleset");
        for rule in [
            "iifname \"cbr0\" counter",
            "oifname \"cbr0\" ct state established,related counter",
            "ip daddr 10.88.0.2 tcp dport 80 counter",
            "ip6 daddr fd00::2 sctp dport 80 counter",
            "oifname \"cbr0\" ip saddr 10.16.0.0/12 counter",
            "oifname \"cbr0\" ip6 saddr fd00::/61 counter",
            "iifname \"lan0\" oifname \"cbr0\" counter",
            "iifname \"lan0\" oifname \"cbr0\" ip saddr 10.81.2.0/24 counter",
            "iifname \"lan0\" oifname \"cbr0\" ip saddr 10.81.4.0/23 counter",
            "iifname \"lan0\" oifname \"cbr0\" ip6 saddr fd00:81:2::/64 counter",
        ] {
            assert_eq!(listed.matches(rule).count(), 2, "{rule}: {listed}");
        }
        // The listing can be loaded.
        std::fs::write(node.path().join("listed"), &listed).unwrap();
        run(&format!(
            "nft -c -f {}",
            node.path().join("listed").display()
        ));
        let plan = plan_forwarding(&intent(), &tables(&mut host));
        let whats: Vec<&str> = plan.defaults.iter().map(|it| it.what.as_str()).collect();
        assert_eq!(
            whats,
            [
                "last rule of chain filter_FORWARD of table inet zones",
                "policy DROP of chain forward of table bridge guard",
                "policy DROP of chain forward of table inet mine",
            ]
        );
        remove(&mut host, &BTreeSet::new());
        assert_eq!(run("nft list ruleset"), before);
    });
}

#[test]
fn a_step_for_a_table_that_has_changed_is_refused() {
    on_a_node(|node| {
        let mut host = node.host();
        for tool in ["iptables-nft", "iptables-legacy"] {
            run(&format!("{tool} -P FORWARD DROP"));
        }
        let steps = plan_forwarding(&intent(), &tables(&mut host)).steps;
        assert_eq!(steps.len(), 2);
        for tool in ["iptables-nft", "iptables-legacy"] {
            run(&format!("{tool} -A FORWARD -i other -j ACCEPT"));
        }
        for step in steps {
            let refused = host.execute(&Step::Forwarding(step)).unwrap_err();
            assert_eq!(refused.source.kind(), WouldBlock, "{refused:?}");
        }
        settle(&mut host, &intent());
    });
}

#[test]
fn created_chains_of_the_administrator_go_when_they_are_empty() {
    on_a_node(|node| {
        let mut host = node.host();
        settle(&mut host, &with_admin());
        let listed = run("iptables-nft -S");
        assert!(listed.contains("-N CNI-ADMIN"), "{listed}");
        let created = [FilterFamily::Ip, FilterFamily::Ip6]
            .into_iter()
            .flat_map(|family| {
                ["CNI-ADMIN", "FORWARD"].map(|it| (FilterTable::iptables(family), it.to_owned()))
            })
            .collect();
        run("ip6tables-nft -A CNI-ADMIN -j RETURN");
        remove(&mut host, &created);
        let left = run("nft list ruleset");
        assert!(!left.contains("table ip filter"), "{left}");
        assert!(left.contains("CNI-ADMIN"), "{left}");
        assert!(!left.contains("VIADUCT"), "{left}");
    });
}

#[test]
fn our_own_rules_are_no_obstacle_to_the_bypass() {
    on_a_node(|node| {
        let mut host = node.host();
        let read = || RuleReader::new(&node.bpffs()).read().expect("rules");
        settle(&mut host, &with_admin());
        assert_eq!(read(), BTreeSet::new());
        run("iptables-nft -A CNI-ADMIN -i eth9 -j DROP");
        assert!(!read().is_empty());
        run("iptables-nft -F CNI-ADMIN");
        assert_eq!(read(), BTreeSet::new());
        run("iptables-nft -A FORWARD -i eth9 -j DROP");
        assert!(!read().is_empty());
        run("nft flush ruleset");
        run("iptables-legacy -S");
        settle(&mut host, &with_admin());
        assert_eq!(read(), BTreeSet::new());
        let before = RuleReader::new(&node.bpffs())
            .fingerprint()
            .expect("numbers");
        run("iptables-legacy -P FORWARD DROP");
        assert!(!read().is_empty());
        let after = RuleReader::new(&node.bpffs())
            .fingerprint()
            .expect("numbers");
        assert_ne!(before, after);
    });
}

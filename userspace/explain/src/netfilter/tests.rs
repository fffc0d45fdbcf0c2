//! Packets in tables with policies, jumps, and conditions that are not known.

use steps::FilterBackend;

use super::*;

fn table(name: &str) -> FilterTable {
    FilterTable {
        backend: FilterBackend::Nftables,
        family: FilterFamily::Ip,
        name: name.to_owned(),
    }
}

fn rule(conditions: Vec<Condition>, action: Action) -> FilterRule {
    FilterRule {
        handle: 1,
        conditions,
        action,
        comment: String::new(),
    }
}

/// Returns a table with a chain `FORWARD`, and a chain `more` that it may jump to.
fn state(drops: bool, forward: Vec<FilterRule>, more: Vec<FilterRule>) -> TableState {
    TableState {
        generation: 1,
        base: vec![BaseChain {
            name: "FORWARD".to_owned(),
            hook: FilterHook::Forward,
            drops,
        }],
        rules: [("FORWARD".to_owned(), forward), ("more".to_owned(), more)].into(),
    }
}

fn packet() -> FilteredPacket {
    FilteredPacket {
        source: "10.88.0.2".parse().unwrap(),
        destination: "198.51.100.7".parse().unwrap(),
        protocol: 6,
        ports: Some([41_000, 443]),
        is_local: false,
        input: "cbr0".to_owned(),
        output: Some("eth0".to_owned()),
        is_new: true,
    }
}

fn evaluated(state: TableState) -> Filtered {
    let tables = ForwardTables {
        tables: [(table("filter"), state)].into(),
        has_nftables: true,
    };
    evaluate(&tables, FilterHook::Forward, false, &packet())
}

fn input(name: &str) -> Condition {
    Condition::Input {
        name: name.to_owned(),
        negated: false,
    }
}

fn dropped(by: &str) -> Filtered {
    Filtered::Dropped(format!("{by} of table ip filter"))
}

fn unknown(by: &str) -> Filtered {
    Filtered::Unknown(format!("{by} of table ip filter"))
}

#[test]
fn a_policy_drops_what_no_rule_accepts() {
    let accepted = Filtered::Accepted("FORWARD of table ip filter".to_owned());
    assert_eq!(evaluated(state(false, vec![], vec![])), accepted);
    let policy = dropped("policy DROP of chain FORWARD");
    assert_eq!(evaluated(state(true, vec![], vec![])), policy);
    let other = vec![rule(vec![input("docker0")], Action::Accept)];
    assert_eq!(evaluated(state(true, other, vec![])), policy);
    let own = vec![rule(vec![input("cbr*")], Action::Accept)];
    assert_eq!(evaluated(state(true, own, vec![])), accepted);
    let established = vec![rule(vec![Condition::NotNew], Action::Accept)];
    assert_eq!(evaluated(state(true, established, vec![])), policy);
}

#[test]
fn a_rule_with_unknown_conditions_makes_the_verdict_unknown() {
    let maybe = vec![rule(vec![Condition::Other], Action::Drop)];
    assert_eq!(
        evaluated(state(false, maybe.clone(), vec![])),
        unknown("rule 1 of chain FORWARD")
    );
    // Whether or not the rule applies, the packet is dropped.
    assert_eq!(
        evaluated(state(true, maybe, vec![])),
        dropped("rule 1 of chain FORWARD")
    );
    let maybe = vec![rule(vec![Condition::Other], Action::Accept)];
    assert_eq!(
        evaluated(state(true, maybe, vec![])),
        unknown("policy DROP of chain FORWARD")
    );
}

#[test]
fn jumps_come_back_and_gotos_do_not() {
    let drop = || vec![rule(vec![], Action::Drop)];
    let jump = |to: &str| rule(vec![], Action::Jump(to.to_owned()));
    assert_eq!(
        evaluated(state(false, vec![jump("more")], drop())),
        dropped("rule 1 of chain more")
    );
    let returns = vec![rule(vec![], Action::Return), rule(vec![], Action::Drop)];
    let accepts = vec![jump("more"), rule(vec![], Action::Accept)];
    let accepted = Filtered::Accepted("FORWARD of table ip filter".to_owned());
    assert_eq!(evaluated(state(true, accepts, returns.clone())), accepted);
    let goto = rule(vec![], Action::Goto("more".to_owned()));
    let accepts = vec![goto, rule(vec![], Action::Accept)];
    assert_eq!(
        evaluated(state(true, accepts, returns)),
        dropped("policy DROP of chain FORWARD")
    );
    // A chain that jumps to itself ends.
    let ring = vec![jump("more")];
    assert_eq!(
        evaluated(state(false, vec![jump("more")], ring)),
        unknown("rule 1 of chain more")
    );
}

#[test]
fn only_tables_of_the_packets_family_and_hook_are_evaluated() {
    let tables = |family| ForwardTables {
        tables: [(
            FilterTable {
                family,
                ..table("filter")
            },
            state(true, vec![], vec![]),
        )]
        .into(),
        has_nftables: true,
    };
    for (family, is_bridged, drops) in [
        (FilterFamily::Ip, false, true),
        (FilterFamily::Inet, false, true),
        (FilterFamily::Ip6, false, false),
        (FilterFamily::Bridge, false, false),
        (FilterFamily::Bridge, true, true),
        (FilterFamily::Ip, true, false),
    ] {
        let found = evaluate(&tables(family), FilterHook::Forward, is_bridged, &packet());
        assert_eq!(matches!(found, Filtered::Dropped(_)), drops, "{family:?}");
        if !drops {
            assert_eq!(found, Filtered::NoChain);
        }
    }
    let none = evaluate(
        &tables(FilterFamily::Ip),
        FilterHook::Prerouting,
        false,
        &packet(),
    );
    assert_eq!(none, Filtered::NoChain);
}

fn port(number: u16) -> Condition {
    Condition::Port {
        source: false,
        ranges: vec![(number, number)],
        negated: false,
    }
}

/// Returns the rule that may translate the destination of [`packet`], where `prerouting` jumps to
/// `services`.
fn translated(services: Vec<FilterRule>) -> Option<String> {
    let jump = rule(vec![], Action::Jump("services".to_owned()));
    let state = TableState {
        generation: 1,
        base: vec![BaseChain {
            name: "PREROUTING".to_owned(),
            hook: FilterHook::Prerouting,
            drops: false,
        }],
        rules: [
            ("PREROUTING".to_owned(), vec![jump]),
            ("services".to_owned(), services),
        ]
        .into(),
    };
    let tables = [(table("nat"), state)].into();
    assert_eq!(translator(&tables, FilterHook::Output, &packet()), None);
    translator(&tables, FilterHook::Prerouting, &packet())
}

#[test]
fn a_rule_of_the_packets_destination_and_port_may_translate_it() {
    let to = |address: &str| Condition::Address {
        source: false,
        network: address.parse().unwrap(),
        prefix_len: 32,
        negated: false,
    };
    let translates = |conditions| rule(conditions, Action::Other);
    let local = Condition::LocalDestination { negated: false };
    let others = vec![
        translates(vec![to("198.51.100.8"), port(443)]),
        translates(vec![to("198.51.100.7"), port(80)]),
        translates(vec![local, port(443)]),
    ];
    assert_eq!(translated(others.clone()), None);
    let matching = translates(vec![to("198.51.100.7"), port(443), Condition::Other]);
    let found = translated([others, vec![matching]].concat());
    assert_eq!(
        found.as_deref(),
        Some("rule 4 of chain services of table ip nat")
    );
}

#[test]
fn a_rule_behind_one_that_surely_accepts_translates_nothing() {
    let accepts = rule(vec![port(443)], Action::Accept);
    let translates = rule(vec![], Action::Other);
    assert_eq!(translated(vec![accepts, translates]), None);
}

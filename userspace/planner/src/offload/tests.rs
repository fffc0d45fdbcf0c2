//! Which rules need every packet.

use super::*;

fn named(name: &str) -> Statement {
    Statement::Named(name.to_owned())
}

fn jump(to: &str) -> Statement {
    Statement::Verdict(Action::Jump(to.to_owned()))
}

const ESTABLISHED: Statement = Statement::State {
    established: true,
    new: false,
};
const NEW: Statement = Statement::State {
    established: false,
    new: true,
};
const ACCEPT: Statement = Statement::Verdict(Action::Accept);
const DROP: Statement = Statement::Verdict(Action::Drop);

/// A table with one base chain `base` and the others; each rule is a list of statements.
fn table(hook: PathHook, chains: &[(&str, &[&[Statement]])]) -> PathTable {
    let rules = |rules: &[&[Statement]]| {
        let rules = rules.iter().map(|statements| PathRule {
            statements: statements.to_vec(),
        });
        rules.collect()
    };
    PathTable {
        name: "nftables: table inet filter".to_owned(),
        bases: [("base".to_owned(), hook)].into(),
        chains: chains
            .iter()
            .map(|(name, all)| ((*name).to_owned(), rules(all)))
            .collect(),
    }
}

/// Returns the statements that need every packet of established connections, with chain and number
/// of their rules.
fn held(table: PathTable) -> Vec<(String, usize, String)> {
    held_of(table, ConnectionState::Established)
}

/// The same for UDP flows without a reply.
fn held_unreplied(table: PathTable) -> Vec<(String, usize, String)> {
    held_of(table, ConnectionState::Unreplied)
}

fn held_of(table: PathTable, state: ConnectionState) -> Vec<(String, usize, String)> {
    match classify(&[table], state) {
        RulesetClass::EveryPacket(rules) => rules
            .into_iter()
            .map(|rule| (rule.chain, rule.number, rule.statement))
            .collect(),
        RulesetClass::Empty | RulesetClass::Offloadable => Vec::new(),
    }
}

fn in_base(number: usize, statement: &str) -> Vec<(String, usize, String)> {
    vec![("base".to_owned(), number, statement.to_owned())]
}

#[test]
fn rulesets_without_rules_are_empty() {
    for state in [ConnectionState::Established, ConnectionState::Unreplied] {
        assert_eq!(classify(&[], state), RulesetClass::Empty);
        let empty = table(PathHook::Forward, &[("base", &[]), ("unused", &[&[DROP]])]);
        assert_eq!(classify(&[empty], state), RulesetClass::Empty);
    }
}

#[test]
fn conditions_on_the_connection_are_offloadable() {
    let rules: [&[Statement]; 4] = [
        &[named("match conntrack"), DROP],
        &[
            named("meta iifname"),
            named("compare"),
            named("counter"),
            ACCEPT,
        ],
        &[named("payload address"), named("lookup"), jump("other")],
        &[named("target MARK")],
    ];
    let table = table(
        PathHook::Forward,
        &[("base", &rules), ("other", &[&[DROP]])],
    );
    for state in [ConnectionState::Established, ConnectionState::Unreplied] {
        let class = classify(std::slice::from_ref(&table), state);
        assert_eq!(class, RulesetClass::Offloadable);
    }
}

#[test]
fn statements_that_count_limit_queue_or_log_need_every_packet() {
    for statement in [
        "limit",
        "quota",
        "queue",
        "log",
        "tproxy",
        "dynset",
        "connlimit",
        "numgen",
        "synproxy",
        "dup",
        "fwd",
        "objref quota",
        "objref limit",
        "meta length",
        "meta time",
        "payload",
        "payload set",
        "exthdr",
        "ct packets",
        "lookup in a changing set",
        "match string",
        "match limit",
        "match hashlimit",
        "match quota",
        "match statistic",
        "match recent",
        "match length",
        "match set",
        "match tcp flags",
        "match a module of tomorrow",
        "target LOG",
        "target NFQUEUE",
        "target TPROXY",
        "target TTL",
        "target DSCP",
        "an expression of tomorrow",
    ] {
        let rules: [&[Statement]; 1] = [&[named(statement), DROP]];
        for held in [held, held_unreplied] {
            let found = held(table(PathHook::Forward, &[("base", &rules)]));
            assert_eq!(found, in_base(1, statement), "{statement}");
        }
    }
}

#[test]
fn marks_need_every_packet_only_before_the_route_is_chosen() {
    for statement in MARKS {
        let rules: [&[Statement]; 1] = [&[named(statement)]];
        let at = |hook| held(table(hook, &[("base", &rules)]));
        assert_eq!(at(PathHook::Prerouting), in_base(1, statement));
        assert_eq!(at(PathHook::Forward), []);
        assert_eq!(at(PathHook::Postrouting), []);
    }
}

#[test]
fn rules_that_established_connections_do_not_reach_do_not_count() {
    let log: &[Statement] = &[named("limit"), named("log")];
    // Accepted before, as all firewalls do.
    let accepts: [&[Statement]; 2] = [&[ESTABLISHED, named("counter"), ACCEPT], log];
    assert_eq!(held(table(PathHook::Forward, &[("base", &accepts)])), []);
    // In a chain that all packets pass.
    let jumps: [&[Statement]; 2] = [&[named("counter"), jump("accepts")], log];
    let chains: [(&str, &[&[Statement]]); 2] = [("base", &jumps), ("accepts", &accepts)];
    assert_eq!(held(table(PathHook::Forward, &chains)), []);
    // Of new connections only. A limit before that condition is charged for all.
    let new: [&[Statement]; 1] = [&[NEW, named("limit"), DROP]];
    assert_eq!(held(table(PathHook::Forward, &[("base", &new)])), []);
    let late: [&[Statement]; 1] = [&[named("limit"), NEW, DROP]];
    let found = held(table(PathHook::Forward, &[("base", &late)]));
    assert_eq!(found, in_base(1, "limit"));
    // A chain that nothing leads to.
    assert_eq!(
        held(table(
            PathHook::Forward,
            &[("base", &[]), ("unused", &[log])]
        )),
        []
    );
}

#[test]
fn rules_for_new_connections_count_for_flows_without_a_reply() {
    let in_forward = |rules: &[&[Statement]]| table(PathHook::Forward, &[("base", rules)]);
    for statement in [
        "limit",
        "quota",
        "log",
        "dynset",
        "connlimit",
        "numgen",
        "objref limit",
        "ct packets",
        "lookup in a changing set",
        "match limit",
        "match hashlimit",
        "match connlimit",
        "match recent",
        "match statistic",
        "match set",
        "target LOG",
    ] {
        let new: &[Statement] = &[NEW, named(statement), ACCEPT];
        assert_eq!(held_unreplied(in_forward(&[new])), in_base(1, statement));
        assert_eq!(held(in_forward(&[new])), [], "{statement}");
        // Behind the rule that accepts established connections only.
        let behind: [&[Statement]; 2] = [&[ESTABLISHED, ACCEPT], &[named(statement), DROP]];
        let found = held_unreplied(in_forward(&behind));
        assert_eq!(found, in_base(2, statement));
        assert_eq!(held(in_forward(&behind)), [], "{statement}");
        // Behind a rule that accepts all new connections, and for others only.
        let accepts: &[Statement] = &[NEW, named("counter"), ACCEPT];
        let others: &[Statement] = &[named(statement), DROP];
        assert_eq!(held_unreplied(in_forward(&[accepts, others])), []);
        let others: &[Statement] = &[ESTABLISHED, named(statement), ACCEPT];
        assert_eq!(held_unreplied(in_forward(&[others])), []);
    }
}

#[test]
fn tcp_flags_of_unknown_protocols_need_every_packet_of_flows_without_a_reply() {
    let either = Statement::State {
        established: true,
        new: true,
    };
    let rule: &[Statement] = &[either, named("payload tcp flags"), DROP];
    let table_of = || table(PathHook::Forward, &[("base", &[rule])]);
    assert_eq!(held(table_of()), []);
    assert_eq!(held_unreplied(table_of()), in_base(1, "payload tcp flags"));
}

#[test]
fn a_verdict_map_of_states_decides_about_each_state_alone() {
    let log: &[Statement] = &[named("log")];
    let map: &[Statement] = &[Statement::Verdicts {
        established: Some(Action::Accept),
        new: Some(Action::Jump("new".to_owned())),
    }];
    let chains: [(&str, &[&[Statement]]); 2] = [("base", &[map, log]), ("new", &[&[ACCEPT]])];
    let table_of = || table(PathHook::Forward, &chains);
    assert_eq!(held(table_of()), []);
    assert_eq!(held_unreplied(table_of()), []);
    let drops: &[Statement] = &[Statement::Verdicts {
        established: None,
        new: Some(Action::Drop),
    }];
    let chains: [(&str, &[&[Statement]]); 1] = [("base", &[drops, log])];
    let table_of = || table(PathHook::Forward, &chains);
    assert_eq!(held(table_of()), in_base(2, "log"));
    assert_eq!(held_unreplied(table_of()), []);
}

#[test]
fn rules_behind_a_conditional_verdict_count() {
    let log: &[Statement] = &[named("log")];
    for before in [
        &[ESTABLISHED, named("meta iifname"), ACCEPT][..],
        &[NEW, ACCEPT],
        &[named("payload address"), jump("accepts")],
        &[jump("returns")],
        &[Statement::Verdict(Action::Continue)],
    ] {
        let rules = [before, log];
        let accept: &[Statement] = &[ACCEPT];
        let back: &[Statement] = &[Statement::Verdict(Action::Return)];
        let chains: [(&str, &[&[Statement]]); 3] = [
            ("base", &rules),
            ("accepts", &[accept]),
            ("returns", &[back, accept]),
        ];
        assert_eq!(held(table(PathHook::Forward, &chains)), in_base(2, "log"));
    }
}

#[test]
fn a_verdict_map_may_lead_to_every_chain_and_chains_may_lead_to_each_other() {
    let map: &[Statement] = &[named("lookup"), Statement::Verdict(Action::Other)];
    let around: &[Statement] = &[jump("far")];
    let log: &[Statement] = &[named("log"), jump("far")];
    let chains: [(&str, &[&[Statement]]); 3] = [
        ("base", &[map]),
        ("near", &[around]),
        ("far", &[around, log]),
    ];
    let found = held(table(PathHook::Forward, &chains));
    assert_eq!(found, [("far".to_owned(), 2, "log".to_owned())]);
}

#[test]
fn a_goto_does_not_come_back() {
    let goto: &[Statement] = &[Statement::Verdict(Action::Goto("other".to_owned()))];
    let log: &[Statement] = &[named("log")];
    let chains: [(&str, &[&[Statement]]); 2] = [("base", &[goto, log]), ("other", &[])];
    assert_eq!(held(table(PathHook::Forward, &chains)), []);
}

#[test]
fn a_rule_that_needs_every_packet_is_described_with_its_place() {
    let rule = HoldingRule {
        table: "iptables: table filter".to_owned(),
        chain: "FORWARD".to_owned(),
        number: 3,
        statement: "match limit".to_owned(),
    };
    assert_eq!(
        rule.to_string(),
        "iptables: table filter, chain FORWARD, rule 3: match limit needs every packet"
    );
}

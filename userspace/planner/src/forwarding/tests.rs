//! Plans for the chain layouts of Docker, ufw and firewalld.

use model::IfName;
use steps::{
    ADMIN_CHAIN, AcceptRule, Action, BaseChain, Condition, FORWARD_CHAIN, FilterFamily, FilterHook,
    FilterRule, FilterTable, ForwardTables, Place, TableState,
};

use super::*;

mod laws;

fn rule(conditions: Vec<Condition>, action: Action) -> FilterRule {
    FilterRule {
        handle: 0,
        conditions,
        action,
        comment: String::new(),
    }
}

fn always(action: Action) -> FilterRule {
    rule(Vec::new(), action)
}

fn on(name: &str, action: Action) -> FilterRule {
    let name = name.to_owned();
    rule(
        vec![Condition::Input {
            name,
            negated: false,
        }],
        action,
    )
}

fn jump(chain: &str) -> FilterRule {
    always(Action::Jump(chain.to_owned()))
}

/// Makes a state whose first chain is the base chain of the forward hook.
fn state(drops: bool, chains: &[(&str, Vec<FilterRule>)]) -> TableState {
    let mut handle = 100;
    let chains = chains.iter().map(|(name, rules)| {
        let mut rules = rules.clone();
        for rule in &mut rules {
            handle += 1;
            rule.handle = handle;
        }
        ((*name).to_owned(), rules)
    });
    let chains: Vec<_> = chains.collect();
    TableState {
        generation: 1,
        base: vec![BaseChain {
            name: chains[0].0.clone(),
            hook: FilterHook::Forward,
            drops,
        }],
        rules: chains.into_iter().collect(),
    }
}

fn tables(state: TableState) -> ForwardTables {
    ForwardTables {
        tables: BTreeMap::from([(FilterTable::iptables(FilterFamily::Ip), state)]),
        has_nftables: true,
    }
}

fn name(text: &str) -> IfName {
    text.parse().unwrap()
}

fn intent(mode: ForwardingMode) -> ForwardingIntent {
    let source = "10.88.0.2".parse().unwrap();
    let outputs = BTreeSet::from([name("eth0")]);
    ForwardingIntent {
        mode,
        rules: vec![
            AcceptRule::AnswersTo(name("cbr0")),
            AcceptRule::From(name("cbr0")),
        ],
        admin_chains: BTreeSet::new(),
        created: BTreeSet::new(),
        refused: BTreeMap::new(),
        families: BTreeSet::from([FilterFamily::Ip]),
        probes: vec![Probe::new(FilterFamily::Ip, name("cbr0"), outputs, source)],
    }
}

fn auto() -> ForwardingIntent {
    intent(ForwardingMode::Auto)
}

/// Returns where the jump to our chain goes.
fn place(state: &TableState) -> Option<Place> {
    let plan = plan_forwarding(&auto(), &tables(state.clone()));
    let jumps = plan.steps.iter().flat_map(|step| &step.jumps);
    let places: Vec<_> = jumps.map(|(_, place)| place.clone()).collect();
    assert!(places.len() < 2, "{places:?}");
    places.first().cloned()
}

fn last(chain: &str) -> Place {
    let chain = chain.to_owned();
    Place::Last { chain }
}

/// Returns the place before the rule with this index of the chain.
fn before(state: &TableState, chain: &str, index: usize) -> Place {
    Place::Before {
        chain: chain.to_owned(),
        handle: state.rules[chain][index].handle,
    }
}

fn docker(drops: bool) -> TableState {
    let docker0 = || Condition::Output {
        name: "docker0".to_owned(),
        negated: false,
    };
    state(
        drops,
        &[
            (
                "FORWARD",
                vec![
                    jump("DOCKER-USER"),
                    jump("DOCKER-ISOLATION-STAGE-1"),
                    rule(vec![docker0(), Condition::NotNew], Action::Accept),
                    rule(vec![docker0()], Action::Jump("DOCKER".to_owned())),
                    on("docker0", Action::Accept),
                ],
            ),
            ("DOCKER", vec![]),
            (
                "DOCKER-ISOLATION-STAGE-1",
                vec![on("docker0", Action::Drop), always(Action::Return)],
            ),
            ("DOCKER-USER", vec![always(Action::Return)]),
        ],
    )
}

fn ufw() -> TableState {
    let chains = [
        "ufw-before-forward",
        "ufw-reject-forward",
        "ufw-track-forward",
    ];
    state(
        true,
        &[
            ("FORWARD", chains.map(jump).to_vec()),
            (
                "ufw-before-forward",
                vec![
                    rule(vec![Condition::NotNew], Action::Accept),
                    jump("ufw-user-forward"),
                ],
            ),
            ("ufw-reject-forward", vec![always(Action::Drop)]),
            ("ufw-track-forward", vec![]),
            ("ufw-user-forward", vec![on("eth9", Action::Drop)]),
        ],
    )
}

#[test]
fn a_drop_policy_gets_a_jump_at_the_end_of_its_chain() {
    assert_eq!(
        place(&state(true, &[("FORWARD", vec![])])),
        Some(last("FORWARD"))
    );
    assert_eq!(place(&docker(true)), Some(last("FORWARD")));
    assert_eq!(place(&docker(false)), None);
    assert_eq!(place(&state(false, &[("FORWARD", vec![])])), None);
}

#[test]
fn a_final_rule_that_drops_gets_the_jump_before_it() {
    let ufw = ufw();
    // The chain does nothing but reject.
    assert_eq!(place(&ufw), Some(before(&ufw, "FORWARD", 1)));
    let firewalld = state(
        false,
        &[
            (
                "filter_FORWARD",
                vec![
                    rule(vec![Condition::NotNew], Action::Accept),
                    jump("filter_FORWARD_ZONES"),
                    always(Action::Drop),
                ],
            ),
            (
                "filter_FORWARD_ZONES",
                vec![
                    on("eth0", Action::Goto("filter_FWD_public".to_owned())),
                    always(Action::Goto("filter_FWD_public".to_owned())),
                ],
            ),
            ("filter_FWD_public", vec![on("eth0", Action::Accept)]),
        ],
    );
    assert_eq!(
        place(&firewalld),
        Some(before(&firewalld, "filter_FORWARD", 2))
    );
}

#[test]
fn explicit_rules_of_a_chain_that_ends_with_a_drop_are_evaluated_first() {
    let own = state(
        false,
        &[
            ("FORWARD", vec![jump("MINE")]),
            ("MINE", vec![on("cbr0", Action::Drop), always(Action::Drop)]),
        ],
    );
    assert_eq!(place(&own), Some(before(&own, "MINE", 1)));
    // Nor are those of a chain that it evaluates.
    let nested = state(
        false,
        &[
            ("FORWARD", vec![jump("MINE")]),
            ("DENY", vec![on("cbr0", Action::Drop)]),
            ("MINE", vec![jump("DENY"), always(Action::Drop)]),
        ],
    );
    assert_eq!(place(&nested), Some(before(&nested, "MINE", 1)));
}

#[test]
fn a_chain_that_explicit_rules_reach_too_is_reported_and_not_passed_by() {
    let own = state(
        false,
        &[
            (
                "FORWARD",
                vec![on("eth0", Action::Jump("MINE".to_owned())), jump("MINE")],
            ),
            (
                "MINE",
                vec![on("eth1", Action::Accept), always(Action::Drop)],
            ),
        ],
    );
    assert_eq!(place(&own), None);
    let plan = plan_forwarding(&auto(), &tables(own));
    let states: Vec<_> = plan.defaults.iter().map(|default| &default.state).collect();
    assert!(matches!(states[..], [DefaultState::Drops(_)]), "{states:?}");
}

#[test]
fn leave_reports_what_no_rule_accepts_and_writes_nothing() {
    let of = |state: TableState| {
        let plan = plan_forwarding(&intent(ForwardingMode::Leave), &tables(state));
        assert_eq!(plan.steps, []);
        plan.defaults
            .into_iter()
            .map(|default| default.state)
            .collect::<Vec<_>>()
    };
    assert!(matches!(of(docker(true))[..], [DefaultState::Drops(_)]));
    assert!(matches!(of(ufw())[..], [DefaultState::Drops(_)]));
    let accepting = state(true, &[("FORWARD", vec![on("cbr0", Action::Accept)])]);
    assert_eq!(of(accepting), [DefaultState::Left]);
    let unknown = state(
        true,
        &[(
            "FORWARD",
            vec![rule(vec![Condition::Other], Action::Accept)],
        )],
    );
    assert_eq!(of(unknown), [DefaultState::Left]);
    assert_eq!(of(docker(false)), []);
}

#[test]
fn defaults_of_families_that_no_pod_has_are_not_reported() {
    let mut observed = tables(docker(true));
    let state = observed.tables.pop_first().unwrap().1;
    observed
        .tables
        .insert(FilterTable::iptables(FilterFamily::Ip6), state);
    assert_eq!(
        plan_forwarding(&auto(), &observed),
        ForwardingPlan::default()
    );
}

#[test]
fn a_dropping_policy_of_another_hook_is_reported_only() {
    let mut state = state(true, &[("raw", vec![])]);
    state.base[0].hook = FilterHook::Prerouting;
    let plan = plan_forwarding(&auto(), &tables(state));
    assert_eq!(plan.steps, []);
    let default = plan.defaults.first().unwrap();
    assert_eq!(default.what, "policy DROP of chain raw of table ip filter");
    assert!(matches!(default.state, DefaultState::Drops(_)));
}

#[test]
fn chains_of_the_administrator_are_evaluated_first_whatever_the_policy() {
    let mut wanted = auto();
    wanted.admin_chains = [FilterFamily::Ip, FilterFamily::Ip6]
        .map(|family| (family, "CNI-ADMIN".to_owned()))
        .into();
    let mut observed = tables(docker(false));
    let plan = plan_forwarding(&wanted, &observed);
    assert_eq!(plan.steps.len(), 2, "{:?}", plan.steps);
    for step in &plan.steps {
        let chain = "FORWARD".to_owned();
        assert_eq!(step.jumps, [(ADMIN_CHAIN, Place::First { chain })]);
        assert_eq!(step.creates, BTreeSet::from(["CNI-ADMIN".to_owned()]));
        assert_eq!(step.creates_base, step.table.family == FilterFamily::Ip6);
        assert!(observed.apply(step));
    }
    assert_eq!(plan_forwarding(&wanted, &observed).steps, []);
    let created = observed
        .tables
        .keys()
        .map(|table| (table.clone(), "CNI-ADMIN".to_owned()))
        .collect();
    for step in plan_forwarding_removal(&observed, &created) {
        assert!(observed.apply(&step));
    }
    let left = &observed.tables[&FilterTable::iptables(FilterFamily::Ip)];
    assert_eq!(left.rules, docker(false).rules);
}

#[test]
fn a_table_that_refuses_rules_is_reported_until_its_own_rules_accept() {
    let table = FilterTable::iptables(FilterFamily::Ip);
    let mut wanted = auto();
    wanted
        .refused
        .insert(table, "Operation not permitted".to_owned());
    let plan = plan_forwarding(&wanted, &tables(docker(true)));
    assert_eq!(plan.steps, []);
    let default = plan.defaults.first().unwrap();
    assert!(
        matches!(&default.state, DefaultState::Drops(why) if why.contains("not permitted")),
        "{default:?}"
    );
    let accepting = state(true, &[("FORWARD", vec![on("cbr0", Action::Accept)])]);
    let plan = plan_forwarding(&wanted, &tables(accepting));
    assert_eq!(plan.defaults.first().unwrap().state, DefaultState::Left);
}

#[test]
fn rules_of_other_families_are_left_out() {
    let mut wanted = auto();
    for address in ["10.88.0.2", "fd00::2"] {
        let address = address.parse().unwrap();
        wanted.rules.push(AcceptRule::FromAddress(address));
    }
    let plan = plan_forwarding(&wanted, &tables(docker(true)));
    let rules = &plan.steps[0].fills[FORWARD_CHAIN];
    assert_eq!(texts(rules).last().unwrap(), "viaduct: from 10.88.0.2");
}

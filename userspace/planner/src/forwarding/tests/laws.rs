//! Laws for random tables.

use steps::{Action, Condition, FORWARD_CHAIN, FilterRule, TableState};

use proptest::prelude::*;

use super::*;

fn action() -> impl Strategy<Value = Action> {
    let chain = prop_oneof![Just("A"), Just("B"), Just("C")].prop_map(str::to_owned);
    prop_oneof![
        2 => Just(Action::Continue),
        1 => Just(Action::Accept),
        2 => Just(Action::Drop),
        1 => Just(Action::Return),
        1 => Just(Action::Other),
        2 => chain.clone().prop_map(Action::Jump),
        1 => chain.prop_map(Action::Goto),
    ]
}

fn rules() -> impl Strategy<Value = Vec<FilterRule>> {
    let conditions = prop_oneof![
        Just(Vec::new()),
        Just(vec![Condition::NotNew]),
        Just(vec![Condition::Input {
            name: "cbr0".to_owned(),
            negated: false
        }]),
        Just(vec![Condition::Other]),
    ];
    let one = (conditions, action()).prop_map(|(conditions, action)| rule(conditions, action));
    proptest::collection::vec(one, 0..5)
}

/// Chains call only later ones: the kernel refuses loops.
fn random() -> impl Strategy<Value = TableState> {
    (any::<bool>(), [rules(), rules(), rules(), rules()]).prop_map(|(drops, chains)| {
        let names = ["FORWARD", "A", "B", "C"];
        let chains = names.into_iter().zip(chains).map(|(from, mut rules)| {
            rules.retain(|rule| match &rule.action {
                Action::Jump(to) | Action::Goto(to) => from == "FORWARD" || to.as_str() > from,
                Action::Continue
                | Action::Accept
                | Action::Drop
                | Action::Return
                | Action::Other => true,
            });
            (from, rules)
        });
        state(drops, &chains.collect::<Vec<_>>())
    })
}

/// Fate of a packet that meets these conditions; `None` for an unknown verdict. A packet that
/// reaches our rules is accepted by them.
fn evaluate(state: &TableState, meets: &dyn Fn(&Condition) -> bool) -> Option<bool> {
    enum End {
        Through,
        Is(Option<bool>),
    }
    fn chain(state: &TableState, name: &str, meets: &dyn Fn(&Condition) -> bool) -> End {
        for rule in &state.rules[name] {
            if !rule.conditions.iter().all(meets) {
                continue;
            }
            match &rule.action {
                Action::Continue => {}
                Action::Accept => return End::Is(Some(true)),
                Action::Drop => return End::Is(Some(false)),
                Action::Other => return End::Is(None),
                Action::Return => return End::Through,
                Action::Goto(to) => return chain(state, to, meets),
                Action::Jump(to) if to == FORWARD_CHAIN => return End::Is(Some(true)),
                Action::Jump(to) => {
                    if let End::Is(fate) = chain(state, to, meets) {
                        return End::Is(fate);
                    }
                }
            }
        }
        End::Through
    }
    match chain(state, "FORWARD", meets) {
        End::Through => Some(!state.base[0].drops),
        End::Is(fate) => fate,
    }
}

proptest! {
    #[test]
    fn a_second_plan_is_empty_and_removal_restores_the_table(state in random()) {
        let before = state.rules.clone();
        let mut observed = tables(state);
        for step in plan_forwarding(&auto(), &observed).steps {
            prop_assert!(observed.apply(&step));
        }
        prop_assert_eq!(plan_forwarding(&auto(), &observed).steps, []);
        for step in plan_forwarding_removal(&observed, &BTreeSet::new()) {
            prop_assert!(observed.apply(&step));
        }
        prop_assert_eq!(&observed.tables.first_key_value().unwrap().1.rules, &before);
    }

    /// With our rules, a packet that meets no condition is accepted where it was dropped, if there
    /// is a place; one that meets some is dropped where an explicit rule drops it.
    #[test]
    fn only_defaults_are_passed_by(state in random(), met in any::<[bool; 3]>()) {
        let meets = |condition: &Condition| {
            let kinds = [Condition::NotNew, Condition::Other];
            let kind = kinds.iter().position(|kind| kind == condition).unwrap_or(2);
            met[kind]
        };
        let plan = plan_forwarding(&auto(), &tables(state.clone()));
        let carried = plan.defaults.iter().any(|default| default.state == DefaultState::Carried);
        let mut observed = tables(state.clone());
        for step in &plan.steps {
            prop_assert!(observed.apply(step));
        }
        let after = observed.tables.first_key_value().unwrap().1;
        let none = |_: &Condition| false;
        if carried {
            prop_assert_eq!(evaluate(&state, &none), Some(false));
            prop_assert_eq!(evaluate(after, &none), Some(true));
        } else {
            prop_assert_eq!(&after.rules, &state.rules);
        }
        // A drop that our rules changed is a default, or its chain is the same pure one.
        if evaluate(&state, &meets) != evaluate(after, &meets) {
            prop_assert_eq!(evaluate(&state, &meets), Some(false));
            prop_assert!(is_default(&state, &meets));
        }
    }
}

/// Whether the packet is dropped by the policy or by a rule without conditions, in the chains that
/// every packet reaches.
fn is_default(state: &TableState, meets: &dyn Fn(&Condition) -> bool) -> bool {
    /// Follows as the kernel does; true at an explicit drop.
    fn explicit(
        state: &TableState,
        name: &str,
        meets: &dyn Fn(&Condition) -> bool,
    ) -> Option<bool> {
        for rule in &state.rules[name] {
            if !rule.conditions.iter().all(meets) {
                continue;
            }
            let is_explicit = !rule.conditions.is_empty();
            match &rule.action {
                Action::Continue => {}
                Action::Accept | Action::Other => return Some(false),
                Action::Drop => return Some(is_explicit),
                Action::Return => return None,
                Action::Goto(to) => {
                    return explicit(state, to, meets).map(|inner| inner || is_explicit);
                }
                Action::Jump(to) => {
                    if let Some(inner) = explicit(state, to, meets) {
                        return Some(inner || is_explicit);
                    }
                }
            }
        }
        None
    }
    !explicit(state, "FORWARD", meets).unwrap_or(false)
}

//! Tests of the entries of network policies in plans.

use std::sync::Arc;

use insta::assert_snapshot;
use model::{NetworkPolicies, PodSelector, PolicyPeer, PolicyPort, PolicyRule, Protocol};
use steps::Observed;

use super::*;
use crate::testing::{World, attachment, empty_netns, intent, network, node, parse, seen};
use crate::{NodeIntent, plan_attach, plan_detach, plan_node};

/// A policy for the pods of the node: the group `clients` may open port 80 to them.
fn policies(pods: &str) -> NetworkPolicies {
    let port = PolicyPort {
        protocol: Protocol::Tcp,
        ports: Some((80, 80)),
    };
    let policy = NetworkPolicy {
        name: "default/web".to_owned(),
        pods: [PodSelector::Prefix(parse(pods))].into(),
        ingress: Some(vec![PolicyRule {
            peers: Some(vec![PolicyPeer::Group("clients".to_owned())]),
            ports: vec![port],
        }]),
        egress: None,
    };
    NetworkPolicies {
        policies: vec![policy],
        groups: [("clients".to_owned(), [parse("10.9.0.7/32")].into())].into(),
    }
}

fn intent_with(list: NetworkPolicies) -> NodeIntent {
    NodeIntent {
        networks: vec![network()],
        policies: Arc::new(PolicyIndex::new(list).unwrap()),
        ..NodeIntent::default()
    }
}

fn has_policies(observed: &Observed) -> bool {
    matches!(observed.entries.get(&EntryKey::Settings),
        Some(Entry::Settings(settings)) if settings.flags & abi::SettingsFlags::POLICIES != 0)
}

/// Executes the steps that change entries.
fn execute(plan: &Plan, observed: &mut Observed) {
    for step in plan.steps() {
        if let Step::PutEntry { key, entry, .. } = step {
            observed.entries.insert(key.clone(), entry.clone());
        }
        if let Step::RemoveEntry { key, .. } = step {
            observed.entries.remove(key);
        }
    }
}

fn policy_steps(plan: &Plan) -> Plan {
    let is_of_policy = |step: &&Step| {
        step.key().is_some_and(|key| {
            matches!(
                key,
                EntryKey::RuleSets(_) | EntryKey::Identity(_) | EntryKey::PolicyRule(_)
            )
        })
    };
    Plan::of(plan.steps().iter().filter(is_of_policy).cloned())
}

#[test]
fn rules_are_written_before_the_pods_that_have_them() {
    let own = attachment(&intent("c1"));
    let world = World::with(&own);
    let plan = plan_node(
        &intent_with(policies("10.1.0.0/24")),
        &seen(&own),
        &world.records,
    );
    assert_snapshot!(policy_steps(&plan.plan), @r"
    1. write rule set 8942f93d, identity fd1b45b1, tcp 80/16: allowed
    2. write identity of 10.9.0.7/32: fd1b45b1
    3. write rule sets of pod 7: generation 40, ingress 8942f93d, egress 00000000
    ");
}

#[test]
fn the_node_has_what_the_list_says_and_nothing_of_an_earlier_one() {
    let own = attachment(&intent("c1"));
    let world = World::with(&own);
    let mut observed = seen(&own);
    let apply = |list: NetworkPolicies, observed: &mut Observed| {
        let intent = intent_with(list);
        execute(&plan_node(&intent, observed, &world.records).plan, observed);
        let again = plan_node(&intent, observed, &world.records).plan;
        assert!(policy_steps(&again).is_empty(), "{again}");
    };
    let count = |observed: &Observed| {
        let count = |is_one: fn(&EntryKey) -> bool| {
            let keys = observed.entries.keys();
            keys.filter(|key| is_one(key)).count()
        };
        [
            count(|key| matches!(key, EntryKey::PolicyRule(_))),
            count(|key| matches!(key, EntryKey::Identity(_))),
            count(|key| matches!(key, EntryKey::RuleSets(_))),
        ]
    };
    apply(policies("10.1.0.0/24"), &mut observed);
    assert!(has_policies(&observed));
    assert_eq!(count(&observed), [1, 1, 1]);
    // A policy that selects no pod of the node: identities are those of the list.
    apply(policies("10.2.0.0/24"), &mut observed);
    assert_eq!(count(&observed), [0, 1, 0]);
    apply(NetworkPolicies::default(), &mut observed);
    assert!(!has_policies(&observed));
    assert_eq!(count(&observed), [0, 0, 0]);
}

#[test]
fn an_add_writes_the_policies_of_its_pod_before_the_pod_can_send() {
    let mut world = World::empty();
    world.policies = PolicyIndex::new(policies("10.1.0.0/24")).unwrap();
    let observed = empty_netns(&node());
    let (own, plan) = plan_attach(&intent("c1"), &observed, &world.context()).unwrap();
    let steps = plan.steps();
    let of_pod = |step: &Step| step.key() == Some(&EntryKey::RuleSets(own.slot));
    let sets = steps.iter().position(of_pod).unwrap();
    let up = |step: &Step| matches!(step, Step::SetUpPod(_));
    assert!(sets < steps.iter().position(up).unwrap(), "{plan}");
    // The identities are there since the list is.
    assert_eq!(policy_steps(&plan).steps().len(), 2);
    // The second pod has the same rule set.
    let first = Attachment { slot: 6, ..own };
    world.remember(&first, model::State::Attached);
    let request = intent("c2");
    let (_, plan) = plan_attach(&request, &observed, &world.context()).unwrap();
    assert_eq!(policy_steps(&plan).steps().len(), 1);
    // Pods without policies have no rule sets.
    world.policies = PolicyIndex::new(policies("10.2.0.0/24")).unwrap();
    let (_, plan) = plan_attach(&request, &observed, &world.context()).unwrap();
    assert!(policy_steps(&plan).is_empty());
}

#[test]
fn a_del_removes_the_rule_sets_of_its_pod() {
    let own = attachment(&intent("c1"));
    let mut observed = seen(&own);
    let sets = |generation| Entry::RuleSets {
        generation,
        ingress: 1,
        egress: 0,
    };
    let key = EntryKey::RuleSets(own.slot);
    observed.entries.insert(key.clone(), sets(own.generation));
    assert_eq!(policy_steps(&plan_detach(&own, &observed)).steps().len(), 1);
    observed.entries.insert(key, sets(own.generation + 1));
    assert!(policy_steps(&plan_detach(&own, &observed)).is_empty());
}

#[test]
fn policies_that_name_a_pod_apply_to_its_first_interface() {
    let mut request = intent("c1");
    let name = model::PodName {
        namespace: "default".to_owned(),
        name: "web".to_owned(),
    };
    request.pod = Some(name.clone());
    let own = attachment(&request);
    let mut policy = policies("10.2.0.0/24").policies.remove(0);
    policy.pods = [PodSelector::Name(name)].into();
    assert!(is_selected_by(&own, &policy));
    let mut second = own;
    second.key.ifname = parse("net1");
    assert!(!is_selected_by(&second, &policy));
}

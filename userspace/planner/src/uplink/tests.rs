//! Tests of open uplinks and of the exit check, which confines pods to uplinks.

use steps::{Entry, LinkKind, Observed, Step};

use crate::testing::{link, network, node, parse};
use crate::{NodeIntent, Records, plan_node};

fn intent() -> NodeIntent {
    NodeIntent {
        networks: vec![network()],
        ..NodeIntent::default()
    }
}

/// Applies the plan to the observed tables and links; returns whether tables have changed.
fn round(intent: &NodeIntent, observed: &mut Observed) -> bool {
    let plan = plan_node(intent, observed, &Records::new()).plan;
    plan.steps().iter().for_each(|step| apply(observed, step));
    let is_write = |step: &Step| matches!(step, Step::PutEntry { .. });
    plan.steps().iter().any(is_write)
}

fn apply(observed: &mut Observed, step: &Step) {
    if let Step::PutEntry { key, entry, .. } = step {
        observed.entries.insert(key.clone(), entry.clone());
    } else if let Step::Attach { link, hooks } = step {
        let link = observed.links.get_mut(link).unwrap();
        link.hooks.extend(hooks);
    }
}

/// Returns which uplinks are open, and whether the exit check is on.
fn exit_state(observed: &Observed) -> (Vec<bool>, bool) {
    let mut open = Vec::new();
    let mut exit_check = false;
    for entry in observed.entries.values() {
        if let Entry::Uplink { open: is_open, .. } = entry {
            open.push(*is_open);
        } else if let Entry::Settings(settings) = entry {
            exit_check = settings.flags & abi::SettingsFlags::EXIT_CHECK != 0;
        }
    }
    (open, exit_check)
}

#[test]
fn an_uplink_opens_with_its_programs_and_the_exit_check_follows() {
    let mut observed = node();
    assert!(round(&intent(), &mut observed));
    assert_eq!(exit_state(&observed), (vec![false], false));
    assert!(round(&intent(), &mut observed));
    assert_eq!(exit_state(&observed), (vec![true], true));
    assert!(!round(&intent(), &mut observed));
    let late = link(10, LinkKind::Ethernet, &["198.51.100.1/24"]);
    observed.links.insert(parse("late0"), late);
    assert!(round(&intent(), &mut observed));
    assert_eq!(exit_state(&observed), (vec![true, false], true));
    assert!(round(&intent(), &mut observed));
    assert_eq!(exit_state(&observed), (vec![true, true], true));
}

#[test]
fn configured_uplinks_turn_the_exit_check_off() {
    let mut intent = intent();
    intent.uplinks = [parse("eth0")].into();
    let mut observed = node();
    while round(&intent, &mut observed) {}
    assert_eq!(exit_state(&observed), (vec![true], false));
}

/// RFC 6724, rule 3: a deprecated address is used where there is no other.
#[test]
fn a_deprecated_address_is_chosen_only_where_there_is_no_other() {
    let sources = |avoided: &[&str]| -> Vec<String> {
        let own = ["192.0.2.1/24", "2001:db8::1/64", "2001:db8:1::1/64"];
        let mut link = link(2, LinkKind::Ethernet, &own);
        link.avoided = avoided.iter().map(|text| parse(text)).collect();
        let Entry::Uplink { sources, .. } = super::entry(&link, false, &[], &[]) else {
            panic!("an uplink's entry is one");
        };
        sources.iter().map(ToString::to_string).collect()
    };
    let (first, second) = ("2001:db8::1", "2001:db8:1::1");
    let all = ["192.0.2.1/24", "2001:db8::1/64", "2001:db8:1::1/64"];
    assert_eq!(sources(&[]), all);
    assert_eq!(sources(&[first]), ["192.0.2.1/24", "2001:db8:1::1/64"]);
    assert_eq!(sources(&[first, second]), all);
}

#[test]
fn an_uplinks_mtu_is_that_of_its_narrowest_route() {
    let mut observed = node();
    let eth0 = observed.links[&parse("eth0")].clone();
    let mut taken = |mtu: Option<u32>, link: u32| {
        for route in &mut observed.routes {
            (route.mtu, route.link) = (None, link);
        }
        observed.routes[1].mtu = mtu;
        let Entry::Uplink { mtu, .. } = super::entry(&eth0, false, &observed.routes, &[]) else {
            panic!("no uplink");
        };
        mtu
    };
    let (own, other) = (eth0.index, eth0.index + 1);
    assert_eq!(taken(None, own), eth0.mtu);
    assert_eq!(taken(Some(1_280), own), 1_280);
    assert_eq!(taken(Some(1_280), other), eth0.mtu);
    assert_eq!(taken(Some(eth0.mtu + 1), own), eth0.mtu);
}

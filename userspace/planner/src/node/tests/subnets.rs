//! Tests of which pod subnets are complete: every address in use is a pod's or the node's.

use super::*;

/// The subnets of the first network, with whether they are complete.
fn complete(observed: &Observed, records: &Records) -> Vec<(String, bool)> {
    let mut bare = observed.clone();
    // So that the plan writes all of them.
    bare.entries.clear();
    let planned = plan_node(&node_intent(), &bare, records).plan;
    planned
        .steps()
        .iter()
        .filter_map(written)
        .filter_map(|(key, entry)| {
            let Entry::Prefix {
                pods: true,
                complete,
                ..
            } = entry
            else {
                return None;
            };
            Some((key.to_string(), complete))
        })
        .collect()
}

fn all_are(expected: bool, observed: &Observed, records: &Records) {
    let found = complete(observed, records);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found.iter().all(|(_, is)| *is == expected), "{found:?}");
}

#[test]
fn subnets_are_complete_while_all_ports_of_the_bridge_are_those_of_checked_pods() {
    all_are(true, &bare_node(), &Records::new());
    all_are(true, &node(), &Records::new());
    let mut attachment = attachment(&intent("c1"));
    let mut world = World::empty();
    world.remember(&attachment, State::Attached);
    all_are(true, &seen(&attachment), &world.records);
    attachment.port.trusted = true;
    world.remember(&attachment, State::Attached);
    all_are(false, &seen(&attachment), &world.records);
    // Its record is gone, and the port is not yet.
    all_are(false, &seen(&attachment), &Records::new());
}

#[test]
fn a_port_of_other_software_opens_the_subnets_of_its_bridge() {
    for kind in [LinkKind::Veth, LinkKind::Tap, LinkKind::Ethernet] {
        let mut observed = node();
        let mut foreign = link(40, kind, &[]);
        foreign.controller = Some(3);
        observed.links.insert(parse("port0"), foreign.clone());
        all_are(false, &observed, &Records::new());
        foreign.controller = None;
        observed.links.insert(parse("port0"), foreign);
        all_are(true, &observed, &Records::new());
    }
}

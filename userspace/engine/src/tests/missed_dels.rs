//! Containers that end without a DEL.

use super::*;

/// Number of addresses of the pool: a part of a /24.
const POOL: usize = 250;
/// Number of containers, of which one in three ends without a DEL: more than the pool has
/// addresses. `VIADUCT_COMERS` overrides it.
const CONTAINERS: usize = 1_000;
/// Number of containers that are alive at a time.
const ALIVE: usize = 40;

fn pool() -> Network {
    let mut network = network("default", "cbr0", &["10.1.0.0/24"]);
    let range = ::model::Range::new(
        "10.1.0.0/24".parse().unwrap(),
        Some("10.1.0.2".parse().unwrap()),
        Some("10.1.0.251".parse().unwrap()),
        None,
    );
    network.ranges = vec![RangeSet::new(vec![range.unwrap()]).unwrap()];
    network
}

/// behaviour U1.
#[test]
fn containers_that_end_without_a_del_never_exhaust_the_pool() {
    let mut node = Node::with(pool());
    let mut alive = std::collections::VecDeque::new();
    let mut without_del = 0;
    let containers = std::env::var("VIADUCT_COMERS").ok();
    let containers = containers.map_or(CONTAINERS, |containers| containers.parse().unwrap());
    for number in 0..containers {
        let name = format!("c{number}");
        let intent = node.intent(&name);
        let attachment = node.add(&intent).unwrap_or_else(|error| {
            panic!("container {number}, after {without_del} without a DEL: {error}")
        });
        alive.push_back((name, attachment));
        if alive.len() < ALIVE {
            continue;
        }
        let (name, attachment) = alive.pop_front().unwrap();
        if number % 3 == 0 {
            without_del += 1;
        } else {
            node.engine().del(&attachment.key).unwrap();
        }
        node.fake.remove_netns(&format!("/run/netns/{name}"));
        if number % 100 == 0 {
            // The agent reconciles after each deleted link; here it does so far less often.
            node.engine().reconcile(NOW);
        }
    }
    assert!(without_del > POOL, "{without_del}");
    node.engine().reconcile(NOW);
    assert_eq!(node.contents().records.len(), alive.len());
    assert_eq!(node.engine().store.leases().len(), alive.len());
    assert!(POOL > alive.len());
}

#[test]
fn a_released_address_is_the_last_to_be_reused() {
    let mut node = Node::with(pool());
    let first = node.intent("first");
    let allocated = node.add(&first).unwrap().addresses[0].address;
    node.engine().del(&first.key).unwrap();
    for number in 1..POOL {
        let next = node.intent(&format!("c{number}"));
        assert_ne!(node.add(&next).unwrap().addresses[0].address, allocated);
        node.engine().del(&next.key).unwrap();
    }
    let last = node.intent("last");
    assert_eq!(node.add(&last).unwrap().addresses[0].address, allocated);
}

/// A runtime that has lost its store reuses the ID of a container whose end no reconciliation has
/// observed yet.
#[test]
fn a_reused_container_id_is_refused_while_the_first_container_lives_and_attached_afterwards() {
    let mut node = Node::with(pool());
    let first = node.intent("first");
    node.add(&first).unwrap();
    let mut again = node.intent("again");
    again.key = first.key.clone();
    let before = node.traces();
    let error = node.add(&again).unwrap_err();
    let refused = EngineError::Refused(planner::Refusal::AlreadyAttached {
        key: first.key.clone(),
    });
    assert_eq!(error.to_string(), refused.to_string());
    assert_eq!(node.traces(), before);
    node.engine().check(&first.key).unwrap();

    node.fake.remove_netns("/run/netns/first");
    let attachment = node.add(&again).unwrap();
    assert_eq!(attachment.netns.path, again.netns);
    node.engine().check(&again.key).unwrap();
    assert_eq!(node.engine().store.leases().len(), 1);
    assert!(node.engine().reconcile(NOW).items.is_empty());
}

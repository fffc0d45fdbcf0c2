//! What runtimes forget: containers that are gone without a DEL, again and again.

use super::*;

/// Addresses of the pool: those of a /24 without the network's, the gateway's and the broadcast address, and some.
const POOL: usize = 250;
/// Containers that come, of which one in three goes without a DEL: more than the pool has addresses. `VIADUCT_COMERS`
/// says another number.
const COMERS: usize = 1_000;
/// Containers that are alive at a time.
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
fn a_pool_is_never_exhausted_by_containers_that_go_without_a_word() {
    let mut node = Node::with(pool());
    let mut alive = std::collections::VecDeque::new();
    let mut forgotten = 0;
    let comers = std::env::var("VIADUCT_COMERS").ok();
    let comers = comers.map_or(COMERS, |comers| comers.parse().unwrap());
    for number in 0..comers {
        let name = format!("c{number}");
        let intent = node.intent(&name);
        let attachment = node.add(&intent).unwrap_or_else(|error| {
            panic!("container {number}, {forgotten} were forgotten: {error}")
        });
        alive.push_back((name, attachment));
        if alive.len() < ALIVE {
            continue;
        }
        let (name, attachment) = alive.pop_front().unwrap();
        if number % 3 == 0 {
            forgotten += 1;
        } else {
            node.engine().del(&attachment.key).unwrap();
        }
        node.fake.remove_netns(&format!("/run/netns/{name}"));
        if number % 100 == 0 {
            // As often as the kernel tells of links that are gone; here far less often.
            node.engine().reconcile(NOW);
        }
    }
    assert!(forgotten > POOL, "{forgotten}");
    node.engine().reconcile(NOW);
    assert_eq!(node.contents().records.len(), alive.len());
    assert_eq!(node.engine().store.leases().len(), alive.len());
    assert!(POOL > alive.len());
}

#[test]
fn an_address_that_was_given_back_is_the_last_to_be_given_again() {
    let mut node = Node::with(pool());
    let first = node.intent("first");
    let given = node.add(&first).unwrap().addresses[0].address;
    node.engine().del(&first.key).unwrap();
    for number in 1..POOL {
        let next = node.intent(&format!("c{number}"));
        assert_ne!(node.add(&next).unwrap().addresses[0].address, given);
        node.engine().del(&next.key).unwrap();
    }
    let last = node.intent("last");
    assert_eq!(node.add(&last).unwrap().addresses[0].address, given);
}

/// A runtime that has lost its store gives the ID to another container, and nobody has noticed yet that the first is gone.
#[test]
fn an_id_that_comes_again_is_attached_when_its_first_container_is_gone_and_refused_while_it_lives()
{
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

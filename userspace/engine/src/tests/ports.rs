//! Ports of the node belong to one owner: an attachment, or a process of the node.

use kernel::Process;
use planner::{PortReservation, PortReservations, Refusal, Step};

use super::*;

fn wish(node: &Node, container: &str, ports: &[u16]) -> Intent {
    let mut intent = node.intent(container);
    intent.port_mappings = ports.iter().map(|port| publish(*port)).collect();
    intent
}

/// How many steps the ADD of a container with one port takes, and how often it turns to the kernel in all.
fn effort(node: &mut Node, container: &str, port: u16) -> (usize, usize) {
    let intent = wish(node, container, &[port]);
    node.fake.take_log();
    let before = node.kernel.calls();
    node.add(&intent).unwrap();
    (node.fake.take_log().len(), node.kernel.calls() - before)
}

fn nginx() -> Process {
    Process {
        pid: 1234,
        command: "nginx".to_owned(),
    }
}

fn held(node: &Node) -> Vec<String> {
    let held: PortReservations = node.fake.snapshot().port_reservations;
    held.keys().map(ToString::to_string).collect()
}

#[test]
fn a_port_of_a_process_is_refused_with_its_name_and_nothing_is_half_claimed() {
    let mut node = Node::start();
    assert!(node.fake.bind("0.0.0.0:8081/tcp", nginx()));
    let intent = wish(&node, "c1", &[8080, 8081, 8082]);
    let before = node.traces();
    let error = node.add(&intent).unwrap_err();
    assert_eq!(
        error.to_string(),
        "host port 8081/tcp is in use by nginx (pid 1234, 0.0.0.0:8081)"
    );
    assert_eq!(node.traces(), before);
    assert!(node.fake.bind("0.0.0.0:8080/tcp", nginx()), "let go of");
    node.fake.unbind("0.0.0.0:8080/tcp");
    node.fake.unbind("0.0.0.0:8081/tcp");
    node.add(&intent).unwrap();
}

#[test]
fn ports_are_held_first_and_let_go_of_last() {
    let mut node = Node::start();
    let intent = wish(&node, "c1", &[8080]);
    node.fake.take_log();
    node.add(&intent).unwrap();
    let log = node.fake.take_log();
    assert!(matches!(log[0], Step::ReservePort { .. }), "{:?}", log[0]);
    assert_eq!(held(&node), ["0.0.0.0:8080/tcp", "[::]:8080/tcp"]);
    assert!(!node.fake.bind("127.0.0.1:8080/tcp", nginx()));
    node.engine().del(&intent.key).unwrap();
    let log = node.fake.take_log();
    assert!(matches!(log.last(), Some(Step::ReleasePort { .. })));
    assert!(held(&node).is_empty());
}

/// What an ADD does to the kernel does not grow with what others have.
#[test]
fn an_add_takes_the_same_steps_beside_ten_ports_and_beside_ten_thousand() {
    let mut node = Node::start();
    let few = wish(&node, "few", &(9_000..9_010).collect::<Vec<_>>());
    node.add(&few).unwrap();
    let beside_few = effort(&mut node, "c1", 8080);
    let many = wish(&node, "many", &(10_000..20_000).collect::<Vec<_>>());
    node.add(&many).unwrap();
    assert_eq!(effort(&mut node, "c2", 8081), beside_few);
}

/// behaviours F33 and F34: two runtimes with networks of their own, one agent.
#[test]
fn two_networks_do_not_get_the_same_port() {
    let mut node = Node::start();
    let first = wish(&node, "c1", &[8080]);
    node.add(&first).unwrap();
    let own = network("own", "br1", &["10.2.0.0/24"]);
    let mut second = node.intent_on(&own, "c2");
    second.port_mappings = vec![publish(8080)];
    let before = node.traces();
    let error = node.add(&second).unwrap_err();
    assert!(matches!(
        error,
        EngineError::Refused(Refusal::PortTaken { .. })
    ));
    assert_eq!(
        error.to_string(),
        "host port 8080/tcp is in use by container default/c1/eth0"
    );
    assert_eq!(of_pods(&node.traces().0), of_pods(&before.0));
    node.engine().del(&first.key).unwrap();
    node.add(&second).unwrap();
}

#[test]
fn what_was_taken_while_the_agent_was_away_is_told_and_taken_back_when_it_is_free() {
    let mut node = Node::start();
    let intent = wish(&node, "c1", &[8080]);
    node.add(&intent).unwrap();
    node.fake.end_agent();
    assert!(node.fake.bind("0.0.0.0:8080/tcp", nginx()));
    node.restart();
    let degraded = node.engine().status().degraded;
    let told: Vec<String> = degraded.iter().map(ToString::to_string).collect();
    assert_eq!(
        told,
        [
            "default/c1/eth0 could not be put right: host port 0.0.0.0:8080/tcp is not reserved; host port \
             [::]:8080/tcp is not reserved: host port 8080/tcp is in use by nginx (pid 1234, 0.0.0.0:8080)"
        ]
    );
    assert_eq!(held(&node), ["[::]:8080/tcp"]);
    let entries = node.fake.snapshot().entries;
    let ports = entries.keys().filter_map(PortReservation::of);
    assert_eq!(ports.count(), 2, "packets go where they did");
    assert!(node.engine().check(&intent.key).is_err());

    node.fake.unbind("0.0.0.0:8080/tcp");
    node.engine().reconcile(NOW);
    assert!(node.engine().status().degraded.is_empty());
    node.engine().check(&intent.key).unwrap();
    assert_eq!(held(&node).len(), 2);
}

/// Runtimes send ranges of ports one by one.
#[test]
fn ten_thousand_ports_are_published_in_reasonable_time() {
    let mut node = Node::start();
    let ports: Vec<u16> = (10_000..20_000).collect();
    let intent = wish(&node, "c1", &ports);
    let started = std::time::Instant::now();
    node.add(&intent).unwrap();
    assert_eq!(held(&node).len(), 20_000);
    node.restart();
    node.engine().del(&intent.key).unwrap();
    assert!(held(&node).is_empty());
    let took = started.elapsed();
    assert!(took.as_secs() < 30, "{took:?}");
}

/// What an ADD of one pod does to kernel and store, while another has that many ports.
fn effects_beside(claimed: u16) -> (Vec<String>, usize) {
    let mut node = Node::start();
    let ports: Vec<u16> = (10_000..10_000 + claimed).collect();
    let crowd = wish(&node, "crowd", &ports);
    node.add(&crowd).unwrap();
    node.fake.take_log();
    let intent = wish(&node, "c1", &[8080, 8081]);
    node.add(&intent).unwrap();
    let steps: Vec<String> = node
        .fake
        .take_log()
        .iter()
        .map(ToString::to_string)
        .collect();
    let held = held(&node).len() - 2 * usize::from(claimed);
    (steps, held)
}

/// The time of an ADD is that of its effects: the same, one for one, beside one port and beside ten thousand.
#[test]
fn an_add_has_the_same_effects_beside_ten_thousand_ports_as_beside_one() {
    let (few, many) = (effects_beside(1), effects_beside(10_000));
    assert!(few.0.len() > 8, "{few:?}");
    assert_eq!(few, many);
}

#[test]
fn the_ports_of_the_node_are_listed_with_what_holds_them() {
    let mut node = Node::start();
    let intent = wish(&node, "c1", &[8080]);
    node.add(&intent).unwrap();
    let ports = node.engine().ports().unwrap();
    assert_eq!(ports.records.len(), 1);
    assert_eq!(ports.held.len(), 2);
}

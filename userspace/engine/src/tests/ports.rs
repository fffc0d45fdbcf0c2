//! Hostports: each belongs to one attachment or to one process of the node.

use std::time::Duration;

use kernel::Process;
use planner::Refusal;
use steps::{PortReservation, PortReservations, Step};

use super::*;

fn intent_with_ports(node: &Node, container: &str, ports: &[u16]) -> Intent {
    let mut intent = node.intent(container);
    intent.port_mappings = ports.iter().map(|port| publish(*port)).collect();
    intent
}

/// Returns the number of steps and of all kernel calls of an ADD with one hostport.
fn count_calls(node: &mut Node, container: &str, port: u16) -> (usize, usize) {
    let intent = intent_with_ports(node, container, &[port]);
    node.fake.take_log();
    let before = node.kernel.calls();
    node.add(&intent).unwrap();
    (node.fake.take_log().len(), node.kernel.calls() - before)
}

fn nginx() -> Process {
    Process {
        pid: 1234,
        command: "nginx".to_owned(),
        ..Process::default()
    }
}

fn held(node: &Node) -> Vec<String> {
    let held: PortReservations = node.fake.snapshot().port_reservations;
    held.keys().map(ToString::to_string).collect()
}

#[test]
fn a_hostport_in_use_is_refused_with_the_process_name_and_reserves_nothing() {
    let mut node = Node::start();
    assert!(node.fake.bind("0.0.0.0:8081/tcp", nginx()));
    let intent = intent_with_ports(&node, "c1", &[8080, 8081, 8082]);
    let before = node.traces();
    let error = node.add(&intent).unwrap_err();
    assert_eq!(
        error.to_string(),
        "host port 8081/tcp is in use by nginx (pid 1234, 0.0.0.0:8081)"
    );
    assert_eq!(node.traces(), before);
    assert!(node.fake.bind("0.0.0.0:8080/tcp", nginx()), "released");
    node.fake.unbind("0.0.0.0:8080/tcp");
    node.fake.unbind("0.0.0.0:8081/tcp");
    node.add(&intent).unwrap();
}

#[test]
fn hostports_are_reserved_first_and_released_last() {
    let mut node = Node::start();
    let intent = intent_with_ports(&node, "c1", &[8080]);
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

/// The steps of an ADD do not grow with the ports of other pods.
#[test]
fn an_add_takes_as_many_steps_beside_ten_hostports_as_beside_ten_thousand() {
    let mut node = Node::start();
    let few = intent_with_ports(&node, "few", &(9_000..9_010).collect::<Vec<_>>());
    node.add(&few).unwrap();
    let beside_few = count_calls(&mut node, "c1", 8080);
    let many = intent_with_ports(&node, "many", &(10_000..20_000).collect::<Vec<_>>());
    node.add(&many).unwrap();
    assert_eq!(count_calls(&mut node, "c2", 8081), beside_few);
}

/// behaviours F33 and F34: two runtimes with networks of their own, one agent.
#[test]
fn two_networks_cannot_publish_the_same_hostport() {
    let mut node = Node::start();
    let first = intent_with_ports(&node, "c1", &[8080]);
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
fn a_hostport_taken_while_the_agent_was_down_is_reported_and_reserved_again_when_free() {
    let mut node = Node::start();
    let intent = intent_with_ports(&node, "c1", &[8080]);
    node.add(&intent).unwrap();
    node.fake.end_agent();
    assert!(node.fake.bind("0.0.0.0:8080/tcp", nginx()));
    node.restart();
    let degraded = node.engine().status().degraded;
    let messages: Vec<String> = degraded.iter().map(ToString::to_string).collect();
    assert_eq!(
        messages,
        [
            "repair of default/c1/eth0 failed: host port 0.0.0.0:8080/tcp is not reserved; host port \
             [::]:8080/tcp is not reserved: host port 8080/tcp is in use by nginx (pid 1234, 0.0.0.0:8080)"
        ]
    );
    assert_eq!(held(&node), ["[::]:8080/tcp"]);
    let entries = node.fake.snapshot().entries;
    let ports = entries.keys().filter_map(PortReservation::of);
    assert_eq!(ports.count(), 2, "table entries stay");
    assert!(node.engine().check(&intent.key).is_err());

    node.fake.unbind("0.0.0.0:8080/tcp");
    node.engine().reconcile(NOW);
    assert!(node.engine().status().degraded.is_empty());
    node.engine().check(&intent.key).unwrap();
    assert_eq!(held(&node).len(), 2);
}

/// Runtimes send ranges of ports one by one. The time is CPU time.
#[test]
fn ten_thousand_hostports_are_published_within_30_seconds() {
    let mut node = Node::start();
    let ports: Vec<u16> = (10_000..20_000).collect();
    let intent = intent_with_ports(&node, "c1", &ports);
    let started = cpu_time();
    node.add(&intent).unwrap();
    assert_eq!(held(&node).len(), 20_000);
    node.restart();
    node.engine().del(&intent.key).unwrap();
    assert!(held(&node).is_empty());
    let took = cpu_time().saturating_sub(started);
    assert!(took.as_secs() < 30, "{took:?}");
}

/// Returns the CPU time of this thread, which other programs on the machine do not change: the
/// first number of `schedstat`, in nanoseconds.
fn cpu_time() -> Duration {
    let counted = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    let spent = counted.split(' ').next().unwrap();
    Duration::from_nanos(spent.parse().unwrap())
}

/// Returns the steps and the number of port reservations of an ADD while another pod has `claimed`
/// ports.
fn effects_beside(claimed: u16) -> (Vec<String>, usize) {
    let mut node = Node::start();
    let ports: Vec<u16> = (10_000..10_000 + claimed).collect();
    let crowd = intent_with_ports(&node, "crowd", &ports);
    node.add(&crowd).unwrap();
    node.fake.take_log();
    let intent = intent_with_ports(&node, "c1", &[8080, 8081]);
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

/// The duration of an ADD follows from its steps. They are the same beside 1 port and beside 10,000
/// ports of another pod.
#[test]
fn an_add_executes_the_same_steps_beside_ten_thousand_hostports_as_beside_one() {
    let (few, many) = (effects_beside(1), effects_beside(10_000));
    assert!(few.0.len() > 8, "{few:?}");
    assert_eq!(few, many);
}

#[test]
fn hostports_are_listed_with_their_reservations() {
    let mut node = Node::start();
    let intent = intent_with_ports(&node, "c1", &[8080]);
    node.add(&intent).unwrap();
    let ports = node.engine().ports().unwrap();
    assert_eq!(ports.records.len(), 1);
    assert_eq!(ports.held.len(), 2);
}

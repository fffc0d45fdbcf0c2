//! Tests of port reservations: which ports an attachment reserves, and how missing and stale ones
//! are repaired.

use steps::{PortReservation, Step};

use crate::testing::{
    BOOT, World, attachment, empty_netns, intent, network_of, node, parse, port, reserved, seen,
};
use crate::{Finding, Refusal, attachment_reservations, plan_attach, plan_repair};

fn published(ports: &[&str]) -> model::Attachment {
    let mut request = intent("c1");
    request.port_mappings = ports.iter().map(|text| port(text)).collect();
    attachment(&request)
}

fn reservation(text: &str) -> PortReservation {
    let (socket, protocol) = text.split_once('/').unwrap();
    let socket: std::net::SocketAddr = parse(socket);
    PortReservation {
        address: socket.ip(),
        port: socket.port(),
        protocol: parse(protocol),
    }
}

/// behaviour K31: a port of a pod with two families is two reservations.
#[test]
fn a_port_reservation_is_per_address_family() {
    let attachment = published(&["8080->80/tcp", "192.0.2.10@53->53/udp", "fe80::1@9->9/tcp"]);
    let reservations: Vec<String> = attachment_reservations(&attachment)
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        reservations,
        ["0.0.0.0:8080/tcp", "192.0.2.10:53/udp", "[::]:8080/tcp"]
    );
}

/// No socket of the node has the port, and other processes may.
#[test]
fn a_port_at_the_pods_own_address_is_not_reserved() {
    let own = published(&[]).address(true).unwrap();
    let attachment = published(&[&format!("{own}@80->80/tcp"), "8080->80/tcp"]);
    let reservations: Vec<String> = attachment_reservations(&attachment)
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(reservations, ["0.0.0.0:8080/tcp", "[::]:8080/tcp"]);
    let direct = &attachment.port_mappings[0];
    assert_eq!(crate::mapping_reservations(&attachment, direct), []);
    assert_eq!(crate::published_ports([&attachment]), [8080].into());
    let row = steps::EntryKey::Hostport {
        address: Some(own),
        ipv4: true,
        port: 80,
        protocol: model::Protocol::Tcp,
    };
    assert!(crate::attachment_entries(&attachment).contains_key(&row));
}

#[test]
fn a_wildcard_reservation_overlaps_with_each_address_of_its_family() {
    for (one, other, overlap) in [
        ("0.0.0.0:80/tcp", "192.0.2.1:80/tcp", true),
        ("192.0.2.1:80/tcp", "192.0.2.1:80/tcp", true),
        ("192.0.2.1:80/tcp", "192.0.2.2:80/tcp", false),
        ("0.0.0.0:80/tcp", "[::]:80/tcp", false),
        ("0.0.0.0:80/tcp", "0.0.0.0:80/udp", false),
        ("0.0.0.0:80/tcp", "0.0.0.0:81/tcp", false),
    ] {
        assert_eq!(
            reservation(one).overlaps(&reservation(other)),
            overlap,
            "{one} {other}"
        );
        assert_eq!(
            reservation(other).overlaps(&reservation(one)),
            overlap,
            "{other} {one}"
        );
    }
}

fn repair(attachment: &model::Attachment, observed: &steps::Observed) -> crate::Repair {
    plan_repair(&World::with(attachment).records, observed, BOOT, 0)
}

/// behaviours K31, K35: the wanted reservations are compared with the existing ones, not only with
/// changes.
#[test]
fn a_missing_port_reservation_is_repaired_first() {
    let attachment = published(&["8080->80/tcp"]);
    let mut observed = seen(&attachment);
    assert!(repair(&attachment, &observed).is_empty());
    observed
        .port_reservations
        .remove(&reservation("[::]:8080/tcp"));
    observed.entries.clear();
    let repair = repair(&attachment, &observed);
    let Finding::Repair { differences, plan } = &repair.attachments[&attachment.key] else {
        panic!("{repair:?}");
    };
    let texts: Vec<String> = differences.iter().map(ToString::to_string).collect();
    assert!(texts.contains(&"host port [::]:8080/tcp is not reserved".to_owned()));
    let first = &plan.steps()[0];
    assert_eq!(first.to_string(), "reserve port [::]:8080/tcp");
    assert!(!plan.steps()[1..].iter().any(changes_reservations));
}

fn changes_reservations(step: &Step) -> bool {
    matches!(step, Step::ReservePort { .. } | Step::ReleasePort { .. })
}

/// behaviour K35.
#[test]
fn a_port_reservation_without_a_record_is_released() {
    let attachment = published(&["8080->80/tcp"]);
    let mut observed = seen(&attachment);
    observed
        .port_reservations
        .extend(reserved(&published(&["9090->80/udp"])));
    let repair = repair(&attachment, &observed);
    assert_eq!(repair.attachments[&attachment.key], Finding::Healthy);
    assert_eq!(
        repair.stale.to_string(),
        " 1. release port 0.0.0.0:9090/udp\n 2. release port [::]:9090/udp"
    );
}

#[test]
fn reserve_and_release_of_a_port_undo_each_other() {
    let reserve = Step::ReservePort {
        reservation: reservation("0.0.0.0:80/tcp"),
        generation: 3,
    };
    let release = reserve.undo().unwrap();
    assert_eq!(release.to_string(), "release port 0.0.0.0:80/tcp");
    assert_eq!(release.undo(), Some(reserve));
}

/// Two runtimes with networks of their own on one agent.
#[test]
fn a_hostport_of_another_network_is_refused_with_its_pods_name() {
    let mut first = intent("c1");
    first.port_mappings = vec![port("8080->80/tcp")];
    first.pod = Some(model::PodName {
        namespace: "shop".to_owned(),
        name: "web".to_owned(),
    });
    let world = World::with(&attachment(&first));
    let mut second = intent("c2");
    second.network = network_of("other", "cbr0", &["10.2.0.0/24"]);
    second.key.network = parse("other");
    second.port_mappings = vec![port("8080->90/tcp")];
    let refused =
        |request| plan_attach(request, &empty_netns(&node()), &world.context()).unwrap_err();
    assert_eq!(
        refused(&second).to_string(),
        "host port 8080/tcp is in use by pod shop/web (net/c1/eth0)"
    );
}

/// behaviour F31.
#[test]
fn more_hostports_than_the_table_holds_are_refused() {
    let world = World::with(&published(&["1->1/udp"]));
    let mut request = intent("c2");
    let all = |count: u16| (1..=count).map(|number| port(&format!("{number}->1/tcp")));
    // Two families: half as many mappings as the table has room for.
    request.port_mappings = all(16_383).collect();
    let planned = plan_attach(&request, &empty_netns(&node()), &world.context());
    assert_eq!(attachment_reservations(&planned.unwrap().0).len(), 32_766);
    request.port_mappings = all(16_384).collect();
    let refusal = plan_attach(&request, &empty_netns(&node()), &world.context()).unwrap_err();
    assert!(matches!(refusal, Refusal::NoRoomForPorts { .. }));
    assert_eq!(
        refusal.to_string(),
        "no room for 32768 host ports: 2 of 32768 are in use"
    );
}

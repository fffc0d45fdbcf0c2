//! Which ports an attachment claims, and what becomes of claims that are not as they should be.

use crate::testing::{BOOT, World, attachment, held, intent, network_of, node, parse, port, seen};
use crate::{Claim, Finding, Refusal, Step, attachment_claims, plan_attach, plan_repair};

fn published(ports: &[&str]) -> model::Attachment {
    let mut wish = intent("c1");
    wish.port_mappings = ports.iter().map(|text| port(text)).collect();
    attachment(&wish)
}

fn claim(text: &str) -> Claim {
    let (socket, protocol) = text.split_once('/').unwrap();
    let socket: std::net::SocketAddr = parse(socket);
    Claim {
        address: socket.ip(),
        port: socket.port(),
        protocol: parse(protocol),
    }
}

/// behaviour K31: a port of a pod with two families is two claims.
#[test]
fn each_family_is_claimed_for_itself() {
    let attachment = published(&["8080->80/tcp", "192.0.2.10@53->53/udp", "fe80::1@9->9/tcp"]);
    let claims: Vec<String> = attachment_claims(&attachment)
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        claims,
        ["0.0.0.0:8080/tcp", "192.0.2.10:53/udp", "[::]:8080/tcp"]
    );
}

#[test]
fn a_wildcard_overlaps_with_each_address_of_its_family() {
    for (one, other, overlap) in [
        ("0.0.0.0:80/tcp", "192.0.2.1:80/tcp", true),
        ("192.0.2.1:80/tcp", "192.0.2.1:80/tcp", true),
        ("192.0.2.1:80/tcp", "192.0.2.2:80/tcp", false),
        ("0.0.0.0:80/tcp", "[::]:80/tcp", false),
        ("0.0.0.0:80/tcp", "0.0.0.0:80/udp", false),
        ("0.0.0.0:80/tcp", "0.0.0.0:81/tcp", false),
    ] {
        assert_eq!(claim(one).overlaps(&claim(other)), overlap, "{one} {other}");
        assert_eq!(claim(other).overlaps(&claim(one)), overlap, "{other} {one}");
    }
}

fn repair(attachment: &model::Attachment, observed: &crate::Observed) -> crate::Repair {
    plan_repair(&World::with(attachment).records, observed, BOOT)
}

/// behaviours K31, K35: what is wanted is compared with what is there, not only with what has changed.
#[test]
fn a_port_that_is_not_held_is_held_again_before_anything_else() {
    let attachment = published(&["8080->80/tcp"]);
    let mut observed = seen(&attachment);
    assert!(repair(&attachment, &observed).is_empty());
    observed.held.remove(&claim("[::]:8080/tcp"));
    observed.entries.clear();
    let repair = repair(&attachment, &observed);
    let Finding::Mend { differences, plan } = &repair.attachments[&attachment.key] else {
        panic!("{repair:?}");
    };
    let told: Vec<String> = differences.iter().map(ToString::to_string).collect();
    assert!(told.contains(&"the port [::]:8080/tcp is not held".to_owned()));
    let first = &plan.steps()[0];
    assert_eq!(first.to_string(), "hold port [::]:8080/tcp");
    assert!(!plan.steps()[1..].iter().any(is_about_claims));
}

fn is_about_claims(step: &Step) -> bool {
    matches!(step, Step::HoldPort { .. } | Step::ReleasePort { .. })
}

/// behaviour K35.
#[test]
fn a_port_that_nobody_claims_is_let_go_of() {
    let attachment = published(&["8080->80/tcp"]);
    let mut observed = seen(&attachment);
    observed.held.extend(held(&published(&["9090->80/udp"])));
    let repair = repair(&attachment, &observed);
    assert_eq!(repair.attachments[&attachment.key], Finding::Healthy);
    assert_eq!(
        repair.stale.to_string(),
        " 1. release port 0.0.0.0:9090/udp\n 2. release port [::]:9090/udp"
    );
}

#[test]
fn holding_and_releasing_undo_each_other() {
    let hold = Step::HoldPort {
        claim: claim("0.0.0.0:80/tcp"),
        generation: 3,
    };
    let release = hold.undo().unwrap();
    assert_eq!(release.to_string(), "release port 0.0.0.0:80/tcp");
    assert_eq!(release.undo(), Some(hold));
}

/// Two runtimes with networks of their own on one agent.
#[test]
fn a_port_of_another_network_is_taken_and_its_pod_is_named() {
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
    let refused = |wish| plan_attach(wish, &node(), &world.context()).unwrap_err();
    assert_eq!(
        refused(&second).to_string(),
        "host port 8080/tcp is in use by pod shop/web (net/c1/eth0)"
    );
}

/// behaviour F31.
#[test]
fn more_ports_than_the_table_holds_are_refused() {
    let world = World::with(&published(&["1->1/udp"]));
    let mut wish = intent("c2");
    let all = |count: u16| (1..=count).map(|number| port(&format!("{number}->1/tcp")));
    // Two families: half as many mappings as the table has room for.
    wish.port_mappings = all(16_383).collect();
    let planned = plan_attach(&wish, &node(), &world.context());
    assert_eq!(attachment_claims(&planned.unwrap().0).len(), 32_766);
    wish.port_mappings = all(16_384).collect();
    let refusal = plan_attach(&wish, &node(), &world.context()).unwrap_err();
    assert!(matches!(refusal, Refusal::NoRoomForPorts { .. }));
    assert_eq!(
        refusal.to_string(),
        "no room for 32768 host ports: 2 of 32768 are in use"
    );
}

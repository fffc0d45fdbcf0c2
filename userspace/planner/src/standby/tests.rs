//! Ports of containers with several interfaces.

use super::*;
use crate::testing::{World, attachment, empty_netns, intent, node, port};
use crate::{Refusal, attachment_reservations, plan_attach, with_ports};

const PORT: &str = "8080->80/tcp";

/// Returns an attachment of container `id` by interface `ifname` that wants `ports`.
fn wanted(world: &World, id: &str, ifname: &str, ports: &[&str]) -> Result<Attachment, Refusal> {
    let mut request = intent(id);
    request.key.ifname = ifname.parse().unwrap();
    request.port_mappings = ports.iter().map(|text| port(text)).collect();
    plan_attach(&request, &empty_netns(&node()), &world.context()).map(|(attachment, _)| attachment)
}

fn world_with_first() -> (World, Attachment) {
    let mut request = intent("c1");
    request.port_mappings = vec![port(PORT)];
    let first = attachment(&request);
    (World::with(&first), first)
}

#[test]
fn a_second_interface_of_a_container_stands_by_for_the_ports_of_the_first() {
    let (world, first) = world_with_first();
    assert!(first.standby.is_empty());
    let second = wanted(&world, "c1", "eth1", &[PORT, "9090->90/tcp"]).unwrap();
    assert_eq!(second.port_mappings.len(), 2);
    assert_eq!(second.standby.len(), 2, "both families");
    let served: Vec<String> = attachment_reservations(&second)
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(served, ["0.0.0.0:9090/tcp", "[::]:9090/tcp"]);
    let standby = standby_reservations(&second, &port(PORT));
    assert_eq!(standby.len(), 2);
}

#[test]
fn a_port_of_another_container_or_to_another_pod_port_is_refused() {
    let (world, _) = world_with_first();
    for (id, ports) in [("c2", PORT), ("c1", "8080->81/tcp")] {
        let refused = wanted(&world, id, "eth1", &[ports]).unwrap_err();
        assert!(matches!(refused, Refusal::PortTaken { .. }), "{refused}");
    }
}

#[test]
fn ports_pass_to_the_next_interface_when_their_owner_leaves() {
    let (mut world, first) = world_with_first();
    let second = wanted(&world, "c1", "eth1", &[PORT]).unwrap();
    world.remember(&second, State::Attached);
    let records = &world.records;
    assert_eq!(with_current_standby(&second, records, None), None);
    assert_eq!(with_current_standby(&first, records, None), None);
    let serving = with_current_standby(&second, records, Some(&first.key)).unwrap();
    assert!(serving.standby.is_empty());
    assert_eq!(sharing_attachments(records).len(), 1);

    // After a crash in the middle of a hand-over, the older attachment keeps the port.
    let newer = Attachment {
        generation: first.generation + 1,
        ..serving
    };
    world.remember(&newer, State::Attached);
    assert_eq!(with_current_standby(&first, &world.records, None), None);
    let again = with_current_standby(&newer, &world.records, None).unwrap();
    assert_eq!(again.standby, second.standby);

    world.remember(&first, State::Removing);
    world.remember(&second, State::Attached);
    let serving = with_current_standby(&second, &world.records, None).unwrap();
    assert!(serving.standby.is_empty());
    world.records.remove(&first.key);
    assert_eq!(
        sharing_attachments(&world.records).len(),
        1,
        "it still stands by"
    );
}

#[test]
fn an_owner_that_publishes_again_keeps_its_ports_before_a_standby() {
    let (mut world, first) = world_with_first();
    let second = wanted(&world, "c1", "eth1", &[PORT]).unwrap();
    world.remember(&second, State::Attached);
    let again = with_ports(&first, &first.port_mappings, &world.records).unwrap();
    assert_eq!(again, first);
}

//! Uninstall, and the state after a reboot.

use steps::SysctlKey;

use super::*;
use crate::AttachedPods;

fn forwarding(node: &Node) -> String {
    let key = SysctlKey("net/ipv4/ip_forward".to_owned());
    node.fake.snapshot().sysctls[&key].clone().unwrap()
}

/// Returns links, programs, sysctls and ports: the state that an uninstall restores.
fn bare(node: &Node) -> Observed {
    let mut observed = node.fake.snapshot();
    // The agent removes the tables with their pins.
    observed.entries.clear();
    observed
}

#[test]
fn uninstall_is_refused_while_pods_are_attached_unless_they_are_to_be_detached() {
    let mut node = Node::start();
    let intent = node.intent("c1");
    node.add(&intent).unwrap();
    let error = node.engine().uninstall(AttachedPods::Refuse).unwrap_err();
    assert!(matches!(error, EngineError::StillAttached(_)), "{error:?}");
    assert!(error.to_string().contains("c1"), "{error}");
    node.engine().check(&intent.key).unwrap();

    let done = node.engine().uninstall(AttachedPods::Detach).unwrap();
    assert_eq!(done.detached, [intent.key]);
    assert_eq!(done.left, Vec::<String>::new());
}

#[test]
fn uninstall_restores_links_sysctls_and_ports() {
    let fake = Fake::new();
    fake.add_cgroup();
    let before = fake.snapshot();
    let mut node = Node::on(fake);
    assert_eq!(forwarding(&node), "1");
    let mut intent = node.intent("c1");
    intent.port_mappings = vec![publish(8080)];
    node.add(&intent).unwrap();
    node.engine().del(&intent.key).unwrap();
    node.restart();
    node.engine().uninstall(AttachedPods::Refuse).unwrap();
    let after = bare(&node);
    assert_eq!(after.links, before.links);
    assert_eq!(after.sysctls, before.sysctls);
    assert_eq!(after.port_reservations, before.port_reservations);
    assert_eq!(after.socket_hooks, before.socket_hooks);
}

/// The next uninstall finishes a crashed one, also without a reconciliation before it.
#[test]
fn an_uninstall_that_crashes_at_any_call_can_be_repeated() {
    use super::failing_kernel::{Fate, survive};
    let mut deaths = 0;
    for call in 0..200 {
        let fake = Fake::new();
        let before = fake.snapshot();
        let mut node = Node::on(fake);
        let intent = node.intent("c1");
        node.add(&intent).unwrap();
        node.kernel.meet(Fate::Die(call));
        if survive(|| node.engine().uninstall(AttachedPods::Detach)).is_some() {
            break;
        }
        deaths += 1;
        node.for_uninstall()
            .uninstall(AttachedPods::Detach)
            .unwrap();
        let after = bare(&node);
        assert_eq!(after.links, before.links, "call {call}");
        assert_eq!(after.sysctls, before.sysctls, "call {call}");
    }
    assert!((5..200).contains(&deaths), "{deaths}");
}

#[test]
fn uninstall_leaves_a_sysctl_that_other_software_has_changed() {
    let mut node = Node::start();
    node.fake.set_sysctl("net/ipv4/ip_forward", "2");
    let done = node.engine().uninstall(AttachedPods::Refuse).unwrap();
    assert_eq!(forwarding(&node), "2");
    assert_eq!(
        done.left,
        ["sysctl net/ipv4/ip_forward was 0 before Viaduct, and other software has set it to 2"]
    );
}

/// behaviour U1: the records survived the reboot on disk.
#[test]
fn after_a_reboot_attachments_are_released_and_sysctls_of_the_new_boot_stay() {
    let mut node = Node::start();
    let mut intent = node.intent("c1");
    intent.port_mappings = vec![publish(8080)];
    let first = node.add(&intent).unwrap();
    node.reboot();
    // Other software reserves the port and enables forwarding before the agent starts.
    node.fake
        .set_sysctl("net/ipv4/ip_local_reserved_ports", "8080");
    node.fake.set_sysctl("net/ipv4/ip_forward", "1");
    let report = node.restart();
    let outcomes: Vec<_> = report.items.iter().map(|item| item.outcome).collect();
    assert!(outcomes.contains(&crate::Outcome::Removed), "{report:?}");
    assert!(node.contents().records.is_empty());
    let key = SysctlKey("net/ipv4/ip_local_reserved_ports".to_owned());
    let value = &node.fake.snapshot().sysctls[&key];
    assert_eq!(value.as_deref(), Some("8080"));

    node.fake.add_netns("/run/netns/c1");
    let second = node.add(&intent).unwrap();
    assert!(
        second.generation > first.generation,
        "flows of both pods can be distinguished"
    );
    node.engine().uninstall(AttachedPods::Detach).unwrap();
    assert_eq!(
        forwarding(&node),
        "1",
        "it was 1 before the agent wrote it in this boot"
    );
}

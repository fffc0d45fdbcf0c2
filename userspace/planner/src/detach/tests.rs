//! Tests of DEL plans: what is removed and what is kept.

use insta::assert_snapshot;

use steps::{Entry, EntryKey, LinkRef, Step};

use crate::plan_detach;
use crate::testing::{attachment, intent, node, parse, port, seen};

fn published() -> model::Attachment {
    let mut request = intent("c1");
    request.port_mappings = vec![port("8080->80/tcp")];
    attachment(&request)
}

#[test]
fn detach_removes_hostports_first_and_releases_ports_last() {
    let attachment = published();
    assert_snapshot!(plan_detach(&attachment, &seen(&attachment)), @r#"
    1. remove hostport 0.0.0.0:8080/tcp
    2. remove hostport [::]:8080/tcp
    3. remove interface vethb2b0ff9d
    4. remove endpoint fd00:1::2
    5. remove endpoint 10.1.0.2
    6. write pod 7: free, last generation 40
    7. delete veth vethb2b0ff9d if its alias is "net c1 eth0"
    8. release port 0.0.0.0:8080/tcp
    9. release port [::]:8080/tcp
    "#);
}

/// The alias is set by a second message, and the agent may be killed before it.
#[test]
fn a_link_without_its_alias_is_identified_by_its_mac_address() {
    let attachment = published();
    let host = attachment.host_link();
    let deletes = |mac: model::Mac| {
        let mut observed = seen(&attachment);
        let link = observed.links.get_mut(host.name()).unwrap();
        link.alias = None;
        link.mac = Some(mac);
        let plan = plan_detach(&attachment, &observed);
        let mut steps = plan.steps().iter();
        steps.any(|step| matches!(step, Step::DeleteVeth { .. }))
    };
    assert!(deletes(attachment.key.host_mac()));
    assert!(!deletes(parse("02:00:00:00:00:01")), "a foreign link");
}

/// behaviour S10: DEL of an attachment that is gone succeeds.
#[test]
fn detach_of_a_removed_attachment_is_an_empty_plan() {
    assert!(plan_detach(&published(), &node()).is_empty());
}

/// An earlier DEL freed the row and failed to remove the interface entry.
#[test]
fn an_interface_entry_of_a_gone_link_is_ours_until_its_pod_row_has_a_new_owner() {
    let attachment = published();
    let steps = |generation: u32| {
        let mut observed = node();
        let slot = attachment.slot;
        observed.entries.insert(
            EntryKey::Interface(LinkRef::Gone(9)),
            Entry::Interface {
                slot,
                limited: false,
            },
        );
        observed
            .entries
            .insert(EntryKey::Pod(slot), Entry::FreePod { generation });
        plan_detach(&attachment, &observed).steps().len()
    };
    assert_eq!(steps(attachment.generation), 1);
    assert_eq!(steps(attachment.generation + 1), 0);
}

/// The runtime deleted the namespace first: the link is gone, and the entries refer to its index.
#[test]
fn entries_of_a_link_that_is_gone_are_removed() {
    let attachment = published();
    let mut observed = seen(&attachment);
    let host = attachment.host_link().name().clone();
    observed.links.remove(&host);
    observed
        .entries
        .remove(&EntryKey::Interface(LinkRef::Name(host)));
    for entry in observed.entries.values_mut() {
        if let Entry::Pod { link, .. } | Entry::Endpoint { link, .. } = entry {
            *link = LinkRef::Gone(9);
        }
    }
    assert_snapshot!(plan_detach(&attachment, &observed), @r"
    1. remove hostport 0.0.0.0:8080/tcp
    2. remove hostport [::]:8080/tcp
    3. remove interface gone link #9
    4. remove endpoint fd00:1::2
    5. remove endpoint 10.1.0.2
    6. write pod 7: free, last generation 40
    7. release port 0.0.0.0:8080/tcp
    8. release port [::]:8080/tcp
    ");
}

#[test]
fn a_link_with_another_alias_is_left_alone() {
    let attachment = published();
    let mut observed = seen(&attachment);
    let host = observed
        .links
        .get_mut(attachment.host_link().name())
        .unwrap();
    host.alias = Some("someone else's".to_owned());
    let plan = plan_detach(&attachment, &observed).to_string();
    assert!(!plan.contains("delete veth"), "{plan}");
}

/// Slot, addresses and ports have a new owner, with another generation.
#[test]
fn entries_of_a_later_generation_are_left_alone() {
    let old = published();
    let mut new = old.clone();
    new.generation += 1;
    new.key.container_id = parse("c2");
    assert!(plan_detach(&old, &seen(&new)).is_empty());
}

//! Tests of the reconciliation policy.

use insta::assert_snapshot;
use model::{Attachment, State};
use steps::{Entry, EntryKey, LinkKind, LinkRef, Observed};

use crate::testing::{BOOT, World, attachment, intent, link, node, parse, port, seen};
use crate::{Finding, Reason, Repair, plan_repair};

fn published() -> Attachment {
    let mut request = intent("c1");
    request.port_mappings = vec![port("8080->80/tcp")];
    attachment(&request)
}

fn repair(state: State, spoil: impl FnOnce(&mut Observed)) -> Repair {
    let attachment = published();
    let mut world = World::empty();
    world.remember(&attachment, state);
    let mut observed = seen(&attachment);
    spoil(&mut observed);
    plan_repair(&world.records, &observed, BOOT, 0)
}

fn finding(repair: &Repair) -> &Finding {
    repair.attachments.values().next().unwrap()
}

fn repair_plan(repair: &Repair) -> String {
    let Finding::Repair { plan, .. } = finding(repair) else {
        panic!("{repair:?}");
    };
    plan.to_string()
}

fn detach_plan(repair: &Repair) -> (Reason, String) {
    let Finding::Detach { reason, plan } = finding(repair) else {
        panic!("{repair:?}");
    };
    (*reason, plan.to_string())
}

#[test]
fn a_healthy_attachment_is_left_alone() {
    let repair = repair(State::Attached, |_| {});
    assert!(repair.is_empty(), "{repair:?}");
    assert!(repair.orphaned_links.is_empty());
}

/// Tables emptied, programs detached, link removed from the bridge: everything is restored,
/// hostports last.
#[test]
fn a_live_attachment_gets_its_missing_parts_back() {
    let repair = repair(State::Attached, |observed| {
        observed.entries.clear();
        let host = published().host_link();
        let host = observed.links.get_mut(host.name()).unwrap();
        host.hooks.clear();
        host.controller = None;
    });
    assert_snapshot!(repair_plan(&repair), @r"
    1. write pod 7: 10.1.0.2, fd00:1::2, 02:5a:e2:fa:81:8a behind vethb2b0ff9d on cbr0, generation 40, masqueraded
    2. write interface vethb2b0ff9d: pod 7
    3. write endpoint 10.1.0.2: pod 7 generation 40, 02:5a:e2:fa:81:8a behind vethb2b0ff9d, masqueraded, published
    4. write endpoint fd00:1::2: pod 7 generation 40, 02:5a:e2:fa:81:8a behind vethb2b0ff9d, masqueraded, published
    5. attach from_pod, to_pod to vethb2b0ff9d
    6. make vethb2b0ff9d a port of cbr0 with hairpin, up
    7. write hostport [::]:8080/tcp: [fd00:1::2]:80 of pod 7 generation 40
    8. write hostport 0.0.0.0:8080/tcp: 10.1.0.2:80 of pod 7 generation 40
    ");
}

#[test]
fn repair_without_the_bridge_leaves_out_steps_that_need_it() {
    let repair = repair(State::Attached, |observed| {
        observed.links.remove(&parse("cbr0"));
        observed.entries.pop_last();
        observed.entries.remove(&EntryKey::Pod(7));
    });
    assert_snapshot!(repair_plan(&repair), @" 1. write hostport 0.0.0.0:8080/tcp: 10.1.0.2:80 of pod 7 generation 40");
}

/// behaviour U1: the agent notices by itself that the pod is gone.
#[test]
fn an_attachment_whose_link_is_gone_is_released() {
    let repair = repair(State::Attached, |observed| {
        observed.links.remove(published().host_link().name());
    });
    let (reason, plan) = detach_plan(&repair);
    assert_eq!(reason, Reason::LinkGone);
    assert!(plan.contains("remove hostport 0.0.0.0:8080/tcp"), "{plan}");
    assert!(!plan.contains("delete veth"), "{plan}");
}

#[test]
fn an_unfinished_add_or_del_is_removed() {
    for (state, expected) in [
        (State::Pending, Reason::Unfinished),
        (State::Removing, Reason::HalfRemoved),
    ] {
        let (reason, plan) = detach_plan(&repair(state, |_| {}));
        assert_eq!(reason, expected);
        assert!(plan.contains("delete veth"), "{plan}");
    }
}

#[test]
fn a_record_of_another_boot_is_released_without_a_step() {
    let attachment = published();
    let mut world = World::empty();
    world.remember(&attachment, State::Attached);
    let repair = plan_repair(&world.records, &node(), "boot-2", 0);
    assert_eq!(
        detach_plan(&repair),
        (Reason::OtherBoot, "nothing to do".to_owned())
    );
    assert!(repair.stale.is_empty());
}

/// An address or a port without a record may be given to another pod at any time.
#[test]
fn entries_without_a_record_are_removed() {
    let attachment = published();
    let mut observed = seen(&attachment);
    let free = (EntryKey::Pod(8), Entry::FreePod { generation: 3 });
    let gone = (
        EntryKey::Interface(LinkRef::Gone(5)),
        Entry::Interface {
            slot: 8,
            limited: false,
        },
    );
    let local = (EntryKey::Local(parse("192.0.2.10")), Entry::Local);
    observed.entries.extend([free, gone, local]);
    let repair = plan_repair(&World::empty().records, &observed, BOOT, 0);
    assert_snapshot!(repair.stale, @r"
    1. remove hostport 0.0.0.0:8080/tcp
    2. remove hostport [::]:8080/tcp
    3. remove endpoint fd00:1::2
    4. remove endpoint 10.1.0.2
    5. remove interface gone link #5
    6. remove interface vethb2b0ff9d
    7. write pod 7: free, last generation 40
    8. release port 0.0.0.0:8080/tcp
    9. release port [::]:8080/tcp
    ");
}

#[test]
fn entries_of_a_detach_plan_are_not_removed_twice() {
    let repair = repair(State::Pending, |_| {});
    assert!(repair.stale.is_empty(), "{}", repair.stale);
}

/// Any software can choose such names and aliases.
#[test]
fn a_link_that_looks_like_ours_is_reported_and_left_alone() {
    let attachment = published();
    let mut observed = seen(&attachment);
    observed.entries.clear();
    observed.port_reservations.clear();
    let mut docker = link(20, LinkKind::Veth, &[]);
    docker.alias = Some("docker".to_owned());
    observed.links.insert(parse("veth12345678"), docker);
    let repair = plan_repair(&World::empty().records, &observed, BOOT, 0);
    let orphans: Vec<String> = repair
        .orphaned_links
        .iter()
        .map(|s| s.link.to_string())
        .collect();
    assert_eq!(orphans, [attachment.host_link().to_string()]);
    assert!(repair.is_empty());
}

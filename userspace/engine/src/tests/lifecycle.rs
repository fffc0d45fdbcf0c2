//! ADD, DEL, CHECK, restart and reconciliation, one behaviour for each test.

use super::*;
use crate::{Degraded, NetworkClash, Outcome};
use ipam::AddressRefusal;
use planner::Refusal;

/// behaviour S10.
#[test]
fn a_second_add_is_refused_and_changes_nothing() {
    let mut node = Node::start();
    let intent = node.intent("c1");
    node.add(&intent).unwrap();
    let before = node.traces();
    let error = node.add(&intent).unwrap_err();
    assert!(matches!(
        error,
        EngineError::Refused(Refusal::AlreadyAttached { .. })
    ));
    assert_eq!(node.traces(), before);
    node.engine().check(&intent.key).unwrap();
}

/// behaviour S10.
#[test]
fn a_del_succeeds_for_an_unknown_attachment_and_for_a_deleted_namespace() {
    let mut node = Node::start();
    let intent = node.intent("c1");
    node.engine().del(&intent.key).unwrap();
    node.add(&intent).unwrap();
    node.fake.remove_netns("/run/netns/c1");
    node.engine().del(&intent.key).unwrap();
    node.engine().del(&intent.key).unwrap();
    assert_eq!(
        of_pods(&node.fake.snapshot()),
        (Vec::new(), BTreeMap::new())
    );
    assert!(node.contents().records.is_empty());
}

/// behaviour S11.
#[test]
fn a_check_passes_after_add_and_fails_when_a_link_or_an_entry_is_gone() {
    let mut node = Node::start();
    let intent = node.intent("c1");
    assert!(matches!(
        node.engine().check(&intent.key),
        Err(EngineError::NotAttached(_))
    ));
    let attachment = node.add(&intent).unwrap();
    assert_eq!(node.engine().check(&intent.key).unwrap(), attachment);
    node.fake
        .clear_entries(|key, _| matches!(key, EntryKey::Endpoint(_)));
    assert!(matches!(
        node.engine().check(&intent.key),
        Err(EngineError::Different { .. })
    ));
    node.engine().reconcile(NOW);
    node.engine().check(&intent.key).unwrap();
    node.fake
        .delete_link(attachment.host_link().name().as_str());
    assert!(node.engine().check(&intent.key).is_err());
}

#[test]
fn a_pool_is_allocated_to_its_last_address_and_reports_exhaustion() {
    let mut node = Node::start();
    for container in 0..13 {
        let intent = node.intent(&format!("c{container}"));
        node.add(&intent).unwrap();
    }
    let exhausted = |node: &mut Node| {
        let degraded = node.engine().status().degraded;
        degraded
            .iter()
            .any(|d| matches!(d, Degraded::PoolExhausted { .. }))
    };
    assert!(exhausted(&mut node));
    let late = node.intent("late");
    let before = node.traces();
    let error = node.add(&late).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no IP addresses available in range set: 10.1.0.1-10.1.0.14"
    );
    assert_eq!(node.traces(), before);
    node.engine().del(&key(&late.network, "c5")).unwrap();
    assert!(!exhausted(&mut node));
    node.add(&late).unwrap();
}

#[test]
fn addresses_slots_and_generations_are_not_reused_at_once() {
    let mut node = Node::start();
    let intent = node.intent("c1");
    let first = node.add(&intent).unwrap();
    node.engine().del(&intent.key).unwrap();
    node.restart();
    let second = node.add(&intent).unwrap();
    assert_ne!(first.addresses, second.addresses);
    assert!(second.generation > first.generation);
    node.engine().del(&intent.key).unwrap();
    let third = node.add(&intent).unwrap();
    assert_ne!(second.slot, third.slot);
    assert!(third.generation > second.generation);
}

/// Flows carry generations, so a generation must not be reused after records were lost.
#[test]
fn generations_grow_beyond_those_in_the_tables() {
    let mut node = Node::start();
    let intent = node.intent("c1");
    let first = node.add(&intent).unwrap();
    node.engine().del(&intent.key).unwrap();
    node.engine = None;
    std::fs::remove_file(node.records()).unwrap();
    node.restart();
    assert!(node.add(&intent).unwrap().generation > first.generation);
}

#[test]
fn a_declared_network_is_recorded_until_its_last_attachment_is_removed() {
    let mut node = Node::start();
    let own = network("own", "br1", &["10.2.0.0/24"]);
    let intent = node.intent_on(&own, "c1");
    let attachment = node.add(&intent).unwrap();
    assert_eq!(attachment.bridge.as_str(), "br1");
    node.fake.delete_link("br1");
    node.restart();
    assert!(
        node.fake.snapshot().links.contains_key(&own.bridge),
        "a restarted agent makes the bridges of its attachments again"
    );
    node.engine().check(&intent.key).unwrap();
    node.engine().del(&intent.key).unwrap();
    assert!(node.contents().networks.is_empty());
    assert_eq!(node.engine().status().networks.len(), 1);
}

#[test]
fn a_network_that_overlaps_with_the_default_network_is_refused() {
    let mut node = Node::start();
    let overlapping = network("own", "br1", &["10.1.0.0/24"]);
    let intent = node.intent_on(&overlapping, "c1");
    let before = node.traces();
    let error = node.add(&intent).unwrap_err();
    assert!(matches!(
        error,
        EngineError::Clash(NetworkClash::Overlap { .. })
    ));
    assert_eq!(node.traces(), before);
}

#[test]
fn a_deleted_bridge_is_made_again_by_the_next_add() {
    let mut node = Node::start();
    node.fake.delete_link("cbr0");
    let intent = node.intent("c1");
    node.add(&intent).unwrap();
    node.engine().check(&intent.key).unwrap();
}

#[test]
fn foreign_links_are_never_changed() {
    let mut node = Node::start();
    let intent = node.intent("c1");
    let name = ::model::ManagedLink::of(&intent.key).to_string();
    node.fake.add_link(&name, LinkKind::Veth);
    node.fake
        .edit_link(&name, |link| link.alias = Some("precious".to_owned()));
    let before = node.traces();
    let error = node.add(&intent).unwrap_err();
    assert!(matches!(
        error,
        EngineError::Refused(Refusal::ForeignLink { .. })
    ));
    node.engine().del(&intent.key).unwrap();
    node.engine().reconcile(NOW);
    assert_eq!(node.traces(), before);
}

#[test]
fn an_attachment_whose_link_is_gone_releases_its_addresses() {
    let mut node = Node::start();
    let intent = node.intent("c1");
    node.add(&intent).unwrap();
    node.fake.remove_netns("/run/netns/c1");
    let report = node.engine().reconcile(NOW);
    let [item] = &report.items[..] else {
        panic!("{report:?}");
    };
    assert_eq!(item.outcome, Outcome::Removed);
    assert!(node.contents().records.is_empty());
    assert_eq!(
        of_pods(&node.fake.snapshot()),
        (Vec::new(), BTreeMap::new())
    );
}

#[test]
fn after_a_reboot_every_lease_is_free_again() {
    let mut node = Node::start();
    let intent = node.intent("c1");
    node.add(&intent).unwrap();
    node.fake.reboot();
    node.restart();
    assert!(node.contents().records.is_empty());
    let intent = node.intent("c1");
    node.add(&intent).unwrap();
}

/// behaviour A5: no ADD before the node was observed.
#[test]
fn an_agent_that_cannot_observe_the_node_does_not_start() {
    let mut node = Node::start();
    let store = node.engine.take().unwrap().store;
    let settings = Settings {
        default_network: node.default_network.clone(),
        uplinks: BTreeSet::new(),
        non_masquerade: BTreeSet::new(),
        egress: BTreeSet::new(),
        flow_entries: abi::maps::FLOWS_CAPACITY,
        bypass: planner::BypassMode::Auto,
        forwarding: planner::ForwardingMode::Auto,
        shaper: planner::ShaperMode::Auto,
        xdp_prefilter: planner::XdpPrefilterMode::Off,
        peers: planner::PeerOptions::default(),
        boot_id: "this boot".to_owned(),
    };
    node.kernel.meet(failing_kernel::Fate::Fail(0));
    let started = Engine::start(node.kernel.clone(), store, settings, NOW);
    assert!(matches!(started.map(drop), Err(EngineError::Observe(_))));
}

#[test]
fn a_restart_changes_nothing_for_attached_pods() {
    let mut node = Node::start();
    let mut intent = node.intent("c1");
    intent.port_mappings = vec![publish(8080)];
    let attachment = node.add(&intent).unwrap();
    let before = node.traces();
    let report = node.restart();
    assert!(report.items.is_empty(), "{report:?}");
    assert_eq!(node.traces(), before);
    assert_eq!(node.engine().check(&intent.key).unwrap(), attachment);
}

/// behaviours K27, F23: before the pool is exhausted, and when it is.
#[test]
fn a_pool_is_reported_as_nearly_exhausted_before_it_is_exhausted() {
    let mut node = Node::with(network("default", "cbr0", &["10.1.0.0/27"]));
    let mut reasons = Vec::new();
    for number in 0..29 {
        let intent = node.intent(&format!("c{number}"));
        node.add(&intent).unwrap();
        let degraded = node.engine().status().degraded;
        reasons.push(degraded.first().map(|one| one.reason().word()));
    }
    assert_eq!(reasons[..26], [None; 26]);
    assert_eq!(reasons[26..28], [Some("pool-nearly-exhausted"); 2]);
    assert_eq!(reasons[28], Some("pool-exhausted"));
}

/// behaviours K1, F5: bridge, both ends of the veth, and record.
#[test]
fn a_new_mtu_of_the_node_reaches_attached_pods() {
    let mut node = Node::start();
    let intent = node.intent("c1");
    let attachment = node.add(&intent).unwrap();
    for mtu in [1400, 9000] {
        node.fake.edit_link("eth0", |link| link.mtu = mtu);
        node.engine().reconcile(NOW);
        let links = node.fake.snapshot().links;
        assert_eq!(links[&node.default_network.bridge].mtu, mtu);
        assert_eq!(links[attachment.host_link().name()].mtu, mtu);
        assert_eq!(node.fake.pod("/run/netns/c1", "eth0").unwrap().mtu, mtu);
        assert_eq!(node.engine().check(&intent.key).unwrap().mtu, mtu);
        let again = node.engine().reconcile(NOW);
        assert!(again.items.is_empty(), "{again:?}");
    }
}

/// behaviour S11: a later plugin of the chain may have set another MTU in the pod.
#[test]
fn an_mtu_that_was_set_inside_a_pod_stays() {
    let mut node = Node::start();
    let intent = node.intent("c1");
    node.add(&intent).unwrap();
    node.fake
        .edit_pod("/run/netns/c1", "eth0", |side| side.mtu = 1300);
    node.engine().reconcile(NOW);
    assert_eq!(node.fake.pod("/run/netns/c1", "eth0").unwrap().mtu, 1300);
}

/// behaviour K15: the old gateway stays for the pods that use it.
#[test]
fn a_changed_pod_cidr_serves_new_pods_and_keeps_the_old_ones() {
    let mut node = Node::start();
    let old = node.intent("old");
    node.add(&old).unwrap();
    node.default_network = network("default", "cbr0", &["10.9.0.0/24"]);
    node.restart();
    node.engine().check(&old.key).unwrap();
    let new = node.intent("new");
    let attachment = node.add(&new).unwrap();
    assert!(
        attachment.addresses[0]
            .address
            .to_string()
            .starts_with("10.9.0.")
    );
    node.engine().check(&old.key).unwrap();
    node.engine().check(&new.key).unwrap();
}

#[test]
fn without_a_pod_cidr_other_networks_work_and_the_status_reports_it_once_it_is_needed() {
    let mut node = Node::with(network("default", "cbr0", &[]));
    assert_eq!(node.engine().status().degraded, []);
    let bridge = &node.default_network.bridge;
    assert!(!node.fake.snapshot().links.contains_key(bridge));
    let own = network("own", "br1", &["10.2.0.0/24"]);
    let intent = node.intent_on(&own, "c1");
    node.add(&intent).unwrap();
    assert_eq!(node.engine().status().degraded, []);
    let intent = node.intent("c2");
    assert!(matches!(
        node.add(&intent),
        Err(EngineError::Refused(Refusal::Address(
            AddressRefusal::NoRanges { .. }
        )))
    ));
    assert_eq!(node.engine().status().degraded, [Degraded::NoPodCidr]);
}

/// The kernel does not pick a published port as an ephemeral port.
#[test]
fn published_ports_are_in_the_reserved_ports_sysctl_until_unpublished() {
    const KEY: &str = "net/ipv4/ip_local_reserved_ports";
    let mut node = Node::start();
    node.fake.set_sysctl(KEY, "7000");
    let value = |node: &Node| {
        let sysctls = node.fake.snapshot().sysctls;
        sysctls[&steps::SysctlKey(KEY.to_owned())].clone().unwrap()
    };
    let mut intents = Vec::new();
    for (container, port) in [("a", 8080), ("b", 8081)] {
        let mut intent = node.intent(container);
        intent.port_mappings.push(publish(port));
        node.add(&intent).unwrap();
        intents.push(intent);
    }
    assert_eq!(value(&node), "7000,8080-8081");
    node.restart();
    assert_eq!(value(&node), "7000,8080-8081");
    node.engine().del(&intents[0].key).unwrap();
    assert_eq!(value(&node), "7000,8081");
    // Other software overwrites the sysctl.
    node.fake.set_sysctl(KEY, "");
    node.engine().reconcile(NOW);
    assert_eq!(value(&node), "8081");
    node.engine().del(&intents[1].key).unwrap();
    assert_eq!(value(&node), "");
}

//! Model-based test: random sequences of ADD, DEL and CHECK, failures and crashes at any kernel
//! call, restarts, and changes of the node by other software.

use abi::maps;
use proptest::prelude::*;

use super::failing_kernel::{Fate, survive};
use super::*;

#[derive(Clone, Copy, Debug)]
enum Event {
    Add(Pod, Fate),
    Del(Pod, Fate),
    Check(Pod),
    Reconcile(Fate),
    Restart,
    RemoveNetns(u8),
    DeleteLink(Pod),
    DeleteBridge(bool),
    ClearEntries(u8),
    Bind(u16),
    TakenWhileAway(u16),
    Unbind(u16),
}

/// Container, and whether it is on the default network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Pod {
    container: u8,
    is_default: bool,
}

fn pod() -> impl Strategy<Value = Pod> {
    (0u8..5, any::<bool>()).prop_map(|(container, is_default)| Pod {
        container,
        is_default,
    })
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        3 => Just(Fate::Live),
        1 => (0usize..30).prop_map(Fate::Fail),
        1 => (0usize..30).prop_map(Fate::Die),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (pod(), fate()).prop_map(|(pod, fate)| Event::Add(pod, fate)),
        4 => (pod(), fate()).prop_map(|(pod, fate)| Event::Del(pod, fate)),
        1 => pod().prop_map(Event::Check),
        1 => fate().prop_map(Event::Reconcile),
        1 => Just(Event::Restart),
        1 => (0u8..5).prop_map(Event::RemoveNetns),
        1 => pod().prop_map(Event::DeleteLink),
        1 => any::<bool>().prop_map(Event::DeleteBridge),
        1 => (0u8..5).prop_map(Event::ClearEntries),
        2 => (8000u16..8010).prop_map(Event::Bind),
        1 => (8000u16..8010).prop_map(Event::TakenWhileAway),
        2 => (8000u16..8010).prop_map(Event::Unbind),
    ]
}

/// Node, and the state that the model expects.
struct World {
    node: Node,
    own: Network,
    /// Attachments whose ADD succeeded and that no event has changed since.
    healthy: BTreeSet<AttachmentKey>,
    /// Ports that a process of the node has bound.
    bound: BTreeSet<u16>,
}

impl World {
    fn new() -> Self {
        // A container may be on both networks, and only one of them has a default route.
        let mut own = network("own", "br1", &["10.2.0.0/28"]);
        own.routes = vec![::model::Route {
            destination: "10.99.0.0/16".parse().unwrap(),
            gateway: None,
            options: ::model::RouteOptions::default(),
        }];
        Self {
            node: Node::start(),
            own,
            healthy: BTreeSet::new(),
            bound: BTreeSet::new(),
        }
    }

    fn network(&self, is_default: bool) -> Network {
        if is_default {
            self.node.default_network.clone()
        } else {
            self.own.clone()
        }
    }

    fn key(&self, pod: Pod) -> AttachmentKey {
        AttachmentKey {
            ifname: ifname(pod),
            ..key(
                &self.network(pod.is_default),
                &format!("c{}", pod.container),
            )
        }
    }

    fn intent(&self, pod: Pod) -> Intent {
        let network = self.network(pod.is_default);
        let mut intent = self
            .node
            .intent_on(&network, &format!("c{}", pod.container));
        intent.key = self.key(pod);
        intent.port_mappings = vec![publish(port(pod))];
        intent.bandwidth.egress = Some(limit(1_000_000));
        intent
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Add(pod, fate) => self.add(pod, fate),
            Event::Del(pod, fate) => self.del(pod, fate),
            Event::Check(pod) => self.check(pod),
            Event::Reconcile(fate) => self.reconcile(fate),
            Event::Restart => drop(self.node.restart()),
            Event::RemoveNetns(container) => self.remove_netns(container),
            Event::DeleteLink(pod) => self.delete_link(pod),
            Event::DeleteBridge(is_default) => self.delete_bridge(is_default),
            Event::ClearEntries(kind) => self.clear_entries(kind),
            Event::Bind(port) => self.bind(port),
            Event::TakenWhileAway(port) => {
                self.node.fake.end_agent();
                self.bind(port);
                self.node.restart();
            }
            Event::Unbind(port) => self.unbind(port),
        }
        self.check_records();
    }

    fn add(&mut self, pod: Pod, fate: Fate) {
        let intent = self.intent(pod);
        let was_recorded = self.node.contents().records.contains_key(&intent.key);
        let before = self.node.traces();
        self.node.kernel.meet(fate);
        let added = survive(|| self.node.add(&intent));
        let is_undisturbed = self.node.kernel.live() || fate == Fate::Live;
        match added {
            Some(Ok(_)) => {
                self.healthy.insert(intent.key);
            }
            Some(Err(error)) if !was_recorded => {
                let is_taken = matches!(error, EngineError::PortInUse(_));
                assert!(!is_undisturbed || is_taken, "{error}");
                assert!(!is_taken || self.bound.contains(&port(pod)), "{error}");
                // After a refused port, an injected failure can only have hit the undo, which is
                // not repeated.
                if is_undisturbed || !is_taken {
                    assert_eq!(self.node.traces(), before, "{error}");
                }
            }
            Some(Err(_)) => {}
            None => drop(self.node.restart()),
        }
    }

    fn del(&mut self, pod: Pod, fate: Fate) {
        let key = self.key(pod);
        self.healthy.remove(&key);
        self.node.kernel.meet(fate);
        let removed = survive(|| self.node.engine().del(&key));
        let is_undisturbed = self.node.kernel.live() || fate == Fate::Live;
        match removed {
            Some(Ok(())) => assert!(!self.node.contents().records.contains_key(&key)),
            Some(Err(error)) => assert!(!is_undisturbed, "{error}"),
            None => drop(self.node.restart()),
        }
    }

    fn check(&mut self, pod: Pod) {
        let key = self.key(pod);
        let checked = self.node.engine().check(&key);
        if self.healthy.contains(&key) && !self.bound.contains(&port(pod)) {
            checked.unwrap();
        }
    }

    fn reconcile(&mut self, fate: Fate) {
        self.node.kernel.meet(fate);
        let survived = survive(|| self.node.engine().reconcile(NOW));
        if survived.is_none() {
            self.node.restart();
        }
        self.node.kernel.live();
    }

    fn remove_netns(&mut self, container: u8) {
        let path = format!("/run/netns/c{container}");
        if self
            .node
            .fake
            .namespaces()
            .contains_key(&path.parse().unwrap())
        {
            self.node.fake.remove_netns(&path);
        }
        let name = format!("c{container}");
        self.healthy.retain(|key| key.container_id.as_str() != name);
    }

    fn delete_link(&mut self, pod: Pod) {
        let key = self.key(pod);
        let link = ::model::ManagedLink::of(&key);
        if self.node.fake.snapshot().links.contains_key(link.name()) {
            self.node.fake.delete_link(link.name().as_str());
        }
        self.healthy.remove(&key);
    }

    fn delete_bridge(&mut self, is_default: bool) {
        let network = self.network(is_default);
        if self
            .node
            .fake
            .snapshot()
            .links
            .contains_key(&network.bridge)
        {
            self.node.fake.delete_link(network.bridge.as_str());
        }
        self.healthy.retain(|key| key.network != network.name);
    }

    fn clear_entries(&mut self, kind: u8) {
        let of_pods = [
            [maps::PODS.name, ""],
            [maps::INTERFACES.name, ""],
            [maps::ENDPOINTS.name, ""],
            [maps::HOSTPORTS.name, maps::LIMITS.name],
        ];
        // Kind 4 is all others.
        let of = |key: &EntryKey| {
            let mut kinds = of_pods.iter();
            let found = kinds.position(|names| names.contains(&key.map().name));
            found.unwrap_or(of_pods.len())
        };
        self.node
            .fake
            .clear_entries(|key, _| of(key) == usize::from(kind));
        if kind < 4 {
            self.healthy.clear();
        }
    }

    fn bind(&mut self, port: u16) {
        let process = kernel::Process {
            pid: 1,
            command: "other".to_owned(),
            ..kernel::Process::default()
        };
        let is_claimed = held_ports(&self.node).contains(&port);
        let could = self.node.fake.bind(&format!("0.0.0.0:{port}/tcp"), process);
        assert!(!(could && is_claimed), "a held port was taken");
        if could {
            self.bound.insert(port);
        }
    }

    fn unbind(&mut self, port: u16) {
        self.node.fake.unbind(&format!("0.0.0.0:{port}/tcp"));
        self.bound.remove(&port);
    }

    /// Unbinds all ports of processes. A port that a process bound while the agent was down may
    /// still be bound, and then its pod does not match its record.
    fn release_all(&mut self) {
        for port in std::mem::take(&mut self.bound) {
            self.unbind(port);
        }
    }

    /// Checks the invariants that hold at any time.
    fn check_records(&mut self) {
        let contents = self.node.contents();
        let attachments = || contents.records.values().map(|record| &record.attachment);
        let addresses: Vec<_> = attachments()
            .flat_map(|attachment| attachment.addresses.iter().map(|a| a.address.address))
            .collect();
        let distinct: BTreeSet<_> = addresses.iter().collect();
        assert_eq!(
            distinct.len(),
            addresses.len(),
            "an address was allocated twice"
        );
        let slots: BTreeSet<u32> = attachments().map(|attachment| attachment.slot).collect();
        assert_eq!(
            slots.len(),
            contents.records.len(),
            "a slot was allocated twice"
        );
        let oldest = attachments().map(|attachment| attachment.generation).max();
        assert!(oldest.unwrap_or(0) <= contents.generation);
    }

    /// Checks the invariants that hold after a reconciliation without changes by other software.
    fn check_end(mut self, first: &Observed) {
        self.release_all();
        self.node.restart();
        let again = self.node.engine().reconcile(NOW);
        assert!(
            again.items.is_empty(),
            "the second reconciliation found {again:?}"
        );
        let keys: Vec<_> = self.node.contents().records.into_keys().collect();
        let kept: BTreeSet<_> = keys.iter().cloned().collect();
        assert!(kept.is_superset(&self.healthy), "a healthy pod was lost");
        for key in keys {
            self.node.engine().check(&key).unwrap();
            self.node.engine().del(&key).unwrap();
        }
        self.node.engine().reconcile(NOW);
        let (seen, contents) = self.node.traces();
        assert_eq!(of_pods(&seen), (Vec::new(), BTreeMap::new()));
        assert!(contents.records.is_empty() && contents.networks.is_empty());
        let tables = |observed: &Observed| {
            observed
                .entries
                .keys()
                .filter(|key| !matches!(key, EntryKey::Pod(_) | EntryKey::Local(_)))
                .cloned()
                .collect::<BTreeSet<EntryKey>>()
        };
        assert_eq!(tables(&seen), tables(first), "the node's own tables");
    }
}

fn port(pod: Pod) -> u16 {
    8000 + 2 * u16::from(pod.container) + u16::from(pod.is_default)
}

fn held_ports(node: &Node) -> BTreeSet<u16> {
    let held = node.fake.snapshot().port_reservations;
    held.keys()
        .filter(|claim| claim.address.is_ipv4())
        .map(|claim| claim.port)
        .collect()
}

/// Returns the interface name; a container on both networks has one interface for each.
fn ifname(pod: Pod) -> ::model::IfName {
    let name = if pod.is_default { "eth0" } else { "eth1" };
    name.parse().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases / 4,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn after_any_sequence_of_events_nothing_leaks_and_the_node_converges(
        events in prop::collection::vec(event(), 1..40)
    ) {
        let mut world = World::new();
        let first = world.node.fake.snapshot();
        for event in events {
            world.happen(event);
        }
        world.check_end(&first);
    }
}

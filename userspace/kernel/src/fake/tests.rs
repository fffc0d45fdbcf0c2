//! Plans executed on the in-memory kernel, and its errors where a caller depends on them. The
//! properties that hold for any node are in `laws.rs`.

mod laws;

use std::collections::BTreeSet;

use ipam::Leases;
use model::testing::network_of;
use model::{Attachment, AttachmentKey, Intent, PortMapping, Record, Requested, State};
use planner::{
    AttachContext, Finding, NodeIntent, Plan, Reason, Records, Refusal, Repair, attachment_query,
};
use steps::{
    BridgeSpec, Entry, EntryKey, Hook, LinkKind, LinkRef, NetnsQuery, NodeQuery, Observed, Step,
    VethSpec,
};

use super::{Errno, Fake, parse};
use crate::{Kernel as _, Observe as _, StepError};

const BOOT: &str = "boot-1";
/// One plan, and one that opens the uplinks whose programs it has attached.
const ROUNDS: usize = 2;

/// A node with a minimal engine.
struct Node {
    fake: Fake,
    intent: NodeIntent,
    records: Records,
    generation: u32,
}

impl Node {
    /// Makes a node with one network that is set up.
    fn ready() -> Self {
        let intent = NodeIntent {
            networks: vec![network_of("net", "cbr0", &["10.1.0.0/24", "fd00:1::/64"])],
            ..NodeIntent::default()
        };
        let mut node = Self::new(Fake::new(), intent);
        node.converge();
        node
    }

    fn new(fake: Fake, intent: NodeIntent) -> Self {
        Self {
            fake,
            intent,
            records: Records::new(),
            generation: 0,
        }
    }

    fn observe(&mut self) -> Observed {
        let sysctls = BTreeSet::new();
        let observed = self.fake.observe(&NodeQuery { sysctls }).unwrap();
        let sysctls = planner::node_sysctls(&self.intent, &observed);
        self.fake.observe(&NodeQuery { sysctls }).unwrap()
    }

    fn plan(&mut self) -> Plan {
        let observed = self.observe();
        planner::plan_node(&self.intent, &observed, &self.records).plan
    }

    /// Executes plans until none changes the node: uplinks are opened once their programs are
    /// observed.
    fn converge(&mut self) {
        for _ in 0..ROUNDS {
            let plan = self.plan();
            self.execute(&plan).unwrap();
        }
    }

    fn execute(&mut self, plan: &Plan) -> Result<(), (usize, StepError)> {
        for (done, step) in plan.steps().iter().enumerate() {
            self.fake.execute(step).map_err(|error| (done, error))?;
        }
        Ok(())
    }

    fn pod_intent(&self, container: &str, ports: &[u16]) -> Intent {
        let port = |port: &u16| PortMapping {
            host_port: (*port).try_into().unwrap(),
            container_port: 80.try_into().unwrap(),
            protocol: model::Protocol::Tcp,
            host_address: None,
        };
        Intent {
            key: AttachmentKey {
                network: parse("net"),
                container_id: parse(container),
                ifname: parse("eth0"),
            },
            netns: parse(&netns_of(container)),
            network: self.intent.networks[0].clone(),
            port_mappings: ports.iter().map(port).collect(),
            bandwidth: model::Bandwidth::default(),
            requested: Requested::default(),
            pod: None,
        }
    }

    fn plan_add(&mut self, intent: &Intent) -> Result<(Attachment, Plan), Refusal> {
        let link = model::ManagedLink::of(&intent.key).name().clone();
        let query = NetnsQuery {
            path: intent.netns.clone(),
            ifname: intent.key.ifname.clone(),
            links: BTreeSet::from([link, intent.network.bridge.clone()]),
            host_end: false,
        };
        let observed = self.fake.observe(&query).unwrap();
        self.generation += 1;
        let used: BTreeSet<u32> = self.records.values().map(|r| r.attachment.slot).collect();
        let context = AttachContext {
            leases: &self.leases(),
            records: &self.records,
            slot: (1..100).find(|slot| !used.contains(slot)).unwrap(),
            generation: self.generation,
            mtu: 1500,
            last_macs: &planner::LastMacs::new(true),
            policies: &planner::PolicyIndex::default(),
        };
        planner::plan_attach(intent, &observed, &context)
    }

    fn leases(&self) -> Leases {
        let owned = self
            .records
            .values()
            .map(|record| &record.attachment)
            .flat_map(|attachment| {
                attachment
                    .addresses
                    .iter()
                    .map(|a| (a.address.address, attachment.key.clone()))
            });
        Leases {
            taken: owned.collect(),
            ..Leases::default()
        }
    }

    fn add(&mut self, container: &str, ports: &[u16]) -> Result<Attachment, Refusal> {
        let intent = self.pod_intent(container, ports);
        let (attachment, plan) = self.plan_add(&intent)?;
        self.execute(&plan).unwrap();
        self.record(&attachment, State::Attached);
        Ok(attachment)
    }

    fn record(&mut self, attachment: &Attachment, state: State) {
        let record = Record {
            attachment: attachment.clone(),
            state,
            boot_id: BOOT.to_owned(),
            created_at: 0,
        };
        self.records.insert(attachment.key.clone(), record);
    }

    fn check(&mut self, attachment: &Attachment) -> Vec<String> {
        let observed = self.fake.observe(&attachment_query(attachment)).unwrap();
        let differences = planner::check(attachment, &observed);
        differences.iter().map(ToString::to_string).collect()
    }

    fn plan_del(&mut self, attachment: &Attachment) -> Plan {
        let observed = self.fake.observe(&attachment_query(attachment)).unwrap();
        planner::plan_detach(attachment, &observed)
    }

    fn plan_repair(&mut self) -> Repair {
        let observed = self.observe();
        planner::plan_repair(&self.records, &observed, BOOT, 0)
    }

    /// Converges the node, then repairs all attachments.
    fn repair(&mut self) -> Repair {
        self.converge();
        let repair = self.plan_repair();
        let detach_first = |finding: &&Finding| !matches!(finding, Finding::Detach { .. });
        let mut findings: Vec<&Finding> = repair.attachments.values().collect();
        findings.sort_by_key(detach_first);
        for finding in findings {
            if let Finding::Detach { plan, .. } | Finding::Repair { plan, .. } = finding {
                self.execute(plan).unwrap();
            }
        }
        self.execute(&repair.stale).unwrap();
        let gone = |key: &AttachmentKey| matches!(repair.attachments[key], Finding::Detach { .. });
        self.records.retain(|key, _| !gone(key));
        repair
    }

    /// Returns the whole state but the free rows of the pod table, which keep generations.
    fn without_free_slots(&self) -> Observed {
        let mut seen = self.fake.snapshot();
        seen.entries
            .retain(|_, entry| !matches!(entry, Entry::FreePod { .. }));
        seen
    }
}

fn netns_of(container: &str) -> String {
    format!("/run/netns/{container}")
}

/// behaviours S10, S11: CHECK after ADD finds no difference, DEL leaves nothing, a second DEL is
/// empty.
#[test]
fn check_passes_after_add_and_del_removes_everything() {
    let mut node = Node::ready();
    node.fake.add_netns("/run/netns/a");
    let before = node.without_free_slots();
    let attachment = node.add("a", &[8080, 8443]).unwrap();
    assert_eq!(node.check(&attachment), [""; 0]);
    assert!(
        node.plan().is_empty(),
        "an attached pod does not change the node's plan"
    );
    let plan = node.plan_del(&attachment);
    node.execute(&plan).unwrap();
    assert_eq!(node.without_free_slots(), before);
    assert!(node.plan_del(&attachment).is_empty());
}

/// behaviour C10: some runtimes send no DEL after a failed ADD.
#[test]
fn an_add_that_fails_at_any_step_leaves_nothing() {
    let mut node = Node::ready();
    node.fake.add_netns("/run/netns/a");
    let before = node.without_free_slots();
    let intent = node.pod_intent("a", &[8080]);
    let (_, plan) = node.plan_add(&intent).unwrap();
    for n in 1..=plan.steps().len() {
        node.fake.fail_at(n, Errno::EIO);
        let (done, error) = node.execute(&plan).unwrap_err();
        assert_eq!(
            (done, error.source.raw_os_error()),
            (n - 1, Some(Errno::EIO as i32))
        );
        for step in plan.undo(done) {
            node.fake.execute(&step).unwrap();
        }
        assert_eq!(
            node.without_free_slots(),
            before,
            "after a failure of step {n}"
        );
    }
}

#[test]
fn undo_of_a_partial_node_plan_restores_the_node() {
    let mut node = Node::new(Fake::new(), Node::ready().intent);
    let plan = node.plan();
    let before = node.without_free_slots();
    for done in 0..=plan.steps().len() {
        for step in &plan.steps()[..done] {
            node.fake.execute(step).unwrap();
        }
        for step in plan.undo(done) {
            node.fake.execute(&step).unwrap();
        }
        assert_eq!(node.without_free_slots(), before, "after {done} steps");
    }
}

/// The contract of [`Step`]: executed on a kernel that already has it, it changes nothing.
#[test]
fn every_step_may_be_executed_twice() {
    let mut node = Node::new(Fake::new(), Node::ready().intent);
    let node_plan = node.plan();
    twice(&mut node, &node_plan);
    node.fake.add_netns("/run/netns/a");
    let intent = node.pod_intent("a", &[8080]);
    let (attachment, plan) = node.plan_add(&intent).unwrap();
    twice(&mut node, &plan);
    let plan = node.plan_del(&attachment);
    twice(&mut node, &plan);
}

fn twice(node: &mut Node, plan: &Plan) {
    for step in plan.steps() {
        node.fake.execute(step).unwrap();
        let once = node.fake.snapshot();
        node.fake.execute(step).unwrap();
        assert_eq!(node.fake.snapshot(), once, "{step}");
    }
}

/// behaviour U1: the runtime sent no DEL.
#[test]
fn repair_detaches_a_pod_whose_namespace_is_gone() {
    let mut node = Node::ready();
    node.fake.add_netns("/run/netns/a");
    let before = {
        node.fake.remove_netns("/run/netns/a");
        node.without_free_slots()
    };
    node.fake.add_netns("/run/netns/a");
    let attachment = node.add("a", &[8080]).unwrap();
    node.fake.remove_netns("/run/netns/a");
    assert!(!node.check(&attachment).is_empty());
    let repair = node.repair();
    assert!(matches!(
        repair.attachments[&attachment.key],
        Finding::Detach {
            reason: Reason::LinkGone,
            ..
        }
    ));
    assert_eq!(node.without_free_slots(), before);
}

/// behaviour C3: DEL comes after the namespace is gone.
#[test]
fn del_after_the_namespace_is_gone_removes_the_interface_entry() {
    let mut node = Node::ready();
    let before = node.without_free_slots();
    node.fake.add_netns("/run/netns/a");
    let attachment = node.add("a", &[]).unwrap();
    node.fake.remove_netns("/run/netns/a");
    let plan = node.plan_del(&attachment);
    node.execute(&plan).unwrap();
    assert_eq!(node.without_free_slots(), before);
}

#[test]
fn repair_recreates_a_deleted_bridge_with_its_ports() {
    let mut node = Node::ready();
    node.fake.add_netns("/run/netns/a");
    let attachment = node.add("a", &[]).unwrap();
    node.fake.delete_link("cbr0");
    node.repair();
    assert_eq!(node.check(&attachment), [""; 0]);
    assert!(node.plan_repair().is_empty());
}

#[test]
fn repair_removes_an_add_that_the_agent_did_not_finish() {
    let mut node = Node::ready();
    node.fake.add_netns("/run/netns/a");
    let before = node.without_free_slots();
    let intent = node.pod_intent("a", &[8080]);
    let (attachment, plan) = node.plan_add(&intent).unwrap();
    node.record(&attachment, State::Pending);
    for n in 0..plan.steps().len() {
        node.fake.crash_after(n);
        assert!(node.execute(&plan).is_err());
        assert!(node.fake.is_crashed());
        node.fake.restart();
        node.record(&attachment, State::Pending);
        node.repair();
        assert_eq!(node.without_free_slots(), before, "after {n} steps");
    }
}

#[test]
fn a_full_table_returns_e2big() {
    let fake = Fake::new();
    let put = |key: EntryKey, entry: Entry| {
        let step = Step::PutEntry {
            key,
            entry,
            previous: None,
        };
        fake.clone()
            .execute(&step)
            .map_err(|error| error.source.raw_os_error())
    };
    for low in 0..abi::maps::LOCALS.capacity {
        let key = EntryKey::Local(std::net::Ipv4Addr::from_bits(low).into());
        put(key, Entry::Local).unwrap();
    }
    let full = put(EntryKey::Local(parse("::1")), Entry::Local);
    assert_eq!(full, Err(Some(Errno::E2BIG as i32)));
    let outside = EntryKey::Pod(abi::maps::PODS_CAPACITY);
    let outside = put(outside, Entry::FreePod { generation: 1 });
    assert_eq!(outside, Err(Some(Errno::E2BIG as i32)));
}

#[test]
fn a_foreign_link_is_neither_adopted_nor_deleted() {
    let mut node = Node::ready();
    let netns = node.fake.add_netns("/run/netns/a");
    let intent = node.pod_intent("a", &[]);
    let host = model::ManagedLink::of(&intent.key);
    node.fake.add_link(host.name().as_str(), LinkKind::Veth);
    let spec = VethSpec {
        host: host.clone(),
        alias: "net a eth0".to_owned(),
        host_mac: intent.key.host_mac(),
        pod: parse("eth0"),
        pod_mac: intent.key.pod_mac(),
        mtu: 1500,
        netns,
    };
    let taken = node.fake.execute(&Step::CreateVeth(spec)).unwrap_err();
    assert!(taken.is_taken());
    let refused = node.fake.execute(&Step::DeleteVeth {
        link: host,
        alias: "net a eth0".to_owned(),
    });
    assert_eq!(
        refused.unwrap_err().source.raw_os_error(),
        Some(Errno::EPERM as i32)
    );
}

#[test]
fn a_foreign_bridge_or_one_with_ports_is_not_deleted() {
    let mut node = Node::ready();
    node.fake.add_netns("/run/netns/a");
    node.add("a", &[]).unwrap();
    let mut delete = |alias: &str| {
        let step = Step::DeleteBridge {
            name: parse("cbr0"),
            alias: alias.to_owned(),
        };
        node.fake.execute(&step).unwrap_err().source.raw_os_error()
    };
    assert_eq!(delete("viaduct net"), Some(Errno::EBUSY as i32));
    assert_eq!(delete("viaduct other"), Some(Errno::EPERM as i32));
}

#[test]
fn steps_for_a_missing_link_fail_with_enodev() {
    let mut fake = Fake::new();
    let nowhere = || parse("nowhere");
    let steps = [
        Step::SetUp { link: nowhere() },
        Step::Attach {
            link: nowhere(),
            hooks: BTreeSet::from([Hook::UplinkIn]),
        },
        Step::PutEntry {
            key: EntryKey::Interface(LinkRef::Name(nowhere())),
            entry: Entry::Interface {
                slot: 1,
                limited: false,
            },
            previous: None,
        },
    ];
    for step in steps {
        let error = fake.execute(&step).unwrap_err();
        assert_eq!(
            error.source.raw_os_error(),
            Some(Errno::ENODEV as i32),
            "{step}"
        );
        assert!(error.is_gone());
    }
    let bridge = Step::CreateBridge(BridgeSpec {
        filters_vlans: false,
        name: parse("eth0"),
        mac: parse("02:00:00:00:00:01"),
        mtu: 1500,
        alias: "viaduct net".to_owned(),
    });
    assert!(fake.execute(&bridge).unwrap_err().is_taken());
}

//! Parity of the in-memory kernel and the real one: random steps, executed on both, have the same
//! results and leave the same state.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod event;
mod normalise;
#[path = "../support/mod.rs"]
mod support;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use event::{AbstractStep, Event, any_event, steps_of_pod};
use kernel::fake::Fake;
use kernel::{Host, Kernel, Measured, Observe, ObserveError, StepError};
use model::{Attachment, IfName, Netns};
use nix::errno::Errno;
use normalise::{Names, Seen, SeenPod};
use planner::attachment_query;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use steps::{
    BridgeSpec, HostSideQuery, NetfilterState, NetfilterStep, NetnsQuery, NodeQuery, PortQuery,
    Question, Step, SysctlKey,
};
use support::*;

/// Names of the pods' namespaces.
pub(crate) const PODS: [&str; 2] = ["pod0", "pod1"];

/// The real kernel, which each restart opens again.
struct Real {
    host: Option<Host>,
}

impl Real {
    fn open(node: &Node) -> Self {
        Self {
            host: Some(node.host()),
        }
    }

    fn restart(&mut self, node: &Node) {
        drop(self.host.take());
        *self = Self::open(node);
    }

    fn host(&mut self) -> &mut Host {
        self.host.as_mut().unwrap()
    }
}

impl<Q: Question> Observe<Q> for Real
where
    Host: Observe<Q>,
{
    fn observe(&mut self, question: &Q) -> Result<Q::Answer, ObserveError> {
        self.host().observe(question)
    }
}

impl Kernel for Real {
    fn execute(&mut self, step: &Step) -> Result<(), StepError> {
        self.host().execute(step)
    }

    fn measure(&mut self) -> Result<Measured, ObserveError> {
        self.host().measure()
    }

    fn sent(
        &mut self,
        slots: &BTreeSet<u32>,
    ) -> Result<BTreeMap<u32, abi::Counters>, ObserveError> {
        self.host().sent(slots)
    }
}

/// One of the two kernels, with its namespaces.
struct World<K> {
    kernel: K,
    pods: Vec<Netns>,
}

impl<K: Kernel> World<K> {
    fn attachment(&self, pod: usize) -> Attachment {
        let number = u8::try_from(pod).unwrap() + 2;
        let mut attachment = attachment(&self.pods[pod], number);
        attachment.port_mappings = vec![model::PortMapping {
            host_port: 8080.try_into().unwrap(),
            container_port: 80.try_into().unwrap(),
            protocol: model::Protocol::Tcp,
            host_address: None,
        }];
        attachment
    }

    fn steps(&self, step: &AbstractStep) -> Vec<Step> {
        match step {
            AbstractStep::CreateBridge { name, alias } => vec![Step::CreateBridge(BridgeSpec {
                name: link(name),
                alias: (*alias).to_owned(),
                ..bridge()
            })],
            AbstractStep::DeleteBridge { name, alias } => vec![Step::DeleteBridge {
                name: link(name),
                alias: (*alias).to_owned(),
            }],
            AbstractStep::AttachUplink { name } => vec![Step::Attach {
                link: link(name),
                hooks: uplink_hooks(),
            }],
            AbstractStep::DetachUplink { name } => vec![Step::Detach {
                link: link(name),
                hooks: uplink_hooks(),
            }],
            AbstractStep::Pod { pod, step } => steps_of_pod(&self.attachment(*pod), step),
            AbstractStep::Plain(step) => vec![Step::clone(step)],
        }
    }

    /// Asks the kernel all questions about the node and the pods, and normalises indexes and
    /// namespaces.
    fn observe_all(&mut self) -> Seen {
        let sysctls = BTreeSet::from([SysctlKey("net/ipv4/ip_forward".to_owned())]);
        let node = self.kernel.observe(&NodeQuery { sysctls }).unwrap();
        let names = Names::of(&node);
        let pods = (0..self.pods.len()).map(|pod| {
            let query = attachment_query(&self.attachment(pod));
            SeenPod {
                host_side: names
                    .host_side(self.kernel.observe(&HostSideQuery(query.clone())).unwrap()),
                attachment: names.attachment(self.kernel.observe(&query).unwrap()),
                netns: names.netns(
                    self.kernel
                        .observe(&NetnsQuery {
                            path: query.netns.path,
                            ifname: link("eth0"),
                            links: BTreeSet::from([link("cbr0"), link("none")]),
                            host_end: true,
                        })
                        .unwrap(),
                    &self.pods,
                ),
            }
        });
        Seen {
            pods: pods.collect(),
            node: names.node(node),
        }
    }
}

/// Classifies the result of a step, as far as callers distinguish them.
fn classify(result: Result<(), StepError>) -> &'static str {
    match result {
        Ok(()) => "done",
        Err(error) if error.is_gone() => "gone",
        Err(error) if error.is_taken() => "taken",
        Err(error) if error.port_in_use().is_some() => "in use",
        Err(error) if error.source.raw_os_error() == Some(Errno::EPERM as i32) => "not ours",
        Err(_) => "failed",
    }
}

/// Brings the real kernel to the initial state of the in-memory one.
fn clear(host: &mut Host) {
    for entry in host.observe(&NodeQuery::default()).unwrap().entries {
        let (key, previous) = entry;
        host.execute(&Step::RemoveEntry { key, previous }).unwrap();
    }
    let previous = NetfilterState::Absent;
    let no_table = Step::Netfilter(Box::new(NetfilterStep::Remove { previous }));
    host.execute(&no_table).unwrap();
    for (reservation, held) in host.observe(&PortQuery).unwrap() {
        let generation = held.generation;
        host.execute(&Step::ReleasePort {
            reservation,
            generation,
        })
        .unwrap();
    }
    let others: BTreeSet<IfName> = observe(host).links.into_keys().collect();
    for name in others.iter().filter(|name| **name != link("lo")) {
        run(&format!("ip link del {name}"));
    }
    let off = Step::SetSysctl {
        key: SysctlKey("net/ipv4/ip_forward".to_owned()),
        value: "0".to_owned(),
        previous: String::new(),
    };
    host.execute(&off).unwrap();
}

fn run_script(node: &Node, real: &mut World<Real>, script: &[Event]) -> Result<(), TestCaseError> {
    clear(real.kernel.host());
    let fake = Fake::bare();
    let pods = PODS.map(|name| fake.add_netns(&format!("/run/netns/{name}")));
    let mut fake = World {
        kernel: fake,
        pods: pods.into(),
    };
    for event in script {
        match event {
            Event::Step(step) => {
                for (real_step, fake_step) in real.steps(step).iter().zip(fake.steps(step)) {
                    let real_result = real.kernel.execute(real_step);
                    let detail = real_result.as_ref().err().map(|error| chain(error));
                    let fake_result = classify(fake.kernel.execute(&fake_step));
                    prop_assert_eq!(
                        classify(real_result),
                        fake_result,
                        "{:?}: {:?}",
                        real_step,
                        detail
                    );
                }
            }
            Event::LinkDeleted(name) => {
                if succeeds(&format!("ip link del {name}")) {
                    fake.kernel.delete_link(name);
                }
            }
            Event::Restart => {
                real.kernel.restart(node);
                fake.kernel.end_agent();
            }
        }
        let (real_result, fake_result) = (real.observe_all(), fake.observe_all());
        prop_assert_eq!(real_result.node, fake_result.node, "after {:?}", event);
        for (real_pod, fake_pod) in real_result.pods.into_iter().zip(fake_result.pods) {
            prop_assert_eq!(real_pod, fake_pod, "after {:?}", event);
        }
    }
    Ok(())
}

#[test]
fn the_in_memory_kernel_behaves_like_the_real_kernel() {
    on_a_node(|node| {
        let real = RefCell::new(World {
            kernel: Real::open(node),
            pods: PODS.map(|name| node.add_netns(name)).into(),
        });
        let config = Config {
            // A slow machine runs fewer scripts in the same time.
            cases: (64 / skip::patience()).max(8),
            failure_persistence: None,
            ..Config::default()
        };
        let script = prop::collection::vec(any_event(), 1..25);
        let outcome = TestRunner::new(config).run(&script, |script| {
            run_script(node, &mut real.borrow_mut(), &script)
        });
        if let Err(failure) = outcome {
            panic!("{failure}");
        }
    });
}

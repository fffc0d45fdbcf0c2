//! The kernel in memory does what the real one does: random steps, executed on both, end alike and leave the same.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod happening;
mod same;
#[path = "../support/mod.rs"]
mod support;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use happening::{Abstract, Happening, any_happening, steps_of_pod};
use kernel::fake::Fake;
use kernel::{Host, Kernel, Measured, ObserveError, StepError};
use model::{Attachment, IfName, Netns};
use nix::errno::Errno;
use planner::{BridgeSpec, Observed, Scope, Step, SysctlKey};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use same::Names;
use support::*;

/// The names of the pods' namespaces.
pub(crate) const PODS: [&str; 2] = ["pod0", "pod1"];

/// The real kernel, which an agent after the other opens.
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

impl Kernel for Real {
    fn observe(&mut self, scope: &Scope) -> Result<Observed, ObserveError> {
        self.host().observe(scope)
    }

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

/// One of the two kernels with its namespaces.
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

    fn steps(&self, step: &Abstract) -> Vec<Step> {
        match step {
            Abstract::CreateBridge { name, alias } => vec![Step::CreateBridge(BridgeSpec {
                name: link(name),
                alias: (*alias).to_owned(),
                ..bridge()
            })],
            Abstract::DeleteBridge { name, alias } => vec![Step::DeleteBridge {
                name: link(name),
                alias: (*alias).to_owned(),
            }],
            Abstract::AttachUplink { name } => vec![Step::Attach {
                link: link(name),
                hooks: uplink_hooks(),
            }],
            Abstract::DetachUplink { name } => vec![Step::Detach {
                link: link(name),
                hooks: uplink_hooks(),
            }],
            Abstract::Pod { pod, step } => steps_of_pod(&self.attachment(*pod), step),
            Abstract::Plain(step) => vec![Step::clone(step)],
        }
    }

    /// What anyone can see, in words that are the same in both worlds.
    fn look(&mut self) -> Vec<Observed> {
        let sysctls = BTreeSet::from([SysctlKey("net/ipv4/ip_forward".to_owned())]);
        let mut scopes = vec![Scope::Node { sysctls }];
        for (pod, netns) in self.pods.iter().enumerate() {
            let attachment = Box::new(self.attachment(pod));
            scopes.push(Scope::Outside(attachment.clone()));
            scopes.push(Scope::Attachment(attachment));
            scopes.push(Scope::Netns {
                path: netns.path.clone(),
                ifname: link("eth0"),
                links: BTreeSet::from([link("cbr0"), link("none")]),
            });
        }
        let seen: Vec<_> = scopes
            .iter()
            .map(|scope| self.kernel.observe(scope).unwrap())
            .collect();
        let names = Names::of(&seen[0]);
        let pods = &self.pods;
        seen.into_iter()
            .map(|seen| names.normalise(seen, pods))
            .collect()
    }
}

/// How a step ended, as far as anyone may act on it.
fn ending(result: Result<(), StepError>) -> &'static str {
    match result {
        Ok(()) => "done",
        Err(error) if error.is_gone() => "gone",
        Err(error) if error.is_taken() => "taken",
        Err(error) if error.port_in_use().is_some() => "in use",
        Err(error) if error.source.raw_os_error() == Some(Errno::EPERM as i32) => "not ours",
        Err(_) => "failed",
    }
}

/// Makes the real kernel what the one in memory is at first.
fn clear(host: &mut Host) {
    for entry in host
        .observe(&Scope::Node {
            sysctls: BTreeSet::new(),
        })
        .unwrap()
        .entries
    {
        let (key, previous) = entry;
        host.execute(&Step::RemoveEntry { key, previous }).unwrap();
    }
    for (claim, held) in host.observe(&Scope::Ports).unwrap().held {
        let generation = held.generation;
        host.execute(&Step::ReleasePort { claim, generation })
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

fn run_script(
    node: &Node,
    real: &mut World<Real>,
    script: &[Happening],
) -> Result<(), TestCaseError> {
    clear(real.kernel.host());
    let fake = Fake::bare();
    let pods = PODS.map(|name| fake.add_netns(&format!("/run/netns/{name}")));
    let mut fake = World {
        kernel: fake,
        pods: pods.into(),
    };
    for happening in script {
        match happening {
            Happening::Step(step) => {
                for (real_step, fake_step) in real.steps(step).iter().zip(fake.steps(step)) {
                    let really = real.kernel.execute(real_step);
                    let detail = really.as_ref().err().map(|error| chain(error));
                    let faked = ending(fake.kernel.execute(&fake_step));
                    prop_assert_eq!(ending(really), faked, "{:?}: {:?}", real_step, detail);
                }
            }
            Happening::LinkDeleted(name) => {
                if succeeds(&format!("ip link del {name}")) {
                    fake.kernel.delete_link(name);
                }
            }
            Happening::Restart => {
                real.kernel.restart(node);
                fake.kernel.end_agent();
            }
        }
        for (really, faked) in real.look().into_iter().zip(fake.look()) {
            prop_assert_eq!(really, faked, "after {:?}", happening);
        }
    }
    Ok(())
}

#[test]
fn the_kernel_in_memory_does_what_the_real_one_does() {
    on_a_node(|node| {
        let real = RefCell::new(World {
            kernel: Real::open(node),
            pods: PODS.map(|name| node.add_netns(name)).into(),
        });
        let config = Config {
            // A slow machine tries fewer scripts, not for longer.
            cases: (64 / skip::patience()).max(8),
            failure_persistence: None,
            ..Config::default()
        };
        let script = prop::collection::vec(any_happening(), 1..25);
        let outcome = TestRunner::new(config).run(&script, |script| {
            run_script(node, &mut real.borrow_mut(), &script)
        });
        if let Err(failure) = outcome {
            panic!("{failure}");
        }
    });
}

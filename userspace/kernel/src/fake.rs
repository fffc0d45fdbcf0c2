//! A kernel in memory, for tests of the crates above.
//!
//! It interprets [`Step`]s over maps with the errors and the idempotence of the real kernel, and lets a test stand
//! in for the rest of the world: namespaces come and go, links disappear, tables are emptied, steps fail, the agent
//! dies in the middle. Knows nothing of packets. Where the two disagree, the real kernel is right and this is wrong:
//! the same scripts are run against both.

#![expect(
    clippy::missing_panics_doc,
    reason = "a test that speaks of a link or a namespace that is not there is wrong, and panics"
)]

mod entries;
mod ports;
mod programs;
mod switching;
mod sysctls;
#[cfg(test)]
mod tests;
mod tuning;
mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use nix::errno::Errno;

use abi::Counters;
use model::{Cidr, IfName, InterfaceAddress, Netns, NetnsPath};
use planner::{
    Entry, EntryKey, Link, LinkKind, Observed, PodSide, RouteEntry, Scope, SocketHook, SocketLink,
    Step, SysctlKey,
};

use crate::{Kernel, Measured, ObserveError, StepError};
use world::World;

/// The kernel in memory. A clone is another handle to the same kernel: one for the engine, one for the test.
#[derive(Clone)]
pub struct Fake(Arc<Mutex<State>>);

struct State {
    world: World,
    faults: Vec<Fault>,
    /// Steps until the agent dies; `Some(0)` when it is dead.
    life: Option<usize>,
    log: Vec<Step>,
    measured: Measured,
}

/// Fails one execution, having done nothing.
struct Fault {
    errno: Errno,
    strikes: Box<dyn FnMut(&Step) -> bool + Send>,
}

impl Default for Fake {
    fn default() -> Self {
        Self::new()
    }
}

impl Fake {
    /// A node with `lo` and an uplink `eth0`: 192.0.2.10/24 and `2001:db8::10/64`, MTU 1500, default routes by
    /// 192.0.2.1 and `2001:db8::1`.
    pub fn new() -> Self {
        let fake = Self::bare();
        fake.add_link("eth0", LinkKind::Ethernet);
        for (address, gateway, any) in [
            ("192.0.2.10/24", "192.0.2.1", "0.0.0.0/0"),
            ("2001:db8::10/64", "2001:db8::1", "::/0"),
        ] {
            fake.add_address("eth0", address);
            fake.add_route(any, Some(gateway), "eth0");
        }
        fake
    }

    /// A node with `lo` alone.
    pub fn bare() -> Self {
        let state = State {
            world: World::new(),
            faults: Vec::new(),
            life: None,
            log: Vec::new(),
            measured: Measured::default(),
        };
        Self(Arc::new(Mutex::new(state)))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets all links, namespaces and table entries but `lo`, and sets every sysctl back, as a reboot does.
    pub fn reboot(&self) {
        let mut state = self.state();
        state.world = World::new();
        state.life = None;
    }
}

/// The rest of the world: what happens without the agent. Names and addresses are texts, because these are tests;
/// a text that is none, or a link that is not there, panics.
impl Fake {
    /// Makes a network namespace with nothing but its loopback.
    pub fn add_netns(&self, path: &str) -> Netns {
        self.state().world.add_netns(parse::<NetnsPath>(path))
    }

    /// Removes a network namespace, and with it what is inside and the other ends of its veths.
    pub fn remove_netns(&self, path: &str) {
        self.state().world.remove_netns(&parse(path));
    }

    /// Puts an interface of someone else's into a namespace.
    pub fn add_pod_link(&self, path: &str, ifname: &str) {
        self.state().world.add_pod_link(&parse(path), parse(ifname));
    }

    /// The inside of a pod.
    pub fn pod(&self, path: &str, ifname: &str) -> Option<PodSide> {
        self.state().world.pod(&parse(path), &parse(ifname))
    }

    /// Changes the inside of a pod.
    pub fn edit_pod(&self, path: &str, ifname: &str, edit: impl FnOnce(&mut PodSide)) {
        edit(self.state().world.pod_mut(&parse(path), &parse(ifname)));
    }

    /// Makes a link that is up, with MTU 1500; tells its index.
    pub fn add_link(&self, name: &str, kind: LinkKind) -> u32 {
        self.state().world.add_link(parse(name), kind)
    }

    /// Changes a link.
    pub fn edit_link(&self, name: &str, edit: impl FnOnce(&mut Link)) {
        let name: IfName = parse(name);
        let mut state = self.state();
        edit(state.world.link_mut(&name).expect("the link is there"));
    }

    /// Removes a link, and with it its addresses, its routes and its peer; table entries stay.
    pub fn delete_link(&self, name: &str) {
        self.state().world.delete_link(&parse(name));
    }

    /// Gives a link an address.
    pub fn add_address(&self, link: &str, address: &str) {
        let address: InterfaceAddress = parse(address);
        self.edit_link(link, |link| link.addresses.push(address));
    }

    /// Adds a route of the main table.
    pub fn add_route(&self, destination: &str, gateway: Option<&str>, link: &str) {
        let mut state = self.state();
        let index = state
            .world
            .link(&parse(link))
            .expect("the link is there")
            .index;
        state.world.routes.push(RouteEntry {
            destination: parse::<Cidr>(destination),
            gateway: gateway.map(parse),
            link: index,
            table: world::MAIN,
            mtu: None,
        });
    }

    /// Removes routes.
    pub fn remove_routes(&self, mut which: impl FnMut(&RouteEntry) -> bool) {
        self.state().world.routes.retain(|route| !which(route));
    }

    /// Sets a sysctl, or makes it known.
    pub fn set_sysctl(&self, key: &str, value: &str) {
        let key = SysctlKey(key.to_owned());
        self.state().world.sysctls.insert(key, value.to_owned());
    }

    /// Removes table entries.
    pub fn clear_entries(&self, mut which: impl FnMut(&EntryKey, &Entry) -> bool) {
        self.state().world.clear_entries(&mut which);
    }

    /// Writes a table entry.
    pub fn put_entry(&self, key: &EntryKey, entry: &Entry) {
        self.state()
            .world
            .put(key, entry)
            .expect("the table takes it");
    }

    /// Says what [`Kernel::measure`] is to tell.
    pub fn set_measured(&self, measured: Measured) {
        self.state().measured = measured;
    }
}

/// Faults.
impl Fake {
    /// Fails the `n`-th execution from now (1 is the next), having done nothing.
    pub fn fail_at(&self, n: usize, errno: Errno) {
        let mut left = n;
        self.fault(errno, move |_| {
            left = left.saturating_sub(1);
            left == 0
        });
    }

    /// Fails the next execution of a step that `which` chooses, having done nothing.
    pub fn fail_next(&self, which: impl FnMut(&Step) -> bool + Send + 'static, errno: Errno) {
        self.fault(errno, which);
    }

    fn fault(&self, errno: Errno, strikes: impl FnMut(&Step) -> bool + Send + 'static) {
        self.state().faults.push(Fault {
            errno,
            strikes: Box::new(strikes),
        });
    }

    /// Lets the agent die after `n` more steps: every call after them fails, undoing included, until
    /// [`Fake::restart`]. What the agent writes elsewhere after that, a dead one would not have written.
    pub fn crash_after(&self, n: usize) {
        self.state().life = Some(n);
    }

    /// Whether the agent has died.
    pub fn is_crashed(&self) -> bool {
        self.state().life == Some(0)
    }

    /// The agent's process ends, and with it the sockets that hold ports. What it attached to the cgroup stays.
    pub fn end_agent(&self) {
        self.state().world.end_agent();
    }

    /// From now on there is a cgroup.
    pub fn add_cgroup(&self) {
        self.state().world.sockets = SocketHook::ALL
            .map(|hook| (hook, SocketLink::Absent))
            .into();
    }

    /// The agent lives again, without its sockets; faults that did not strike are forgotten.
    pub fn restart(&self) {
        let mut state = self.state();
        state.world.end_agent();
        state.life = None;
        state.faults.clear();
    }
}

/// What a test may ask.
impl Fake {
    /// The steps that were executed with success, and forgets them.
    pub fn take_log(&self) -> Vec<Step> {
        std::mem::take(&mut self.state().log)
    }

    /// Everything: as [`Scope::Node`] with every sysctl, and every namespace that has a path.
    pub fn snapshot(&self) -> Observed {
        let state = self.state();
        let sysctls: BTreeSet<SysctlKey> = state.world.sysctls.keys().cloned().collect();
        let mut observed = state.world.observe(&Scope::Node { sysctls });
        observed.netns = state.world.all_netns();
        observed
    }
}

impl Kernel for Fake {
    fn observe(&mut self, scope: &Scope) -> Result<Observed, ObserveError> {
        let state = self.state();
        if state.life == Some(0) {
            return Err(ObserveError {
                call: "observe: the agent is dead".to_owned(),
                source: Errno::ESHUTDOWN.into(),
            });
        }
        Ok(state.world.observe(scope))
    }

    fn execute(&mut self, step: &Step) -> Result<(), StepError> {
        let mut state = self.state();
        state.execute(step).map_err(|errno| StepError {
            call: step.to_string(),
            source: state.world.told(step, errno),
        })
    }

    fn measure(&mut self) -> Result<Measured, ObserveError> {
        Ok(self.state().measured.clone())
    }

    fn sent(&mut self, slots: &BTreeSet<u32>) -> Result<BTreeMap<u32, Counters>, ObserveError> {
        let asked = self
            .state()
            .measured
            .pods
            .clone()
            .into_iter()
            .filter(|(slot, _)| slots.contains(slot));
        Ok(asked.map(|(slot, of)| (slot, of.egress)).collect())
    }
}

impl State {
    fn execute(&mut self, step: &Step) -> Result<(), Errno> {
        if self.life == Some(0) {
            return Err(Errno::ESHUTDOWN);
        }
        let struck = self
            .faults
            .iter_mut()
            .position(|fault| (fault.strikes)(step));
        if let Some(index) = struck {
            return Err(self.faults.remove(index).errno);
        }
        self.world.execute(step)?;
        self.log.push(step.clone());
        self.life = self.life.map(|left| left - 1);
        Ok(())
    }
}

fn parse<T: std::str::FromStr>(text: &str) -> T
where
    T::Err: std::fmt::Debug,
{
    text.parse().expect("a valid text")
}

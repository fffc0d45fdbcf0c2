//! An in-memory kernel, for tests of this crate and of the crates above.
//!
//! It executes [`Step`]s on maps, with the errors and the idempotence of the real kernel. A test
//! can cause the events of a real node: namespaces come and go, links disappear, tables are
//! emptied, steps fail, the agent dies in the middle of a plan. Packets are not simulated. Where
//! the two disagree, the real kernel is right: the parity tests run the same scripts against both.

#![expect(
    clippy::missing_panics_doc,
    reason = "a test that names a missing link or namespace is wrong, and panics"
)]

mod bridge_vlans;
mod checks;
mod entries;
mod observe;
mod ports;
mod programs;
mod routes;
mod sysctls;
#[cfg(test)]
mod tests;
mod tuning;
mod tunnels;
mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use nix::errno::Errno;

use abi::Counters;
use model::{Cidr, DatapathLogLevel, IfName, InterfaceAddress, Netns, NetnsPath};
use steps::{
    CheckFacts, Entry, EntryKey, LinkKind, NetfilterState, NodeLink, NodeQuery, Observed, PodSide,
    Question, RouteEntry, SocketHook, SocketHookState, Step, SysctlKey, TrackedConnection,
};

use crate::{DatapathLog, Kernel, Measured, Observe, ObserveError, StepError};
use observe::Answer;
use world::World;

/// The in-memory kernel. A clone is another handle to the same kernel: one for the engine, one for
/// the test.
#[derive(Clone)]
pub struct Fake(Arc<Mutex<State>>);

struct State {
    world: World,
    faults: Vec<Fault>,
    /// Steps until the simulated crash of the agent; `Some(0)` after it.
    steps_left: Option<usize>,
    log: Vec<Step>,
    measured: Measured,
    /// Connections that netfilter translates, and those that have got a flow.
    translated: Vec<TrackedConnection>,
    made_flows: Vec<TrackedConnection>,
}

/// Fails one execution before it changes anything.
struct Fault {
    errno: Errno,
    applies: Box<dyn FnMut(&Step) -> bool + Send>,
}

impl Default for Fake {
    fn default() -> Self {
        Self::new()
    }
}

impl Fake {
    /// Makes a node with `lo` and an uplink `eth0`: 192.0.2.10/24 and `2001:db8::10/64`, MTU 1500,
    /// default routes via 192.0.2.1 and `2001:db8::1`.
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

    /// Makes a node with `lo` only.
    pub fn bare() -> Self {
        let state = State {
            world: World::new(),
            faults: Vec::new(),
            steps_left: None,
            log: Vec::new(),
            measured: Measured::default(),
            translated: Vec::new(),
            made_flows: Vec::new(),
        };
        Self(Arc::new(Mutex::new(state)))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes all links but `lo`, all namespaces and table entries, and resets all sysctls, as a
    /// reboot does.
    pub fn reboot(&self) {
        let mut state = self.state();
        state.world = World::new();
        state.steps_left = None;
    }
}

/// Events that the agent does not cause. Names and addresses are strings; an invalid one, or a
/// missing link, panics.
impl Fake {
    /// Creates a network namespace that has only its loopback.
    pub fn add_netns(&self, path: &str) -> Netns {
        self.state().world.add_netns(parse::<NetnsPath>(path))
    }

    /// Removes a network namespace, with its interfaces and the other ends of its veths.
    pub fn remove_netns(&self, path: &str) {
        self.state().world.remove_netns(&parse(path));
    }

    /// Adds a foreign interface to a namespace.
    pub fn add_pod_link(&self, path: &str, ifname: &str) {
        self.state().world.add_pod_link(&parse(path), parse(ifname));
    }

    /// Returns a pod's interface.
    pub fn pod(&self, path: &str, ifname: &str) -> Option<PodSide> {
        self.state().world.pod(&parse(path), &parse(ifname))
    }

    /// Changes a pod's interface.
    pub fn edit_pod(&self, path: &str, ifname: &str, edit: impl FnOnce(&mut PodSide)) {
        edit(self.state().world.pod_mut(&parse(path), &parse(ifname)));
    }

    /// Creates a link that is up, with MTU 1500, and returns its index.
    pub fn add_link(&self, name: &str, kind: LinkKind) -> u32 {
        self.state().world.add_link(parse(name), kind)
    }

    /// Changes a link.
    pub fn edit_link(&self, name: &str, edit: impl FnOnce(&mut NodeLink)) {
        let name: IfName = parse(name);
        let mut state = self.state();
        edit(state.world.link_mut(&name).expect("the link is there"));
    }

    /// Deletes a link, with its addresses, its routes and its veth peer. Table entries stay.
    pub fn delete_link(&self, name: &str) {
        self.state().world.delete_link(&parse(name));
    }

    /// Adds an address to a link.
    pub fn add_address(&self, link: &str, address: &str) {
        let address: InterfaceAddress = parse(address);
        self.edit_link(link, |link| link.addresses.push(address));
    }

    /// Adds a route to the main table.
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
            protocol: 3,
        });
    }

    /// Removes the routes that `which` selects.
    pub fn remove_routes(&self, mut which: impl FnMut(&RouteEntry) -> bool) {
        self.state().world.routes.retain(|route| !which(route));
    }

    /// Sets a sysctl; adds it if the kernel does not have it.
    pub fn set_sysctl(&self, key: &str, value: &str) {
        let key = SysctlKey(key.to_owned());
        self.state().world.put_sysctl(key, value);
    }

    /// Changes the answer to a [`steps::CheckQuery`]: IPsec, cgroup, files, conntrack, neighbours.
    pub fn edit_facts(&self, edit: impl FnOnce(&mut CheckFacts)) {
        edit(&mut self.state().world.facts);
    }

    /// Removes the table entries that `which` selects.
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

    /// Sets the state of our netfilter table, as other software or a kernel without nftables would.
    pub fn set_netfilter(&self, state: NetfilterState) {
        self.state().world.netfilter = state;
    }

    /// Sets the result of [`Kernel::translated_connections`], for any addresses.
    pub fn set_translated(&self, connections: Vec<TrackedConnection>) {
        self.state().translated = connections;
    }

    /// Returns the connections that have got a flow by [`Kernel::make_flow`].
    pub fn made_flows(&self) -> Vec<TrackedConnection> {
        self.state().made_flows.clone()
    }

    /// Sets the result of [`Kernel::measure`].
    pub fn set_measured(&self, measured: Measured) {
        self.state().measured = measured;
    }
}

/// Injected faults.
impl Fake {
    /// Fails the `n`-th execution from now (1 is the next) before it changes anything.
    pub fn fail_at(&self, n: usize, errno: Errno) {
        let mut left = n;
        self.fault(errno, move |_| {
            left = left.saturating_sub(1);
            left == 0
        });
    }

    /// Fails the next execution of a step that `which` selects, before it changes anything.
    pub fn fail_next(&self, which: impl FnMut(&Step) -> bool + Send + 'static, errno: Errno) {
        self.fault(errno, which);
    }

    fn fault(&self, errno: Errno, applies: impl FnMut(&Step) -> bool + Send + 'static) {
        self.state().faults.push(Fault {
            errno,
            applies: Box::new(applies),
        });
    }

    /// Simulates a crash of the agent after `n` more steps: every later call fails, undo steps
    /// included, until [`Fake::restart`]. Writes of the agent to other places after that must be
    /// ignored by the test.
    pub fn crash_after(&self, n: usize) {
        self.state().steps_left = Some(n);
    }

    /// Whether the simulated crash has happened.
    pub fn is_crashed(&self) -> bool {
        self.state().steps_left == Some(0)
    }

    /// Ends the agent's process, and with it the sockets that reserve ports. Cgroup programs stay
    /// attached.
    pub fn end_agent(&self) {
        self.state().world.end_agent();
    }

    /// Adds a cgroup, without attached programs.
    pub fn add_cgroup(&self) {
        self.state().world.sockets = SocketHook::ALL
            .map(|hook| (hook, SocketHookState::Absent))
            .into();
    }

    /// Starts the agent again after a crash, without its sockets. Faults that did not occur are
    /// dropped.
    pub fn restart(&self) {
        let mut state = self.state();
        state.world.end_agent();
        state.steps_left = None;
        state.faults.clear();
    }
}

/// Inspection by tests.
impl Fake {
    /// Returns the steps that succeeded since the last call.
    pub fn take_log(&self) -> Vec<Step> {
        std::mem::take(&mut self.state().log)
    }

    /// Returns the whole node with all sysctls.
    pub fn snapshot(&self) -> Observed {
        let state = self.state();
        let sysctls: BTreeSet<SysctlKey> = state.world.sysctls.keys().cloned().collect();
        state.world.answer(&NodeQuery { sysctls })
    }

    /// Returns all namespaces that have a path.
    pub fn namespaces(&self) -> BTreeMap<NetnsPath, Netns> {
        self.state().world.all_netns()
    }
}

impl<Q: Question> Observe<Q> for Fake
where
    World: Answer<Q>,
{
    fn observe(&mut self, question: &Q) -> Result<Q::Answer, ObserveError> {
        let state = self.state();
        if state.steps_left == Some(0) {
            return Err(ObserveError {
                call: "observe: the simulated agent has crashed".to_owned(),
                source: Errno::ESHUTDOWN.into(),
            });
        }
        Ok(state.world.answer(question))
    }
}

impl Kernel for Fake {
    fn datapath_log(&self) -> DatapathLog {
        self.state().world.datapath_log
    }

    fn set_datapath_log(&mut self, level: DatapathLogLevel) -> Result<(), ObserveError> {
        self.state().world.load_programs(level);
        Ok(())
    }

    fn execute(&mut self, step: &Step) -> Result<(), StepError> {
        let mut state = self.state();
        state.execute(step).map_err(|errno| StepError {
            call: step.to_string(),
            source: state.world.step_error(step, errno),
        })
    }

    fn measure(&mut self) -> Result<Measured, ObserveError> {
        Ok(self.state().measured.clone())
    }

    fn sent(&mut self, slots: &BTreeSet<u32>) -> Result<BTreeMap<u32, Counters>, ObserveError> {
        let selected = self
            .state()
            .measured
            .pods
            .clone()
            .into_iter()
            .filter(|(slot, _)| slots.contains(slot));
        Ok(selected.map(|(slot, of)| (slot, of.egress)).collect())
    }

    fn translated_connections(
        &mut self,
        _addresses: &BTreeSet<IpAddr>,
    ) -> Result<Vec<TrackedConnection>, ObserveError> {
        Ok(self.state().translated.clone())
    }

    fn make_flow(&mut self, connection: &TrackedConnection) -> Result<bool, ObserveError> {
        self.state().made_flows.push(*connection);
        Ok(true)
    }
}

impl State {
    fn execute(&mut self, step: &Step) -> Result<(), Errno> {
        if self.steps_left == Some(0) {
            return Err(Errno::ESHUTDOWN);
        }
        let fault = self
            .faults
            .iter_mut()
            .position(|fault| (fault.applies)(step));
        if let Some(index) = fault {
            return Err(self.faults.remove(index).errno);
        }
        self.world.execute(step)?;
        self.log.push(step.clone());
        self.steps_left = self.steps_left.map(|left| left - 1);
        Ok(())
    }
}

fn parse<T: std::str::FromStr>(text: &str) -> T
where
    T::Err: std::fmt::Debug,
{
    text.parse().expect("a valid text")
}

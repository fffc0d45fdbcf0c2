//! Programs and guards of a kernel in memory: every link takes them, and on links they are always those of the agent.

use std::collections::BTreeSet;

use model::IfName;
use nix::errno::Errno;
use planner::{GuardStep, Hook, Posted, SocketHook, SocketLink};

use super::world::World;

impl World {
    pub(super) fn attach(&mut self, link: &IfName, hooks: &BTreeSet<Hook>) -> Result<(), Errno> {
        let link = self.link_mut(link)?;
        link.hooks.extend(hooks);
        link.outdated.retain(|hook| !hooks.contains(hook));
        Ok(())
    }

    pub(super) fn detach(&mut self, link: &IfName, hooks: &BTreeSet<Hook>) {
        if let Some(link) = self.links.get_mut(link) {
            link.hooks.retain(|hook| !hooks.contains(hook));
            link.outdated.retain(|hook| !hooks.contains(hook));
        }
    }

    pub(super) fn set_sockets(
        &mut self,
        hooks: &BTreeSet<SocketHook>,
        to: SocketLink,
    ) -> Result<(), Errno> {
        if !hooks.iter().all(|hook| self.sockets.contains_key(hook)) {
            return Err(Errno::EOPNOTSUPP);
        }
        self.sockets.extend(hooks.iter().map(|hook| (*hook, to)));
        Ok(())
    }

    /// The sockets that hold ports go with the process; what it attached to the cgroup stays.
    pub(super) fn end_agent(&mut self) {
        self.held.clear();
        let links = self.sockets.values_mut();
        links
            .filter(|link| **link == SocketLink::Attached)
            .for_each(|link| *link = SocketLink::Outdated);
    }

    pub(super) fn guard(&mut self, step: &GuardStep) -> Result<(), Errno> {
        match step {
            GuardStep::Post(link) => {
                self.link_mut(link)?;
                let is_current = true;
                self.guards.insert(link.clone(), Posted { is_current });
            }
            GuardStep::Withdraw(link) => {
                self.guards.remove(link);
            }
        }
        Ok(())
    }
}

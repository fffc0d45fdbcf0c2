//! Programs and XDP prefilters in memory: every link accepts them, and there are no foreign ones.

use std::collections::BTreeSet;

use model::{DatapathLogLevel, IfName};
use nix::errno::Errno;
use steps::{AttachedPrefilter, Hook, SocketHook, SocketHookState, XdpPrefilterStep};

use super::world::World;
use crate::DatapathLog;

impl World {
    /// Loads other programs: those that are attached are outdated.
    pub(super) fn load_programs(&mut self, level: DatapathLogLevel) {
        self.datapath_log = DatapathLog {
            level,
            program: self.datapath_log.program + 1,
        };
        for link in self.links.values_mut() {
            link.outdated = link.hooks.clone();
        }
    }

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
        to: SocketHookState,
    ) -> Result<(), Errno> {
        if !hooks.iter().all(|hook| self.sockets.contains_key(hook)) {
            return Err(Errno::EOPNOTSUPP);
        }
        self.sockets.extend(hooks.iter().map(|hook| (*hook, to)));
        Ok(())
    }

    /// Releases the ports, which end with the process, and keeps the cgroup programs as those of an
    /// earlier agent. Only the process that sets a MAC address remembers it.
    pub(super) fn end_agent(&mut self) {
        for link in self.links.values_mut() {
            link.mac_is_set = false;
        }
        self.held.clear();
        self.awaited.clear();
        let links = self.sockets.values_mut();
        links
            .filter(|link| **link == SocketHookState::Attached)
            .for_each(|link| *link = SocketHookState::Outdated);
    }

    pub(super) fn change_prefilter(&mut self, step: &XdpPrefilterStep) -> Result<(), Errno> {
        match step {
            XdpPrefilterStep::Attach(link) => {
                self.link_mut(link)?;
                let is_current = true;
                self.prefilters
                    .insert(link.clone(), AttachedPrefilter { is_current });
            }
            XdpPrefilterStep::Detach(link) => {
                self.prefilters.remove(link);
            }
        }
        Ok(())
    }
}

//! Guards of a kernel in memory: every link takes one.

use nix::errno::Errno;
use planner::{GuardStep, Posted};

use super::world::World;

impl World {
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

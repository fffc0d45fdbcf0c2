//! Ports of the node in memory: those that the agent holds and those that other processes have.
//!
//! As the real ones: a process is refused what overlaps with anybody's, the agent what overlaps with a process's.

use std::io;

use model::Attachment;
use nix::errno::Errno;
use planner::{Claim, Held, HeldPorts, Holding, Step};

use super::world::World;
use super::{Fake, parse};
use crate::{PortInUse, Process};

impl Fake {
    /// A process of the node binds a port, such as `0.0.0.0:8080/tcp`; tells whether it could.
    pub fn bind(&self, port: &str, process: Process) -> bool {
        let mut state = self.state();
        let claim = claim(port);
        let world = &mut state.world;
        let mut taken = world.held.keys().chain(world.foreign.keys());
        let is_free = !taken.any(|other| other.overlaps(&claim));
        if is_free {
            world.foreign.insert(claim, process);
        }
        is_free
    }

    /// The process that has the port lets go of it.
    pub fn unbind(&self, port: &str) {
        self.state().world.foreign.remove(&claim(port));
    }
}

impl World {
    pub(super) fn hold(&mut self, claim: Claim, generation: u32) -> Result<(), Errno> {
        if !self.held.contains_key(&claim) && self.in_the_way(claim).is_some() {
            return Err(Errno::EADDRINUSE);
        }
        let by = Holding::Socket;
        self.held.insert(claim, Held { generation, by });
        Ok(())
    }

    pub(super) fn release(&mut self, claim: &Claim, generation: u32) {
        let held = self.held.get(claim);
        if held.is_some_and(|held| held.generation == generation) {
            self.held.remove(claim);
        }
    }

    pub(super) fn held_for(&self, attachment: &Attachment) -> HeldPorts {
        planner::attachment_claims(attachment)
            .into_iter()
            .filter_map(|claim| Some((claim, *self.held.get(&claim)?)))
            .collect()
    }

    /// What the kernel says of a step that fails with `errno`.
    pub(super) fn told(&self, step: &Step, errno: Errno) -> io::Error {
        if let Step::HoldPort { claim, .. } = step
            && errno == Errno::EADDRINUSE
        {
            let found = self.in_the_way(*claim);
            let in_use = PortInUse {
                claim: *claim,
                socket: found.map(|(other, _)| other.socket()),
                process: found.map(|(_, process)| process.clone()),
            };
            return io::Error::new(io::ErrorKind::AddrInUse, in_use);
        }
        errno.into()
    }

    fn in_the_way(&self, claim: Claim) -> Option<(&Claim, &Process)> {
        let mut foreign = self.foreign.iter();
        foreign.find(|(other, _)| other.overlaps(&claim))
    }
}

fn claim(text: &str) -> Claim {
    let (socket, protocol) = text.split_once('/').expect("a port with its protocol");
    let socket: std::net::SocketAddr = parse(socket);
    Claim {
        address: socket.ip(),
        port: socket.port(),
        protocol: parse(protocol),
    }
}

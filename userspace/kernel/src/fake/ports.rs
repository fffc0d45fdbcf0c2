//! Ports of the node in memory: those that the agent reserves and those that processes bind.
//!
//! As in the real kernel, `bind` of a process fails if it overlaps with any port in use, and a
//! reservation fails if it overlaps with a process's port.

use std::io;

use model::Attachment;
use nix::errno::Errno;
use planner::{PortReservation, PortReservations, ReservationOwner, ReservedBy, Step};

use super::world::World;
use super::{Fake, parse};
use crate::{PortInUse, Process};

impl Fake {
    /// Binds a port for a process of the node, such as `0.0.0.0:8080/tcp`. Returns whether it was
    /// free.
    pub fn bind(&self, port: &str, process: Process) -> bool {
        let mut state = self.state();
        let reservation = reservation(port);
        let world = &mut state.world;
        let mut taken = world.held.keys().chain(world.foreign.keys());
        let is_free = !taken.any(|other| other.overlaps(&reservation));
        if is_free {
            world.foreign.insert(reservation, process);
        }
        is_free
    }

    /// Closes the process's socket of a port.
    pub fn unbind(&self, port: &str) {
        self.state().world.foreign.remove(&reservation(port));
    }
}

impl World {
    pub(super) fn reserve(
        &mut self,
        reservation: PortReservation,
        generation: u32,
    ) -> Result<(), Errno> {
        if !self.held.contains_key(&reservation) && self.conflicting_process(reservation).is_some()
        {
            return Err(Errno::EADDRINUSE);
        }
        let by = ReservedBy::Socket;
        self.held
            .insert(reservation, ReservationOwner { generation, by });
        Ok(())
    }

    pub(super) fn release(&mut self, reservation: &PortReservation, generation: u32) {
        let held = self.held.get(reservation);
        if held.is_some_and(|held| held.generation == generation) {
            self.held.remove(reservation);
        }
    }

    pub(super) fn held_for(&self, attachment: &Attachment) -> PortReservations {
        planner::attachment_reservations(attachment)
            .into_iter()
            .filter_map(|reservation| Some((reservation, *self.held.get(&reservation)?)))
            .collect()
    }

    /// Returns the kernel's error for a step that fails with `errno`.
    pub(super) fn step_error(&self, step: &Step, errno: Errno) -> io::Error {
        if let Step::ReservePort { reservation, .. } = step
            && errno == Errno::EADDRINUSE
        {
            let found = self.conflicting_process(*reservation);
            let in_use = PortInUse {
                reservation: *reservation,
                socket: found.map(|(other, _)| other.socket()),
                process: found.map(|(_, process)| process.clone()),
            };
            return io::Error::new(io::ErrorKind::AddrInUse, in_use);
        }
        errno.into()
    }

    fn conflicting_process(
        &self,
        reservation: PortReservation,
    ) -> Option<(&PortReservation, &Process)> {
        let mut foreign = self.foreign.iter();
        foreign.find(|(other, _)| other.overlaps(&reservation))
    }
}

fn reservation(text: &str) -> PortReservation {
    let (socket, protocol) = text.split_once('/').expect("a port with its protocol");
    let socket: std::net::SocketAddr = parse(socket);
    PortReservation {
        address: socket.ip(),
        port: socket.port(),
        protocol: parse(protocol),
    }
}

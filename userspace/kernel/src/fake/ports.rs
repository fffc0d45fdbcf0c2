//! Ports of the node in memory: those that the agent reserves and those that processes bind.
//!
//! As in the real kernel, `bind` of a process fails if it overlaps with any port in use, and a
//! reservation fails if it overlaps with a process's port.

use std::collections::BTreeSet;
use std::io;

use nix::errno::Errno;
use steps::{
    PortLeave, PortReservation, PortReservations, PortUsers, ReservationOwner, ReservedBy, Step,
};

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
        let is_awaited = |other| world.awaited.get(other) == Some(&process.pid);
        let held = world.held.keys().filter(|other| !is_awaited(*other));
        let mut taken = held.chain(world.foreign.keys());
        let is_free = !taken.any(|other| other.overlaps(&reservation));
        if is_free {
            world.foreign.insert(reservation, process);
        }
        is_free
    }

    /// Ends a process: the kernel has no process of this ID any longer.
    pub fn end_process(&self, pid: u32) {
        self.state().world.ended.insert(pid);
    }

    /// Closes the process's socket of a port.
    pub fn unbind(&self, port: &str) {
        self.state().world.foreign.remove(&reservation(port));
    }
}

impl World {
    /// Executes a step that reserves, leaves or releases a port.
    pub(super) fn change_port(&mut self, step: &Step) -> Result<(), Errno> {
        if let Step::ReservePort {
            reservation,
            generation,
        } = step
        {
            self.reserve(*reservation, *generation)?;
        }
        if let Step::LeavePort(leave) = step {
            self.leave(leave);
        }
        if let Step::ReleasePort {
            reservation,
            generation,
        } = step
        {
            self.release(reservation, *generation);
        }
        Ok(())
    }

    fn reserve(&mut self, reservation: PortReservation, generation: u32) -> Result<(), Errno> {
        let held = self.held.get(&reservation);
        let is_held = held.is_some_and(|held| held.by != ReservedBy::Runtime);
        if !is_held && self.conflicting_process(reservation).is_some() {
            return Err(Errno::EADDRINUSE);
        }
        let by = ReservedBy::Socket;
        self.awaited.remove(&reservation);
        self.held
            .insert(reservation, ReservationOwner { generation, by });
        Ok(())
    }

    fn leave(&mut self, leave: &PortLeave) {
        let owner = ReservationOwner {
            generation: leave.generation,
            by: ReservedBy::Runtime,
        };
        self.held.insert(leave.reservation, owner);
        match leave.process {
            Some(pid) => self.awaited.insert(leave.reservation, pid),
            None => self.awaited.remove(&leave.reservation),
        };
    }

    /// Returns the reservations in force: not those whose runtime has closed its socket.
    pub(super) fn in_force(&self) -> PortReservations {
        self.held
            .keys()
            .filter_map(|reservation| Some((*reservation, self.owner(reservation)?)))
            .collect()
    }

    /// Returns the owner of a reservation that is in force.
    fn owner(&self, reservation: &PortReservation) -> Option<ReservationOwner> {
        self.held.get(reservation).copied().filter(|owner| {
            owner.by != ReservedBy::Runtime
                || self.awaited.contains_key(reservation)
                || self.conflicting_process(*reservation).is_some()
        })
    }

    pub(super) fn observe_port_users(
        &self,
        reservations: &BTreeSet<PortReservation>,
        process: u32,
    ) -> PortUsers {
        let all = self.in_force().into_iter();
        let holders = |reservation: &PortReservation| {
            let found = self.conflicting_process(*reservation);
            found
                .map(|(_, process)| process.clone())
                .into_iter()
                .collect()
        };
        PortUsers {
            port_reservations: all.filter(|(one, _)| reservations.contains(one)).collect(),
            holders: reservations
                .iter()
                .map(|one| (*one, holders(one)))
                .collect(),
            exists: !self.ended.contains(&process),
        }
    }

    fn release(&mut self, reservation: &PortReservation, generation: u32) {
        let held = self.held.get(reservation);
        if held.is_some_and(|held| held.generation == generation) {
            self.held.remove(reservation);
            self.awaited.remove(reservation);
        }
    }

    pub(super) fn held_for(&self, reservations: &BTreeSet<PortReservation>) -> PortReservations {
        reservations
            .iter()
            .filter_map(|reservation| Some((*reservation, self.owner(reservation)?)))
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
                processes: found
                    .map(|(_, process)| process.clone())
                    .into_iter()
                    .collect(),
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

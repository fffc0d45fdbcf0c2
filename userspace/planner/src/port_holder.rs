//! Sockets of container runtimes on published ports: which ones belong to the runtime of the
//! container, and which ports the agent leaves to it.
//!
//! podman binds the published ports of a container itself, before the network is set up (podman 5)
//! or afterwards (podman 4), and passes the sockets to conmon, which keeps them while the container
//! runs. The agent leaves such ports to the runtime, and takes them again when the runtime's
//! sockets are gone (decisions 82 and 176).

use model::{Attachment, ContainerId};
use steps::{Ancestor, PortLeave, PortReservation, PortUsers, Process, ReservedBy, Step};

use crate::Plan;
use crate::port_reservation::reserve;

/// Commands of runtimes that bind published ports themselves.
const BINDING_RUNTIMES: [&str; 1] = ["podman"];

/// Shortest container ID that identifies a process by its arguments, in bytes: runtimes draw IDs of
/// 32 or more characters at random, shorter ones are names.
const SHORTEST_ID: usize = 32;

/// Returns the process that will bind the published ports itself, among the processes that led to
/// the execution of the plugin, nearest first.
pub fn binding_runtime(ancestors: impl IntoIterator<Item = Ancestor>) -> Option<u32> {
    let mut ancestors = ancestors.into_iter();
    let binds = |it: &Ancestor| it.is_root && BINDING_RUNTIMES.contains(&it.command.as_str());
    ancestors.find(binds).map(|runtime| runtime.pid)
}

/// Returns whether a process belongs to the runtime of this container: a process of root with the
/// container's ID among its arguments, as conmon and shims have it.
pub fn is_of_runtime(process: &Process, container: &ContainerId) -> bool {
    let id = container.as_str();
    let names = |argument: &String| {
        argument == id
            || argument
                .split_once('=')
                .is_some_and(|(_, value)| value == id)
    };
    process.is_root && id.len() >= SHORTEST_ID && process.arguments.iter().any(names)
}

/// The runtime of a container, which may have bound the ports that are to be reserved.
#[derive(Clone, Copy, Debug)]
pub struct PortRuntime<'a> {
    pub container: &'a ContainerId,
    /// The process that binds them, if it has led to the execution of the plugin
    /// ([`binding_runtime`]).
    pub binder: Option<u32>,
}

impl PortRuntime<'_> {
    /// Returns whether a process belongs to the runtime.
    fn has(&self, process: &Process) -> bool {
        self.binder == Some(process.pid) || is_of_runtime(process, self.container)
    }
}

/// Returns the step in place of a [`Step::ReservePort`] that failed because `holders` have the port
/// open, if one of them is the runtime of the container.
pub fn leave_to_runtime(
    step: &Step,
    holders: &[Process],
    runtime: PortRuntime<'_>,
) -> Option<Step> {
    let &Step::ReservePort {
        reservation,
        generation,
    } = step
    else {
        return None;
    };
    let mut holders = holders.iter();
    let is_runtime = holders.any(|process| runtime.has(process));
    is_runtime.then_some(Step::LeavePort(PortLeave {
        reservation,
        generation,
        process: None,
    }))
}

/// Plans to leave all ports of an attachment to `process`, which will bind them.
pub fn plan_leave_ports(
    attachment: &Attachment,
    reservations: impl IntoIterator<Item = PortReservation>,
    process: u32,
) -> Plan {
    Plan::of(reservations.into_iter().map(|reservation| {
        Step::LeavePort(PortLeave {
            reservation,
            generation: attachment.generation,
            process: Some(process),
        })
    }))
}

/// Plans what becomes of the ports that were left to `process`; `None` as long as it may still
/// bind them.
///
/// The runtime has finished when a process with the container's ID has one of the ports, when
/// `process` has ended, or when it is `overdue`. Then its ports stay with it, and the agent
/// reserves the others.
pub fn plan_left_ports(
    attachment: &Attachment,
    process: u32,
    users: &PortUsers,
    overdue: bool,
) -> Option<Plan> {
    let container = &attachment.key.container_id;
    let mut all = users.holders.values().flatten();
    let has_bound = all.any(|holder| is_of_runtime(holder, container));
    if !has_bound && users.exists && !overdue {
        return None;
    }
    let is_bound = |reservation: &PortReservation| {
        let mut holders = users.holders.get(reservation).into_iter().flatten();
        holders.any(|holder| holder.pid == process || is_of_runtime(holder, container))
    };
    let left = users
        .port_reservations
        .iter()
        .filter(|(_, owner)| {
            owner.by == ReservedBy::Runtime && owner.generation == attachment.generation
        })
        .map(|(reservation, _)| *reservation);
    let (bound, free): (Vec<_>, Vec<_>) = left.partition(is_bound);
    let keep = |reservation| {
        Step::LeavePort(PortLeave {
            reservation,
            generation: attachment.generation,
            process: None,
        })
    };
    let mut plan = Plan::of(bound.into_iter().map(keep));
    plan.append(Plan::of(reserve(attachment, free)));
    Some(plan)
}

#[cfg(test)]
mod tests;

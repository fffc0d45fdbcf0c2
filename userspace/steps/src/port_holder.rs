//! Processes that have ports open, and ports that are left to them.

use std::fmt;

use crate::PortReservation;

/// A process of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// Process ID.
    pub pid: u32,
    /// Name of the command (`/proc/<pid>/comm`).
    pub command: String,
    /// Arguments, the program first (`/proc/<pid>/cmdline`).
    pub arguments: Vec<String>,
    /// Whether its effective user is root.
    pub is_root: bool,
}

/// A process that led to the execution of another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ancestor {
    /// Process ID.
    pub pid: u32,
    /// Name of the command, at most 15 bytes.
    pub command: String,
    /// Whether its effective user is root.
    pub is_root: bool,
}

/// Leaves a host port to a container runtime: the agent has no socket on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortLeave {
    /// Address, port and protocol.
    pub reservation: PortReservation,
    /// Generation of the attachment that owns the port.
    pub generation: u32,
    /// Process that has still to bind the port, and may; `None` if the runtime has bound it.
    pub process: Option<u32>,
}

impl fmt::Display for PortLeave {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "leave port {} to ", self.reservation)?;
        match self.process {
            Some(pid) => write!(f, "process {pid}"),
            None => f.write_str("the container runtime"),
        }
    }
}

//! The suite: cells, the scene in which they are sent, and the judgement of what arrives.

mod cell;
mod counters;
mod judge;
mod net;
mod packets;
mod pod_cells;
mod scene;
mod sockets;
mod state;
mod wire;
mod world_cells;

pub(crate) use cell::kept;
pub(crate) use judge::{accepted_lies, run};
pub(crate) use net::Policy;
pub(crate) use scene::{Origin, Scene};

/// Returns the frames that a pod sends.
pub(crate) fn of_pod(scene: &Scene, seed: u64) -> Vec<cell::Cell> {
    pod_cells::cells(&scene.net, seed)
}

/// Returns the frames that a machine on the uplink sends.
pub(crate) fn of_world(scene: &Scene, seed: u64) -> Vec<cell::Cell> {
    world_cells::cells(&scene.net, seed)
}

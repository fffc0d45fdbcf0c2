//! Docker's remote network driver and remote IPAM driver (libnetwork): the protocol as types, and
//! its translation to networks and attachments.
//!
//! * [`protocol`]: requests and answers, as dockerd sends and expects them.
//! * [`NetworkSpec`]: a network as dockerd created it, and the [`model::Network`] that it becomes.
//! * [`Endpoint`]: keys and intents of endpoints.
//! * [`ports`]: published ports, and the choice of ephemeral ones.
//! * [`Pools`]: the IPAM driver, as pure state.
//! * [`State`]: what must outlast the agent and the boot, since dockerd creates a network once.

mod endpoint;
mod network;
mod options;
mod pools;
pub mod ports;
pub mod protocol;
mod state;
mod text;

pub use endpoint::{Endpoint, join_answer};
pub use network::{NetworkSpec, without_gateway};
pub use options::{NETWORK_OPTIONS, NetworkOption, Support};
pub use pools::{GLOBAL_SPACE, LOCAL_SPACE, Pools, Request};
pub use state::State;

/// Why a request is refused, for the user of `docker`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refused(pub String);

impl Refused {
    fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns the refusal of an option with its name and value.
    fn option(name: &str, value: &str, why: &str) -> Self {
        Self(format!("option {name}={value}: {why}"))
    }
}

//! Address management by host-local's rules, for the agent and for the plugin without an agent.
//!
//! * [`choose`] allocates addresses: pure, leases come in as an argument;
//! * [`lease_files`] reads and writes the leases on disk, and chooses no address;
//! * [`small_files`] reads files of other software up to a size limit, and parses none.

#![forbid(unsafe_code)]

mod address;
pub mod lease_files;
mod refusal;
pub mod small_files;

pub use address::{Leases, choose, last_reserved};
pub use refusal::AddressRefusal;

//! The CNI protocol as values, in every version: environment and standard input become a [`Request`], a request
//! becomes a [`model::Intent`], an attachment becomes the JSON that the runtime expects, an error likewise.
//!
//! The one way of an ADD through this crate:
//!
//! ```text
//! CNI_* + stdin ─ Request::read ─► AddRequest ─ intent ─► model::Intent … model::Attachment ─ Outcome::to_json ─► stdout
//! ```
//!
//! Refuses to know sockets, processes, the kernel and the agent: no I/O at all. What it cannot honour it refuses with
//! the key's name; it never ignores a setting that would change what the network does.

#![forbid(unsafe_code)]

mod annotation;
mod args;
mod bandwidth;
mod bridge_keys;
mod cache;
mod chain;
mod config;
mod delegates;
mod environment;
mod error;
mod foreign_lease;
mod gc;
mod intent;
mod ipam;
mod ipam_request;
mod json;
mod list;
mod outcome;
mod passed;
mod plugin;
mod prev_result;
mod refused;
mod request;
mod runtime;
mod selection;
mod static_ipam;
pub mod testing;
mod tuning;
mod version;

pub use bandwidth::{Asked, rate};
pub use bridge_keys::BridgeKeys;
pub use cache::Cached;
pub use chain::{ChainedRequest, Container, Wish};
pub use config::{Config, Dns, Header};
pub use delegates::{DEFAULT_DELEGATES, Delegate, DelegateNetwork, delegates};
pub use environment::{Command, Environment};
pub use error::Error;
pub use foreign_lease::ForeignLease;
pub use gc::ValidAttachment;
pub use intent::{intent, network};
pub use ipam::{AddressSource, Ipam};
pub use ipam_request::{IpamRequest, IpamVerb, Pool};
pub use list::{FileKind, NetworkList, PluginConfig};
pub use outcome::Outcome;
pub use passed::{PassedAddress, PassedInterface, PassedResult};
pub use plugin::Plugin;
pub use prev_result::PrevResult;
pub use request::{
    AddRequest, CheckRequest, DelRequest, GcRequest, Request, StatusRequest, Target,
};
pub use runtime::{AddressWish, Wishes};
pub use static_ipam::StaticAddress;
pub use version::{Version, version_report};

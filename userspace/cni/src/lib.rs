//! Parser and printer of the CNI protocol, versions 0.1.0 to 1.1.0.
//!
//! Environment and standard input become a [`Request`], a request becomes a [`model::Intent`], an
//! attachment becomes the JSON that the runtime expects, an error likewise. An ADD takes these
//! steps:
//!
//! ```text
//! CNI_* + stdin ─ Request::read ─► AddRequest ─ intent ─► model::Intent
//! model::Attachment ─ Outcome::to_json ─► stdout
//! ```
//!
//! The crate does no I/O: it depends on no socket, process, kernel interface or agent. A setting
//! that Viaduct does not implement and that would change the network is an error with the key's
//! name; it is never ignored.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod annotation;
mod args;
mod bandwidth;
mod bridge_keys;
mod cache;
mod chain;
mod check_version;
mod config;
mod delegates;
mod dns;
mod environment;
mod error;
mod foreign_lease;
mod gc;
mod installation;
mod intent;
mod ipam;
mod ipam_request;
mod json;
mod list;
mod outcome;
mod plugin;
mod plugin_result;
mod port_mapping;
mod prev_result;
mod ranges;
mod request;
mod runtime;
mod selection;
mod static_ipam;
pub mod testing;
mod tuning;
mod unsupported;
mod values;
mod version;

pub use bandwidth::{RequestedLimits, parse_rate};
pub use bridge_keys::BridgeKeys;
pub use cache::Cached;
pub use chain::{ChainedRequest, Container, PluginRequest};
pub use check_version::check_version;
pub use config::{Config, Header};
pub use delegates::{DEFAULT_DELEGATES, Delegate, DelegateNetwork, delegates};
pub use dns::Dns;
pub use environment::{Command, Environment};
pub use error::Error;
pub use foreign_lease::ForeignLease;
pub use gc::ValidAttachment;
pub use installation::{ConfigurationFile, Installation, InstallationFault};
pub use intent::{intent, network};
pub use ipam::{AddressSource, Ipam};
pub use ipam_request::{IpamRequest, IpamVerb, Pool};
pub use list::{FileKind, NetworkList, PluginConfig};
pub use outcome::Outcome;
pub use plugin::Plugin;
pub use plugin_result::{PluginResult, ResultAddress, ResultInterface};
pub use prev_result::PrevResult;
pub use request::{
    AddRequest, CheckRequest, DelRequest, GcRequest, Request, StatusRequest, Target,
};
pub use runtime::RuntimeArgs;
pub use static_ipam::StaticAddress;
pub use values::RequestedAddress;
pub use version::{Version, version_report};

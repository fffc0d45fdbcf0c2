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

mod config;
mod error;
mod intent;
mod json;
mod list;
mod plugin;
mod request;
mod result;
mod runtime;
pub mod testing;
mod values;
mod version;

pub use config::bandwidth::{RequestedLimits, parse_rate};
pub use config::bridge_keys::BridgeKeys;
pub use config::dns::Dns;
pub use config::ipam::{AddressSource, Ipam};
pub use config::static_ipam::StaticAddress;
pub use config::tuning::TuningRequest;
pub use config::{Config, Header};
pub use error::Error;
pub use intent::{intent, network};
pub use list::cache::Cached;
pub use list::delegates::{DEFAULT_DELEGATES, Delegate, DelegateNetwork, delegates};
pub use list::installation::{ConfigurationFile, Installation, InstallationFault};
pub use list::{FileKind, NetworkList, PluginConfig};
pub use plugin::Plugin;
pub use request::chain::{ChainedRequest, Container, PluginRequest};
pub use request::check_version::check_version;
pub use request::environment::{Command, Environment};
pub use request::gc::ValidAttachment;
pub use request::ipam_request::{IpamRequest, IpamVerb, Pool};
pub use request::{
    AddRequest, CheckRequest, DelRequest, GcRequest, Request, StatusRequest, Target,
};
pub use result::foreign_lease::ForeignLease;
pub use result::inexpressible::InexpressibleResult;
pub use result::outcome::Outcome;
pub use result::plugin_result::{PluginResult, ResultAddress, ResultInterface};
pub use result::prev_result::PrevResult;
pub use runtime::RuntimeArgs;
pub use runtime::args::pod_of;
pub use values::RequestedAddress;
pub use version::{Version, version_report};

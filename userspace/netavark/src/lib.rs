//! Parser and printer of netavark's plugin interface, version 1.0.0, by which podman 5 uses
//! networks of other software (`plugin-API.md` of netavark).
//!
//! A network's JSON and a container's options become a CNI configuration: Viaduct attaches the
//! container as any other, and every value is checked by the same parser.
//!
//! ```text
//! create: network ─ complete ─► network, with bridge, subnets and gateways
//! setup:  network + container ─ Setup::read ─► CNI ADD ─► result ─ Setup::status ─► status block
//! teardown: the same input ─ teardown ─► CNI DEL
//! ```
//!
//! The crate does no I/O. An option that Viaduct does not have is an error with its name; it is
//! never ignored.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod create;
mod input;
mod options;
mod setup;
mod subnet;

pub use create::complete;
pub use options::{NETWORK_OPTIONS, NetworkOption, Support};
pub use setup::{Setup, teardown};
pub use subnet::subnets;

//! What the plugin sends, and how the agent says no. Refuses to know what is in a configuration.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Where the agent listens unless told otherwise.
pub const DEFAULT_SOCKET: &str = "/run/viaduct/viaduct.sock";

/// Largest request body in bytes: a configuration with the largest set of pod annotations that Kubernetes allows
/// (256 KiB), escaped, and room to spare.
pub const MAX_REQUEST: usize = 2 << 20;

/// The CNI error code for "try again later".
pub const TRY_AGAIN_LATER: u32 = 11;

/// A CNI command that the agent executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CniVerb {
    /// Make an attachment.
    Add,
    /// Remove an attachment.
    Del,
    /// Compare an attachment with what was decided.
    Check,
    /// Remove attachments that the runtime does not know.
    Gc,
    /// Tell whether an ADD would work.
    Status,
}

impl CniVerb {
    /// Where to `POST` the [`CniRequest`]. A success has the CNI result as its body for ADD, and none for the others;
    /// every other status has an [`ErrorBody`].
    pub fn path(self) -> &'static str {
        match self {
            Self::Add => "/v1/cni/add",
            Self::Del => "/v1/cni/del",
            Self::Check => "/v1/cni/check",
            Self::Gc => "/v1/cni/gc",
            Self::Status => "/v1/cni/status",
        }
    }
}

/// A CNI request as the runtime made it: nothing is interpreted on the way.
///
/// A parameter that the runtime did not give is empty.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CniRequest {
    /// The plugin's version; empty when it is older than this field.
    #[serde(default)]
    pub version: String,
    /// The name under which the plugin was executed; empty for `viaduct`.
    #[serde(default)]
    pub plugin: String,
    /// `TRACEPARENT`: the runtime's span, in the W3C's form.
    #[serde(default)]
    pub traceparent: String,
    /// `CNI_CONTAINERID`.
    #[serde(default, rename = "containerID")]
    pub container_id: String,
    /// `CNI_NETNS`.
    #[serde(default)]
    pub netns: String,
    /// `CNI_IFNAME`.
    #[serde(default)]
    pub ifname: String,
    /// `CNI_ARGS`.
    #[serde(default)]
    pub args: String,
    /// `CNI_PATH`.
    #[serde(default)]
    pub path: String,
    /// The network configuration, byte for byte.
    pub config: Box<RawValue>,
    /// What the `ipam` plugin that the configuration names has answered to the same ADD.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipam: Option<Box<RawValue>>,
}

/// An interface that may be in a namespace.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Inside<T> {
    /// Path of the namespace.
    pub netns: T,
    /// The interface.
    pub ifname: T,
}

/// Whether it is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Found {
    /// An interface of that name is there, whoever's it is.
    pub exists: bool,
}

/// Body of every answer that is not a success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// A CNI error code, for every path of the API.
    pub code: u32,
    /// What went wrong, in one line.
    pub message: String,
    /// The causes, and what to do about them.
    #[serde(default)]
    pub details: String,
}

impl fmt::Display for ErrorBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if self.details.is_empty() {
            Ok(())
        } else {
            write!(f, " ({})", self.details)
        }
    }
}

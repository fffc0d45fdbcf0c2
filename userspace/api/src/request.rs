//! CNI requests of the plugin, and error responses. The network configuration is opaque here.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Default path of the agent's Unix socket.
pub const DEFAULT_SOCKET: &str = "/run/viaduct/viaduct.sock";

/// Name of the file with the error that ended the last agent, in the runtime directory of its unit.
pub const LAST_FAILURE: &str = "last-failure";

/// Returns the default path of the read-only socket of an agent that listens on `socket`: its name
/// with `-ro` before the extension, such as `/run/viaduct/viaduct-ro.sock`.
pub fn read_only_socket(socket: &Path) -> PathBuf {
    let mut name: OsString = socket.file_stem().unwrap_or_default().to_owned();
    name.push("-ro");
    if let Some(extension) = socket.extension() {
        name.push(".");
        name.push(extension);
    }
    socket.with_file_name(name)
}

/// Default directory of pinned eBPF programs and maps.
pub const DEFAULT_BPFFS: &str = "/sys/fs/bpf/viaduct";

/// Maximum size of a request body in bytes: a network configuration with the largest set of pod
/// annotations that Kubernetes allows (256 KiB), escaped, plus a margin.
pub const MAX_REQUEST: usize = 2 << 20;

/// The CNI error code for "try again later".
pub const TRY_AGAIN_LATER: u32 = 11;

/// [`CniRequest::plugin`] of a call of netavark: the configuration is then the plugin's standard
/// input for `setup` (as ADD) or `teardown` (as DEL), and the body of the response to ADD is
/// netavark's status block.
pub const NETAVARK: &str = "netavark";

/// A CNI command that the agent executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CniVerb {
    /// Creates an attachment.
    Add,
    /// Removes an attachment.
    Del,
    /// Compares an attachment with its record and its result.
    Check,
    /// Removes attachments that are not in the runtime's list of valid attachments.
    Gc,
    /// Checks whether an ADD would succeed.
    Status,
}

impl CniVerb {
    /// Returns the path to `POST` a [`CniRequest`] to. The body of a successful response is the CNI
    /// result for ADD and empty for other commands; the body of an error is an [`ErrorBody`].
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

/// A CNI request as the runtime made it; the plugin passes every parameter on unchanged.
///
/// A parameter that the runtime did not set is empty.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CniRequest {
    /// Version of the plugin; empty if it is older than this field.
    #[serde(default)]
    pub version: String,
    /// File name under which the plugin was executed; empty for `viaduct`.
    #[serde(default)]
    pub plugin: String,
    /// `TRACEPARENT`: the runtime's span, in the format of W3C Trace Context.
    #[serde(default)]
    pub traceparent: String,
    /// `CNI_CONTAINERID`.
    #[serde(default, rename = "containerID")]
    pub container_id: String,
    /// `CNI_NETNS`: path of the network namespace.
    #[serde(default)]
    pub netns: String,
    /// `CNI_IFNAME`: interface name in the namespace.
    #[serde(default)]
    pub ifname: String,
    /// `CNI_ARGS`: `KEY=VALUE` pairs, separated by semicolons.
    #[serde(default)]
    pub args: String,
    /// `CNI_PATH`: directories of plugins, separated by colons.
    #[serde(default)]
    pub path: String,
    /// Network configuration, byte for byte as on the plugin's standard input.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub config: Box<RawValue>,
    /// Result of the external `ipam` plugin for the same ADD, if the configuration names one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub ipam: Option<Box<RawValue>>,
}

/// Body of `POST /v1/inside`: queries whether a network namespace has an interface.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = InterfaceQuery))]
pub struct InterfaceQuery<T> {
    /// Path of the network namespace.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub netns: T,
    /// Interface name.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub ifname: T,
}

/// Response to an [`InterfaceQuery`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct InterfacePresence {
    /// Whether the namespace has an interface of that name, created by Viaduct or not.
    pub exists: bool,
}

/// Body of every error response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ErrorBody {
    /// CNI error code, on every path of the API.
    pub code: u32,
    /// Reason in kebab case, for programs: the word of an [`crate::ErrorReason`], or one that is
    /// newer. Empty if the agent is older than this field.
    #[serde(default)]
    pub reason: String,
    /// Error message, in one line.
    pub message: String,
    /// Causes, and what to do about them; may be empty.
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

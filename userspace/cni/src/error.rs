//! CNI errors: code, message and details.

use serde::Serialize;

use crate::json;

/// An error of the CNI protocol ("Error" of the specification).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{msg}")]
pub struct Error {
    /// The error code, which runtimes evaluate: those below 100 are the specification's.
    pub code: u32,
    /// The message, one line.
    pub msg: String,
    /// Causes and advice; may be empty.
    pub details: String,
}

impl Error {
    /// Returns an error with this code and no details.
    pub fn new(code: u32, msg: impl Into<String>) -> Self {
        Self {
            code,
            msg: msg.into(),
            details: String::new(),
        }
    }

    /// Sets the details.
    #[must_use]
    pub fn with_details(mut self, details: impl Into<String>) -> Self {
        self.details = details.into();
        self
    }

    /// Code 1: a protocol version that the plugin or the command does not support.
    pub fn incompatible_version(msg: impl Into<String>) -> Self {
        Self::new(1, msg)
    }

    /// Code 2: a setting that is not supported, with its key and value.
    pub fn unsupported_field(key: &str, value: &str) -> Self {
        Self::new(2, format!("unsupported field {key}: {value}"))
    }

    /// Code 4: environment variables are missing or wrong.
    pub fn environment(msg: impl Into<String>) -> Self {
        Self::new(4, msg)
    }

    /// Code 5: an I/O error.
    pub fn io(msg: impl Into<String>) -> Self {
        Self::new(5, msg)
    }

    /// Code 6: the configuration cannot be decoded: no JSON, or a value of the wrong type.
    pub fn decode(msg: impl Into<String>) -> Self {
        Self::new(6, msg)
    }

    /// Code 7: the configuration has an invalid value or combination.
    pub fn invalid_config(msg: impl Into<String>) -> Self {
        Self::new(7, msg)
    }

    /// Code 8: the container's network namespace is the host's.
    pub fn host_netns(msg: impl Into<String>) -> Self {
        Self::new(8, msg)
    }

    /// Code 11: the same request may succeed later.
    pub fn try_again_later(msg: impl Into<String>) -> Self {
        Self::new(11, msg)
    }

    /// Code 50: an ADD would fail now (STATUS only).
    pub fn not_available(msg: impl Into<String>) -> Self {
        Self::new(50, msg)
    }

    /// Code 51: an ADD would fail now, and containers that exist may have lost connectivity (STATUS
    /// only).
    pub fn not_available_and_degraded(msg: impl Into<String>) -> Self {
        Self::new(51, msg)
    }

    /// Code 100: a resource of the node is already in use (an address, a port, a name).
    pub fn taken(msg: impl Into<String>) -> Self {
        Self::new(100, msg)
    }

    /// Code 101: CHECK found a difference from the state that ADD created.
    pub fn check_failed(msg: impl Into<String>) -> Self {
        Self::new(101, msg)
    }

    /// Code 999: an internal error, or a failure without a code of its own.
    pub fn internal(msg: impl Into<String>) -> Self {
        Self::new(999, msg)
    }

    /// Returns the JSON for standard output; `version` is the configuration's `cniVersion` as a
    /// string.
    pub fn to_json(&self, version: &str) -> String {
        let object = ErrorJson {
            cni_version: version,
            code: self.code,
            msg: &self.msg,
            details: &self.details,
        };
        json::print(&object)
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ErrorJson<'a> {
    cni_version: &'a str,
    code: u32,
    msg: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    details: &'a str,
}

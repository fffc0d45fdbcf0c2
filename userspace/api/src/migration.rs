//! Requests and answers of a migration from other plugins, and back.

use serde::{Deserialize, Serialize};

/// Body of `POST /v1/kept-connections`: pods that will get hostports of the agent, in place of
/// rules of netfilter that translate their published ports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct KeepConnections {
    /// Addresses of the pods.
    pub addresses: Vec<String>,
    /// Change nothing; only report.
    #[serde(default, rename = "dryRun")]
    pub dry_run: bool,
}

/// The TCP connections that netfilter translates to the pods of a [`KeepConnections`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct KeptConnections {
    /// Number of connections from outside that netfilter goes on translating.
    pub kept: u64,
    /// Connections from outside that would be reset, because the flow table has no place for them.
    pub lost: Vec<TranslatedConnection>,
    /// Connections of the pods themselves through published ports, which would be reset.
    #[serde(rename = "ofPods")]
    pub of_pods: Vec<TranslatedConnection>,
}

/// A connection that netfilter translates, with addresses and ports as `192.0.2.1:80` or
/// `[2001:db8::1]:80`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TranslatedConnection {
    /// The client, as it has opened the connection.
    pub client: String,
    /// The address and port that the client connects to.
    pub server: String,
    /// The pod's address and port.
    pub pod: String,
}

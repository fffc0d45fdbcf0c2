//! Uninstall: removal of Viaduct from a node.

use serde::{Deserialize, Serialize};

/// Body of `POST /v1/uninstall`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UninstallRequest {
    /// Detach all pods first; without it, the uninstall fails while pods are attached.
    #[serde(default)]
    pub drain: bool,
    /// Also remove files of the installation that are provably Viaduct's alone: network
    /// configurations, plugin binaries, the unit, Docker's networks.
    #[serde(default)]
    pub purge: bool,
}

/// Result of an uninstall.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Uninstalled {
    /// Attachments that were removed, as `network/container/ifname`.
    pub detached: Vec<String>,
    /// Other objects that were removed or restored, one line each.
    pub removed: Vec<String>,
    /// Objects that Viaduct created or changed and that were left in place, each with the reason.
    pub left: Vec<String>,
    /// Files of the installation that remain, each with the consequence.
    #[serde(default)]
    pub remaining: Vec<String>,
}

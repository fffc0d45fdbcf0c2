//! Aliases that prove that this agent created a bridge or VLAN interface.

use model::NetworkName;
use steps::Link;

const ALIAS: &str = "viaduct ";

/// Returns the alias of a network's bridge, which proves that this agent created it.
pub fn bridge_alias(network: &NetworkName) -> String {
    // The kernel stores at most 255 bytes (`IFALIASZ`), and names are ASCII.
    format!("{ALIAS}{network}").chars().take(255).collect()
}

/// Returns whether a link is the bridge port of our interface in a VLAN: a port without a pod.
pub(crate) fn is_gateway_port(link: &Link) -> bool {
    link.controller.is_some() && is_our_alias(link.alias.as_deref())
}

/// Returns whether an alias is that of a bridge or VLAN interface of ours.
pub(crate) fn is_our_alias(alias: Option<&str>) -> bool {
    alias.is_some_and(|alias| alias.starts_with(ALIAS))
}

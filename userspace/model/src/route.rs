//! Routes of pods.

use std::net::IpAddr;

use crate::Cidr;

/// A route in a pod's namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Route {
    /// Destination prefix.
    pub destination: Cidr,
    /// Next hop; in a network's configuration `None` means the gateway of the family.
    pub gateway: Option<IpAddr>,
    /// Metric, table, scope and path attributes.
    pub options: RouteOptions,
}

/// Optional attributes of a route; `None` is the kernel's default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteOptions {
    /// Metric (`RTA_PRIORITY`): the lowest one wins.
    pub priority: Option<u32>,
    /// Number of the routing table.
    pub table: Option<u32>,
    /// Scope, as in `rtm_scope` (253 is link). IPv4 only.
    pub scope: Option<u8>,
    /// MTU of the path in bytes.
    pub mtu: Option<u32>,
    /// Maximum segment size that TCP advertises, in bytes.
    pub advmss: Option<u32>,
}

impl RouteOptions {
    /// Number of the main routing table (`RT_TABLE_MAIN`).
    pub const MAIN: u32 = 254;
    /// Scope of destinations that are reached without a router (`RT_SCOPE_LINK`).
    pub const SCOPE_LINK: u8 = 253;

    /// Returns the options with `None` for the kernel's defaults, so that requested and observed
    /// routes compare equal.
    #[must_use]
    pub fn normal(self, is_ipv4: bool, has_gateway: bool) -> Self {
        let (priority, scope) = match (is_ipv4, has_gateway) {
            (true, true) => (0, Some(0)),
            (true, false) => (0, Some(Self::SCOPE_LINK)),
            (false, _) => (1024, self.scope),
        };
        let unset = |value: &u32| *value != 0 && *value != priority;
        Self {
            priority: self.priority.filter(unset),
            table: self
                .table
                .filter(|table| *table != 0 && *table != Self::MAIN),
            scope: self.scope.filter(|own| Some(*own) != scope),
            mtu: self.mtu.filter(|mtu| *mtu != 0),
            advmss: self.advmss.filter(|advmss| *advmss != 0),
        }
    }
}

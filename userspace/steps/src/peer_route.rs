//! Routes of ours to the pods of peers.

use std::fmt;
use std::net::IpAddr;

use model::{Cidr, IfName};

/// Protocol number (`rtm_protocol`) of our routes: those with it are ours, and no others are ever
/// changed or removed. The number is in no list of the kernel (`include/uapi/linux/rtnetlink.h`),
/// of iproute2 (`rt_protos`) or of FRR.
pub const PEER_ROUTE_PROTOCOL: u8 = 118;

/// Metric of our routes. A route of other software to the same prefix has another one, so both can
/// be in the table; with the usual metrics, that of the other software is preferred.
pub const PEER_ROUTE_METRIC: u32 = 2048;

/// A neighbour to which a route leads.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NextHop {
    /// Address of the neighbour.
    pub gateway: IpAddr,
    /// Link on which it is.
    pub link: IfName,
}

/// Change of the route to one prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteChange {
    /// Destination.
    pub prefix: Cidr,
    /// Next hop before; `None` where there is no route of ours.
    pub from: Option<NextHop>,
    /// Next hop after; `None` to remove the route.
    pub to: Option<NextHop>,
}

impl RouteChange {
    /// Returns the change back.
    #[must_use]
    pub fn undo(&self) -> Self {
        Self {
            prefix: self.prefix,
            from: self.to.clone(),
            to: self.from.clone(),
        }
    }
}

impl fmt::Display for NextHop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "via {} dev {}", self.gateway, self.link)
    }
}

impl fmt::Display for RouteChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.from, &self.to) {
            (_, Some(to)) => write!(f, "{} {to}", self.prefix),
            (Some(from), None) => write!(f, "no {} {from}", self.prefix),
            (None, None) => write!(f, "no {}", self.prefix),
        }
    }
}

//! rtnetlink: links, addresses, routes and filters of the node's network namespace.

pub(crate) mod addresses;
pub(crate) mod bridge_port;
pub(crate) mod bridge_vlans;
pub(crate) mod clsact;
pub(crate) mod event_reporter;
pub(crate) mod ifindex;
pub(crate) mod link_changes;
pub(crate) mod link_removal;
pub(crate) mod links;
pub(crate) mod messages;
pub(crate) mod monitor;
pub(crate) mod packet_route;
pub(crate) mod peer_routes;
pub(crate) mod route_lookup;
pub(crate) mod route_watch;
pub(crate) mod routes;
pub(crate) mod sock_diag;
pub(crate) mod socket;
pub(crate) mod tunnels;

//! The vocabulary between planner and kernel, as plain data: effects on the kernel, and what is
//! observed of it.
//!
//! `planner` computes steps from observations; `kernel` observes, and executes steps. Neither
//! depends on the other. No decisions here, and no effects.
//!
//! * [`Step`]: one effect on the kernel, with the step that undoes it;
//! * [`Question`]: a question about the kernel, with the type of its answer; [`Observed`] is the
//!   whole node;
//! * [`Entry`]: an entry of the datapath's tables, by [`EntryKey`]; [`DatapathTables`] is a copy of
//!   all that verdicts depend on.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod announcement;
mod datapath_tables;
mod entry;
mod flow;
mod forwarding;
mod link;
mod netfilter_table;
mod node_facts;
mod node_lookup;
mod observed;
mod peer_route;
mod policy;
mod port_holder;
mod port_reservation;
mod question;
mod ruleset;
mod shape;
mod socket_hook;
mod socket_table;
mod step;
mod sysctl_key;
mod tracked_connection;
mod tunnel;
mod write_changes;
mod xdp_prefilter;

pub use announcement::Announcement;
pub use datapath_tables::{DatapathTables, LookupTables};
pub use entry::{Entries, Entry, EntryKey, LinkRef};
pub use flow::{
    FlowEndpoints, FlowFilter, FlowKind, FlowPath, FlowState, FlowTable, LiveFlow, Traffic,
};
pub use forwarding::{
    ADMIN_CHAIN, AcceptRule, Action, BaseChain, Condition, FORWARD_CHAIN, FilterBackend,
    FilterFamily, FilterHook, FilterRule, FilterTable, ForwardTables, ForwardingStep, OwnJump,
    Place, TableState,
};
pub use link::{Link, LinkKind, NodeLink, Switching, VlanMember, wanted_vlans};
pub use netfilter_table::{NetfilterState, NetfilterStep, NetfilterTable};
pub use node_facts::{
    CgroupCoverage, CheckFacts, CheckQuery, Ipsec, IpsecDirection, IpsecPolicy, RouteAnswer,
    RouteQuery, Usage,
};
pub use node_lookup::{FoundRoute, FoundSocket, RouteDecision, RoutedPacket};
pub use observed::{
    AttachmentNetns, NetnsInside, Observed, ObservedAttachment, ObservedHostSide, ObservedNetns,
    ObservedSettings, PodSide, PortUsers, RouteEntry,
};
pub use peer_route::{NextHop, PEER_ROUTE_METRIC, PEER_ROUTE_PROTOCOL, RouteChange};
pub use policy::{AllowedKey, AllowedPorts};
pub use port_holder::{Ancestor, PortLeave, Process};
pub use port_reservation::{PortReservation, PortReservations, ReservationOwner, ReservedBy};
pub use question::{
    AddressQuery, AttachmentQuery, ForwardingQuery, HostSideQuery, NetnsQuery, NodeQuery,
    PortQuery, PortUserQuery, Question, SettingsQuery, SysctlQuery,
};
pub use ruleset::{PathHook, PathRule, PathTable, Statement};
pub use shape::Shape;
pub use socket_hook::{SocketHook, SocketHookState};
pub use socket_table::{ConnectedSocket, NamespaceSockets, SocketQuery, SocketState, SocketTable};
pub use step::{BridgeSpec, Hook, PodSpec, Step, VethSpec, VlanLinkSpec, VlanStep};
pub use sysctl_key::SysctlKey;
pub use tracked_connection::{ConntrackStatus, TrackedConnection};
pub use tunnel::{
    ObservedTunnel, TUNNEL_ALIAS, TUNNEL_LINKS, TunnelChange, TunnelEntry, TunnelSpec, TunnelStep,
};
pub use xdp_prefilter::{AttachedPrefilter, XdpPrefilterStep};

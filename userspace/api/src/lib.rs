//! Types of the agent's local HTTP API, and a blocking client for it.
//!
//! The agent serialises the same types that plugin and `viaductctl` deserialise, so the two sides
//! cannot diverge. Both ignore unknown fields, and have a default for every field that is newer
//! than the first minor version of their major version: fields are added, and never change their
//! meaning. Independent of the kernel, of the CNI protocol (a network configuration is passed on as
//! the text that the runtime wrote) and of how the agent stores its state.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod build_facts;
mod client;
mod drop_event;
mod error_reason;
mod event;
mod flow;
mod http;
mod migration;
#[cfg(feature = "openapi")]
pub mod openapi;
mod page;
mod peer;
mod policy;
mod request;
mod setting;
mod spool;
mod status;
mod uninstall;
mod view;
mod why;

pub use build_facts::BuildFacts;
pub use client::{Client, ClientError, Reply};
pub use drop_event::{DropEvent, DropQuery};
pub use error_reason::ErrorReason;
pub use event::{Event, EventOutcome};
pub use flow::{
    DEFAULT_FLOW_LIMIT, EndsView, FlowOrder, FlowQuery, FlowTableView, FlowView, FlowsView,
    PodFlowsView,
};
pub use http::{MAX_BODY, MAX_HEAD, ResponseError};
pub use migration::{KeepConnections, KeptConnections, TranslatedConnection};
pub use page::{PageItem, PageQuery};
pub use peer::{PeerCount, PeerSetting, PeerSourceSetting, PeerView};
pub use policy::{
    EgressRuleSetting, IngressRuleSetting, MAX_POLICY_NAME, PoliciesSetting, PoliciesView,
    PolicyPeerSetting, PolicyPortSetting, PolicySetting, PolicyView,
};
pub use request::{
    CniRequest, CniVerb, DEFAULT_BPFFS, DEFAULT_SOCKET, ErrorBody, InterfacePresence,
    InterfaceQuery, LAST_FAILURE, MAX_REQUEST, NETAVARK, TRY_AGAIN_LATER, read_only_socket,
};
pub use setting::{
    BandwidthSetting, BypassSetting, HairpinModeSetting, LogLevelSetting, PodCidrs, Reloaded,
};
pub use spool::{Spool, SpoolError, Spooled};
pub use status::{
    BypassView, Degraded, DroppingDefaultView, FeatureView, ForwardingView, LossView, NetworkView,
    OffloadView, OperationView, Outcome, PoolView, Reconcile, ReconcileItem, SandboxView,
    ShaperView, Status, UplinkView, Version,
};
pub use uninstall::{UninstallRequest, Uninstalled};
pub use view::{
    AddressView, AttachmentView, BandwidthView, CounterView, HostportView, Lease, LimitView,
    PodView, PortReservationView, PortView, RouteView,
};
pub use why::{WhyLeg, WhyQuery, WhyStep, WhyView};

/// Version of the API as `major.minor`, sent with every response in [`VERSION_HEADER`]. Another
/// major version has other paths and is incompatible; a minor version only adds to those before it.
pub const VERSION: &str = "1.8";

/// Maximum of integers whose value may be larger: 2^53 - 1, the last one before which all integers
/// are exact in programs that read JSON numbers as 64-bit floating point numbers (RFC 8259).
pub const MAX_INTEGER: u64 = (1 << 53) - 1;

/// Name of the response header with the API's version.
pub const VERSION_HEADER: &str = "viaduct-api";

/// Returns the major version in the path of a request (`/v1/…`); `None` if there is none.
pub fn major_of(path: &str) -> Option<u32> {
    let first = path.strip_prefix("/v")?.split('/').next()?;
    first.parse().ok()
}

/// Paths of version 1 of the API, shared by agent and clients.
pub mod path {
    /// `GET`: the OpenAPI document of all these paths.
    pub const OPENAPI: &str = "/v1/openapi.json";
    /// `GET`: [`crate::Status`].
    pub const STATUS: &str = "/v1/status";
    /// `GET`: a list of [`crate::NetworkView`].
    pub const NETWORKS: &str = "/v1/networks";
    /// `GET`: a list of [`crate::AttachmentView`]; the query parameters are those of
    /// [`crate::PageQuery`].
    pub const ATTACHMENTS: &str = "/v1/attachments";
    /// `GET`: [`crate::AttachmentView`]s of the container with this ID.
    pub const ATTACHMENT: &str = "/v1/attachments/{id}";
    /// `POST` of [`crate::InterfaceQuery`]: [`crate::InterfacePresence`].
    pub const INSIDE: &str = "/v1/inside";
    /// `POST` of a network in netavark's JSON: the same network, completed and validated.
    pub const NETAVARK_CREATE: &str = "/v1/netavark/create";
    /// `PUT`: [`crate::BandwidthSetting`] of one interface of a container.
    pub const BANDWIDTH: &str = "/v1/attachments/{id}/{ifname}/bandwidth";
    /// `PUT`: [`crate::BandwidthSetting`] of a container that has one interface only.
    pub const ONLY_BANDWIDTH: &str = "/v1/attachments/{id}/bandwidth";
    /// `POST` of `null`: unpublishes the ports of an adopted interface; `null`. Established flows
    /// are translated until they end.
    pub const DRAIN: &str = "/v1/attachments/{id}/{ifname}/drain";
    /// `POST` of [`crate::KeepConnections`]: [`crate::KeptConnections`].
    pub const KEPT_CONNECTIONS: &str = "/v1/kept-connections";
    /// `GET` and `PUT`: [`crate::PodCidrs`].
    pub const POD_CIDRS: &str = "/v1/pod-cidrs";
    /// `GET`: a list of [`crate::PeerView`]; `PUT` of the complete list of [`crate::PeerSetting`],
    /// which replaces the list and returns it with its states.
    pub const PEERS: &str = "/v1/peers";
    /// `GET`: [`crate::PoliciesView`]; `PUT` of [`crate::PoliciesSetting`], which replaces all
    /// policies and returns them as `GET` does.
    pub const POLICIES: &str = "/v1/policies";
    /// `PUT`: [`crate::PeerSourceSetting`].
    pub const PEER_SOURCE: &str = "/v1/peers/source";
    /// `GET` and `PUT`: [`crate::HairpinModeSetting`].
    pub const HAIRPIN_MODE: &str = "/v1/hairpin-mode";
    /// `PUT`: [`crate::BypassSetting`].
    pub const BYPASS: &str = "/v1/bypass";
    /// `PUT`: [`crate::LogLevelSetting`].
    pub const LOG_LEVEL: &str = "/v1/log-level";
    /// `GET`: a list of [`crate::Lease`]; the query parameters are those of [`crate::PageQuery`].
    pub const LEASES: &str = "/v1/leases";
    /// `GET`: a list of [`crate::PortView`]; the query parameters are those of
    /// [`crate::PageQuery`].
    pub const HOSTPORTS: &str = "/v1/hostports";
    /// `GET`: [`crate::FlowsView`]; the query parameters are those of [`crate::FlowQuery`].
    pub const FLOWS: &str = "/v1/flows";
    /// `GET` and `PUT`: a list of prefixes, as strings, to which pods keep their own address. A
    /// `PUT` is in effect until a reload changes the key in the configuration; existing flows keep
    /// their mapping.
    pub const NON_MASQUERADE_CIDRS: &str = "/v1/non-masquerade-cidrs";
    /// `GET`: [`crate::Event`]s, one JSON object per line. `?follow=true` appends events as they
    /// occur; `?last=true` returns only the latest event of each subject.
    pub const EVENTS: &str = "/v1/events";
    /// `GET`: [`crate::DropEvent`]s, one JSON object per line; the query parameters are those of
    /// [`crate::DropQuery`].
    pub const DROPS: &str = "/v1/drops";
    /// `GET`: [`crate::WhyView`]; the query parameters are those of [`crate::WhyQuery`].
    pub const WHY: &str = "/v1/why";
    /// `GET`: metrics in the `OpenMetrics` text format.
    pub const METRICS: &str = "/metrics";
    /// `POST` of [`crate::UninstallRequest`]: [`crate::Uninstalled`]. The agent exits after the
    /// response.
    pub const UNINSTALL: &str = "/v1/uninstall";
    /// `POST` of `null`: [`crate::Reloaded`]. Reads the configuration file again, as SIGHUP does.
    pub const RELOAD: &str = "/v1/reload";
    /// `GET`: [`crate::CounterView`], summed over all pods of the node.
    pub const COUNTERS: &str = "/v1/counters";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_starts_with_the_major_version_of_the_api() {
        let major: u32 = VERSION.split('.').next().unwrap().parse().unwrap();
        for path in [
            path::STATUS,
            path::ATTACHMENT,
            CniVerb::Add.path(),
            CniVerb::Status.path(),
        ] {
            assert_eq!(major_of(path), Some(major), "{path}");
        }
        for path in [path::METRICS, "/", "/v", "/vx/status", "/status"] {
            assert_eq!(major_of(path), None, "{path}");
        }
    }
}

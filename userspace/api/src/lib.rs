//! The local HTTP API as values, and a blocking client for it.
//!
//! What the agent says and what the plugin and `viaductctl` read are the same types, so they cannot drift apart. Both
//! sides ignore fields that they do not know, and do without those that are newer than the oldest of their major version:
//! fields are added, never given another meaning. Knows nothing of
//! the kernel, of the CNI protocol (a configuration passes through as the text that the runtime wrote) or of how the
//! agent keeps its state.

#![forbid(unsafe_code)]

mod client;
mod event;
mod flow;
mod http;
mod request;
mod setting;
mod spool;
mod status;
mod uninstall;
mod view;

pub use client::{Client, ClientError, Reply};
pub use event::{Event, EventOutcome};
pub use flow::{
    DEFAULT_FLOW_LIMIT, EndsView, FlowQuery, FlowView, FlowsView, PodRoomView, RoomView,
};
pub use http::{MAX_BODY, MAX_HEAD, ResponseError};
pub use request::{
    CniRequest, CniVerb, DEFAULT_SOCKET, ErrorBody, Found, Inside, MAX_REQUEST, TRY_AGAIN_LATER,
};
pub use setting::{BandwidthSetting, HairpinModeSetting, PodCidrs};
pub use spool::{Spool, SpoolError, Spooled};
pub use status::{
    BypassView, Degraded, FeatureView, NetworkView, OperationView, Outcome, PoolView, Reconcile,
    ReconcileItem, ShaperView, Status, UplinkView, Version,
};
pub use uninstall::{UninstallRequest, Uninstalled};
pub use view::{
    AddressView, AttachmentView, BandwidthView, ClaimView, CounterView, HostportView, Lease,
    LimitView, PodView, PortView, RouteView,
};

/// The API's version, as every answer tells it in [`VERSION_HEADER`]. Another major version has other paths, and is spoken
/// by nobody who speaks this one; a minor version adds to those before it.
pub const VERSION: &str = "1.1";

/// The header of an answer that has the API's version.
pub const VERSION_HEADER: &str = "viaduct-api";

/// The major version in the path of a request; `None` where it has none.
pub fn major_of(path: &str) -> Option<u32> {
    let first = path.strip_prefix("/v")?.split('/').next()?;
    first.parse().ok()
}

/// Paths of version 1 of the API, so that neither side spells one by itself.
pub mod path {
    /// `GET`: [`crate::Status`].
    pub const STATUS: &str = "/v1/status";
    /// `GET`: a list of [`crate::NetworkView`].
    pub const NETWORKS: &str = "/v1/networks";
    /// `GET`: a list of [`crate::AttachmentView`].
    pub const ATTACHMENTS: &str = "/v1/attachments";
    /// `GET`: [`crate::AttachmentView`]s of one container, by its ID behind a slash.
    pub const ATTACHMENT: &str = "/v1/attachments/{id}";
    /// `POST` of [`crate::Inside`]: [`crate::Found`].
    pub const INSIDE: &str = "/v1/inside";
    /// `PUT`: [`crate::BandwidthSetting`] of one interface of a container.
    pub const BANDWIDTH: &str = "/v1/attachments/{id}/{ifname}/bandwidth";
    /// `PUT`: the same of the only interface of a container.
    pub const ONLY_BANDWIDTH: &str = "/v1/attachments/{id}/bandwidth";
    /// `GET` and `PUT`: [`crate::PodCidrs`].
    pub const POD_CIDRS: &str = "/v1/pod-cidrs";
    /// `GET` and `PUT`: [`crate::HairpinModeSetting`].
    pub const HAIRPIN_MODE: &str = "/v1/hairpin-mode";
    /// `GET`: a list of [`crate::Lease`].
    pub const LEASES: &str = "/v1/leases";
    /// `GET`: a list of [`crate::PortView`].
    pub const HOSTPORTS: &str = "/v1/hostports";
    /// `GET`: [`crate::FlowsView`]; what may follow it, [`crate::FlowQuery`] knows.
    pub const FLOWS: &str = "/v1/flows";
    /// `GET` and `PUT`: a list of prefixes, as texts, to which pods keep their own address. What is put holds until the
    /// configuration says something new; flows that are there keep their mapping.
    pub const NON_MASQUERADE_CIDRS: &str = "/v1/non-masquerade-cidrs";
    /// `GET`: [`crate::Event`]s, one in a line; behind `?follow=true` also those to come; behind `?last=true` only the last
    /// of each subject.
    pub const EVENTS: &str = "/v1/events";
    /// `GET`: the agent's values as Prometheus reads them.
    pub const METRICS: &str = "/metrics";
    /// `POST` of [`crate::UninstallRequest`]: [`crate::Uninstalled`]. The agent ends behind its answer.
    pub const UNINSTALL: &str = "/v1/uninstall";
    /// `GET`: [`crate::CounterView`] of the whole node.
    pub const COUNTERS: &str = "/v1/counters";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_is_of_the_major_version_that_is_told() {
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

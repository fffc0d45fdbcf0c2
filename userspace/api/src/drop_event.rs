//! Drop events in the API, and the query parameters that select them.

use serde::{Deserialize, Serialize};

use crate::{EndsView, PodView, path};

/// A dropped packet. One of each pod and drop reason is reported in an interval, with the number of
/// those that it stands for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DropEvent {
    /// Time of the drop, in milliseconds since 1970 (UTC).
    pub at_ms: u64,
    /// The same time in the format of RFC 3339.
    #[serde(default)]
    pub time: String,
    /// Drop reason, for example `spoofed-mac`; `gap` where the client was too slow and missed
    /// [`DropEvent::count`] events.
    pub reason: String,
    /// What to do about it.
    #[serde(default)]
    pub advice: String,
    /// Packets that were dropped for this pod and reason since the last event, with this one.
    pub count: u64,
    /// Name of the program that dropped the packet, for example `from_pod`.
    #[serde(default)]
    pub hook: String,
    /// Interface that the packet was on, by name, or `#` and its index if it is gone; empty for a
    /// fragment that had been held.
    #[serde(default)]
    pub interface: String,
    /// The Kubernetes pod that the packet was from or for, if the runtime passed its name in
    /// `CNI_ARGS`.
    #[serde(default)]
    pub pod: Option<PodView>,
    /// Container ID; `None` where no pod is known: the packet was from or for the node.
    #[serde(rename = "containerID", default)]
    pub container_id: Option<String>,
    /// Interface name in the container.
    #[serde(default)]
    pub ifname: Option<String>,
    /// Length in bytes from the IP header on.
    #[serde(default)]
    pub length: u32,
    /// `EtherType`, for example `0x0800`; empty on a link without Ethernet header.
    #[serde(default)]
    pub ethertype: String,
    /// `tcp`, `udp`, `icmp`, `sctp`, `arp`, or the IP protocol number; empty where it is not known.
    #[serde(default)]
    pub protocol: String,
    /// Source and destination of the packet, as it was when it was dropped; of an ARP packet,
    /// sender and target. `None` where the packet has no addresses.
    #[serde(default)]
    pub packet: Option<EndsView>,
    /// Type and code of an ICMP or ICMPv6 message, as `3/4`.
    #[serde(default)]
    pub icmp: Option<String>,
    /// The packet that an ICMP error quotes.
    #[serde(default)]
    pub quoted: Option<EndsView>,
    /// Protocol of the quoted packet, as in [`DropEvent::protocol`]; empty if there is none.
    #[serde(default)]
    pub quoted_protocol: String,
    /// Whether the packet is a fragment.
    #[serde(default)]
    pub fragment: bool,
}

/// Query parameters of [`path::DROPS`]; an event must match all that are present.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
pub struct DropQuery {
    /// Pod: name, `namespace/name`, or prefix of its container ID.
    #[serde(default)]
    pub pod: Option<String>,
    /// Drop reason.
    #[serde(default)]
    pub reason: Option<String>,
    /// Whether the response goes on with new events until the client closes it.
    #[serde(default)]
    pub follow: bool,
    /// Without `follow`: seconds for which the response goes on with new events.
    #[serde(default)]
    pub seconds: u64,
}

impl DropQuery {
    /// Returns the path with this query, values percent-encoded.
    pub fn to_path(&self) -> String {
        let Self {
            pod,
            reason,
            follow,
            seconds,
        } = self;
        let mut text = format!("{}?follow={follow}&seconds={seconds}", path::DROPS);
        for (key, value) in [("pod", pod), ("reason", reason)] {
            if let Some(value) = value {
                text.push('&');
                text.push_str(key);
                text.push('=');
                text.push_str(&crate::flow::escaped(value));
            }
        }
        text
    }
}

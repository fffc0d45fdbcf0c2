//! Flows in the API, and the query parameters that select them.

use std::fmt::Write as _;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::{PodView, path};

/// Maximum number of flows in a response if the query has no `limit`.
pub const DEFAULT_FLOW_LIMIT: usize = 1_000;

/// Flows that match a [`FlowQuery`], and the usage of the flow table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FlowsView {
    /// Matching flows, at most [`FlowQuery::limit`].
    pub flows: Vec<FlowView>,
    /// Number of matching flows, including those beyond the limit.
    pub matching: u64,
    /// Usage of the flow table.
    #[serde(rename = "room", default)]
    pub table: FlowTableView,
    /// Rules of other software that keep packets in the stack, as sentences; empty if packets
    /// bypass it.
    #[serde(default)]
    pub stack_reasons: Vec<String>,
    /// Number of pods whose sockets are not all read: connections between two of them, and between
    /// them and the node, may be missing.
    #[serde(default)]
    pub truncated_pods: u64,
}

/// Usage of the flow table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FlowTableView {
    /// Capacity of the flow table in entries; a flow takes two.
    pub entries: u32,
    /// Entries in use, including those of finished flows that have not been swept yet.
    pub used_entries: u64,
    /// Maximum number of flows per pod.
    pub quota: u32,
    /// Pods that have flows, or had flows evicted.
    pub pods: Vec<PodFlowsView>,
}

/// Usage of the flow table by one pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PodFlowsView {
    /// Container ID.
    #[serde(rename = "containerID")]
    pub container_id: String,
    /// The Kubernetes pod, if the runtime passed its name in `CNI_ARGS`.
    #[serde(default)]
    pub pod: Option<PodView>,
    /// Number of the pod's live flows.
    pub flows: u64,
    /// Number of the pod's flows that were evicted from a full flow table.
    pub evicted_flows: u64,
}

/// A live flow: of the flow table, or a connection between pods or between a pod and the node,
/// which is read from sockets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FlowView {
    /// Container ID; `None` for a flow of the node itself. Of a `pod-to-pod` flow, that of the
    /// pod which opened it.
    #[serde(rename = "containerID", default)]
    pub container_id: Option<String>,
    /// The Kubernetes pod, if the runtime passed its name in `CNI_ARGS`.
    #[serde(default)]
    pub pod: Option<PodView>,
    /// Container ID of the pod at the other end; `None` if there is no pod of this node.
    #[serde(rename = "peerContainerID", default)]
    pub peer_container_id: Option<String>,
    /// The Kubernetes pod at the other end, if the runtime passed its name in `CNI_ARGS`.
    #[serde(default)]
    pub peer_pod: Option<PodView>,
    /// `tcp`, `udp`, `icmp`, `sctp`, or the IP protocol number.
    pub protocol: String,
    /// Of the flow table: `masqueraded`, `published`, `direct` or `node`. Of sockets: `pod-to-pod`,
    /// `pod-to-node` or `node-to-pod`.
    pub kind: String,
    /// TCP: `opening`, `established`, `closing` or `reset`; UDP: `single` or `stream`; `icmp` or
    /// `other`. Of sockets: the TCP state of RFC 9293, such as `syn-sent` or `close-wait`; UDP:
    /// `connected`.
    pub state: String,
    /// How its packets get through the node: `bypass` (past bridge and netfilter), `offloaded`
    /// (past them, because netfilter has accepted the connection) or `stack`. Empty from an agent
    /// that does not report it.
    #[serde(default)]
    pub path: String,
    /// Why packets of this connection stay in the stack beside rules of other software; empty if
    /// nothing was decided about the connection.
    #[serde(default)]
    pub stack_reason: String,
    /// Original addresses: those of the first packet before translation.
    pub seen: EndsView,
    /// Translated addresses: those of the first packet after translation.
    pub translated: EndsView,
    /// Seconds since the first packet; `None` for a flow of sockets.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub age_seconds: Option<u32>,
    /// Seconds since the last packet in either direction; `None` for a UDP socket.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub idle_seconds: Option<u32>,
    /// Packets in the original direction; TCP segments of a socket, `None` for a UDP socket.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub sent_packets: Option<u64>,
    /// Bytes in the original direction, from the IP header on; payload bytes that are acknowledged
    /// of a TCP socket, `None` for a UDP socket.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub sent_bytes: Option<u64>,
    /// Packets in the reply direction; TCP segments of a socket, `None` for a UDP socket.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub answered_packets: Option<u64>,
    /// Bytes in the reply direction, from the IP header on; payload bytes of a TCP socket, `None`
    /// for a UDP socket.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub answered_bytes: Option<u64>,
}

/// Endpoints of a packet, each as `192.0.2.1:443` or `[2001:db8::1]:443`; without a port for
/// protocols that have none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EndsView {
    /// Source address and port.
    pub source: String,
    /// Destination address and port.
    pub destination: String,
}

/// Query parameters of [`path::FLOWS`]; a flow must match all that are present.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
pub struct FlowQuery {
    /// Pod at either end: name, `namespace/name`, or prefix of its container ID.
    pub pod: Option<String>,
    /// Remote address. Of a flow between two pods, that of either, or of the other one with `pod`.
    #[cfg_attr(feature = "openapi", param(value_type = Option<String>))]
    pub peer: Option<IpAddr>,
    /// Source or destination port, original or translated.
    pub port: Option<u16>,
    /// `tcp`, `udp`, `icmp`, `sctp`, or an IP protocol number.
    pub protocol: Option<String>,
    /// Order of the flows in the response; that of the table if absent.
    #[cfg_attr(feature = "openapi", param(inline))]
    pub sort: Option<FlowOrder>,
    /// Maximum number of flows in the response; [`DEFAULT_FLOW_LIMIT`] if absent.
    pub limit: Option<usize>,
}

/// Order of flows in a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "openapi",
    derive(utoipa::ToSchema),
    schema(rename_all = "lowercase")
)]
pub enum FlowOrder {
    /// Most bytes first, of both directions.
    Bytes,
    /// Most packets first, of both directions.
    Packets,
    /// Newest first; those of unknown age are last.
    Age,
    /// That with the latest packet first; those of which it is unknown are last.
    Idle,
}

impl FlowOrder {
    const ALL: [Self; 4] = [Self::Bytes, Self::Packets, Self::Age, Self::Idle];

    /// Returns the value of the query parameter `sort`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::Packets => "packets",
            Self::Age => "age",
            Self::Idle => "idle",
        }
    }
}

impl FlowQuery {
    /// Returns the path with this query, values percent-encoded.
    pub fn to_path(&self) -> String {
        let pairs = [
            ("pod", self.pod.as_deref().map(escaped)),
            ("peer", self.peer.map(|peer| peer.to_string())),
            ("port", self.port.map(|port| port.to_string())),
            ("protocol", self.protocol.as_deref().map(escaped)),
            ("sort", self.sort.map(|sort| sort.word().to_owned())),
            ("limit", self.limit.map(|limit| limit.to_string())),
        ];
        let mut text = path::FLOWS.to_owned();
        for (key, value) in pairs {
            if let Some(value) = value {
                let mark = if text.contains('?') { '&' } else { '?' };
                write!(text, "{mark}{key}={value}").expect("a String takes every text");
            }
        }
        text
    }

    /// Parses the part of a path after the question mark. An unknown parameter is an error: if it
    /// were ignored, the response would contain flows that were not requested.
    pub fn parse(query: &str) -> Result<Self, String> {
        let mut parsed = Self::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let invalid = || format!("{key}: invalid value {value:?}");
            match key {
                "pod" => parsed.pod = Some(unescaped(value).ok_or_else(invalid)?),
                "peer" => {
                    let text = unescaped(value).ok_or_else(invalid)?;
                    parsed.peer = Some(text.parse().map_err(|_| invalid())?);
                }
                "protocol" => parsed.protocol = Some(unescaped(value).ok_or_else(invalid)?),
                "sort" => {
                    let mut orders = FlowOrder::ALL.into_iter();
                    let order = orders.find(|order| order.word() == value);
                    parsed.sort = Some(order.ok_or_else(invalid)?);
                }
                "port" => parsed.port = Some(value.parse().map_err(|_| invalid())?),
                "limit" => parsed.limit = Some(value.parse().map_err(|_| invalid())?),
                _ => {
                    return Err(format!(
                        "unknown query parameter {key:?}: flows have pod, peer, port, protocol, sort and limit"
                    ));
                }
            }
        }
        Ok(parsed)
    }
}

/// Percent-encodes everything but the characters that may stand in a query unchanged (RFC 3986).
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            out.push(byte.into());
        } else {
            write!(out, "%{byte:02X}").expect("a String takes every text");
        }
    }
    out
}

/// Decodes percent-encoding; `None` for an invalid escape or text that is not UTF-8.
fn unescaped(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        if *first != b'%' {
            bytes.push(*first);
            rest = behind;
            continue;
        }
        let digits = std::str::from_utf8(behind.get(..2)?).ok()?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = &behind[2..];
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flow_query_survives_a_round_trip_through_its_path() {
        let all = FlowQuery {
            pod: Some("a shop/wéb-0&x=%".to_owned()),
            peer: Some("2001:db8::7".parse().unwrap()),
            port: Some(443),
            protocol: Some("tcp".to_owned()),
            sort: Some(FlowOrder::Idle),
            limit: Some(5),
        };
        for query in [all, FlowQuery::default()] {
            let path = query.to_path();
            let text = path.strip_prefix(path::FLOWS).unwrap();
            assert!(path.is_ascii(), "{path}");
            assert_eq!(FlowQuery::parse(text.trim_start_matches('?')), Ok(query));
        }
    }

    #[test]
    fn flow_query_refuses_unknown_or_invalid_parameters_by_name() {
        for wrong in [
            "port=65536",
            "peer=world",
            "limit=-1",
            "pod=%zz",
            "state=closing",
            "sort=rate",
            "port",
        ] {
            let error = FlowQuery::parse(wrong).unwrap_err();
            assert!(error.contains(wrong.split('=').next().unwrap()), "{error}");
        }
    }
}

//! Flows, as shown to the outside, and the question for some of them.

use std::fmt::Write as _;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::{PodView, path};

/// How many flows are shown where nobody says.
pub const DEFAULT_FLOW_LIMIT: usize = 1_000;

/// Flows that match a question.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowsView {
    /// The flows, at most as many as were asked for.
    pub flows: Vec<FlowView>,
    /// How many there are.
    pub matching: u64,
    /// How full the flow table is, and by whom.
    #[serde(default)]
    pub room: RoomView,
}

/// How full the flow table is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomView {
    /// Entries that it has room for; a flow is two.
    pub entries: u32,
    /// Entries in it, those of flows that are dead and not forgotten yet among them.
    pub used_entries: u64,
    /// Most flows that a pod may have.
    pub quota: u32,
    /// Pods that have flows, or have lost some.
    pub pods: Vec<PodRoomView>,
}

/// A pod's share of the flow table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodRoomView {
    /// Container.
    #[serde(rename = "containerID")]
    pub container_id: String,
    /// The pod, when the runtime told.
    #[serde(default)]
    pub pod: Option<PodView>,
    /// Flows that it has.
    pub flows: u64,
    /// Flows that it has lost to make room in a full table.
    pub evicted_flows: u64,
}

/// A flow that is alive.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowView {
    /// Container; `None` for a flow of the node itself.
    #[serde(rename = "containerID", default)]
    pub container_id: Option<String>,
    /// The pod, when the runtime told.
    #[serde(default)]
    pub pod: Option<PodView>,
    /// `tcp`, `udp`, `icmp`, `sctp`, or a number.
    pub protocol: String,
    /// `masqueraded`, `published`, `direct` or `node`.
    pub kind: String,
    /// TCP: `opening`, `established`, `closing` or `reset`; UDP: `single` or `stream`; `icmp` or `other`.
    pub state: String,
    /// The first packet as it came.
    pub seen: EndsView,
    /// The first packet as it went on.
    pub translated: EndsView,
    /// Seconds since the first packet.
    pub age_seconds: u32,
    /// Seconds since the last packet of either direction.
    pub idle_seconds: u32,
    /// Packets in the direction of the first one.
    pub sent_packets: u64,
    /// Bytes in the direction of the first packet, from the IP header on.
    pub sent_bytes: u64,
    /// Packets in the other direction.
    pub answered_packets: u64,
    /// Bytes in the other direction.
    pub answered_bytes: u64,
}

/// Source and destination, each as `192.0.2.1:443` or `[2001:db8::1]:443`; without a port where there is none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndsView {
    /// From.
    pub source: String,
    /// To.
    pub destination: String,
}

/// Which flows somebody wants to see.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowQuery {
    /// The start of a container ID, a pod's name, or `namespace/name`.
    pub pod: Option<String>,
    /// The address of the other side.
    pub peer: Option<IpAddr>,
    /// A port of either side, before or after translation.
    pub port: Option<u16>,
    /// How many at most.
    pub limit: Option<usize>,
}

impl FlowQuery {
    /// The path that asks this.
    pub fn to_path(&self) -> String {
        let pairs = [
            ("pod", self.pod.as_deref().map(escaped)),
            ("peer", self.peer.map(|peer| peer.to_string())),
            ("port", self.port.map(|port| port.to_string())),
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

    /// Reads what follows the question mark. What is not understood is an error: the answer would be to another
    /// question.
    pub fn parse(query: &str) -> Result<Self, String> {
        let mut asked = Self::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let wrong = || format!("{key}: {value:?} is not what it should be");
            match key {
                "pod" => asked.pod = Some(unescaped(value).ok_or_else(wrong)?),
                "peer" => {
                    let text = unescaped(value).ok_or_else(wrong)?;
                    asked.peer = Some(text.parse().map_err(|_| wrong())?);
                }
                "port" => asked.port = Some(value.parse().map_err(|_| wrong())?),
                "limit" => asked.limit = Some(value.parse().map_err(|_| wrong())?),
                _ => return Err(format!("flows cannot be asked for by {key:?}")),
            }
        }
        Ok(asked)
    }
}

/// What may stand in a query as it is (RFC 3986).
fn escaped(text: &str) -> String {
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
    fn what_is_asked_is_what_is_read() {
        let all = FlowQuery {
            pod: Some("a shop/wéb-0&x=%".to_owned()),
            peer: Some("2001:db8::7".parse().unwrap()),
            port: Some(443),
            limit: Some(5),
        };
        for asked in [all, FlowQuery::default()] {
            let path = asked.to_path();
            let query = path.strip_prefix(path::FLOWS).unwrap();
            assert!(path.is_ascii(), "{path}");
            assert_eq!(FlowQuery::parse(query.trim_start_matches('?')), Ok(asked));
        }
    }

    #[test]
    fn what_is_not_understood_is_refused_by_name() {
        for wrong in [
            "port=65536",
            "peer=world",
            "limit=-1",
            "pod=%zz",
            "state=closing",
            "port",
        ] {
            let error = FlowQuery::parse(wrong).unwrap_err();
            assert!(error.contains(wrong.split('=').next().unwrap()), "{error}");
        }
    }
}

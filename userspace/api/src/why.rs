//! Explanations of packets in the API, and the query parameters that say which packet.

use serde::{Deserialize, Serialize};

use crate::flow::escaped;
use crate::{DropEvent, EndsView, path};

/// What happens to a packet, and to the answer to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WhyView {
    /// Whether packet and answer both arrive. With [`WhyLeg::doubts`], they may not.
    pub passes: bool,
    /// The packet.
    pub request: WhyLeg,
    /// The answer; `None` where the packet does not arrive.
    #[serde(default)]
    pub answer: Option<WhyLeg>,
    /// The dropped packet that is explained, of a query with [`WhyQuery::last_drop`].
    #[serde(default)]
    pub dropped: Option<DropEvent>,
    /// Limits of this explanation.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// The way of one packet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WhyLeg {
    /// `tcp`, `udp`, `sctp`, `icmp`, or the IP protocol number.
    pub protocol: String,
    /// Source and destination as the packet is sent.
    pub packet: EndsView,
    /// Source and destination at the end of its way.
    pub arrived: EndsView,
    /// The decisions in their order.
    pub steps: Vec<WhyStep>,
    /// `pod` or `node` that receives it, `leaves`, `dropped` by a program, `discarded` by bridge,
    /// stack or sender, or `unknown`.
    pub outcome: String,
    /// The outcome in words.
    pub text: String,
    /// Drop reason, of a packet that a program drops.
    #[serde(default)]
    pub reason: Option<String>,
    /// What to do about it.
    #[serde(default)]
    pub advice: String,
    /// Rules and policies that may drop the packet: the agent does not know all of their
    /// conditions.
    #[serde(default)]
    pub doubts: Vec<String>,
}

/// One decision.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WhyStep {
    /// Where it is taken, for example `from_pod@veth1234` or `stack`.
    pub at: String,
    /// What is decided: `admission`, `sender`, `policy`, `hostport`, `flow`, `nat`, `route`, `mtu`,
    /// `limit`, `path`, `netfilter`, `bridge`, `neighbour` or `delivery`.
    pub decision: String,
    /// The decision in words.
    pub text: String,
    /// Whether the packet's way ends with it.
    #[serde(default)]
    pub ends: bool,
}

/// Query parameters of [`path::WHY`]: either `from` and `to`, or `last_drop`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
pub struct WhyQuery {
    /// Sender: name, namespace/name or prefix of the container ID of a pod, or an address; each
    /// with `:` and a port where wanted.
    #[serde(default)]
    pub from: Option<String>,
    /// Destination: the same.
    #[serde(default)]
    pub to: Option<String>,
    /// `tcp`, `udp` or `icmp`. Without it, `tcp` to a port, and `icmp` without one.
    #[serde(default)]
    pub protocol: Option<String>,
    /// Length of the packet in bytes from the IP header on; the shortest possible without it.
    #[serde(default)]
    pub size: Option<u32>,
    /// Pod whose last dropped packet is explained.
    #[serde(default)]
    pub last_drop: Option<String>,
}

impl WhyQuery {
    /// Returns the path with this query, values percent-encoded.
    pub fn to_path(&self) -> String {
        let size = self.size.map(|size| size.to_string());
        let pairs: Vec<String> = [
            ("from", &self.from),
            ("to", &self.to),
            ("protocol", &self.protocol),
            ("size", &size),
            ("last_drop", &self.last_drop),
        ]
        .into_iter()
        .filter_map(|(key, value)| Some(format!("{key}={}", escaped(value.as_ref()?))))
        .collect();
        format!("{}?{}", path::WHY, pairs.join("&"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_why_query_has_the_given_parameters_only() {
        let query = WhyQuery {
            from: Some("default/web".to_owned()),
            to: Some("[2001:db8::7]:443".to_owned()),
            size: Some(1500),
            ..WhyQuery::default()
        };
        let path = query.to_path();
        assert_eq!(
            path,
            "/v1/why?from=default/web&to=%5B2001%3Adb8%3A%3A7%5D%3A443&size=1500"
        );
    }
}

//! Traces of ADD and DEL: a span of the command, with a child for each phase and step.
//!
//! With the feature `otlp`, the agent exports them to the receiver of the key `otlp-endpoint`
//! (decision 168). Without it, the key is refused, and nothing is recorded.

#[cfg(not(feature = "otlp"))]
mod disabled;
#[cfg(feature = "otlp")]
mod exporter;
#[cfg(feature = "otlp")]
mod spans;

use std::net::IpAddr;
use std::str::FromStr;

use anyhow::{Result, ensure};
use axum::http::Uri;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

#[cfg(not(feature = "otlp"))]
pub(crate) use disabled::{Traces, record};
#[cfg(feature = "otlp")]
pub(crate) use exporter::{Traces, record};

/// Path of traces at a receiver, as of OTLP's specification.
const PATH: &str = "/v1/traces";

/// Receiver of OTLP over HTTP. It is an address: a resolver of names may depend on pods that the
/// agent attaches, and would need connections of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OtlpEndpoint(Uri);

impl FromStr for OtlpEndpoint {
    type Err = anyhow::Error;

    /// Parses `http://ADDRESS:PORT`, to which OTLP's path is appended, or a URL with a path.
    fn from_str(text: &str) -> Result<Self> {
        let url: Uri = text.parse()?;
        ensure!(
            url.scheme_str() == Some("http"),
            "{text:?} does not begin with http://"
        );
        let host = url.host().unwrap_or_default();
        let address = host.trim_start_matches('[').trim_end_matches(']');
        ensure!(
            address.parse::<IpAddr>().is_ok() && url.port().is_some(),
            "{text:?} has no address and port, such as 127.0.0.1:4318; names are not resolved"
        );
        match url.path() {
            "/" => {
                let base = text.trim_end_matches('/');
                Ok(Self(format!("{base}{PATH}").parse()?))
            }
            _ => Ok(Self(url)),
        }
    }
}

/// Refuses an endpoint if the agent is built without the feature `otlp`.
pub(crate) fn check_support(endpoint: Option<&OtlpEndpoint>) -> Result<()> {
    ensure!(
        cfg!(feature = "otlp") || endpoint.is_none(),
        "otlp-endpoint: this agent is built without the feature otlp, which exports traces"
    );
    Ok(())
}

/// Counts of spans by outcome, since the agent's start. Without an endpoint there are none.
#[derive(Clone, Debug, Default)]
pub(crate) struct SpanCounts(Option<Family<Outcome, Counter>>);

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    outcome: &'static str,
}

impl SpanCounts {
    /// Adds the counts to the metrics, if traces are exported.
    pub(super) fn register(&self, registry: &mut Registry) {
        if let Some(counts) = &self.0 {
            let help = "Spans of traces by outcome: exported, failed (the receiver did not accept \
                them), or lost (the queue was full)";
            registry.register("trace_spans", help, counts.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_an_address_and_a_port_with_the_path_of_otlp_unless_it_has_one() {
        for (text, url) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
            ("http://[::1]:4318/", "http://[::1]:4318/v1/traces"),
            ("http://192.0.2.1:80/otlp", "http://192.0.2.1:80/otlp"),
        ] {
            let endpoint = text.parse::<OtlpEndpoint>().unwrap();
            assert_eq!(endpoint.0.to_string(), url);
        }
        for (text, reason) in [
            ("https://127.0.0.1:4318", "http://"),
            ("127.0.0.1:4318", "http://"),
            ("http://collector:4318", "names are not resolved"),
            ("http://127.0.0.1", "no address and port"),
        ] {
            let error = text.parse::<OtlpEndpoint>().unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn an_agent_without_the_feature_otlp_refuses_an_endpoint() {
        let endpoint: OtlpEndpoint = "http://127.0.0.1:4318".parse().unwrap();
        assert!(check_support(None).is_ok());
        let supported = check_support(Some(&endpoint));
        assert_eq!(supported.is_ok(), cfg!(feature = "otlp"));
    }
}

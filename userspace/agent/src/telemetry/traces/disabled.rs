//! Traces of an agent that is built without the feature `otlp`: none.
#![expect(
    clippy::unnecessary_wraps,
    clippy::unused_self,
    reason = "the functions are those of an agent with the feature"
)]

use anyhow::Result;
use api::CniRequest;
use cni::Command;

use super::{OtlpEndpoint, SpanCounts};

/// Records nothing.
#[derive(Debug)]
pub(crate) struct Traces;

/// Ends nothing.
pub(crate) struct Exporter;

/// A trace, of which there is none.
pub(crate) enum CommandTrace {}

impl Traces {
    /// Returns traces that record nothing: there is no endpoint.
    pub(crate) fn start(_: Option<&OtlpEndpoint>) -> Result<(Self, Exporter)> {
        Ok((Self, Exporter))
    }

    pub(crate) fn counts(&self) -> SpanCounts {
        SpanCounts::default()
    }

    pub(crate) fn begin(&self, _: Command, _: &CniRequest) -> Option<CommandTrace> {
        None
    }
}

impl Exporter {
    pub(crate) fn finish(self) {}
}

/// Executes a command.
pub(crate) async fn record<F: Future>(_: Option<CommandTrace>, command: F) -> F::Output {
    command.await
}

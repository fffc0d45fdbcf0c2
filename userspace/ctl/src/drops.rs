//! `viaductctl drops`: dropped packets as they occur, with their pods, reasons and what to do.

use std::collections::BTreeSet;

use anyhow::Result;
use api::{Client, ClientError, DropEvent, DropQuery};

use crate::duration::seconds;
use crate::output::{DataFormat, Output};
use crate::{advised, escaped, print, render};

/// Options of `viaductctl drops`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Drops {
    /// Keep printing new events as they occur
    #[arg(short, long)]
    follow: bool,
    /// Only packets from or to this pod: name, namespace/name, or prefix of its container ID
    #[arg(long, value_name = "POD")]
    pod: Option<String>,
    /// Only packets that were dropped for this reason, for example spoofed-mac
    #[arg(long, value_name = "REASON")]
    reason: Option<String>,
    /// Time to wait for new events without --follow, for example 30s or 5m
    #[arg(
        long = "for",
        value_name = "TIME",
        value_parser = seconds,
        default_value = "3s",
        conflicts_with = "follow"
    )]
    seconds: u64,
    #[command(flatten)]
    output: Output,
}

impl Drops {
    /// Prints each event as it arrives, and the advice for a reason with its first event.
    pub(crate) fn run(self, client: &Client) -> Result<String> {
        let query = DropQuery {
            pod: self.pod,
            reason: self.reason,
            follow: self.follow,
            seconds: self.seconds,
        };
        let format = self.output.data();
        let mut outcome = Ok(());
        let mut advised_of = BTreeSet::new();
        let mut is_any = false;
        let mut show = |line: &str| {
            outcome = shown(line, format, &mut advised_of).and_then(|text| print(&text));
            is_any = true;
            outcome.is_ok()
        };
        let reply = client
            .follow(&query.to_path(), &mut show)
            .map_err(advised)?;
        if !reply.is_success() {
            return Err(ClientError::Refused(reply.error()).into());
        }
        outcome?;
        Ok(if is_any || format.is_some() {
            String::new()
        } else {
            "No dropped packets. Wait for them with --follow.\n".to_owned()
        })
    }
}

fn shown(
    line: &str,
    format: Option<DataFormat>,
    advised_of: &mut BTreeSet<String>,
) -> Result<String> {
    if let Some(format) = format {
        return format.line(line);
    }
    let event: DropEvent = serde_json::from_value(escaped(serde_json::from_str(line)?))?;
    let is_new = advised_of.insert(event.reason.clone());
    Ok(render::dropped(&event, is_new))
}

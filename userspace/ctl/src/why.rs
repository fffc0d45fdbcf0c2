//! `viaductctl why`: what happens to a packet, decision by decision.

use std::process::ExitCode;

use anyhow::Result;
use api::{Client, WhyQuery, WhyView};

use crate::output::{DataFormat, Output};
use crate::{decode, get, print, render};

/// Options of `viaductctl why`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Why {
    /// Sender: a pod (name, namespace/name, or prefix of its container ID) or an address, with
    /// `:PORT` for a source port
    #[arg(
        value_name = "POD|ADDRESS[:PORT]",
        required_unless_present = "last_drop"
    )]
    from: Option<String>,
    /// Destination: the same
    #[arg(
        value_name = "DESTINATION[:PORT]",
        required_unless_present = "last_drop"
    )]
    to: Option<String>,
    /// Protocol of the packet [default: tcp to a port, else icmp]
    #[arg(long = "proto", visible_alias = "protocol", value_name = "PROTOCOL", value_parser = ["tcp", "udp", "icmp"])]
    protocol: Option<String>,
    /// Length of the packet in bytes from the IP header on [default: the shortest possible]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(20..=65_000))]
    size: Option<u32>,
    /// Explain the last dropped packet of this pod that was reported; `(node)` for the last one of
    /// which no pod is known
    #[arg(long, value_name = "POD", conflicts_with_all = ["from", "to", "protocol", "size"])]
    last_drop: Option<String>,
    #[command(flatten)]
    pub(crate) output: Output,
}

impl Why {
    /// Prints the explanation; the exit code says whether packet and answer arrive.
    pub(crate) fn print(self, client: &Client) -> Result<ExitCode> {
        let (text, passes) = self.run(client)?;
        print(&text)?;
        Ok(if passes {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }

    /// Returns the text, and whether packet and answer arrive.
    pub(crate) fn run(self, client: &Client) -> Result<(String, bool)> {
        let query = WhyQuery {
            from: self.from,
            to: self.to,
            protocol: self.protocol,
            size: self.size,
            last_drop: self.last_drop,
        };
        let reply = get(client, &query.to_path())?;
        let view: WhyView = decode(&reply)?;
        let text = match self.output.data() {
            Some(format @ (DataFormat::Json | DataFormat::Yaml)) => format.reply(&reply)?,
            None => shown(&view),
        };
        Ok((text, view.passes))
    }
}

/// Shows the dropped packet that is explained, if it is one, and the explanation.
fn shown(view: &WhyView) -> String {
    let explanation = render::why(view);
    match &view.dropped {
        Some(event) => format!("Dropped: {}\n{explanation}", render::dropped(event, false)),
        None => explanation,
    }
}

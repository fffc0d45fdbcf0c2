//! `viaductctl flows`: live NAT flows, and the usage of their table.

use std::net::IpAddr;

use anyhow::{Result, bail};
use api::{Client, FlowQuery, FlowsView};

use crate::output::Output;
use crate::{decode, get, render};

/// Options of `viaductctl flows`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Flows {
    /// Only flows of this pod: name, namespace/name, or prefix of its container ID
    #[arg(long, value_name = "POD")]
    pod: Option<String>,
    /// Only flows with this remote address
    #[arg(long, value_name = "ADDRESS")]
    peer: Option<IpAddr>,
    /// Only flows with this source or destination port, original or translated
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// Maximum number of flows to list
    #[arg(long, value_name = "COUNT", default_value_t = api::DEFAULT_FLOW_LIMIT)]
    limit: usize,
    /// Show the usage of the flow table instead: entries, flows and evictions per pod
    #[arg(long)]
    usage: bool,
    #[command(flatten)]
    output: Output,
}

impl Flows {
    fn path(&self) -> String {
        let query = FlowQuery {
            pod: self.pod.clone(),
            peer: self.peer,
            port: self.port,
            limit: Some(self.limit),
        };
        query.to_path()
    }

    /// Lists the flows, or the usage of their table.
    pub(crate) fn run(&self, client: &Client) -> Result<String> {
        let reply = get(client, &self.path())?;
        match self.output.data() {
            Some(_) if self.usage => bail!("--usage has no JSON or YAML: leave it out for both"),
            Some(format) => format.reply(&reply),
            None => {
                let view: FlowsView = decode(&reply)?;
                Ok(if self.usage {
                    render::flow_table(&view.table, self.output.style())
                } else {
                    render::flows(&view, self.output.style())
                })
            }
        }
    }
}

//! `viaductctl peers`: lists the other nodes of the cluster, and replaces the list.

use std::path::PathBuf;

use anyhow::Result;
use api::{Client, PeerView, path};
use clap::Subcommand;

use crate::output::Output;
use crate::{json_file, render};

/// Options of `viaductctl peers`.
#[derive(Clone, Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Peers {
    #[command(subcommand)]
    verb: Option<Verb>,
    #[command(flatten)]
    output: Output,
}

#[derive(Clone, Debug, Subcommand)]
enum Verb {
    /// Replace the list of peers, in effect until --peers-file changes
    Set {
        /// JSON list of all peers with name, prefixes and addresses, the newest last; - for
        /// standard input
        file: PathBuf,
        #[command(flatten)]
        output: Output,
    },
}

impl Peers {
    /// Returns the peers with their states, after replacing them if requested.
    pub(crate) fn run(&self, client: &Client) -> Result<String> {
        let (reply, output) = match &self.verb {
            None => (crate::get(client, path::PEERS)?, self.output),
            Some(Verb::Set { file, output }) => {
                let wanted = json_file::read(file)?;
                let reply = client.put(path::PEERS, &wanted).map_err(crate::advised)?;
                (reply, *output)
            }
        };
        if let Some(format) = output.data() {
            return format.reply(&reply);
        }
        let peers: Vec<PeerView> = crate::decode(&reply)?;
        Ok(render::peers(&peers, output.style()))
    }
}

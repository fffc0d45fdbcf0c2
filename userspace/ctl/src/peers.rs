//! `viaductctl peers`: lists the other nodes of the cluster, and replaces the list.

use std::io::Read as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use api::{Client, PeerView, path};
use clap::Subcommand;
use serde_json::Value;

use crate::output::Output;
use crate::render;

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
                let wanted = read(file)?;
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

fn read(file: &PathBuf) -> Result<Value> {
    let shown = file.display();
    let mut text = String::new();
    if file.as_os_str() == "-" {
        let read = std::io::stdin().lock().read_to_string(&mut text);
        read.context("cannot read standard input")?;
    } else {
        text = std::fs::read_to_string(file).with_context(|| format!("cannot read {shown}"))?;
    }
    serde_json::from_str(&text).with_context(|| format!("{shown} is not JSON"))
}

//! `viaductctl policies`: lists the network policies, and replaces them.

use std::path::PathBuf;

use anyhow::Result;
use api::{Client, PoliciesView, path};
use clap::Subcommand;

use crate::output::Output;
use crate::{json_file, render};

/// Options of `viaductctl policies`.
#[derive(Clone, Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Policies {
    #[command(subcommand)]
    verb: Option<Verb>,
    #[command(flatten)]
    output: Output,
}

#[derive(Clone, Debug, Subcommand)]
enum Verb {
    /// Replace all network policies, in effect until --policies-file changes
    Set {
        /// JSON object with all policies and their groups of addresses; - for standard input
        file: PathBuf,
        #[command(flatten)]
        output: Output,
    },
}

impl Policies {
    /// Returns the policies with the containers that each selects, after replacing them if
    /// requested.
    pub(crate) fn run(&self, client: &Client) -> Result<String> {
        let (reply, output) = match &self.verb {
            None => (crate::get(client, path::POLICIES)?, self.output),
            Some(Verb::Set { file, output }) => {
                let wanted = json_file::read(file)?;
                let reply = client
                    .put(path::POLICIES, &wanted)
                    .map_err(crate::advised)?;
                (reply, *output)
            }
        };
        if let Some(format) = output.data() {
            return format.reply(&reply);
        }
        let view: PoliciesView = crate::decode(&reply)?;
        Ok(render::policies(&view, output.style()))
    }
}

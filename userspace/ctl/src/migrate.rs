//! `viaductctl migrate`: moves the published ports of running pods from the reference `portmap` to
//! Viaduct, and back.
//!
//! The pods keep their interfaces, addresses and connections. `plan` decides, from what `observe`
//! has read; `change` executes the plan, by the effects of `node`. The plugin that has made the
//! rules of a pod removes them, and makes them again: no rule is parsed or written here.

mod change;
mod node;
mod observe;
mod plan;
mod report;

use std::path::PathBuf;

use anyhow::{Result, bail};
use api::Client;

use self::node::Node;
use self::plan::{Direction, Plan};
use crate::output::Output;

/// Options of `viaductctl migrate`.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
pub(crate) struct Migrate {
    #[command(flatten)]
    action: Action,
    /// Directory of the runtime's cached results
    #[arg(long, value_name = "DIR", default_value = invoke::DEFAULT_CACHE)]
    results: PathBuf,
    /// Directories of the plugins that have attached the pods, separated by colons
    #[arg(
        long,
        value_name = "DIRS",
        env = "CNI_PATH",
        default_value = "/opt/cni/bin:/usr/lib/cni"
    )]
    path: String,
    #[command(flatten)]
    output: Output,
}

/// The action: exactly one.
#[derive(Clone, Copy, Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct Action {
    /// Print what --apply would do
    #[arg(long)]
    dry_run: bool,
    /// Publish the pods' ports by Viaduct, then remove the rules of portmap
    #[arg(long)]
    apply: bool,
    /// Make the rules of portmap again, then unpublish the ports
    #[arg(long)]
    undo: bool,
}

impl Migrate {
    /// Returns the report. If a pod was refused or an effect failed, the report is the error.
    pub(crate) fn run(&self, client: &Client) -> Result<String> {
        let path: Vec<PathBuf> = std::env::split_paths(&self.path).collect();
        let direction = if self.action.undo {
            Direction::Undo
        } else {
            Direction::Apply
        };
        let observed = observe::observe(client, &self.results, &path)?;
        let plan = Plan::new(direction, &observed);
        let report = if self.action.dry_run {
            report::planned(&plan, observed.kept)
        } else {
            change::execute(plan, &mut Node::new(client, path, &observed))?
        };
        let text = match self.output.data() {
            Some(format) => format.text(&serde_json::to_value(&report)?)?,
            None => report::render(&report, self.output.style()),
        };
        if report.has_failed() {
            bail!("not every pod was migrated\n{}", text.trim_end());
        }
        Ok(text)
    }
}

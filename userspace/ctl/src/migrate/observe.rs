//! Reads the node for a migration: results of the runtime, attachments of the agent, connections.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use api::{AttachmentView, Client, KeepConnections, KeptConnections, path};
use invoke::{Invoker, Timeouts, find_plugin, plugin_about};

use super::plan::{Direction, Observed, PORTMAP, Plan};

/// Names of the reference `portmap`: its own, and that of Debian's diversion by `viaduct-plugins`.
const PROGRAMS: [&str; 2] = [PORTMAP, "portmap.distrib"];

/// Text that Viaduct's plugins print about themselves.
const OURS: &str = "(viaduct ";

pub(super) fn observe(client: &Client, results: &Path, plugins: &[PathBuf]) -> Result<Observed> {
    let invoker = Invoker {
        path: plugins.to_owned(),
        cache: results.to_owned(),
        timeouts: Timeouts::default(),
    };
    let cached = invoker.all_cached().map_err(|error| anyhow!("{error}"))?;
    let paths = cached.iter().map(|cached| cached.netns.clone());
    let live: BTreeSet<String> = paths.filter(|path| Path::new(path).exists()).collect();
    let attachments: Vec<AttachmentView> = crate::decode(&crate::get(client, path::ATTACHMENTS)?)?;
    let mut observed = Observed {
        cached,
        live,
        attachments,
        program: program(plugins),
        of_pods: Vec::new(),
        kept: 0,
    };
    let addresses = Plan::new(Direction::Apply, &observed).addresses();
    if !addresses.is_empty() {
        let found = keep(client, addresses, true)?;
        observed.of_pods = found.of_pods;
        observed.kept = found.kept;
    }
    Ok(observed)
}

/// Lets netfilter go on translating connections to these pods, or only reports them.
pub(super) fn keep(
    client: &Client,
    addresses: Vec<String>,
    dry_run: bool,
) -> Result<KeptConnections> {
    let request = KeepConnections { addresses, dry_run };
    let reply = client.post(path::KEPT_CONNECTIONS, &request);
    Ok(crate::decode(&reply.map_err(crate::advised)?)?)
}

/// Returns the name of the reference plugin's program.
fn program(plugins: &[PathBuf]) -> Result<String, String> {
    let mut found = PROGRAMS
        .into_iter()
        .filter_map(|name| Some((name, find_plugin(name, plugins)?)))
        .peekable();
    if found.peek().is_none() {
        return Err(format!("no plugin {PORTMAP} in {plugins:?}: pass --path"));
    }
    let is_ours = |path: &Path| plugin_about(path).is_ok_and(|about| about.contains(OURS));
    let reference = found.find(|(_, path)| !is_ours(path));
    let name = reference.map(|(name, _)| name.to_owned());
    name.ok_or_else(|| {
        format!("{PORTMAP} in {plugins:?} is Viaduct's: pass --path with that of the reference")
    })
}

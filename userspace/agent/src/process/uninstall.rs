//! Uninstall: removes Viaduct from the node, over the API or with `viaductd --uninstall` if no
//! agent runs.
//!
//! The engine removes what it has created in the kernel. Afterwards, when it has closed its files,
//! this module removes the pins and then the records. Foreign files stay, and their directories
//! with them. Files of the installation are found by `installation`.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use api::Spool;
use engine::{AttachedPods, Uninstalled};
use store::Store;

use crate::config::Config;
use crate::http::socket;
use crate::process::installation::{Installation, Report};
use crate::process::{last_failure, start};
use crate::telemetry::events::file::{self, EventFile};

/// Pins, records and events, which are removed after the engine has closed them.
#[derive(Clone, Debug)]
pub(crate) struct InstalledFiles {
    bpffs: PathBuf,
    state_dir: PathBuf,
    spool: Spool,
    /// File of a running agent's events, which it continues until then.
    events: Option<EventFile>,
}

impl InstalledFiles {
    pub(crate) fn of(config: &Config, events: Option<EventFile>) -> Self {
        Self {
            bpffs: config.bpffs.clone(),
            state_dir: config.state_dir.clone(),
            spool: Spool::for_socket(&config.socket),
            events,
        }
    }

    /// Removes the pins, then the records. The records go last: an interrupted uninstall needs them
    /// to continue.
    pub(crate) fn remove(&self) -> Result<(), String> {
        let removed = kernel::remove_pins(&self.bpffs).context("cannot remove the pins");
        removed
            .and_then(|()| {
                crash::point_at("remove-pins");
                self.remove_records()
            })
            .map_err(|error| format!("{error:#}"))
    }

    fn remove_records(&self) -> Result<()> {
        if let Some(events) = &self.events {
            events.finish();
        }
        for file in file::files(&self.state_dir) {
            ignore_not_found(fs::remove_file(&file))
                .with_context(|| format!("cannot remove {}", file.display()))?;
        }
        let records = self.state_dir.join(start::RECORDS);
        for file in Store::files(&records) {
            ignore_not_found(fs::remove_file(&file))
                .with_context(|| format!("cannot remove {}", file.display()))?;
            crash::point_at("remove-records");
        }
        last_failure::remove(&self.state_dir).context("cannot remove the last failure")?;
        // Its DELs are of attachments that are gone.
        self.spool.clear().context("cannot remove the spool")?;
        remove_if_empty(&self.state_dir)
    }
}

/// Removes a directory of the agent, if it contains no foreign files.
pub(crate) fn remove_if_empty(directory: &Path) -> Result<()> {
    match fs::remove_dir(directory) {
        // Foreign files, the socket of an agent that is about to exit, or a mount point, as in the
        // agent's unit.
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::DirectoryNotEmpty
                    | ErrorKind::ResourceBusy
                    | ErrorKind::ReadOnlyFilesystem
            ) =>
        {
            Ok(())
        }
        removed => ignore_not_found(removed)
            .with_context(|| format!("cannot remove {}", directory.display())),
    }
}

/// Returns the policy for attached pods, by the flag `--drain`.
pub(crate) fn policy(drain: bool) -> AttachedPods {
    if drain {
        AttachedPods::Detach
    } else {
        AttachedPods::Refuse
    }
}

fn ignore_not_found(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Uninstalls without a running agent (`viaductd --uninstall`), and prints what was removed.
pub(crate) fn run(config: &Config, attached: AttachedPods, purge: bool) -> Result<()> {
    let installed_files = InstalledFiles::of(config, None);
    let mut engine = start::open_for_uninstall(config)?;
    let done = engine.uninstall(attached)?;
    drop(engine);
    installed_files.remove().map_err(anyhow::Error::msg)?;
    socket::remove_stale(&config.socket)?;
    if let Some(read_only) = &config.access.read_only {
        socket::remove_stale(&read_only.path)?;
    }
    if let Some(directory) = config.socket.parent() {
        remove_if_empty(directory)?;
    }
    crate::print(&text(&done, &Installation::of(config).report(purge)))
}

fn text(done: &Uninstalled, files: &Report) -> String {
    let detached = done.detached.iter().map(|key| format!("detached {key}\n"));
    let removed = done.removed.iter().chain(&files.removed);
    let left = done.left.iter().map(|line| format!("left alone: {line}\n"));
    let remaining = files.remaining.iter();
    detached
        .chain(removed.map(|line| format!("{line}\n")))
        .chain(left)
        .chain(remaining.map(|line| format!("still installed: {line}\n")))
        .collect()
}

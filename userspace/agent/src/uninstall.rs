//! Taking Viaduct off the node: asked for over the socket, or by `viaductd --uninstall` where no agent runs.
//!
//! The engine takes off what it has made; here goes what it had open, when it has let go: pins, then records. Files that
//! are not ours stay, and the directories with them.

use std::fs;
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use engine::{Attached, Uninstalled};
use store::Store;

use crate::config::Config;
use crate::{socket, start};

/// What is removed when nobody has it open any more.
#[derive(Clone, Debug)]
pub(crate) struct Belongings {
    bpffs: PathBuf,
    state_dir: PathBuf,
}

impl Belongings {
    pub(crate) fn of(config: &Config) -> Self {
        Self {
            bpffs: config.bpffs.clone(),
            state_dir: config.state_dir.clone(),
        }
    }

    /// The records go last: as long as something is left of us, they say what.
    pub(crate) fn remove(&self) -> Result<(), String> {
        let removed = kernel::remove_pins(&self.bpffs).context("cannot remove what is pinned");
        removed
            .and_then(|()| {
                crash::point_at("remove-pins");
                self.remove_records()
            })
            .map_err(|error| format!("{error:#}"))
    }

    fn remove_records(&self) -> Result<()> {
        let records = self.state_dir.join(start::RECORDS);
        for file in Store::files(&records) {
            absent(fs::remove_file(&file))
                .with_context(|| format!("cannot remove {}", file.display()))?;
            crash::point_at("remove-records");
        }
        remove_if_empty(&self.state_dir)
    }
}

/// Removes a directory of ours in which nobody else has put anything.
pub(crate) fn remove_if_empty(directory: &Path) -> Result<()> {
    match fs::remove_dir(directory) {
        // Somebody's files, the socket of an agent that is about to end, or a mount point.
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::DirectoryNotEmpty | ErrorKind::ResourceBusy
            ) =>
        {
            Ok(())
        }
        removed => {
            absent(removed).with_context(|| format!("cannot remove {}", directory.display()))
        }
    }
}

fn absent(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Does it without an agent, and prints what was done.
pub(crate) fn run(config: &Config, attached: Attached) -> Result<()> {
    let belongings = Belongings::of(config);
    let mut engine = start::dismantle(config)?;
    let done = engine.uninstall(attached)?;
    drop(engine);
    belongings.remove().map_err(anyhow::Error::msg)?;
    socket::remove_stale(&config.socket)?;
    if let Some(directory) = config.socket.parent() {
        remove_if_empty(directory)?;
    }
    let text = text(&done);
    io::stdout()
        .write_all(text.as_bytes())
        .context("cannot print")
}

fn text(done: &Uninstalled) -> String {
    let detached = done.detached.iter().map(|key| format!("detached {key}\n"));
    let removed = done.removed.iter().map(|line| format!("{line}\n"));
    let left = done.left.iter().map(|line| format!("left alone: {line}\n"));
    detached.chain(removed).chain(left).collect()
}

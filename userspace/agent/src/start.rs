//! What happens before the agent can serve: records, kernel, and the first comparison of both.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result};
use engine::{Engine, Settings};
use kernel::{Feature, Host, HostOptions};
use store::Store;

use crate::config::Config;
use crate::{clock, datapath};

/// File of the records in the state directory.
const RECORDS: &str = "records.redb";

/// Makes the directories of records and socket, for root only, where they are missing.
pub(crate) fn make_directories(config: &Config) -> Result<()> {
    make_directory(&config.state_dir)?;
    config.socket.parent().map_or(Ok(()), make_directory)
}

fn make_directory(path: &Path) -> Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .with_context(|| format!("cannot make {}", path.display()))
}

/// What the kernel can do, told once by the thread that has opened it.
pub(crate) type Features = Arc<OnceLock<Vec<Feature>>>;

/// An engine that has compared its records with the kernel. Nobody else writes: the records' file is locked first.
pub(crate) fn engine(config: &Config, features: &Features) -> Result<Engine<Host>> {
    let store = Store::open(&config.state_dir.join(RECORDS))?;
    let cgroup = match &config.cgroup {
        Some(given) => Some(given.clone()),
        None => kernel::cgroup_root().context("cannot look for the cgroup")?,
    };
    let flow_entries = match config.flow_entries {
        Some(entries) => entries,
        None => planner::flow_entries(kernel::memory().context("cannot tell the memory")?),
    };
    let host = Host::open(&HostOptions {
        cgroup,
        bpffs: config.bpffs.clone(),
        object: datapath::find(config.datapath_object.clone())?,
        flow_entries,
    })?;
    for (hook, reason) in host.unavailable() {
        tracing::warn!(%hook, reason, "processes of the node do not reach all hostports");
    }
    // Told once: there is one engine.
    let _ = features.set(host.features());
    let settings = Settings {
        default_network: config.default_network(),
        uplinks: config.uplinks.clone(),
        non_masquerade: config.non_masquerade.clone(),
        egress: config.egress.clone(),
        flow_entries,
        bypass: config.bypass,
        boot_id: kernel::boot_id().context("cannot read the boot id")?,
    };
    let engine = Engine::start(host, store, settings, clock::now())?;
    let status = engine.status();
    let (entries, wanted) = status.flow_entries;
    if entries != wanted {
        tracing::warn!(
            entries,
            wanted,
            "the flow table is there already and keeps its size"
        );
    }
    for degraded in status.degraded {
        tracing::warn!(reason = degraded.reason(), "{degraded}");
    }
    Ok(engine)
}

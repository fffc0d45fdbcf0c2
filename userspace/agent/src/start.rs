//! What happens before the agent can serve: records, kernel, and the first comparison of both.

use std::collections::BTreeSet;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Error, Result};
use engine::{Engine, Settings};
use kernel::{Feature, Host, HostOptions, Kernel};
use planner::Scope;
use store::{Store, StoreError};

use crate::config::Config;
use crate::{clock, datapath};

/// File of the records in the state directory.
pub(crate) const RECORDS: &str = "records.redb";

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
    let _start = crash::verb("start");
    let (host, store, settings) = open(config)?;
    // Told once: there is one engine.
    let _ = features.set(host.features());
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

/// An engine that takes off what an agent before us has left, and makes nothing.
pub(crate) fn dismantle(config: &Config) -> Result<Engine<Host>> {
    let (host, store, settings) = open(config)?;
    Ok(Engine::dismantle(host, store, settings)?)
}

fn open(config: &Config) -> Result<(Host, Store, Settings)> {
    let records = config.state_dir.join(RECORDS);
    let opened = match Store::open(&records) {
        Err(error @ StoreError::Damaged { .. }) => Err(error),
        opened => Ok(opened?),
    };
    let cgroup = match &config.cgroup {
        Some(given) => Some(given.clone()),
        None => kernel::cgroup_root().context("cannot look for the cgroup")?,
    };
    let flow_entries = match config.flow_entries {
        Some(entries) => entries,
        None => planner::flow_entries(kernel::memory().context("cannot tell the memory")?),
    };
    let mut host = Host::open(&HostOptions {
        cgroup,
        bpffs: config.bpffs.clone(),
        object: datapath::find(config.datapath_object.clone())?,
        flow_entries,
    })?;
    for (hook, reason) in host.unavailable() {
        let lost = if *hook == planner::SocketHook::Pace {
            "connections of pods are limited, but not paced"
        } else {
            "processes of the node do not reach all hostports"
        };
        tracing::warn!(%hook, reason, "{lost}");
    }
    let store = match opened {
        Ok(store) => store,
        Err(damage) => begin_anew(&mut host, &records, damage)?,
    };
    let settings = Settings {
        default_network: config.default_network(),
        uplinks: config.uplinks.clone(),
        non_masquerade: config.non_masquerade.clone(),
        egress: config.egress.clone(),
        flow_entries,
        bypass: config.bypass,
        shaper: config.shaper,
        guard: config.guard,
        boot_id: kernel::boot_id().context("cannot read the boot id")?,
    };
    Ok((host, store, settings))
}

/// Without records, an agent may begin only where no pod lives: it would give the pods' addresses away.
fn begin_anew(host: &mut impl Kernel, records: &Path, damage: StoreError) -> Result<Store> {
    let sysctls = BTreeSet::new();
    let living = planner::living(&host.observe(&Scope::Node { sysctls })?);
    if living.is_empty() {
        let (store, aside) = Store::replace(records)?;
        tracing::error!(
            error = %damage,
            aside = %aside.display(),
            "the records are damaged; no pod is attached, so the agent begins anew"
        );
        return Ok(store);
    }
    let pods: Vec<String> = living
        .iter()
        .map(|link| format!("{} ({})", link.link, link.alias))
        .collect();
    Err(Error::new(damage).context(format!(
        "these pods are attached and their records cannot be read: {}. They keep their network. Remove them, or their \
         links, and start the agent again",
        pods.join(", ")
    )))
}

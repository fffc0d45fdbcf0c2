//! Start of the engine: opens records and kernel, and reconciles them for the first time.

use std::collections::BTreeSet;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Error, Result};
use engine::{Engine, Settings};
use kernel::{Feature, Host, HostOptions, Kernel, NodeCgroup};
use steps::NodeQuery;
use store::{Store, StoreError};

use crate::clock;
use crate::config::Config;
use crate::process::bpf_object;

/// File name of the records in the state directory.
pub(crate) const RECORDS: &str = "records.redb";

/// Creates the directories of records, socket and Docker's networks with mode 0700, if they are
/// missing.
pub(crate) fn make_directories(config: &Config) -> Result<()> {
    make_directory(&config.state_dir)?;
    if let Some(files) = &config.docker {
        files.state.parent().map_or(Ok(()), make_directory)?;
    }
    config.socket.parent().map_or(Ok(()), make_directory)
}

fn make_directory(path: &Path) -> Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .with_context(|| format!("cannot create {}", path.display()))
}

/// The optional kernel features, set once by the engine's thread.
pub(crate) type Features = Arc<OnceLock<Vec<Feature>>>;

/// Starts the engine, which reconciles records and kernel. Opening the records locks their file, so
/// no other process writes to them.
pub(crate) fn engine(config: &Config, features: &Features) -> Result<Engine<Host>> {
    let _start = crash::verb("start");
    let (host, store, settings) = open(config)?;
    // Set only once, because there is one engine.
    let _ = features.set(host.features());
    let engine = Engine::start(host, store, settings, clock::now())?;
    let status = engine.status();
    let (entries, wanted) = status.flow_entries;
    if entries != wanted {
        tracing::warn!(
            entries,
            wanted,
            "flow table keeps its size: it exists already; the configured size is effective after a reboot"
        );
    }
    Ok(engine)
}

/// Opens the engine for an uninstall: it removes what an earlier agent has left, and creates
/// nothing.
pub(crate) fn open_for_uninstall(config: &Config) -> Result<Engine<Host>> {
    let (host, store, settings) = open(config)?;
    Ok(Engine::for_uninstall(host, store, settings)?)
}

fn open(config: &Config) -> Result<(Host, Store, Settings)> {
    let records = config.state_dir.join(RECORDS);
    let opened = match Store::open(&records) {
        Err(error @ StoreError::Damaged { .. }) => Err(error),
        opened => Ok(opened?),
    };
    let path = match &config.cgroup {
        Some(given) => Some(given.clone()),
        None => kernel::cgroup_root().context("cannot find the root of cgroup2")?,
    };
    let cgroup = path.map(|path| NodeCgroup {
        path,
        is_configured: config.cgroup.is_some(),
    });
    let flow_entries = match config.flow_entries {
        Some(entries) => entries,
        None => planner::flow_entries(kernel::memory().context("cannot read the memory size")?),
    };
    let cpus = kernel::possible_cpus().context("cannot count the CPUs")?;
    let mut host = Host::open(&HostOptions {
        cgroup,
        bpffs: config.bpffs.clone(),
        object: bpf_object::find(config.datapath_object.clone())?,
        flow_entries,
        cache_entries: planner::cache_entries(flow_entries, cpus),
        datapath_log: config.datapath_log,
    })?;
    for (hook, reason) in host.unavailable() {
        let lost = if *hook == steps::SocketHook::Pace {
            "bandwidth limits do not pace sockets"
        } else {
            "processes of the node do not reach all hostports"
        };
        tracing::warn!(%hook, reason, "cgroup program unavailable: {lost}");
    }
    let store = match opened {
        Ok(store) => store,
        Err(damage) => replace_damaged_records(&mut host, &records, damage)?,
    };
    let settings = Settings {
        default_network: config.default_network(),
        uplinks: config.uplinks.clone(),
        non_masquerade: config.non_masquerade.clone(),
        egress: config.egress.clone(),
        flow_entries,
        bypass: config.bypass,
        forwarding: config.forwarding,
        shaper: config.shaper,
        xdp_prefilter: config.xdp_prefilter,
        peers: config.peers.clone(),
        boot_id: kernel::boot_id().context("cannot read the boot id")?,
    };
    Ok((host, store, settings))
}

/// Replaces damaged records with empty ones, if no pod is attached. With attached pods this is
/// refused: an agent without their records would assign their addresses again.
fn replace_damaged_records(
    host: &mut impl Kernel,
    records: &Path,
    damage: StoreError,
) -> Result<Store> {
    let sysctls = BTreeSet::new();
    let live_pod_links = planner::live_pod_links(&host.observe(&NodeQuery { sysctls })?);
    if live_pod_links.is_empty() {
        let (store, aside) = Store::replace(records)?;
        tracing::error!(
            error = %damage,
            aside = %aside.display(),
            "records are damaged: no pod is attached, so the agent starts with empty records"
        );
        return Ok(store);
    }
    let pods: Vec<String> = live_pod_links
        .iter()
        .map(|link| format!("{} ({})", link.link, link.alias))
        .collect();
    Err(Error::new(damage).context(format!(
        "cannot read the records of attached pods: {}. The pods keep their network. Remove them, or their links, and \
         start the agent again",
        pods.join(", ")
    )))
}

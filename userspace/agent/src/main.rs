//! `viaductd`, the node agent: serves the engine on a Unix socket.
//!
//! Starts the components and stops them in order. Decides nothing about networking.

#![forbid(unsafe_code)]

mod allowlist;
mod background;
mod body;
mod chained;
mod clock;
mod config;
mod connections;
mod datapath;
mod events;
mod failure;
mod flows;
mod installation;
mod instance_lock;
mod leases;
mod limit_keys;
mod limits;
mod metrics;
mod pod_cidr_file;
mod pod_cidrs;
mod ports_view;
mod rates;
mod refused_flows;
mod reload;
mod replay;
mod requests;
mod routes;
mod server;
mod service_manager;
mod socket;
mod start;
mod telemetry;
mod uninstall;
mod view;
mod write_timeout;

use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::sync::{Arc, RwLock};
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use api::Spool;
use clap::Parser;
use engine::AttachedPods;
use kernel::RuleReader;

use crate::body::RequestMemory;
use crate::config::{Config, Options};
use crate::flows::FlowSource;
use crate::instance_lock::InstanceLock;
use crate::metrics::Metrics;
use crate::reload::Reload;
use crate::replay::SpoolReplay;
use crate::requests::App;
use crate::server::WatchedFiles;
use crate::socket::ListenAddress;
use crate::start::Features;
use crate::uninstall::InstalledFiles;

fn main() -> ExitCode {
    telemetry::abort_on_panic();
    match run(Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            telemetry::log_fatal(&error);
            ExitCode::FAILURE
        }
    }
}

fn run(options: Options) -> Result<()> {
    let attached = if options.drain {
        AttachedPods::Detach
    } else {
        AttachedPods::Refuse
    };
    let config = Config::load(options.clone())?;
    let log_level = telemetry::start(&config.log_level)?;
    let passed = service_manager::passed_socket()?;
    start::make_directories(&config)?;
    // Before records and pins are opened: two agents that write would undo each other's work.
    let _lock = InstanceLock::acquire(&config.state_dir, &config.bpffs, &config.bridge)?;
    if options.uninstall {
        return uninstall::run(&config, attached);
    }
    let place = passed.map_or_else(
        || ListenAddress::Path(config.socket.clone()),
        ListenAddress::Passed,
    );
    let reader = kernel::FlowReader::new(&config.bpffs);
    let flows = FlowSource::new(move || reader.read());
    let features = Features::default();
    let (settings, found) = (config.clone(), Arc::clone(&features));
    let (handle, thread) = engine::spawn(move || start::engine(&settings, &found))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let app = App {
        handle,
        hostport_annotation: RwLock::new(config.hostport_annotation.clone()),
        request_memory: RequestMemory::default(),
        started: Instant::now(),
        flows,
        rules: RuleReader::new(&config.bpffs),
        features,
        replay: SpoolReplay::of(Spool::for_socket(&config.socket)),
        installed_files: InstalledFiles::of(&config),
        events: Arc::default(),
        metrics: Metrics::default(),
        rate_sampler: rates::RateSampler::default(),
        uninstalled: Arc::default(),
        stop: tokio::sync::watch::Sender::new(false),
    };
    let gone = Arc::clone(&app.uninstalled);
    let socket = config.socket.clone();
    let files = WatchedFiles {
        pod_cidr_file: config.pod_cidr_file.clone(),
        installation: config.installation.clone(),
        expects_pod_cidr: config.kubenet,
    };
    let reload = Reload::new(options, config, log_level);
    let served = runtime.block_on(server::serve(place, files, reload, app));
    // Dropping the runtime drops all handles to the engine, which then executes its queue and
    // returns.
    drop(runtime);
    thread
        .join()
        .map_err(|_| anyhow!("the engine's thread panicked"))?;
    if gone.load(Ordering::Acquire) {
        socket.parent().map_or(Ok(()), uninstall::remove_if_empty)?;
        tracing::info!("agent stopped: Viaduct is uninstalled");
    } else {
        tracing::info!("agent stopped: the datapath keeps running");
    }
    served
}

#[cfg(test)]
mod tests;

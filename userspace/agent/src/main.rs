//! `viaductd`, the node agent: the engine behind a Unix socket.
//!
//! Puts the parts together and ends them in order. Decides nothing about networking.

#![forbid(unsafe_code)]

mod allowlist;
mod chained;
mod clock;
mod config;
mod datapath;
mod events;
mod failure;
mod flows;
mod leases;
mod metrics;
mod pod_cidr_file;
mod pod_cidrs;
mod ports_view;
mod replay;
mod requests;
mod routes;
mod server;
mod socket;
mod start;
mod telemetry;
mod uninstall;
mod upkeep;
mod view;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use api::Spool;
use clap::Parser;
use engine::Attached;

use crate::config::{Config, Options};
use crate::flows::FlowSource;
use crate::metrics::Metrics;
use crate::replay::Replay;
use crate::requests::App;
use crate::start::Features;
use crate::uninstall::Belongings;

fn main() -> ExitCode {
    telemetry::end_on_panic();
    match run(Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            telemetry::last_words(&error);
            ExitCode::FAILURE
        }
    }
}

fn run(options: Options) -> Result<()> {
    let attached = if options.drain {
        Attached::Detach
    } else {
        Attached::Refuse
    };
    let uninstall = options.uninstall;
    let config = Config::load(options)?;
    telemetry::start(&config.log_level)?;
    start::make_directories(&config)?;
    if uninstall {
        return uninstall::run(&config, attached);
    }
    let (socket, pod_cidr_file) = (config.socket.clone(), config.pod_cidr_file.clone());
    let hostport_annotation = config.hostport_annotation.clone();
    let belongings = Belongings::of(&config);
    let reader = kernel::FlowReader::new(&config.bpffs);
    let flows = FlowSource::new(move || reader.read());
    let features = Features::default();
    let found = Arc::clone(&features);
    let (handle, thread) = engine::spawn(move || start::engine(&config, &found))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let app = App {
        handle,
        hostport_annotation,
        started: Instant::now(),
        flows,
        features,
        replay: Replay::of(Spool::beside(&socket)),
        belongings,
        events: Arc::default(),
        metrics: Metrics::default(),
        uninstalled: Arc::default(),
        stop: tokio::sync::watch::Sender::new(false),
    };
    let gone = Arc::clone(&app.uninstalled);
    let served = runtime.block_on(server::serve(&socket, pod_cidr_file, app));
    // What still has a handle to the engine goes with the runtime; then the engine finishes what is queued, and ends.
    drop(runtime);
    thread
        .join()
        .map_err(|_| anyhow!("the engine's thread died"))?;
    if gone.load(Ordering::Acquire) {
        socket.parent().map_or(Ok(()), uninstall::remove_if_empty)?;
        tracing::info!("stopped; nothing is left");
    } else {
        tracing::info!("stopped; the datapath keeps running");
    }
    served
}

#[cfg(test)]
mod tests;

//! `viaductd`, the node agent: the engine behind a Unix socket.
//!
//! Puts the parts together and ends them in order. Decides nothing about networking.

#![forbid(unsafe_code)]

mod allowlist;
mod alone;
mod body;
mod chained;
mod clock;
mod config;
mod connections;
mod datapath;
mod events;
mod failure;
mod flows;
mod leases;
mod limit_keys;
mod limits;
mod metrics;
mod pod_cidr_file;
mod pod_cidrs;
mod ports_view;
mod rates;
mod refusals;
mod reload;
mod replay;
mod requests;
mod routes;
mod server;
mod service;
mod socket;
mod stall;
mod start;
mod telemetry;
mod uninstall;
mod upkeep;
mod view;

use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::sync::{Arc, RwLock};
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use api::Spool;
use clap::Parser;
use engine::Attached;
use kernel::RuleReader;

use crate::alone::Alone;
use crate::body::Room;
use crate::config::{Config, Options};
use crate::flows::FlowSource;
use crate::metrics::Metrics;
use crate::reload::Reload;
use crate::replay::Replay;
use crate::requests::App;
use crate::socket::Place;
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
    let config = Config::load(options.clone())?;
    let log_level = telemetry::start(&config.log_level)?;
    let passed = service::passed_socket()?;
    start::make_directories(&config)?;
    let _alone = Alone::claim(&config.state_dir, &config.bpffs, &config.bridge)?;
    if options.uninstall {
        return uninstall::run(&config, attached);
    }
    let place = passed.map_or_else(|| Place::Path(config.socket.clone()), Place::Passed);
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
        room: Room::default(),
        started: Instant::now(),
        flows,
        rules: RuleReader::new(&config.bpffs),
        features,
        replay: Replay::of(Spool::beside(&config.socket)),
        belongings: Belongings::of(&config),
        events: Arc::default(),
        metrics: Metrics::default(),
        looks: rates::Looks::default(),
        uninstalled: Arc::default(),
        stop: tokio::sync::watch::Sender::new(false),
    };
    let gone = Arc::clone(&app.uninstalled);
    let (socket, pod_cidr_file) = (config.socket.clone(), config.pod_cidr_file.clone());
    let reload = Reload::new(options, config, log_level);
    let served = runtime.block_on(server::serve(place, pod_cidr_file, reload, app));
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

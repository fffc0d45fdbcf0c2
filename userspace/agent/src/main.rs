//! `viaductd`, the node agent: the engine behind a Unix socket.
//!
//! Puts the parts together and ends them in order. Decides nothing about networking.

#![forbid(unsafe_code)]

mod allowlist;
mod chained;
mod clock;
mod config;
mod datapath;
mod failure;
mod flows;
mod leases;
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
mod upkeep;
mod view;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use api::Spool;
use clap::Parser;

use crate::config::{Config, Options};
use crate::flows::FlowSource;
use crate::replay::Replay;
use crate::requests::App;
use crate::start::Features;

fn main() -> ExitCode {
    match run(Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            telemetry::last_words(&error);
            ExitCode::FAILURE
        }
    }
}

fn run(options: Options) -> Result<()> {
    let config = Config::load(options)?;
    telemetry::start(&config.log_level)?;
    start::make_directories(&config)?;
    let (socket, pod_cidr_file) = (config.socket.clone(), config.pod_cidr_file.clone());
    let hostport_annotation = config.hostport_annotation.clone();
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
    };
    let served = runtime.block_on(server::serve(&socket, pod_cidr_file, app));
    // What still has a handle to the engine goes with the runtime; then the engine finishes what is queued, and ends.
    drop(runtime);
    thread
        .join()
        .map_err(|_| anyhow!("the engine's thread died"))?;
    tracing::info!("stopped; the datapath keeps running");
    served
}

#[cfg(test)]
mod tests;

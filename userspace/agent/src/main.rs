//! `viaductd`, the node agent: serves the engine on a Unix socket.
//!
//! Starts the components and stops them in order. Decides nothing about networking.

#![forbid(unsafe_code)]

mod app;
mod clock;
mod cni;
mod config;
mod docker;
mod http;
#[cfg(feature = "pages")]
mod pages;
mod process;
mod telemetry;
mod version;

use std::io::Write as _;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use api::Spool;
use clap::Parser;
use kernel::RuleReader;
use tokio::runtime::Runtime;

use crate::app::App;
use crate::cni::foreign_files::FileAccess;
use crate::cni::refused_adds::RefusedAdds;
use crate::cni::spool::SpoolReplay;
use crate::config::live::LiveConfig;
use crate::config::{Config, Options};
use crate::docker::DockerListener;
use crate::http::answers::AnswerMemory;
use crate::http::body::RequestMemory;
use crate::http::flows::FlowSource;
use crate::http::server::{self, Listeners, WatchedFiles};
use crate::http::socket::{ListenAddress, ReadOnlyListener};
use crate::http::why::NodeSource;
use crate::process::installation::Installation;
use crate::process::instance_lock::InstanceLock;
use crate::process::lifecycle::{Lifecycle, Reload};
use crate::process::service_manager;
use crate::process::start::{self, Features};
use crate::process::uninstall::{self, InstalledFiles};
use crate::telemetry::datapath_log::DatapathLogReader;
use crate::telemetry::drop_events::DropEvents;
use crate::telemetry::events::Events;
use crate::telemetry::log;
use crate::telemetry::losses::Losses;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::rates::RateSampler;
use crate::telemetry::traces::{self, Traces};

/// Time that threads with file accesses get to finish when the agent stops.
const BLOCKED_THREADS_TIMEOUT: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    log::abort_on_panic();
    #[cfg(feature = "pages")]
    if let Some(folder) = pages::folder() {
        return pages::write(&folder);
    }
    let options = match Options::try_parse() {
        Ok(options) => options,
        Err(error) => return log::print_usage_error(&error),
    };
    match run(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log::log_fatal(&error);
            ExitCode::FAILURE
        }
    }
}

fn run(options: Options) -> Result<()> {
    if let Some(text) = text_instead_of_an_agent(&options)? {
        return print(&text);
    }
    let config = Config::load(options.clone())?;
    let log_level = log::start(log::parse_filter(&config.log_level)?, config.log_format);
    traces::check_support(config.otlp_endpoint.as_ref())?;
    process::memory::disable_huge_pages();
    let passed = service_manager::passed_socket()?;
    start::make_directories(&config)?;
    // Before records and pins are opened: two agents that write would undo each other's work.
    let _lock = InstanceLock::acquire(&config.state_dir, &config.bpffs, &config.bridge)?;
    if options.uninstall {
        return uninstall::run(&config, uninstall::policy(options.drain), options.purge);
    }
    // Capabilities belong to a thread, and later threads inherit them.
    config.access.sandbox.enter_before_threads()?;
    let listeners = listeners(&config, passed)?;
    let features = Features::default();
    let (settings, found) = (config.clone(), Arc::clone(&features));
    let (handle, thread) = engine::spawn(move || start::engine(&settings, &found))?;
    config.access.sandbox.enter_after_start()?;
    let runtime = runtime()?;
    let (socket, files) = (config.socket.clone(), WatchedFiles::of(&config));
    let interval = config.drop_event_interval;
    let events = Events::open(&config.state_dir);
    let (traces, exporter) = Traces::start(config.otlp_endpoint.as_ref())?;
    let app = App {
        drop_events: DropEvents::of_datapath(handle.clone(), interval, &config.bpffs),
        metrics: Metrics::of_engine(&handle, &traces),
        traces,
        datapath_log: DatapathLogReader::new(handle.clone()),
        handle,
        request_memory: RequestMemory::default(),
        answers: AnswerMemory::default(),
        file_access: FileAccess::default(),
        started: Instant::now(),
        flows: FlowSource::of_node(&config.bpffs),
        node: NodeSource::of_datapath(&config.bpffs),
        rules: RuleReader::new(&config.bpffs),
        offload_counts: process::background::start_threads(&config.bpffs),
        features,
        refused_adds: RefusedAdds::default(),
        replay: SpoolReplay::of(Spool::for_socket(&config.socket)),
        installed_files: InstalledFiles::of(&config, events.file()),
        installation: Installation::of(&config),
        events: Arc::new(events),
        rate_sampler: RateSampler::default(),
        losses: Losses::default(),
        lifecycle: Lifecycle::new(Reload::new(options, log_level)),
        config: LiveConfig::new(config),
    };
    let gone = Arc::clone(&app.lifecycle.uninstalled);
    let events = Arc::clone(&app.events);
    let served = runtime.block_on(server::serve(listeners, files, app));
    // Dropping the runtime drops all handles to the engine, which then executes its queue and
    // returns. A thread that waits for a file system which does not answer ends with the process.
    runtime.shutdown_timeout(BLOCKED_THREADS_TIMEOUT);
    thread
        .join()
        .map_err(|_| anyhow!("the engine's thread panicked"))?;
    events.finish();
    exporter.finish();
    finish(gone.load(Ordering::Acquire), &socket)?;
    served
}

fn runtime() -> Result<Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")
}

/// Returns what options that start no agent print: a sample, or that the configuration is valid.
fn text_instead_of_an_agent(options: &Options) -> Result<Option<String>> {
    if options.sample_config {
        return Ok(Some(config::sample()));
    }
    if options.check_config {
        let config = Config::load(options.clone())?;
        log::parse_filter(&config.log_level)?;
        return Ok(Some("the configuration is valid\n".to_owned()));
    }
    Ok(None)
}

/// Returns where the agent listens; `passed` is the socket of the service manager.
fn listeners(config: &Config, passed: Option<UnixListener>) -> Result<Listeners> {
    let read_only = config.access.read_only.as_ref();
    Ok(Listeners {
        main: passed.map_or_else(
            || ListenAddress::Path(config.socket.clone()),
            ListenAddress::Passed,
        ),
        read_only: read_only.map(ReadOnlyListener::of).transpose()?,
        metrics: config.metrics_listen,
        docker: config.docker.as_ref().map(DockerListener::of).transpose()?,
    })
}

/// Logs the end, and removes the folder of the API socket of a node without Viaduct.
fn finish(is_uninstalled: bool, socket: &Path) -> Result<()> {
    if is_uninstalled {
        socket.parent().map_or(Ok(()), uninstall::remove_if_empty)?;
        tracing::info!("agent stopped: Viaduct is uninstalled");
    } else {
        tracing::info!("agent stopped: the datapath keeps running");
    }
    Ok(())
}

/// Writes `text` to standard output.
fn print(text: &str) -> Result<()> {
    let written = std::io::stdout().write_all(text.as_bytes());
    written.context("cannot write to standard output")
}

#[cfg(test)]
mod tests;

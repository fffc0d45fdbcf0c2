//! `viaduct`, the CNI plugin: what a container runtime executes for every ADD, DEL, CHECK, GC and STATUS.
//!
//! The name that it is executed by tells which plugin it is (`bridge`, `portmap`, …): it is the same program.
//!
//! host-local it executes by itself, and the delegates of a configuration and IPAM that is not ours by their own plugins.
//! Otherwise it passes the request on to the agent as it is and prints what comes back. It answers by itself only what needs no
//! agent: VERSION, and requests that are not well-formed. It refuses to know what a configuration asks for, so that a
//! newer agent can honour what this plugin has never heard of. Standard output carries the result or the error and
//! nothing else (behaviour B0.3).

#![forbid(unsafe_code)]

mod agent;
mod delegates;
mod host_local;
mod ipam;
mod netns;

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd as _;
use std::process::ExitCode;

use cni::{Command, Environment, Error, Header, Plugin, Version};

/// Takes memory from the kernel in few large pieces and keeps it: the C library's allocator asks for a page at a time, and gives
/// each back.
#[global_allocator]
static MEMORY: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

/// More than any runtime sends, and less than what would hurt the node.
const MAX_CONFIG: u64 = 1 << 20;

fn main() -> ExitCode {
    let name = std::env::args().next().unwrap_or_default();
    let plugin = Plugin::of_program(&name);
    let environment = match Environment::read(|name| std::env::var_os(name)) {
        Ok(Some(environment)) => environment,
        Ok(None) => return about(plugin),
        Err(error) => return report(&error, Version::NEWEST.as_str()),
    };
    if environment.command == Command::Version {
        return print(&cni::version_report());
    }
    let mut config = String::new();
    let answer = read_config(&mut config).and_then(|()| answer(plugin, &environment, &config));
    match answer {
        Ok(result) => print(&result),
        Err(error) => {
            let version = Header::version_of(&config);
            report(
                &error,
                version.as_deref().unwrap_or(Version::NEWEST.as_str()),
            )
        }
    }
}

fn read_config(config: &mut String) -> Result<(), Error> {
    let mut bytes = Vec::new();
    let read = io::stdin().take(MAX_CONFIG + 1).read_to_end(&mut bytes);
    read.map_err(|error| Error::io(format!("reading the network configuration: {error}")))?;
    if bytes.len() as u64 > MAX_CONFIG {
        return Err(Error::decode(format!(
            "the network configuration is longer than {MAX_CONFIG} bytes"
        )));
    }
    *config = String::from_utf8(bytes)
        .map_err(|_| Error::decode("the network configuration is not UTF-8"))?;
    Ok(())
}

/// The agent's answer; empty for commands without a result.
fn answer(plugin: Plugin, environment: &Environment, config: &str) -> Result<String, Error> {
    let header = Header::parse(config)?;
    if plugin == Plugin::HostLocal {
        return host_local::execute(environment, config);
    }
    if matches!(environment.command, Command::Add | Command::Del) {
        netns::refuse_own(&environment.netns)?;
    }
    let ask = |command, answer| {
        let environment = Environment {
            command,
            ..environment.clone()
        };
        agent::ask(plugin, &environment, &header, config, answer)
    };
    let with_addresses = |command| ipam::around(environment, &header, config, command, ask);
    match plugin {
        Plugin::Viaduct => delegates::around(environment, &header, config, with_addresses),
        Plugin::Bridge => with_addresses(environment.command),
        Plugin::HostLocal
        | Plugin::Portmap
        | Plugin::Bandwidth
        | Plugin::Firewall
        | Plugin::Tuning
        | Plugin::Loopback => ask(environment.command, None),
    }
}

/// For people and for Nomad, which runs every plugin without an environment (behaviours S1, C8).
#[expect(
    clippy::print_stderr,
    reason = "the protocol wants this text on standard error"
)]
fn about(plugin: Plugin) -> ExitCode {
    eprintln!("{}", plugin.about(env!("CARGO_PKG_VERSION")));
    ExitCode::SUCCESS
}

/// An error goes where the result would be.
fn report(error: &Error, version: &str) -> ExitCode {
    print(&error.to_json(version));
    ExitCode::FAILURE
}

/// The only writer to standard output. A runtime that has gone away does not read, and needs no word about that.
///
/// In one call, past the buffer of the library, which would send the last line in another: each wakes up the runtime.
fn print(text: &str) -> ExitCode {
    if text.is_empty() {
        return ExitCode::SUCCESS;
    }
    let out = io::stdout().as_fd().try_clone_to_owned();
    match out.and_then(|out| File::from(out).write_all(text.as_bytes())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

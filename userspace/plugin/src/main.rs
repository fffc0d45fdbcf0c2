//! `viaduct`, the CNI plugin that container runtimes execute.
//!
//! One executable is several plugins (`viaduct`, `bridge`, `portmap`, …): the name in `argv[0]`
//! chooses. Under its own name it is netavark's plugin too, if the first argument is one of that
//! interface's commands: CNI passes no arguments.
//!
//! The plugin sends the request to the agent unchanged and prints the response. The exceptions:
//!
//! * VERSION and malformed requests are answered without the agent.
//! * host-local works on lease files, and loopback on the namespace's `lo`, without the agent.
//! * A chained plugin that has nothing to do returns the previous result while the agent is down.
//! * Delegates and foreign IPAM are executed by their own plugins.
//!
//! The plugin parses no more of a configuration than it needs, so that a newer agent can support
//! keys that this plugin does not have. Standard output has only the result or the error (behaviour
//! B0.3).

#![forbid(unsafe_code)]

mod agent;
mod chained;
mod delegates;
mod host_local;
mod ipam;
mod loopback;
mod netavark;
mod netns;

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd as _;
use std::process::ExitCode;

use api::BuildFacts;
use cni::{Command, Environment, Error, Header, Plugin, Version};

/// Allocator that requests memory from the kernel in few large pieces and keeps it. The C library's
/// allocator makes a system call for nearly every page, and returns each page.
#[global_allocator]
static MEMORY: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

/// What identifies this build.
const BUILD: BuildFacts = BuildFacts {
    version: env!("CARGO_PKG_VERSION"),
    commit: option_env!("VIADUCT_COMMIT"),
    abi: abi::ABI_VERSION,
};

/// Bytes of a network configuration that are accepted. No runtime sends as much, and it bounds the
/// memory.
const MAX_CONFIG: u64 = 1 << 20;

fn main() -> ExitCode {
    let mut arguments = arguments();
    let plugin = Plugin::of_program(&arguments.next().unwrap_or_default());
    let call = arguments.next().as_deref().and_then(netavark::Call::parse);
    if let Some(call) = call.filter(|_| plugin == Plugin::Viaduct) {
        let netns = arguments.next().unwrap_or_default();
        return match netavark::execute(call, &netns) {
            Ok(result) => print(&result),
            Err(error) => {
                print(&netavark::error_text(&error));
                ExitCode::FAILURE
            }
        };
    }
    let environment = match Environment::read(|name| std::env::var_os(name)) {
        Ok(Some(environment)) => environment,
        Ok(None) => return print_about(plugin),
        Err(error) => return report(&error, Version::NEWEST.as_str()),
    };
    if environment.command == Command::Version {
        return print(&cni::version_report());
    }
    let mut config = String::new();
    let result = read_input(&mut config).and_then(|()| execute(plugin, &environment, &config));
    match result {
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

/// Returns the arguments of the process, the program's name first. Bytes that are not UTF-8 are
/// replaced: `std::env::args` would panic, without a CNI error.
fn arguments() -> impl Iterator<Item = String> {
    std::env::args_os().map(|argument| argument.to_string_lossy().into_owned())
}

/// Reads standard input.
fn read_input(config: &mut String) -> Result<(), Error> {
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

/// Executes a command and returns the text for standard output; empty for commands without a
/// result.
fn execute(plugin: Plugin, environment: &Environment, config: &str) -> Result<String, Error> {
    let header = Header::parse(config)?;
    if plugin == Plugin::HostLocal {
        return host_local::execute(environment, config);
    }
    if matches!(environment.command, Command::Add | Command::Del) {
        netns::refuse_host(&environment.netns)?;
    }
    if plugin == Plugin::Loopback {
        return loopback::execute(environment, &header, config);
    }
    let in_agent = |command, ipam| {
        let environment = Environment {
            command,
            ..environment.clone()
        };
        agent::execute(plugin, &environment, &header, config, ipam)
    };
    let with_addresses =
        |command| ipam::execute_with_ipam(environment, &header, config, command, in_agent);
    match plugin {
        Plugin::Viaduct => {
            delegates::execute_with_delegates(environment, &header, config, with_addresses)
        }
        Plugin::Bridge => with_addresses(environment.command),
        Plugin::HostLocal
        | Plugin::Portmap
        | Plugin::Bandwidth
        | Plugin::Firewall
        | Plugin::Tuning
        | Plugin::Loopback => {
            let in_agent = || in_agent(environment.command, None);
            chained::execute(plugin, environment, config, in_agent)
        }
    }
}

/// Prints name and versions on standard error: for people, and for Nomad, which executes every
/// plugin without an environment (behaviours S1, C8). `viaduct --version` prints them on standard
/// output, as other programs do.
#[expect(
    clippy::print_stderr,
    reason = "the protocol wants this text on standard error"
)]
fn print_about(plugin: Plugin) -> ExitCode {
    let about = plugin.about(BUILD.version, &BUILD.details());
    let argument = arguments().nth(1);
    if plugin == Plugin::Viaduct && matches!(argument.as_deref(), Some("--version" | "-V")) {
        return print(&format!("{about}\n"));
    }
    eprintln!("{about}");
    ExitCode::SUCCESS
}

/// Prints an error on standard output, in place of the result.
fn report(error: &Error, version: &str) -> ExitCode {
    print(&error.to_json(version));
    ExitCode::FAILURE
}

/// Prints a text on standard output. Fails without a message if the runtime has closed the pipe.
///
/// Writes in one system call and bypasses the line buffer of the standard library, which would
/// write the last line separately: each write wakes up the runtime.
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

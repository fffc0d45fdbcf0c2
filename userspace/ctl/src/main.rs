//! `viaductctl`, the command line of the agent.
//!
//! Queries the agent over its Unix socket and renders the responses. Reads neither the kernel nor
//! files: everything that it shows is in the API, and `--output json` prints it as JSON. The
//! exceptions, besides the files of `viaductctl peers set` and `policies set`:
//!
//! * `viaductctl test` sends packets in network namespaces of its own, and `viaductctl capture`
//!   reads those of a pod in the namespace of the pod.
//! * `viaductctl cni` takes the place of a container runtime and executes plugins itself.
//! * `viaductctl doctor` also reads the kernel, files of the node and the installation, and works
//!   without an agent (decision 145).

#![forbid(unsafe_code)]

mod capture;
mod cni;
mod connectivity;
mod doctor;
mod drops;
mod duration;
mod exit_status;
mod flows;
mod json_file;
mod limit;
mod migrate;
mod output;
#[cfg(feature = "pages")]
mod pages;
mod peers;
mod policies;
mod render;
mod signals;
mod temporary;
mod top;
mod why;

use std::borrow::Cow;
use std::io::{self, BufRead as _, IsTerminal as _, Read as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::LazyLock;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use api::{
    AttachmentView, BuildFacts, Client, ClientError, PortView, Reply, Status, UninstallRequest,
    path,
};
use clap::{Parser, Subcommand};
use model::{printable, printable_lines};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::exit_status::{RequestFailed, advice};
use crate::output::{DataFormat, Output};

/// What identifies this build.
const BUILD: BuildFacts = BuildFacts {
    version: env!("CARGO_PKG_VERSION"),
    commit: option_env!("VIADUCT_COMMIT"),
    abi: abi::ABI_VERSION,
};

/// Text of `--version`.
static VERSION: LazyLock<String> = LazyLock::new(|| BUILD.to_string());

/// Show and control Viaduct's agent on this node
#[derive(Debug, Parser)]
#[command(name = "viaductctl", version = VERSION.as_str(), after_help = exit_status::HELP)]
struct Options {
    /// Unix socket of the agent; without the permission to connect to it, queries use the read-only
    /// socket beside it
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "VIADUCT_SOCKET",
        default_value = api::DEFAULT_SOCKET,
        display_order = 100
    )]
    socket: PathBuf,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Clone, Debug, Subcommand)]
enum Verb {
    /// Show the agent's health, networks, uplinks, last reconciliation and kernel features
    Status {
        #[command(flatten)]
        output: Output,
    },
    /// Diagnose the node, with what to do: agent, node, network, CNI installation and kernel; also
    /// without an agent and before its installation; exit with status 1 if a check fails
    Doctor(doctor::Doctor),
    /// List attachments: pod, interface, network, addresses, published ports, packets, dropped
    /// packets, state
    List {
        #[command(flatten)]
        output: Output,
    },
    /// List flows of pods: NAT flows, and connections between pods and with the node
    Flows(flows::Flows),
    /// Show dropped packets as they occur: time, pod, program, reason, addresses, and what to do
    Drops(drops::Drops),
    /// Explain what happens to a packet and to its answer, decision by decision; exit with status 1
    /// if one of them does not arrive
    Why(why::Why),
    /// Test the node with two throw-away pods: packets between them, to the world and to published
    /// ports, MTU, limits; takes about ten seconds; exit with status 1 if a check fails
    Test(connectivity::Test),
    /// Capture the packets of a pod in both directions, with verdicts and translations, as lines or
    /// as a pcapng file
    Capture(capture::Capture),
    /// Change the bandwidth limits of a running pod, effective immediately
    Limit(limit::Limit),
    /// Set the netfilter bypass for a limited time, for example never, to see all packets on the
    /// bridge
    Bypass(temporary::Bypass),
    /// Set the agent's log level until its next reload or start
    LogLevel(temporary::LogLevel),
    /// Show live send and receive rates of pods, with bars against their bandwidth limits
    Top(top::Top),
    /// Print all attachments of a container, as JSON unless another format is chosen
    Inspect {
        /// Container ID
        id: String,
        /// Path of the container's network namespace, inspected if the container has no attachment
        #[arg(long, value_name = "FILE")]
        netns: Option<String>,
        #[command(flatten)]
        output: Output,
    },
    /// List host ports that are published to pods: pod, age, flows, port reservation
    Ports {
        /// Host port to list [default: all]
        port: Option<u16>,
        #[command(flatten)]
        output: Output,
    },
    /// Move the published ports of running pods from the reference portmap to Viaduct, or back
    Migrate(migrate::Migrate),
    /// List the other nodes of the cluster with the routes to their pods, or replace the list
    Peers(peers::Peers),
    /// List the network policies with the pods to which each applies, or replace them
    Policies(policies::Policies),
    /// Execute the CNI plugins of a network configuration, as a container runtime does
    #[command(subcommand)]
    Cni(Box<cni::Verb>),
    /// Show events: CNI requests, repairs, degradations, agent start and stop
    Events {
        /// Keep printing new events as they occur
        #[arg(short, long)]
        follow: bool,
        /// Only the latest event of each subject (attachment, link, node)
        #[arg(long, conflicts_with = "follow")]
        last: bool,
        #[command(flatten)]
        output: Output,
    },
    /// Remove Viaduct from this node: eBPF programs, maps, bridges, records; restore sysctls and
    /// stop the agent. Without a running agent, use `viaductd --uninstall`
    Uninstall {
        /// Detach all pods first; without this flag, uninstall fails while pods are attached
        #[arg(long)]
        drain: bool,
        /// Also remove what the installation of Viaduct put on the node, as far as it is Viaduct's
        /// alone: network configurations, plugin binaries, unit, Docker's networks
        #[arg(long)]
        purge: bool,
        /// Do not ask for confirmation on a terminal
        #[arg(short, long)]
        yes: bool,
        #[command(flatten)]
        output: Output,
    },
    /// Reload the agent's configuration file; exit with status 1 if it is refused
    Reload,
    /// Show the versions of viaductctl and of the agent
    Version,
}

#[expect(
    clippy::print_stderr,
    reason = "the only place where errors are printed"
)]
fn main() -> ExitCode {
    #[cfg(feature = "pages")]
    if let Some(folder) = pages::folder() {
        return pages::write(&folder);
    }
    let options = Options::parse();
    let read_only = api::read_only_socket(&options.socket);
    let client = Client::new(options.socket).or_read_only(read_only);
    let done = if let Verb::Doctor(doctor) = &options.verb {
        diagnose(doctor, &client)
    } else if let Verb::Why(why) = options.verb {
        why.print(&client)
    } else if let Verb::Test(test) = &options.verb {
        test.print(&client)
    } else {
        run(options.verb, &client)
            .and_then(|text| print(&text))
            .map(|()| ExitCode::SUCCESS)
    };
    match done {
        Ok(code) => code,
        // Not returned from `main`, which would print the debug format and a backtrace.
        Err(error) => {
            eprintln!("viaductctl: {}", printable_lines(&format!("{error:#}")));
            exit_status::of(&error)
        }
    }
}

/// Prints the report to standard output in any case; the exit code says whether the node is well.
fn diagnose(doctor: &doctor::Doctor, client: &Client) -> Result<ExitCode> {
    let report = doctor.run(client, now(), advice);
    print(&match doctor.output.data() {
        Some(format) => format.text(&serde_json::to_value(&report)?)?,
        None => doctor::render(&report, terminal_width()),
    })?;
    Ok(if report.healthy {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Writes `text` to standard output; no other function does. A closed pipe is a success.
fn print(text: &str) -> Result<()> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        // `viaductctl list | head`
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.context("writing to standard output"),
    }
}

/// Returns the columns of the terminal that standard output is; `None` for a file or a pipe.
fn terminal_width() -> Option<u16> {
    let size = io::stdout()
        .is_terminal()
        .then(ratatui::crossterm::terminal::size);
    size?
        .ok()
        .map(|(columns, _)| columns)
        .filter(|columns| *columns > 0)
}

fn run(verb: Verb, client: &Client) -> Result<String> {
    match verb {
        Verb::Status { output } => status(client, output),
        // Has an exit code of its own.
        Verb::Doctor(doctor) => diagnose(&doctor, client).map(|_| String::new()),
        Verb::List { output } => {
            let reply = get(client, path::ATTACHMENTS)?;
            if let Some(format) = output.data() {
                return format.reply(&reply);
            }
            let attachments: Vec<AttachmentView> = decode(&reply)?;
            Ok(render::list(&attachments, output.style()))
        }
        Verb::Flows(flows) => flows.run(client),
        Verb::Drops(drops) => drops.run(client),
        // Has an exit code of its own.
        Verb::Why(why) => Ok(why.run(client)?.0),
        // Has an exit code of its own.
        Verb::Test(test) => test.print(client).map(|_| String::new()),
        Verb::Capture(capture) => capture.run(client),
        Verb::Limit(limit) => limit.run(client),
        Verb::Bypass(bypass) => bypass.run(client),
        Verb::LogLevel(level) => level.run(client),
        Verb::Top(top) => top.run(client),
        Verb::Inspect { id, netns, output } => inspect(client, &id, netns, output),
        Verb::Migrate(migrate) => migrate.run(client),
        Verb::Ports { port, output } => ports(client, port, output),
        Verb::Peers(peers) => peers.run(client),
        Verb::Policies(policies) => policies.run(client),
        Verb::Cni(verb) => cni::run(*verb),
        Verb::Events {
            follow,
            last,
            output,
        } => {
            let path = format!("{}?follow={follow}&last={last}", path::EVENTS);
            events(client, &path, output.data())
        }
        Verb::Uninstall {
            drain,
            purge,
            yes,
            output,
        } => {
            let request = UninstallRequest { drain, purge };
            uninstall(client, request, yes, output.data())
        }
        Verb::Reload => {
            let reply = client.post(path::RELOAD, &()).map_err(advised)?;
            Ok(render::reloaded(&decode(&reply)?))
        }
        Verb::Version => {
            let agent = get(client, path::STATUS)
                .and_then(|reply| Ok(decode::<Status>(&reply)?))
                .map(|status| status.version);
            Ok(render::version(BUILD, agent.as_ref()))
        }
    }
}

fn status(client: &Client, output: Output) -> Result<String> {
    let reply = get(client, path::STATUS)?;
    match output.data() {
        Some(format) => format.reply(&reply),
        None => Ok(render::status(&decode(&reply)?)),
    }
}

fn inspect(client: &Client, id: &str, netns: Option<String>, output: Output) -> Result<String> {
    let query = netns.map_or_else(String::new, |path| format!("?netns={path}"));
    let path = format!("{}/{id}{query}", path::ATTACHMENTS);
    let format = output.data().unwrap_or(DataFormat::Json);
    format.reply(&get(client, &path)?)
}

fn ports(client: &Client, port: Option<u16>, output: Output) -> Result<String> {
    match output.data() {
        Some(_) if port.is_some() => {
            bail!("ports in JSON or YAML are those of all host ports: leave PORT out")
        }
        Some(format) => format.reply(&get(client, path::HOSTPORTS)?),
        None => {
            let ports: Vec<PortView> = decode(&get(client, path::HOSTPORTS)?)?;
            Ok(render::ports(&ports, port, now(), output.style()))
        }
    }
}

/// Prints each event as it arrives. With `follow=true` it returns only when the agent stops, the
/// connection breaks, or standard output is closed.
fn events(client: &Client, path: &str, format: Option<DataFormat>) -> Result<String> {
    let mut outcome = Ok(());
    let mut show = |line: &str| {
        outcome = event(line, format).and_then(|text| print(&text));
        outcome.is_ok()
    };
    let reply = client.follow(path, &mut show).map_err(advised)?;
    if !reply.is_success() {
        return Err(ClientError::Refused(reply.error()).into());
    }
    outcome.map(|()| String::new())
}

fn event(line: &str, format: Option<DataFormat>) -> Result<String> {
    if let Some(format) = format {
        return format.line(line);
    }
    let event = escaped(serde_json::from_str(line)?);
    Ok(render::event(&serde_json::from_value(event)?))
}

fn uninstall(
    client: &Client,
    request: UninstallRequest,
    yes: bool,
    format: Option<DataFormat>,
) -> Result<String> {
    if !yes && io::stdin().is_terminal() && !confirmed(request)? {
        bail!("nothing was uninstalled");
    }
    let reply = client.post(path::UNINSTALL, &request).map_err(advised)?;
    match format {
        Some(format) => format.reply(&reply),
        None => Ok(render::uninstalled(&decode(&reply)?)),
    }
}

/// Asks on the terminal whether to uninstall.
#[expect(clippy::print_stderr, reason = "a question is no part of the answer")]
fn confirmed(request: UninstallRequest) -> Result<bool> {
    let pods = if request.drain {
        " All pods lose their network."
    } else {
        ""
    };
    eprint!("Remove Viaduct from this node?{pods} [y/N] ");
    let mut answer = String::new();
    let read = io::stdin().lock().take(16).read_line(&mut answer);
    read.context("cannot read the answer")?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Returns seconds since 1970 (UTC); 0 if the machine's clock is set to an earlier time.
#[expect(
    clippy::disallowed_methods,
    reason = "ages are relative to the clock of the machine that prints them"
)]
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |duration| duration.as_secs())
}

fn get(client: &Client, path: &str) -> Result<Reply> {
    client.get(path).map_err(advised)
}

fn advised(error: ClientError) -> anyhow::Error {
    RequestFailed(error).into()
}

/// Parses the agent's response for display, with the control characters in its texts escaped: names
/// of pods and processes must not reach a terminal as they are.
fn decode<T: DeserializeOwned>(reply: &Reply) -> Result<T, ClientError> {
    Ok(serde_json::from_value(escaped(reply.decode()?))?)
}

fn escaped(value: Value) -> Value {
    match value {
        Value::String(text) => match printable(&text) {
            Cow::Borrowed(_) => Value::String(text),
            Cow::Owned(escaped) => Value::String(escaped),
        },
        Value::Array(items) => items.into_iter().map(escaped).collect(),
        Value::Object(members) => members
            .into_iter()
            .map(|(key, value)| (printable(&key).into_owned(), escaped(value)))
            .collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) => value,
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Options::command().debug_assert();
    }

    /// behaviour A1
    #[test]
    fn an_unreachable_agent_is_an_error_that_says_how_to_start_it() {
        let client = Client::new("/nonexistent/viaduct.sock");
        let error = run(
            Verb::List {
                output: Output::default(),
            },
            &client,
        )
        .unwrap_err();
        insta::assert_snapshot!(error.to_string(), @r"
        no agent listens on /nonexistent/viaduct.sock: No such file or directory (os error 2)
        Is the agent running? Start it with `systemctl start viaductd`, and see `journalctl -u viaductd` for why it stopped.
        If it listens on another socket, pass --socket.
        ");
    }

    #[test]
    fn control_characters_of_a_response_are_escaped_in_every_text() {
        let hostile = "a\n\u{1b}[2J\u{9b}";
        let value = serde_json::json!({ "a": [{ hostile: hostile, "n": 7 }] });
        let shown = serde_json::to_string(&escaped(value.clone())).unwrap();
        assert_eq!(
            shown.matches(r"a\\n\\u{1b}[2J\\u{9b}").count(),
            2,
            "{shown}"
        );
        let json = serde_json::to_string(&value).unwrap();
        let json = model::printable_json(&json);
        assert!(!json.contains(char::is_control), "{json:?}");
        assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), value);
    }

    #[test]
    fn version_works_without_an_agent() {
        let client = Client::new("/nonexistent/viaduct.sock");
        let text = run(Verb::Version, &client).unwrap();
        assert!(text.starts_with("viaductctl "), "{text}");
        assert!(text.contains("no agent listens"), "{text}");
    }
}

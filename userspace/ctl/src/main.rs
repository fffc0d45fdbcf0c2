//! `viaductctl`, for people: what the agent does, and to whom.
//!
//! Asks the agent and shows its answer. Refuses to look at the kernel or at files by itself: what it shows is what the
//! agent knows, and every machine can have the same by `--json` or from the socket. `viaductctl cni` is another matter: it
//! stands in for a container runtime.

#![forbid(unsafe_code)]

mod cni;
mod limit;
mod render;
mod top;

use std::io::{self, Write};
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use api::{
    AttachmentView, Client, ClientError, FlowQuery, FlowsView, PortView, Reply, Status,
    UninstallRequest, Uninstalled, path,
};
use clap::{Parser, Subcommand};
use serde_json::Value;

/// Shows the state of Viaduct on this node.
#[derive(Debug, Parser)]
#[command(name = "viaductctl", version)]
struct Options {
    /// Where the agent listens
    #[arg(long, global = true, value_name = "FILE", default_value = api::DEFAULT_SOCKET)]
    socket: PathBuf,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Clone, Debug, Subcommand)]
enum Verb {
    /// Show whether all is well: networks, uplinks, the last reconciliation, and everything that is not as it should be
    Status {
        /// The agent's answer as it is
        #[arg(long)]
        json: bool,
    },
    /// Show what is wrong, and what the kernel can and cannot do; fails if anything is wrong
    Doctor,
    /// List the attachments: pods, addresses, ports, packets
    List {
        /// The agent's answer as it is
        #[arg(long)]
        json: bool,
    },
    /// List live flows through the uplinks: whose, between whom, as seen and as translated, how they stand
    Flows(Flows),
    /// Limit the traffic of a pod that runs, in effect at once
    Limit(limit::Limit),
    /// Show what pods send and receive now, against their limits, as live bars
    Top(top::Top),
    /// Show everything known of one container
    Inspect {
        /// Container ID
        id: String,
        /// Where to look when the container is not on record: path of its network namespace
        #[arg(long, value_name = "FILE")]
        netns: Option<String>,
    },
    /// List the ports of the node that lead to pods: whose each is, since when, and what holds it
    Ports {
        /// Only this port
        port: Option<u16>,
        /// The agent's answer as it is
        #[arg(long, conflicts_with = "port")]
        json: bool,
    },
    /// Attach, detach and check namespaces as a runtime does, by the plugins of a network's configuration
    #[command(subcommand)]
    Cni(Box<cni::Verb>),
    /// Show what has happened: requests, repairs, and how each ended
    Events {
        /// And what happens from now on
        #[arg(short, long)]
        follow: bool,
        /// Only the last of each attachment, link or whatever it was about
        #[arg(long, conflicts_with = "follow")]
        last: bool,
        /// The agent's lines as they are
        #[arg(long)]
        json: bool,
    },
    /// Take Viaduct off this node: programs, tables, bridges, records, and sysctls as they were; the agent ends.
    /// Where no agent runs, `viaductd --uninstall` does the same
    Uninstall {
        /// Pods that are attached lose their interfaces; else they are in the way
        #[arg(long)]
        drain: bool,
        /// The agent's answer as it is
        #[arg(long)]
        json: bool,
    },
    /// Show the versions of this program and of the agent
    Version,
}

/// Which flows.
#[derive(Clone, Debug, clap::Args)]
struct Flows {
    /// Only of this pod: its name, namespace/name, or the start of its container ID
    #[arg(long, value_name = "POD")]
    pod: Option<String>,
    /// Only with this address on the other side
    #[arg(long, value_name = "ADDRESS")]
    peer: Option<IpAddr>,
    /// Only with this port on either side, before or after translation
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// At most so many
    #[arg(long, value_name = "COUNT", default_value_t = api::DEFAULT_FLOW_LIMIT)]
    limit: usize,
    /// How full the flow table is instead, and by whom
    #[arg(long)]
    usage: bool,
    /// The agent's answer as it is
    #[arg(long, conflicts_with = "usage")]
    json: bool,
}

impl Flows {
    fn path(&self) -> String {
        let query = FlowQuery {
            pod: self.pod.clone(),
            peer: self.peer,
            port: self.port,
            limit: Some(self.limit),
        };
        query.to_path()
    }
}

#[expect(clippy::print_stderr, reason = "the one place where errors are told")]
fn main() -> ExitCode {
    let options = Options::parse();
    let text = run(options.verb, &Client::new(options.socket));
    match text.and_then(|text| print(&text)) {
        Ok(()) => ExitCode::SUCCESS,
        // Not by returning the error from `main`: a person has no use for a backtrace.
        Err(error) => {
            eprintln!("viaductctl: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The only writer to standard output.
fn print(text: &str) -> Result<()> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        // `viaductctl list | head`
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.context("writing to standard output"),
    }
}

fn run(verb: Verb, client: &Client) -> Result<String> {
    match verb {
        Verb::Status { json: true } => raw(&get(client, path::STATUS)?),
        Verb::Status { json: false } => {
            let status: Status = get(client, path::STATUS)?.decode()?;
            Ok(render::status(&status))
        }
        Verb::Doctor => {
            let status: Status = get(client, path::STATUS)?.decode()?;
            let text = render::doctor(&status);
            if status.degraded.is_empty() {
                return Ok(text);
            }
            Err(anyhow::anyhow!("the node is not well\n{text}"))
        }
        Verb::List { json: true } => raw(&get(client, path::ATTACHMENTS)?),
        Verb::List { json: false } => {
            let attachments: Vec<AttachmentView> = get(client, path::ATTACHMENTS)?.decode()?;
            Ok(render::list(&attachments))
        }
        Verb::Flows(flows) if flows.json => raw(&get(client, &flows.path())?),
        Verb::Flows(flows) => {
            let view: FlowsView = get(client, &flows.path())?.decode()?;
            Ok(if flows.usage {
                render::room(&view.room)
            } else {
                render::flows(&view)
            })
        }
        Verb::Limit(limit) => limit.run(client),
        Verb::Top(top) => top.run(client),
        Verb::Inspect { id, netns } => {
            let query = netns.map_or_else(String::new, |path| format!("?netns={path}"));
            raw(&get(client, &format!("{}/{id}{query}", path::ATTACHMENTS))?)
        }
        Verb::Ports { json: true, .. } => raw(&get(client, path::HOSTPORTS)?),
        Verb::Ports { port, json: false } => {
            let ports: Vec<PortView> = get(client, path::HOSTPORTS)?.decode()?;
            Ok(render::ports(&ports, port, now()))
        }
        Verb::Cni(verb) => cni::run(*verb),
        Verb::Events { follow, last, json } => {
            let path = format!("{}?follow={follow}&last={last}", path::EVENTS);
            events(client, &path, json)
        }
        Verb::Uninstall { drain, json } => uninstall(client, drain, json),
        Verb::Version => {
            let agent = get(client, path::STATUS)
                .and_then(|reply| Ok(reply.decode::<Status>()?))
                .map(|status| status.version);
            Ok(render::version(env!("CARGO_PKG_VERSION"), agent.as_ref()))
        }
    }
}

/// Prints each line as it comes; there may be no last one.
fn events(client: &Client, path: &str, json: bool) -> Result<String> {
    let mut outcome = Ok(());
    let mut show = |line: &str| {
        outcome = event(line, json).and_then(|text| print(&text));
        outcome.is_ok()
    };
    let reply = client.follow(path, &mut show).map_err(advised)?;
    if !reply.is_success() {
        return Err(ClientError::Refused(reply.error()).into());
    }
    outcome.map(|()| String::new())
}

fn event(line: &str, json: bool) -> Result<String> {
    if json {
        return Ok(format!("{line}\n"));
    }
    Ok(render::event(&serde_json::from_str(line)?, now()))
}

fn uninstall(client: &Client, drain: bool, json: bool) -> Result<String> {
    let reply = client
        .post(path::UNINSTALL, &UninstallRequest { drain })
        .map_err(advised)?;
    let done: Uninstalled = reply.decode()?;
    if json {
        raw(&reply)
    } else {
        Ok(render::uninstalled(&done))
    }
}

/// Seconds since 1970 (UTC); 0 on a machine whose clock says that it is earlier.
#[expect(
    clippy::disallowed_methods,
    reason = "ages are shown by the reader's clock"
)]
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |duration| duration.as_secs())
}

fn get(client: &Client, path: &str) -> Result<Reply> {
    client.get(path).map_err(advised)
}

fn advised(error: ClientError) -> anyhow::Error {
    let advice = advice(&error);
    let error = anyhow::Error::new(error);
    match advice {
        Some(advice) => anyhow::anyhow!("{error:#}\n{advice}"),
        None => error,
    }
}

/// What a person can do about an agent that does not answer.
fn advice(error: &ClientError) -> Option<&'static str> {
    match error {
        ClientError::Unreachable { source, .. }
            if source.kind() == io::ErrorKind::PermissionDenied =>
        {
            Some("Run this as root.")
        }
        ClientError::Unreachable { .. } => Some(
            "Is the agent running? Start it with `systemctl start viaductd`, and see `journalctl -u viaductd` for why \
             it stopped.\nIf it listens elsewhere, say so with --socket.",
        ),
        ClientError::Timeout { .. } => {
            Some("It is stuck or very busy: `journalctl -u viaductd` tells what it waits for.")
        }
        ClientError::Broken { .. }
        | ClientError::Response { .. }
        | ClientError::Body(_)
        | ClientError::Refused(_) => None,
    }
}

/// The answer as the agent gave it, indented; fields that this program does not know stay in.
fn raw(reply: &Reply) -> Result<String> {
    let value: Value = reply.decode()?;
    Ok(serde_json::to_string_pretty(&value)? + "\n")
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
    fn an_agent_that_is_down_is_said_with_what_to_do() {
        let client = Client::new("/nonexistent/viaduct.sock");
        let error = run(Verb::List { json: false }, &client).unwrap_err();
        insta::assert_snapshot!(error.to_string(), @r"
        no agent listens on /nonexistent/viaduct.sock: No such file or directory (os error 2)
        Is the agent running? Start it with `systemctl start viaductd`, and see `journalctl -u viaductd` for why it stopped.
        If it listens elsewhere, say so with --socket.
        ");
    }

    #[test]
    fn the_version_of_this_program_needs_no_agent() {
        let client = Client::new("/nonexistent/viaduct.sock");
        let text = run(Verb::Version, &client).unwrap();
        assert!(text.starts_with("viaductctl "), "{text}");
        assert!(text.contains("no agent listens"), "{text}");
    }
}

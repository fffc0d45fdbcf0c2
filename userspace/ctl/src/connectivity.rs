//! `viaductctl test`: attaches two throw-away pods to the node's default network, requires that
//! packets between them, the node, published ports and the world are answered, and detaches them.
//!
//! Leaves nothing: the namespaces have no name and end with the process, and the pods are detached
//! also after an error or a signal. The agent releases the records of a killed test.

mod finding;
mod plan;
mod pods;
mod probe;
mod reason;
mod report;
mod server;

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use ::kernel::{NodeReader, Observe as _};
use anyhow::{Context as _, Result};
use api::{BandwidthSetting, Client, Status, path};
use steps::NodeQuery;

use finding::{Finding, Outcome, judge, judge_rate};
use plan::{Cell, Facts, Origin, PORT, World, of_family};
use pods::Pods;
use report::{Check, Report, family};

use crate::output::Output;
use crate::{decode, get, print, signals, terminal_width};

/// Rate of the limits that are set, in bit/s.
const RATE: u64 = 20_000_000;
/// The main routing table (`RT_TABLE_MAIN`).
const MAIN_TABLE: u32 = 254;
/// Files that name DNS servers; the second one is that of systemd-resolved.
const RESOLVERS: [&str; 2] = ["/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"];

/// Options of `viaductctl test`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Test {
    /// Host beyond the node that a pod must reach: by TCP with a port, else by ICMP echo;
    /// repeatable [default: the node's default gateways]
    #[arg(long, value_name = "ADDRESS[:PORT]", value_parser = world)]
    world: Vec<(IpAddr, Option<u16>)>,
    /// Name that a pod must resolve [default: none]
    #[arg(long, value_name = "NAME")]
    dns: Option<String>,
    /// DNS server for --dns [default: the first one in the node's resolv.conf that is no loopback
    /// address]
    #[arg(long, value_name = "ADDRESS", requires = "dns")]
    dns_server: Option<IpAddr>,
    /// Leave out the bandwidth limits, which take three seconds
    #[arg(long)]
    no_limits: bool,
    #[command(flatten)]
    output: Output,
}

/// Parses `ADDRESS`, `ADDRESS:PORT` or `[ADDRESS]:PORT`.
fn world(text: &str) -> Result<(IpAddr, Option<u16>), String> {
    if let Ok(socket) = text.parse::<SocketAddr>() {
        return Ok((socket.ip(), Some(socket.port())));
    }
    let address = text.trim_start_matches('[').trim_end_matches(']').parse();
    address
        .map(|address| (address, None))
        .map_err(|_| "must be ADDRESS or ADDRESS:PORT, IPv6 with a port in brackets".to_owned())
}

impl Test {
    /// Runs the test and prints its report; the exit code says whether all checks passed.
    pub(crate) fn print(&self, client: &Client) -> Result<ExitCode> {
        let report = self.run(client)?;
        print(&match self.output.data() {
            Some(format) => format.text(&serde_json::to_value(&report)?)?,
            None => report::render(&report, terminal_width()),
        })?;
        Ok(if report.passed && report.left.is_empty() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }

    fn run(&self, client: &Client) -> Result<Report> {
        // Before the first change: from here on, a signal ends the test in order.
        let stop = signals::stop_flag()?;
        let mut pods = Pods::attach(client)?;
        let facts = self.facts(client, &pods)?;
        let ids = facts.pods.each_ref().map(|pod| pod.id.as_str());
        let before = reason::drops(client, &facts);
        let cells = plan::cells(&facts);
        let mut checks = check(client, &pods, (&facts, &cells), &stop);
        let drops = reason::dropped_between(&before, &reason::drops(client, &facts));
        if !self.no_limits {
            checks.extend(limits(client, &pods, &facts, &stop));
        }
        let mut report = Report::new(checks, ids, drops);
        report.interrupted = stop.load(Ordering::Relaxed);
        report.passed &= !report.interrupted;
        report.left = pods.detach();
        Ok(report)
    }

    fn facts(&self, client: &Client, pods: &Pods<'_>) -> Result<Facts> {
        let status: Status = decode(&get(client, path::STATUS)?)?;
        let uplinks = status.uplinks.iter().flat_map(|uplink| &uplink.addresses);
        let node = uplinks.filter_map(|it| {
            let text = &it.address;
            text.split_once('/')
                .map_or(text.as_str(), |(it, _)| it)
                .parse()
                .ok()
        });
        let world = if self.world.is_empty() {
            default_gateways()?
        } else {
            let named = self.world.iter().map(|(address, port)| World {
                address: *address,
                port: *port,
                is_gateway: false,
            });
            named.collect()
        };
        Ok(Facts {
            pods: pods.facts(),
            node: node.collect(),
            world,
            host_port: pods.host_port,
            dns: self.dns()?,
        })
    }

    fn dns(&self) -> Result<Option<(String, IpAddr)>> {
        let Some(name) = &self.dns else {
            return Ok(None);
        };
        let files = || {
            RESOLVERS
                .into_iter()
                .filter_map(|path| fs::read_to_string(path).ok())
        };
        let server = self
            .dns_server
            .or_else(|| files().find_map(|text| dns_server(&text)))
            .context("no DNS server is known: name one with --dns-server")?;
        Ok(Some((name.clone(), server)))
    }
}

/// Runs the probes of all cells at the same time, then explains those that failed.
fn check(
    client: &Client,
    pods: &Pods<'_>,
    (facts, cells): (&Facts, &[Cell]),
    stop: &AtomicBool,
) -> Vec<Check> {
    let findings: Vec<Finding> = thread::scope(|scope| {
        let threads: Vec<_> = cells
            .iter()
            .map(|cell| {
                let place = match cell.from {
                    Origin::FirstPod => pods.namespace(0),
                    Origin::SecondPod => pods.namespace(1),
                    Origin::Node => None,
                };
                scope.spawn(move || probe::run(cell, place, stop))
            })
            .collect();
        let panicked = |_| Finding::Refused("the probe has panicked".to_owned());
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(panicked))
            .collect()
    });
    let checks = cells.iter().zip(&findings).map(|(cell, finding)| {
        let check = Check::of(cell, judge(cell, finding));
        if check.outcome == Outcome::Fail && !stop.load(Ordering::Relaxed) {
            check.because(reason::explain(client, facts, cell))
        } else {
            check
        }
    });
    checks.chain(without_world(facts)).collect()
}

/// Returns a skipped check for each family of the pods without a host in the world.
fn without_world(facts: &Facts) -> impl Iterator<Item = Check> {
    [true, false].into_iter().filter_map(|is_v4| {
        let mut world = facts.world.iter();
        let is_covered = world.any(|host| host.address.is_ipv4() == is_v4);
        (plan::has_family(facts, is_v4) && !is_covered).then(|| Check {
            name: "world".to_owned(),
            family: family(is_v4),
            protocol: "icmp",
            destination: String::new(),
            outcome: Outcome::Skip,
            message: "no default gateway with a global address: name a host with --world"
                .to_owned(),
            reason: String::new(),
            advice: String::new(),
        })
    })
}

/// Sets a limit for each direction of the second pod, and measures it.
fn limits(client: &Client, pods: &Pods<'_>, facts: &Facts, stop: &AtomicBool) -> Vec<Check> {
    let Some(is_v4) = [true, false]
        .into_iter()
        .find(|it| plan::has_family(facts, *it))
    else {
        return Vec::new();
    };
    // The client of the stream is the pod that receives it.
    let directions = [("to", 1, 0), ("from", 0, 1)];
    directions
        .into_iter()
        .map(|(word, receiver, sender)| {
            let address = of_family(&facts.pods[sender].addresses, is_v4);
            let found = address
                .context("the pod has no address")
                .and_then(|address| {
                    set_limit(client, &facts.pods[1].id, word == "to")?;
                    let to = SocketAddr::new(address, PORT);
                    Ok(server::rate(to, pods.namespace(receiver), stop)?)
                });
            let (outcome, message) = match found {
                Ok(Some(rate)) => judge_rate(RATE, rate),
                Ok(None) => (Outcome::Skip, "interrupted".to_owned()),
                Err(error) => (Outcome::Fail, format!("{error:#}")),
            };
            Check {
                name: format!("limit of {} Mbit/s {word} a pod", RATE / 1_000_000),
                family: family(is_v4),
                protocol: "tcp",
                destination: address.map(|it| it.to_string()).unwrap_or_default(),
                outcome,
                message,
                reason: String::new(),
                advice: String::new(),
            }
        })
        .collect()
}

/// Limits one direction of a pod, and no longer the other.
fn set_limit(client: &Client, id: &str, is_ingress: bool) -> Result<()> {
    let [ingress, egress] = [is_ingress, !is_ingress].map(|is_limited| {
        Some(if is_limited {
            RATE.to_string()
        } else {
            "none".to_owned()
        })
    });
    let path = path::BANDWIDTH
        .replace("{id}", id)
        .replace("{ifname}", pods::IFNAME);
    let reply = client.put(&path, &BandwidthSetting { ingress, egress });
    let _set: BandwidthSetting = decode(&reply.map_err(crate::advised)?)?;
    Ok(())
}

/// Returns the default gateways of the main routing table, one of each family. A link-local one
/// cannot be reached from a pod.
fn default_gateways() -> Result<Vec<World>> {
    let mut reader = NodeReader::open().context("cannot read the node's routes")?;
    let observed = reader
        .observe(&NodeQuery::default())
        .context("cannot read the node's routes")?;
    let gateways: Vec<IpAddr> = observed
        .routes
        .iter()
        .filter(|route| route.table == MAIN_TABLE && route.destination.prefix_len() == 0)
        .filter_map(|route| route.gateway)
        .filter(|gateway| !matches!(gateway, IpAddr::V6(v6) if v6.is_unicast_link_local()))
        .collect();
    let of = |is_v4| of_family(&gateways, is_v4);
    let found = [true, false].into_iter().filter_map(of);
    Ok(found
        .map(|address| World {
            address,
            port: None,
            is_gateway: true,
        })
        .collect())
}

/// Returns the first DNS server of a `resolv.conf` that pods can reach.
fn dns_server(text: &str) -> Option<IpAddr> {
    text.lines()
        .filter_map(|line| line.trim().strip_prefix("nameserver"))
        .filter_map(|rest| rest.trim().parse::<IpAddr>().ok())
        .find(|address| !address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_of_the_world_is_an_address_with_or_without_a_port() {
        let parsed = |text: &str| world(text).map(|(address, port)| (address.to_string(), port));
        for (text, address, port) in [
            ("192.0.2.7", "192.0.2.7", None),
            ("192.0.2.7:443", "192.0.2.7", Some(443)),
            ("2001:db8::7", "2001:db8::7", None),
            ("[2001:db8::7]", "2001:db8::7", None),
            ("[2001:db8::7]:443", "2001:db8::7", Some(443)),
        ] {
            assert_eq!(parsed(text), Ok((address.to_owned(), port)), "{text}");
        }
        for text in ["example.org", "192.0.2.7:x", "", "192.0.2.7:70000"] {
            assert!(world(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_dns_server_is_the_first_one_that_is_no_loopback_address() {
        let text = "search a\nnameserver 127.0.0.53\nnameserver\t10.0.0.53\nnameserver 10.0.0.54\n";
        assert_eq!(dns_server(text), Some("10.0.0.53".parse().unwrap()));
        assert_eq!(
            dns_server("nameserver 127.0.0.53\n#nameserver 10.0.0.1"),
            None
        );
        assert_eq!(
            dns_server("nameserver fd00::53"),
            Some("fd00::53".parse().unwrap())
        );
    }
}

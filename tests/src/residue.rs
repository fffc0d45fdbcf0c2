//! Snapshots of all kernel objects and files that the agent or the plugin could leave behind, and
//! the difference between two of them.
//!
//! A snapshot excludes volatile values: interface indexes, carrier, counters, link-local IPv6,
//! flows.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use crate::{Machine, agent, until};

/// A snapshot: items by kind, one line each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Residue {
    /// The items of each kind.
    pub kinds: BTreeMap<String, BTreeSet<String>>,
}

/// Maps of the datapath whose entries are created and removed with attachments.
const TABLES: [&str; 6] = [
    "INTERFACES",
    "ENDPOINTS",
    "HOSTPORTS",
    "UPLINKS",
    "LOCALS",
    "PREFIXES",
];

/// Lists of the agent's API, below `/v1`.
const LISTS: [&str; 3] = ["attachments", "leases", "hostports"];

/// A `tc` command between two lists of filters. Its output is one line that starts with `qdisc`, as
/// no filter does.
const SEPARATOR: &str = "qdisc show dev lo";

/// Creates the clsact qdisc that an agent leaves on an uplink where the kernel has no TCX (decision
/// 66), so that snapshots before and after include it.
pub fn make_qdisc(node: &Machine, uplink: &str) -> Result<()> {
    let made = node.call(&format!("tc qdisc add dev {uplink} clsact"));
    made.map(drop)
}

impl Residue {
    /// Takes a snapshot of `node`, of its agent's API if it runs, and of the interfaces of `pods`.
    pub fn of(node: &Machine, pods: &[&Machine]) -> Result<Self> {
        let mut residue = Self::default();
        residue.kernel(node, "")?;
        residue.packet_filters(node)?;
        residue.listeners(node)?;
        residue.pins(node)?;
        residue.tables(node)?;
        for list in LISTS {
            if let Ok(value) = agent::get(node, &format!("/v1/{list}")) {
                residue.put(list, items(value));
            }
        }
        for pod in pods {
            residue.kernel(pod, &format!("{}: ", pod.name()))?;
        }
        Ok(residue)
    }

    /// Returns the number of items of a kind.
    pub fn count(&self, kind: &str) -> usize {
        self.kinds.get(kind).map_or(0, BTreeSet::len)
    }

    /// Returns the number of items of all kinds whose names start with `start`.
    pub fn count_all(&self, start: &str) -> usize {
        self.kinds
            .iter()
            .filter(|(kind, _)| kind.starts_with(start))
            .map(|(_, items)| items.len())
            .sum()
    }

    /// Returns the items that are only in `later` (`+`) or only in `self` (`-`), one per line.
    pub fn difference(&self, later: &Self) -> String {
        let mut text = String::new();
        let none = BTreeSet::new();
        let kinds: BTreeSet<_> = self.kinds.keys().chain(later.kinds.keys()).collect();
        for kind in kinds {
            let before = self.kinds.get(kind).unwrap_or(&none);
            let after = later.kinds.get(kind).unwrap_or(&none);
            for line in after.difference(before) {
                let _ = writeln!(text, "+ {kind}: {line}");
            }
            for line in before.difference(after) {
                let _ = writeln!(text, "- {kind}: {line}");
            }
        }
        text
    }

    fn put(&mut self, kind: &str, lines: impl IntoIterator<Item = String>) {
        self.kinds.entry(kind.to_owned()).or_default().extend(lines);
    }

    fn put_lines(&mut self, kind: &str, text: &str) {
        let lines = text.lines().map(str::trim_end).filter(|l| !l.is_empty());
        self.put(kind, lines.map(str::to_owned));
    }

    fn kernel(&mut self, machine: &Machine, prefix: &str) -> Result<()> {
        let links = machine.call_json("ip -j -d link show")?;
        self.put(&format!("{prefix}links"), elements(&links).map(link));
        let dressed = machine.call_json("ip -j address show")?;
        let addresses = elements(&dressed).flat_map(lasting_addresses);
        self.put(&format!("{prefix}addresses"), addresses);
        for family in ["-4", "-6"] {
            let shown = machine.call(&format!("ip {family} route show table all"))?;
            let routes = shown.lines().filter(|line| lasts(line)).map(without_state);
            self.put(&format!("{prefix}routes {family}"), routes);
            let rules = machine.call(&format!("ip {family} rule show"))?;
            self.put_lines(&format!("{prefix}rules {family}"), &rules);
        }
        self.put_lines(&format!("{prefix}qdiscs"), &machine.call("tc qdisc show")?);
        self.filters(machine, &links, prefix)
    }

    fn filters(&mut self, machine: &Machine, links: &Value, prefix: &str) -> Result<()> {
        let places: Vec<String> = elements(links)
            .map(|link| text(&link["ifname"]))
            .flat_map(|name| ["ingress", "egress", "root"].map(|side| format!("{name} {side}")))
            .collect();
        let commands = places
            .iter()
            .flat_map(|place| [format!("filter show dev {place}"), SEPARATOR.to_owned()]);
        let shown = run_batch(machine, "tc -batch -", commands)?;
        let mut places = places.iter();
        let mut place = places.next();
        for line in shown.lines().filter(|line| !line.trim().is_empty()) {
            match place {
                _ if line.starts_with("qdisc") => place = places.next(),
                Some(place) => {
                    self.put(&format!("{prefix}filters of {place}"), [unnumbered(line)]);
                }
                None => bail!("tc printed an unexpected line: {line}"),
            }
        }
        ensure!(place.is_none(), "tc printed nothing about {place:?}");
        Ok(())
    }

    fn packet_filters(&mut self, machine: &Machine) -> Result<()> {
        self.put_lines("nft", &machine.call("nft list ruleset")?);
        for tool in ["iptables-save", "ip6tables-save"] {
            let rules = machine.call(tool)?;
            let lines = rules.lines().filter(|line| !line.starts_with('#'));
            self.put(tool, lines.map(str::to_owned));
        }
        Ok(())
    }

    fn listeners(&mut self, machine: &Machine) -> Result<()> {
        let sockets = machine.call("ss -H -l -n -t -u")?;
        let lines = sockets.lines().filter_map(|line| {
            let fields = line.split_whitespace().collect::<Vec<_>>();
            Some(format!("{} {}", fields.first()?, fields.get(4)?))
        });
        self.put("listeners", lines);
        Ok(())
    }

    fn pins(&mut self, machine: &Machine) -> Result<()> {
        let found = machine.call("find /sys/fs/bpf -mindepth 1")?;
        // The cgroup programs are attached with the first hostport or limit, and stay. If they stay
        // for too long, their directory shows it.
        let lasting = found.lines().filter(|pin| !pin.contains("/cgroup-"));
        self.put("pins", lasting.map(str::to_owned));
        Ok(())
    }

    fn tables(&mut self, machine: &Machine) -> Result<()> {
        let pins = &self.kinds["pins"];
        let (tables, pins): (Vec<_>, Vec<_>) = TABLES
            .into_iter()
            .filter_map(|table| {
                let pin = pins
                    .iter()
                    .find(|pin| pin.ends_with(&format!("/{table}")))?;
                Some((table, pin.clone()))
            })
            .unzip();
        let commands = pins.iter().map(|pin| format!("map dump pinned {pin}"));
        let dumps = run_batch(machine, "bpftool -j batch file -", commands)?;
        let dumps: Vec<Value> = serde_json::from_str(&dumps).context("output of bpftool")?;
        ensure!(dumps.len() == tables.len(), "{dumps:?}");
        for (table, dump) in tables.into_iter().zip(&dumps) {
            let keys = elements(&dump["output"]).map(|entry| bytes(&entry["key"]));
            self.put(&format!("table {table}"), keys);
        }
        Ok(())
    }
}

/// Runs a tool with one command per line of its input, because starting the tool takes longer than
/// all commands. Returns its output.
fn run_batch(
    machine: &Machine,
    tool: &str,
    commands: impl Iterator<Item = String>,
) -> Result<String> {
    let commands = commands.collect::<Vec<_>>().join("\n");
    let script = format!("printf '%s\\n' \"$0\" | {tool}");
    machine.call_words(&["sh", "-c", &script, &commands])
}

/// Returns an error that lists the difference, if `before` and `after` differ.
pub fn assert_no_residue(before: &Residue, after: &Residue) -> Result<()> {
    let difference = before.difference(after);
    if !difference.is_empty() {
        bail!("the node has changed:\n{difference}");
    }
    Ok(())
}

/// Waits until `node` is in the state of `before`: the agent removes objects some time after it
/// gets the kernel's notification.
pub fn await_no_residue(before: &Residue, node: &Machine) -> Result<()> {
    let mut difference = String::new();
    let gone = until("the node is in its earlier state", || {
        difference = before.difference(&Residue::of(node, &[])?);
        Ok(difference.is_empty().then_some(()))
    });
    gone.with_context(|| format!("the node has changed:\n{difference}"))
}

/// Returns the items of a list of the API, without the fields that change with traffic.
fn items(list: Value) -> Vec<String> {
    let Value::Array(list) = list else {
        return vec![list.to_string()];
    };
    list.into_iter()
        .map(|mut item| {
            if let Some(fields) = item.as_object_mut() {
                fields.remove("counters");
                fields.remove("flows");
            }
            for direction in ["ingress", "egress"] {
                let limit = item.pointer_mut(&format!("/bandwidth/{direction}"));
                if let Some(limit) = limit.and_then(Value::as_object_mut) {
                    limit.retain(|key, _| key == "rate" || key == "burst");
                }
            }
            item.to_string()
        })
        .collect()
}

/// Formats a link: name, kind, master, MTU, MAC address, alias and lasting flags.
fn link(link: &Value) -> String {
    let kind = text(&link["linkinfo"]["info_kind"]);
    let master = text(&link["master"]);
    let alias = text(&link["ifalias"]);
    let name = text(&link["ifname"]);
    let flags = elements(&link["flags"])
        .map(text)
        .filter(|flag| ["UP", "PROMISC", "ALLMULTI", "NOARP"].contains(&flag.as_str()))
        .collect::<Vec<_>>();
    format!(
        "{name} kind={kind} master={master} mtu={} mac={} alias={alias:?} {}",
        link["mtu"],
        text(&link["address"]),
        flags.join(",")
    )
}

fn lasting_addresses(link: &Value) -> Vec<String> {
    let name = text(&link["ifname"]);
    elements(&link["addr_info"])
        .filter(|info| info["scope"] != "link")
        .map(|info| format!("{name} {}/{}", text(&info["local"]), info["prefixlen"]))
        .collect()
}

fn without_state(route: &str) -> String {
    let route = route.replace(" linkdown", "").replace(" dead", "");
    route.trim().to_owned()
}

/// Returns whether a route is independent of the carrier, unlike the kernel's routes for link-local
/// addresses and multicast.
fn lasts(route: &str) -> bool {
    !["fe80:", "ff00:", "multicast", "anycast"]
        .iter()
        .any(|mark| route.contains(mark))
}

/// Removes the IDs of programs and links from a filter's line: the kernel assigns new ones each
/// time.
fn unnumbered(filter: &str) -> String {
    let mut words = filter.split_whitespace();
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        if matches!(word, "id" | "tag" | "ifindex") {
            words.next();
        } else {
            kept.push(word);
        }
    }
    kept.join(" ")
}

fn bytes(key: &Value) -> String {
    let mut bytes = elements(key).map(|byte| text(byte).trim_start_matches("0x").to_owned());
    let joined = bytes.by_ref().collect::<Vec<_>>().concat();
    if joined.is_empty() {
        key.to_string()
    } else {
        joined
    }
}

fn elements(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

//! What is there: a snapshot of everything that the agent or the plugin could leave behind, and the difference
//! between two of them.
//!
//! Only what lasts is taken: no interface indexes, no carrier, no counters, no link-local IPv6, no flows.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use crate::{Machine, agent, until};

/// What is there, by kind; each item is one line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Residue {
    /// The items of each kind.
    pub kinds: BTreeMap<String, BTreeSet<String>>,
}

/// Tables of the datapath whose entries come and go with attachments.
const TABLES: [&str; 6] = [
    "INTERFACES",
    "ENDPOINTS",
    "HOSTPORTS",
    "UPLINKS",
    "LOCALS",
    "PREFIXES",
];

/// Lists of the agent's API.
const LISTS: [&str; 3] = ["attachments", "leases", "hostports"];

/// Asked between two lists of filters: one line, which none of them has.
const SEPARATOR: &str = "qdisc show dev lo";

/// Makes what an agent leaves on an uplink where there is no TCX (decision 0066), before anybody looks.
pub fn make_qdisc(node: &Machine, uplink: &str) -> Result<()> {
    let made = node.call(&format!("tc qdisc add dev {uplink} clsact"));
    made.map(drop)
}

impl Residue {
    /// Everything on `node`, with what its agent says of itself if it runs, and the interfaces of `pods`.
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

    /// The number of items of a kind.
    pub fn count(&self, kind: &str) -> usize {
        self.kinds.get(kind).map_or(0, BTreeSet::len)
    }

    /// The number of items of all kinds that start so.
    pub fn count_all(&self, start: &str) -> usize {
        self.kinds
            .iter()
            .filter(|(kind, _)| kind.starts_with(start))
            .map(|(_, items)| items.len())
            .sum()
    }

    /// What is in `later` and not here (`+`), and the other way round (`-`); empty when nothing has changed.
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
        let questions = places
            .iter()
            .flat_map(|place| [format!("filter show dev {place}"), SEPARATOR.to_owned()]);
        let shown = ask(machine, "tc -batch -", questions)?;
        let mut places = places.iter();
        let mut place = places.next();
        for line in shown.lines().filter(|line| !line.trim().is_empty()) {
            match place {
                _ if line.starts_with("qdisc") => place = places.next(),
                Some(place) => {
                    self.put(&format!("{prefix}filters of {place}"), [unnumbered(line)]);
                }
                None => bail!("nobody has asked for {line}"),
            }
        }
        ensure!(place.is_none(), "nothing of {place:?}");
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
        // What sockets are asked by comes with the first port or limit, and stays. Their directory tells if it stays for
        // too long.
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
        let questions = pins.iter().map(|pin| format!("map dump pinned {pin}"));
        let dumps = ask(machine, "bpftool -j batch file -", questions)?;
        let dumps: Vec<Value> = serde_json::from_str(&dumps).context("what bpftool says")?;
        ensure!(dumps.len() == tables.len(), "{dumps:?}");
        for (table, dump) in tables.into_iter().zip(&dumps) {
            let keys = elements(&dump["output"]).map(|entry| bytes(&entry["key"]));
            self.put(&format!("table {table}"), keys);
        }
        Ok(())
    }
}

/// What a tool answers that reads many questions, one in each line: starting it takes longer than all of them.
fn ask(machine: &Machine, tool: &str, questions: impl Iterator<Item = String>) -> Result<String> {
    let questions = questions.collect::<Vec<_>>().join("\n");
    let script = format!("printf '%s\\n' \"$0\" | {tool}");
    machine.call_words(&["sh", "-c", &script, &questions])
}

/// Succeeds if nothing has changed from `before` to `after`, and else lists what has.
pub fn assert_no_residue(before: &Residue, after: &Residue) -> Result<()> {
    let difference = before.difference(after);
    if !difference.is_empty() {
        bail!("this has changed:\n{difference}");
    }
    Ok(())
}

/// Waits until nothing is left on `node` that was not there `before`: an agent learns from the kernel what others have
/// taken away.
pub fn await_no_residue(before: &Residue, node: &Machine) -> Result<()> {
    let mut difference = String::new();
    let gone = until("nothing is left", || {
        difference = before.difference(&Residue::of(node, &[])?);
        Ok(difference.is_empty().then_some(()))
    });
    gone.with_context(|| format!("this has changed:\n{difference}"))
}

/// The items of one of the API's lists, without what traffic changes.
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

/// Routes that the kernel makes for link-local addresses and multicast come and go with the carrier.
fn lasts(route: &str) -> bool {
    !["fe80:", "ff00:", "multicast", "anycast"]
        .iter()
        .any(|mark| route.contains(mark))
}

/// A filter without the numbers that the kernel gives programs and links anew each time.
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

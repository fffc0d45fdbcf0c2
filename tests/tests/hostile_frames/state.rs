//! What a receiver's kernel believes: neighbours, routes, addresses, exceptions, and the forwarding
//! database of its bridges.

use std::collections::BTreeSet;
use std::net::IpAddr;

use anyhow::Result;
use e2e::Machine;

use super::net::Net;

/// The tools whose output is compared, one line for each object.
const SCRIPT: &str = "
    ip neigh show | sed 's/^/neighbour /'
    ip -4 route show table main | sed 's/^/route /'
    ip -6 route show table main | sed 's/ expires [0-9]*sec//; s/^/route /'
    ip -o -4 route show cache | sed 's/^/exception /'
    ip -o -6 route show cache | sed 's/^/exception /'
    ip -o address show | sed 's/valid_lft.*//; s/^/address /'
    bridge fdb show 2>/dev/null | grep -v '33:33:\\|01:00:5e:\\|permanent' | sed 's/^/fdb /'
    grep -H . /proc/sys/net/ipv6/conf/*/mtu /proc/sys/net/ipv6/conf/*/hop_limit
    true
";

/// The beliefs of a receiver at one time.
#[derive(Clone, Debug, Default)]
pub(crate) struct State(BTreeSet<String>);

impl State {
    pub(crate) fn of(machine: &Machine) -> Result<Self> {
        let text = machine.call_words(&["sh", "-c", SCRIPT])?;
        Ok(Self(
            text.lines().map(|line| line.trim().to_owned()).collect(),
        ))
    }

    /// Returns the beliefs that a receiver has got since `before` and that are false, and those
    /// that it has lost.
    pub(crate) fn false_beliefs(&self, before: &Self, net: &Net) -> Vec<String> {
        let new = self
            .0
            .difference(&before.0)
            .filter(|line| !is_true(line, net))
            .map(|line| format!("has {line}"));
        let lost = before
            .0
            .difference(&self.0)
            .filter(|line| !may_be_lost(line))
            .map(|line| format!("lost {line}"));
        new.chain(lost).collect()
    }
}

/// Returns whether a new line is about a neighbour with its own MAC address, or without one; or
/// about the path to the attacker, who may report packets that were sent to it.
fn is_true(line: &str, net: &Net) -> bool {
    let words: Vec<_> = line.split(' ').collect();
    if let ["exception", address, ..] = words.as_slice() {
        let address = address.parse::<IpAddr>();
        return address.is_ok_and(|address| net.attacker.has(address));
    }
    let ["neighbour", address, "dev", device, rest @ ..] = words.as_slice() else {
        return false;
    };
    let Some(at) = rest.iter().position(|word| *word == "lladdr") else {
        return true;
    };
    let (Ok(address), Some(mac)) = (address.parse::<IpAddr>(), rest.get(at + 1)) else {
        return false;
    };
    net.is_neighbour(address, mac, device)
}

/// Returns whether a line may vanish without an attack: neighbours change their state, and the
/// bridge forgets MAC addresses.
fn may_be_lost(line: &str) -> bool {
    line.starts_with("neighbour ") || line.starts_with("fdb ")
}

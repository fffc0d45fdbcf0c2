//! Finds foreign rules that would apply to pod traffic in the network stack, which the fast path
//! bypasses.
//!
//! Reads only. nftables' chains are read by netlink, the older tables by the interfaces that their
//! own tools use. A chain or table that cannot be classified counts as a rule.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

use nix::errno::Errno;
use rtnetlink::packet_core::{NlaBuffer, NlasIterator};
use rtnetlink::sys::protocols::NETLINK_NETFILTER;
use rtnetlink::sys::{AsyncSocketExt as _, Socket, TokioSocket};
use steps::{ADMIN_CHAIN, FORWARD_CHAIN, SysctlKey};

use crate::bpf::{pinned_maps, pins};
use crate::error::is;
use crate::firewall::{forwarding, hostport_table, xtables};
use crate::foreign::{ipsec, tc_programs};
use crate::netlink::messages::{HEADER, messages};
use crate::netlink::socket;
use crate::sysctl;

/// `NFNL_SUBSYS_NFTABLES` and `NFT_MSG_GETCHAIN`.
const GET_CHAIN: u16 = 10 << 8 | 4;
/// `NFNL_SUBSYS_NFTABLES` and `NFT_MSG_NEWCHAIN`.
const CHAIN: u16 = 10 << 8 | 3;
/// `NLMSG_DONE` and `NLMSG_ERROR`.
const DONE: u16 = 3;
const ERROR: u16 = 2;
/// `NLM_F_REQUEST | NLM_F_DUMP`.
const DUMP: u16 = 0x301;
/// `NFNLGRP_NFTABLES`.
const CHANGES: u32 = 7;

/// `NFTA_CHAIN_TABLE` and `NFTA_CHAIN_NAME`.
const TABLE: u16 = 1;
const NAME: u16 = 3;
/// `NFTA_CHAIN_HOOK`, `NFTA_CHAIN_POLICY` and `NFTA_CHAIN_USE` (number of rules and references).
const HOOK: u16 = 4;
const POLICY: u16 = 5;
const USE: u16 = 6;
/// `NFTA_HOOK_HOOKNUM`.
const HOOK_NUMBER: u16 = 1;

/// Size of `struct nfgenmsg`.
const FAMILY_HEADER: usize = 4;

/// Hooks that forwarded packets pass (`enum nf_inet_hooks`).
const PREROUTING: u32 = 0;
const FORWARD: u32 = 2;
const POSTROUTING: u32 = 4;
/// `NF_DROP`.
const DROP: u32 = 0;

/// `NFPROTO_NETDEV`.
const NETDEV: u8 = 5;

/// `NF_INET_INGRESS` of the inet family: packets that a device receives.
const INGRESS: u32 = 5;

/// Reads foreign rules, and foreign programs that run after ours. Some of them are added without a
/// notification, so they must be polled.
#[derive(Clone, Debug)]
pub struct RuleReader {
    links: PathBuf,
}

impl RuleReader {
    /// Makes a reader for the agent whose pins are below `bpffs`.
    pub fn new(bpffs: &Path) -> Self {
        Self {
            links: pins::version(bpffs).join(pinned_maps::LINK_PINS),
        }
    }

    /// Returns descriptions of the foreign rules and programs in the namespace of the calling
    /// thread.
    pub fn read(&self) -> io::Result<BTreeSet<String>> {
        let mut found = foreign_rules()?;
        found.extend(foreign_paths(&self.links)?);
        Ok(found)
    }

    /// Identifies the rules of the tables of iptables-legacy, whose changes are not notified
    /// either.
    pub fn fingerprint(&self) -> io::Result<Vec<u64>> {
        forwarding::fingerprint()
    }
}

/// Returns descriptions of the foreign netfilter rules that could apply to packets that bypass
/// bridge and stack, and whose statements [`forwarding::PathReader`] reads. Reads the namespace of
/// the calling thread.
pub(crate) fn foreign_rules() -> io::Result<BTreeSet<String>> {
    let mut rules = nftables()?.0;
    rules.extend(xtables::rules()?);
    Ok(rules)
}

/// As [`foreign_rules`], for all others: rules on frames, and what other parts of the kernel do
/// with packets. `links` is the directory of our pinned links.
pub(crate) fn foreign_paths(links: &Path) -> io::Result<BTreeSet<String>> {
    let mut paths = nftables()?.1;
    paths.extend(xtables::bridge_tables());
    paths.extend(ipsec::rules()?);
    paths.extend(virtual_servers());
    paths.extend(tc_programs::programs(links)?);
    Ok(paths)
}

/// Returns the number of connections that conntrack tracks; 0 where it is not loaded.
pub(crate) fn tracked() -> io::Result<u64> {
    let key = SysctlKey("net/netfilter/nf_conntrack_count".to_owned());
    sysctl::read(&key)?
        .map(|count| count.parse())
        .transpose()
        .map(Option::unwrap_or_default)
        .map_err(io::Error::other)
}

/// Returns the chains of the families that [`forwarding::PathReader`] reads, and those of others.
fn nftables() -> io::Result<(BTreeSet<String>, BTreeSet<String>)> {
    let Some(socket) = socket::if_supported(Socket::new(NETLINK_NETFILTER))? else {
        // The kernel has no netfilter.
        return Ok(Default::default());
    };
    socket.send(&request(), 0)?;
    let mut chains = Vec::new();
    let mut buffer = Vec::with_capacity(64 * 1024);
    'dump: loop {
        buffer.clear();
        socket.recv(&mut buffer, 0)?;
        for (kind, body) in messages(&buffer) {
            match kind {
                // A kernel without nftables answers with an error.
                DONE | ERROR => break 'dump,
                CHAIN => chains.extend(Chain::parse(body)),
                _ => {}
            }
        }
    }
    let foreign = chains.iter().filter(|chain| chain.matters());
    let mut found: BTreeSet<String> = foreign.clone().map(ToString::to_string).collect();
    // In tables with rules of ours, only those of other software count.
    if chains.iter().any(Chain::is_ours) {
        for chain in foreign.filter(|chain| chain.has_neighbour(&chains)) {
            if !forwarding::has_foreign_rules(chain.family, &chain.table, &chain.name)? {
                found.remove(&chain.to_string());
            }
        }
    }
    let netdev = format!(" of table {} ", family_name(NETDEV));
    Ok(found
        .into_iter()
        .partition(|chain| !chain.contains(&netdev)))
}

/// Encodes a dump of all chains of all families: `struct nlmsghdr` and `struct nfgenmsg`.
fn request() -> Vec<u8> {
    let length = u32::try_from(HEADER + FAMILY_HEADER).unwrap_or(0);
    let mut bytes = Vec::new();
    bytes.extend(length.to_ne_bytes());
    bytes.extend(GET_CHAIN.to_ne_bytes());
    bytes.extend(DUMP.to_ne_bytes());
    bytes.extend([0; 8 + FAMILY_HEADER]);
    bytes
}

/// A chain of nftables.
#[derive(Debug, Default)]
struct Chain {
    family: u8,
    table: String,
    name: String,
    hook: Option<u32>,
    drops: bool,
    /// Number of rules and references.
    users: Option<u32>,
}

impl Chain {
    fn parse(body: &[u8]) -> Option<Self> {
        let mut chain = Self {
            family: *body.first()?,
            ..Self::default()
        };
        for attribute in NlasIterator::new(body.get(FAMILY_HEADER..)?).flatten() {
            let value = attribute.value();
            match attribute.kind() {
                TABLE => chain.table = text(value),
                NAME => chain.name = text(value),
                HOOK => chain.hook = hook_number(value),
                POLICY => chain.drops = number(value) == Some(DROP),
                USE => chain.users = number(value),
                _ => {}
            }
        }
        Some(chain)
    }

    /// Whether the chain is on the path of pod traffic and has rules or a drop policy.
    fn matters(&self) -> bool {
        let is_on_path = self.hook.is_some_and(|hook| is_on_path(self.family, hook));
        is_on_path && (self.drops || self.users != Some(0)) && self.table != hostport_table::TABLE
    }

    fn is_ours(&self) -> bool {
        [FORWARD_CHAIN, ADMIN_CHAIN].contains(&self.name.as_str())
    }

    /// Whether a chain of ours is in the same table.
    fn has_neighbour(&self, all: &[Self]) -> bool {
        let mut all = all.iter();
        all.any(|it| it.is_ours() && (it.family, &it.table) == (self.family, &self.table))
            && !self.drops
    }
}

impl fmt::Display for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let family = family_name(self.family);
        write!(
            f,
            "nftables: chain {} of table {family} {}",
            self.name, self.table
        )
    }
}

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(bytes: &[u8]) {
    is_own_change(bytes);
    comes_with_pods(bytes);
    let bodies = messages(bytes).into_iter();
    let chains: Vec<Chain> = bodies.filter_map(|(_, body)| Chain::parse(body)).collect();
    for chain in &chains {
        let _ = (
            chain.matters(),
            chain.has_neighbour(&chains),
            chain.to_string(),
        );
    }
}

fn hook_number(nested: &[u8]) -> Option<u32> {
    let mut attributes = NlasIterator::new(nested).flatten();
    let hook = attributes.find(|attribute: &NlaBuffer<&[u8]>| attribute.kind() == HOOK_NUMBER)?;
    number(hook.value())
}

fn number(value: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(value.get(..4)?.try_into().ok()?))
}

fn text(value: &[u8]) -> String {
    let text = value.split(|byte| *byte == 0).next().unwrap_or(value);
    String::from_utf8_lossy(text).into_owned()
}

/// Whether forwarded packets pass the hook. Packets to and from the node's own sockets go through
/// the stack in any case.
fn is_on_path(family: u8, hook: u32) -> bool {
    const ARP: u8 = 3;
    match family {
        ARP => false,
        NETDEV => true,
        _ => matches!(hook, PREROUTING | FORWARD | POSTROUTING | INGRESS),
    }
}

const fn family_name(family: u8) -> &'static str {
    match family {
        1 => "inet",
        2 => "ip",
        5 => "netdev",
        7 => "bridge",
        10 => "ip6",
        _ => "of another family",
    }
}

/// Returns a description of IPVS, if it has services: its hooks are registered with the first one.
fn virtual_servers() -> Option<String> {
    const HEADINGS: usize = 3;
    let table = fs::read_to_string("/proc/thread-self/net/ip_vs").ok()?;
    (table.lines().count() > HEADINGS).then(|| "IPVS: virtual services".to_owned())
}

/// Opens a socket that receives changes of nftables' rules; `None` where the kernel has no
/// netfilter netlink.
pub(crate) fn open_listener() -> io::Result<Option<Socket>> {
    let Some(mut socket) = socket::if_supported(Socket::new(NETLINK_NETFILTER))? else {
        return Ok(None);
    };
    socket::join_groups(&mut socket, [CHANGES])?;
    Ok(Some(socket))
}

/// Receives changes of nftables' rules and of IPsec's policies, in the namespace that it was opened
/// in. The older tables send no notifications.
pub struct RuleChanges {
    socket: TokioSocket,
    policies: Option<TokioSocket>,
    buffer: Vec<u8>,
}

impl RuleChanges {
    /// Subscribes. Must be called inside of a tokio runtime.
    pub fn open() -> io::Result<Self> {
        Ok(Self {
            socket: socket::subscribe(NETLINK_NETFILTER, [CHANGES])?,
            policies: ipsec::changes()?,
            buffer: Vec::with_capacity(16 * 1024),
        })
    }

    /// Waits for a change since the last call, except for what comes and goes with pods: hostports
    /// in our own table, and rules in our own chain. What others do there is found later. Safe to
    /// cancel.
    pub async fn next(&mut self) -> io::Result<()> {
        loop {
            let of_policies = self.receive().await?;
            if of_policies || !comes_with_pods(&self.buffer) {
                return Ok(());
            }
        }
    }

    /// Receives a notification; returns whether it is one of IPsec.
    async fn receive(&mut self) -> io::Result<bool> {
        self.buffer.clear();
        let received = match &mut self.policies {
            Some(policies) => {
                let mut other = Vec::with_capacity(16 * 1024);
                tokio::select! {
                    received = self.socket.recv(&mut self.buffer) => received.map(|()| false),
                    received = policies.recv(&mut other) => received.map(|()| true),
                }
            }
            None => self.socket.recv(&mut self.buffer).await.map(|()| false),
        };
        match received {
            // Notifications were lost because the buffer was full: that is a change, too.
            Err(error) if is(&error, Errno::ENOBUFS) => Ok(true),
            other => other,
        }
    }
}

/// Returns whether all messages are about elements of our own table, or the number of the ruleset's
/// generation, which follows each transaction.
pub(crate) fn is_own_change(bytes: &[u8]) -> bool {
    messages(bytes)
        .iter()
        .all(|(kind, body)| is_own_element(*kind, body))
}

/// As [`is_own_change`], with our own chain and its rules, which are written as a whole.
fn comes_with_pods(bytes: &[u8]) -> bool {
    /// `NFT_MSG_NEWRULE` and `NFT_MSG_DELRULE`.
    const NEW_RULE: u16 = 10 << 8 | 6;
    const DELETED_RULE: u16 = 10 << 8 | 8;
    /// `NFTA_RULE_CHAIN`.
    const CHAIN_OF_RULE: u16 = 2;
    messages(bytes).iter().all(|(kind, body)| match *kind {
        NEW_RULE | DELETED_RULE => {
            named(body, CHAIN_OF_RULE).is_some_and(|chain| chain == FORWARD_CHAIN)
        }
        CHAIN => named(body, NAME).is_some_and(|chain| chain == FORWARD_CHAIN),
        _ => is_own_element(*kind, body),
    })
}

/// Returns whether a message is about an element of our own table, or the number of the ruleset's
/// generation.
fn is_own_element(kind: u16, body: &[u8]) -> bool {
    /// `NFT_MSG_NEWSETELEM`, `NFT_MSG_DELSETELEM` and `NFT_MSG_NEWGEN`.
    const NEW_ELEMENT: u16 = 10 << 8 | 0xc;
    const DELETED_ELEMENT: u16 = 10 << 8 | 0xe;
    const GENERATION: u16 = 10 << 8 | 15;
    /// `NFPROTO_INET`.
    const INET: u8 = 1;
    match kind {
        GENERATION => true,
        NEW_ELEMENT | DELETED_ELEMENT => {
            body.first() == Some(&INET)
                && named(body, TABLE).is_some_and(|table| table == hostport_table::TABLE)
        }
        _ => false,
    }
}

/// Returns the text of a message's attribute.
fn named(body: &[u8], kind: u16) -> Option<String> {
    let attributes = body.get(FAMILY_HEADER..).unwrap_or_default();
    let mut attributes = NlasIterator::new(attributes).flatten();
    let found = attributes.find(|attribute: &NlaBuffer<&[u8]>| attribute.kind() == kind);
    found.map(|it| text(it.value()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let length = u16::try_from(value.len() + 4).unwrap();
        let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn chain(family: u8, hook: u32, policy: u32, users: u32) -> Vec<u8> {
        let nested = attribute(HOOK_NUMBER, &hook.to_be_bytes());
        let attributes = [
            attribute(TABLE, b"filter\0"),
            attribute(NAME, b"forward\0"),
            attribute(HOOK, &nested),
            attribute(POLICY, &policy.to_be_bytes()),
            attribute(USE, &users.to_be_bytes()),
        ];
        [vec![family, 0, 0, 0], attributes.concat()].concat()
    }

    #[test]
    fn a_forward_chain_with_rules_or_a_drop_policy_is_a_foreign_rule() {
        let parse = |body: Vec<u8>| Chain::parse(&body).unwrap();
        let description = parse(chain(1, FORWARD, 1, 2)).to_string();
        assert_eq!(description, "nftables: chain forward of table inet filter");
        let matters = |body| parse(body).matters();
        assert!(matters(chain(1, FORWARD, 1, 2)));
        assert!(matters(chain(2, PREROUTING, 0, 0)));
        assert!(matters(chain(5, 0, 1, 1)));
        assert!(!matters(chain(1, FORWARD, 1, 0)));
        assert!(!matters(chain(1, 1, 0, 3)));
        assert!(!matters(chain(3, 0, 0, 3)));
    }

    fn message(kind: u16, attributes: &[Vec<u8>]) -> Vec<u8> {
        let body = [vec![1, 0, 0, 0], attributes.concat()].concat();
        let length = u32::try_from(HEADER + body.len()).unwrap();
        let header = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &[0; 10]].concat();
        [header, body].concat()
    }

    #[test]
    fn what_comes_with_pods_is_no_change_of_rules() {
        let rule = |kind, chain: &str| {
            let chain = [chain.as_bytes(), b"\0"].concat();
            message(kind, &[attribute(TABLE, b"filter\0"), attribute(2, &chain)])
        };
        let generation = message(10 << 8 | 15, &[]);
        let chain = |name: &[u8]| {
            message(
                CHAIN,
                &[attribute(TABLE, b"filter\0"), attribute(NAME, name)],
            )
        };
        assert!(comes_with_pods(&chain(b"VIADUCT-FORWARD\0")));
        assert!(!comes_with_pods(&chain(b"FORWARD\0")));
        for kind in [10 << 8 | 6, 10 << 8 | 8] {
            let own = [rule(kind, FORWARD_CHAIN), generation.clone()].concat();
            assert!(comes_with_pods(&own));
            // But to decisions about connections, rules have changed.
            assert!(!is_own_change(&own));
            for other in [ADMIN_CHAIN, "FORWARD"] {
                assert!(!comes_with_pods(&rule(kind, other)), "{other}");
            }
        }
        let element = message(10 << 8 | 0xc, &[attribute(TABLE, b"viaduct\0")]);
        assert_eq!(comes_with_pods(&element), is_own_change(&element));
    }

    #[test]
    fn truncated_netlink_messages_are_not_parsed() {
        assert!(messages(&[1, 2, 3]).is_empty());
        let whole = request();
        assert_eq!(messages(&whole).len(), 1);
        assert!(messages(&whole[..=HEADER]).is_empty());
        assert!(Chain::parse(&[]).is_none());
    }
}

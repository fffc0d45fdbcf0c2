//! The filter tables of iptables-legacy and ip6tables-legacy.
//!
//! A table is read and replaced as a whole, under the lock that iptables takes. Counters of rules
//! that stay are kept.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use steps::{
    ADMIN_CHAIN, AcceptRule, Action, BaseChain, Condition, FORWARD_CHAIN, FilterBackend,
    FilterFamily, FilterHook, FilterRule, FilterTable, ForwardingStep, Place, TableState,
};

use super::blob::{Blob, Entry, Layout, Target, V4, V6, new_match, text};
use super::{decode, encode, entry};
use crate::firewall::xtables::{self, FilterFile};

pub(super) mod statements;

/// Lock of all tables (`XT_LOCK_NAME` of iptables).
const LOCK: &str = "/run/xtables.lock";
/// Longest wait for the lock. iptables holds it for milliseconds.
const LOCK_WAIT: Duration = Duration::from_millis(500);
/// Size of the data of a `comment` match.
const COMMENT: usize = 256;
/// Verdict that accepts: `-NF_ACCEPT - 1`.
const ACCEPT: i32 = -2;

const TABLE: &str = "filter";
const NAT: &str = "nat";

/// Base chains that are read, by the number of their hook.
const FILTER_HOOKS: [(usize, FilterHook); 1] = [(2, FilterHook::Forward)];
const NAT_HOOKS: [(usize, FilterHook); 2] = [(0, FilterHook::Prerouting), (3, FilterHook::Output)];

/// Layout and offsets of the conditions of one family.
struct Ip {
    family: FilterFamily,
    layout: Layout,
    /// Length of an address; source, destination and their masks are first in the entry.
    address: usize,
    /// Offset of the protocol.
    protocol: usize,
    /// Offset of the flags, of which the inverse ones follow, and the flag for the protocol.
    flags: (usize, u8),
}

const FAMILIES: [Ip; 2] = [
    Ip {
        family: FilterFamily::Ip,
        layout: V4,
        address: 4,
        protocol: 80,
        flags: (82, 0),
    },
    Ip {
        family: FilterFamily::Ip6,
        layout: V6,
        address: 16,
        protocol: 128,
        flags: (131, 1),
    },
];

/// Flags of inverted conditions (`IPT_INV_*`).
const INVERT_INPUT: u8 = 0x01;
const INVERT_OUTPUT: u8 = 0x02;
const INVERT_SOURCE: u8 = 0x08;
const INVERT_DESTINATION: u8 = 0x10;
const INVERT_PROTOCOL: u8 = 0x40;

/// Reads the filter tables that are in use.
pub(super) fn read() -> io::Result<BTreeMap<FilterTable, TableState>> {
    read_table(TABLE, &FILTER_HOOKS)
}

/// Reads the tables that translate destinations, if they are in use.
pub(super) fn translations() -> io::Result<BTreeMap<FilterTable, TableState>> {
    read_table(NAT, &NAT_HOOKS)
}

fn read_table(
    name: &str,
    hooks: &[(usize, FilterHook)],
) -> io::Result<BTreeMap<FilterTable, TableState>> {
    let mut tables = BTreeMap::new();
    for ip in &FAMILIES {
        if let Some((_, blob)) = ip.load_table(name)? {
            tables.insert(ip.table(name), ip.state(&blob, hooks));
        }
    }
    Ok(tables)
}

/// Identifies the rules of all tables, without counters. Changes of them are not notified.
pub(crate) fn fingerprint() -> io::Result<Vec<u64>> {
    let mut fingerprints = Vec::new();
    for ip in &FAMILIES {
        for table in xtables::tables(ip.is_v4()).1 {
            let blob = ip.load_table(&table)?;
            fingerprints.push(blob.map_or(0, |(_, blob)| blob.fingerprint()));
        }
    }
    Ok(fingerprints)
}

/// Returns whether other software has rules in the filter table, or a policy that drops; `None`
/// where there is nothing of ours.
pub(crate) fn has_foreign_entries(ipv4: bool) -> io::Result<Option<bool>> {
    let family = if ipv4 {
        FilterFamily::Ip
    } else {
        FilterFamily::Ip6
    };
    let ip = FAMILIES.iter().find(|ip| ip.family == family);
    let Some((_, blob)) = ip.map(Ip::load).transpose()?.flatten() else {
        return Ok(None);
    };
    if blob.get(ADMIN_CHAIN).or(blob.get(FORWARD_CHAIN)).is_none() {
        return Ok(None);
    }
    let is_own = |name: &str| [ADMIN_CHAIN, FORWARD_CHAIN].contains(&name);
    let foreign = blob.chains.iter().any(|chain| {
        let mut rules = chain.rules.iter();
        let drops = chain.hook == Some(2) && blob.layout.verdict(&chain.tail.bytes) != Some(ACCEPT);
        let others = rules.any(|rule| !matches!(&rule.target, Target::Chain(to) if is_own(to)));
        drops || (others && !is_own(&chain.name))
    });
    Ok(Some(foreign))
}

/// Executes the step.
pub(super) fn write(step: &ForwardingStep) -> io::Result<()> {
    let ip = FAMILIES
        .iter()
        .find(|ip| ip.family == step.table.family)
        .ok_or(Errno::EAFNOSUPPORT)?;
    let _lock = lock()?;
    let Some((file, mut blob)) = ip.load()? else {
        return Err(Errno::EAGAIN.into());
    };
    if blob.fingerprint() != step.generation {
        return Err(Errno::EAGAIN.into());
    }
    ip.apply(step, &mut blob);
    let encoded = blob.encode()?;
    let replaced = file.replace(
        &encoded.bytes,
        encoded.hook_entry,
        encoded.underflow,
        &encoded.numbers,
    );
    crash::point();
    replaced
}

/// Takes the lock. Its file is created as iptables does.
fn lock() -> io::Result<Flock<fs::File>> {
    let deadline = Instant::now() + LOCK_WAIT;
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(LOCK)?;
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((_, errno)) if errno != Errno::EWOULDBLOCK => return Err(errno.into()),
            Err((_, errno)) if Instant::now() > deadline => return Err(errno.into()),
            Err((back, _)) => file = back,
        }
        sleep(Duration::from_millis(10));
    }
}

#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn fuzz(bytes: &[u8]) {
    for family in &FAMILIES {
        if let Some(blob) = super::blob::fuzz(family.layout, bytes) {
            let _ = family.state(&blob, &FILTER_HOOKS);
        }
    }
}

impl Ip {
    fn table(&self, name: &str) -> FilterTable {
        FilterTable {
            backend: FilterBackend::Xtables,
            family: self.family,
            name: name.to_owned(),
        }
    }

    fn is_v4(&self) -> bool {
        self.family == FilterFamily::Ip
    }

    /// Loads the filter table; `None` where it is not in use.
    fn load(&self) -> io::Result<Option<(FilterFile, Blob)>> {
        self.load_table(TABLE)
    }

    fn load_table(&self, table: &str) -> io::Result<Option<(FilterFile, Blob)>> {
        let Some(file) = xtables::table(self.is_v4(), table)? else {
            return Ok(None);
        };
        let (hook_entry, valid_hooks) = file.hooks();
        let blob = Blob::parse(self.layout, file.entries(), hook_entry, valid_hooks)?;
        Ok(Some((file, blob)))
    }

    fn state(&self, blob: &Blob, hooks: &[(usize, FilterHook)]) -> TableState {
        let mut state = TableState {
            generation: blob.fingerprint(),
            ..TableState::default()
        };
        for chain in &blob.chains {
            let read = hooks.iter().find(|(number, _)| chain.hook == Some(*number));
            state.base.extend(read.map(|(_, hook)| BaseChain {
                name: chain.name.clone(),
                hook: *hook,
                drops: self.layout.verdict(&chain.tail.bytes) != Some(ACCEPT),
            }));
            let rules = (0..)
                .zip(&chain.rules)
                .map(|(handle, entry)| self.rule(handle, entry))
                .collect();
            state.rules.insert(chain.name.clone(), rules);
        }
        state
    }

    /// Returns the verdict of a standard target; `None` for an extension.
    fn action(&self, entry: &Entry) -> Option<Action> {
        let (at, goto) = self.layout.goto;
        let goes = entry.bytes.get(at).is_some_and(|flags| flags & goto != 0);
        Some(match &entry.target {
            Target::Next => Action::Continue,
            Target::Chain(chain) if goes => Action::Goto(chain.clone()),
            Target::Chain(chain) => Action::Jump(chain.clone()),
            Target::Other => match self.layout.verdict(&entry.bytes)? {
                ACCEPT => Action::Accept,
                -1 => Action::Drop,
                -5 => Action::Return,
                _ => Action::Other,
            },
        })
    }

    fn rule(&self, handle: u64, entry: &Entry) -> FilterRule {
        let bytes = &entry.bytes;
        let matches = self.layout.matches(bytes);
        let comment = matches.iter().find(|(name, ..)| name == "comment");
        let mut conditions = self.conditions(bytes);
        conditions.extend(
            matches
                .iter()
                .filter_map(|(name, revision, data)| entry::condition(name, *revision, data)),
        );
        let action = self
            .action(entry)
            .unwrap_or_else(|| decode::target(&self.layout.target(bytes).0));
        FilterRule {
            handle,
            conditions,
            action,
            comment: comment.map(|(_, _, data)| text(data)).unwrap_or_default(),
        }
    }

    /// Decodes `struct ipt_ip` or `struct ip6t_ip6`.
    fn conditions(&self, bytes: &[u8]) -> Vec<Condition> {
        const NAME: usize = 16;
        let field = |at: usize, length: usize| bytes.get(at..at + length).unwrap_or_default();
        let inverted = bytes.get(self.flags.0 + 1).copied().unwrap_or(0);
        let mut found = Vec::new();
        for (number, invert) in [(0, INVERT_SOURCE), (1, INVERT_DESTINATION)] {
            let network = field(number * self.address, self.address);
            let mask = field((number + 2) * self.address, self.address);
            if mask.iter().any(|byte| *byte != 0) {
                let negated = inverted & invert != 0;
                found.push(address(network, mask, number == 0, negated));
            }
        }
        let names = 4 * self.address;
        for (number, invert) in [(0, INVERT_INPUT), (1, INVERT_OUTPUT)] {
            let name = text(field(names + number * NAME, NAME));
            let mask = field(names + (number + 2) * NAME, NAME);
            let length = mask.iter().filter(|byte| **byte != 0).count();
            if length == 0 {
                continue;
            }
            // A mask that does not cover the final NUL is of a pattern.
            let name = if length > name.len() {
                name
            } else {
                format!("{name}*")
            };
            let negated = inverted & invert != 0;
            found.push(if number == 0 {
                Condition::Input { name, negated }
            } else {
                Condition::Output { name, negated }
            });
        }
        if let [low, 0] =
            u16::from_ne_bytes(*field(self.protocol, 2).first_chunk().unwrap_or(&[0; 2]))
                .to_le_bytes()
            && low != 0
        {
            found.push(Condition::Protocol {
                number: low,
                negated: inverted & INVERT_PROTOCOL != 0,
            });
        }
        let fragments =
            self.family == FilterFamily::Ip && field(self.flags.0, 1).iter().any(|it| it & 1 != 0);
        let tos =
            self.family == FilterFamily::Ip6 && field(self.flags.0, 1).iter().any(|it| it & 2 != 0);
        if fragments || tos {
            found.push(Condition::Other);
        }
        found
    }

    fn apply(&self, step: &ForwardingStep, blob: &mut Blob) {
        let stale: BTreeSet<_> = step.stale_jumps.iter().cloned().collect();
        // Handles are positions: places are found before anything moves.
        let places: Vec<(&str, &Place, usize)> = step
            .jumps
            .iter()
            .map(|(own, place)| (*own, place, Self::position(blob, place)))
            .collect();
        for chain in &step.creates {
            blob.get_or_create(chain);
        }
        for (name, rules) in &step.fills {
            blob.get_or_create(name).rules = rules.iter().map(|rule| self.encode(rule)).collect();
        }
        for chain in &mut blob.chains {
            let rules = std::mem::take(&mut chain.rules);
            let mut added = Vec::new();
            for (handle, rule) in (0..).zip(rules) {
                let here = usize::try_from(handle).unwrap_or(0);
                self.add_jumps(&mut added, &chain.name, here, &places);
                if !stale.contains(&(chain.name.clone(), handle)) {
                    added.push(rule);
                }
            }
            self.add_jumps(&mut added, &chain.name, usize::MAX, &places);
            chain.rules = added;
        }
        let gone = |name: &str| step.deletes.contains(name) || step.deletes_created.contains(name);
        blob.chains
            .retain(|chain| chain.hook.is_some() || !gone(&chain.name));
    }

    /// Returns the position in the chain before which the place is; `usize::MAX` for its end.
    fn position(blob: &Blob, place: &Place) -> usize {
        let rules = blob.get(place.chain()).map_or(0, |chain| chain.rules.len());
        let position = match place {
            Place::First { .. } => 0,
            Place::Last { .. } => usize::MAX,
            Place::Before { handle, .. } => usize::try_from(*handle).unwrap_or(usize::MAX),
        };
        if position < rules {
            position
        } else {
            usize::MAX
        }
    }

    fn add_jumps(
        &self,
        rules: &mut Vec<Entry>,
        chain: &str,
        here: usize,
        places: &[(&str, &Place, usize)],
    ) {
        for (own, place, at) in places {
            if place.chain() == chain && *at == here {
                let comment = comment(encode::jump_comment(own));
                rules.push(self.layout.jump(&[comment], own));
            }
        }
    }

    fn encode(&self, rule: &AcceptRule) -> Entry {
        let answers = || new_match("conntrack", 3, &entry::answers());
        let mut matches = vec![];
        match rule {
            AcceptRule::AnswersTo(_) | AcceptRule::AnswersToAddress(_) => matches.push(answers()),
            AcceptRule::ToPorts { ports, .. } => {
                matches.push(new_match("multiport", 1, &entry::to_ports(*ports)));
            }
            AcceptRule::From(_)
            | AcceptRule::FromAddress(_)
            | AcceptRule::Direct(..)
            | AcceptRule::Peers { .. }
            | AcceptRule::Admin(_) => {}
        }
        matches.push(comment(&rule.to_string()));
        let mut entry = if let AcceptRule::Admin(chain) = rule {
            self.layout.jump(&matches, chain)
        } else {
            self.layout.standard(&matches, ACCEPT)
        };
        let bytes = &mut entry.bytes;
        match rule {
            AcceptRule::From(link) => self.set_name(bytes, 0, link.as_str()),
            AcceptRule::AnswersTo(link) => self.set_name(bytes, 1, link.as_str()),
            AcceptRule::FromAddress(address) => self.set_address(bytes, 0, *address, u8::MAX),
            AcceptRule::AnswersToAddress(address) => self.set_address(bytes, 1, *address, u8::MAX),
            AcceptRule::Direct(prefix, link) => {
                self.set_address(bytes, 0, prefix.network(), prefix.prefix_len());
                self.set_name(bytes, 1, link.as_str());
            }
            AcceptRule::Peers {
                input,
                source,
                link,
            } => {
                if let Some(prefix) = source {
                    self.set_address(bytes, 0, prefix.network(), prefix.prefix_len());
                }
                self.set_name(bytes, 0, input.as_str());
                self.set_name(bytes, 1, link.as_str());
            }
            AcceptRule::ToPorts {
                address, protocol, ..
            } => {
                self.set_address(bytes, 1, *address, u8::MAX);
                let number = u16::from(protocol.number()).to_ne_bytes();
                bytes.splice(self.protocol..self.protocol + 2, number);
                bytes[self.flags.0] |= self.flags.1;
            }
            AcceptRule::Admin(_) => {}
        }
        entry
    }

    /// Sets the incoming (0) or outgoing (1) interface and its mask, which covers the final NUL.
    fn set_name(&self, bytes: &mut Vec<u8>, which: usize, name: &str) {
        let at = 4 * self.address + which * 16;
        bytes.splice(at..at + name.len(), name.bytes());
        let mask = at + 32;
        bytes.splice(mask..=mask + name.len(), vec![0xff; name.len() + 1]);
    }

    /// Sets the source (0) or destination (1) and its mask.
    fn set_address(&self, bytes: &mut Vec<u8>, which: usize, address: IpAddr, length: u8) {
        let octets = match address {
            IpAddr::V4(v4) => v4.octets().to_vec(),
            IpAddr::V6(v6) => v6.octets().to_vec(),
        };
        let size = self.address;
        let length = usize::from(length).min(size * 8);
        let bits = |at: usize| 0xff00_u16 >> length.saturating_sub(at * 8).min(8);
        let mask: Vec<u8> = (0..size).map(|at| bits(at).to_le_bytes()[0]).collect();
        bytes.splice(which * size..(which + 1) * size, octets);
        bytes.splice((which + 2) * size..(which + 3) * size, mask);
    }
}

fn address(network: &[u8], mask: &[u8], source: bool, negated: bool) -> Condition {
    let network = match (network.first_chunk::<16>(), network.first_chunk::<4>()) {
        (Some(v6), _) => IpAddr::from(*v6),
        (None, Some(v4)) => IpAddr::from(*v4),
        (None, None) => return Condition::Other,
    };
    let prefix: u32 = mask.iter().map(|byte| byte.count_ones()).sum();
    Condition::Address {
        source,
        network,
        prefix_len: u8::try_from(prefix).unwrap_or(u8::MAX),
        negated,
    }
}

fn comment(text: &str) -> Vec<u8> {
    let mut data: Vec<u8> = text.bytes().take(COMMENT - 1).collect();
    data.resize(COMMENT, 0);
    new_match("comment", 0, &data)
}

//! The encoded rules of a table of iptables-legacy: chains of entries, one after the other.
//!
//! A built-in chain begins at its hook's offset and ends with its policy. A user-defined chain
//! begins with an entry of target `ERROR` that has its name, and ends with a rule that returns.
//! Jumps are offsets from the beginning. Layouts: `include/uapi/linux/netfilter_ipv4/ip_tables.h`,
//! `netfilter_ipv6/ip6_tables.h` and `netfilter/x_tables.h`.

use std::collections::BTreeMap;
use std::io;

/// Hooks of a table (`NF_INET_NUMHOOKS`).
pub(super) const HOOKS: usize = 5;
/// Size of `struct xt_entry_match` and `struct xt_entry_target` without their data.
pub(super) const EXTENSION: usize = 32;
/// Size of `struct xt_standard_target`.
const STANDARD: usize = 40;
/// Size of `struct xt_error_target`, aligned.
const ERROR: usize = 64;
/// Verdict that returns from a chain: `-NF_REPEAT - 1`.
const RETURN: i32 = -5;

/// Layout of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// Size of `struct ipt_entry` or `struct ip6t_entry`.
    pub(super) head: usize,
    /// Offset of `target_offset`, which `next_offset` follows.
    pub(super) target_at: usize,
    /// Offset of `comefrom`, which the kernel overwrites.
    comefrom_at: usize,
    /// Offset of the counters, of two 64-bit numbers.
    counters_at: usize,
    /// Offset of the flags, and the flag that makes a jump a goto (`IPT_F_GOTO`).
    pub(super) goto: (usize, u8),
}

pub(super) const V4: Layout = Layout {
    head: 112,
    target_at: 88,
    comefrom_at: 92,
    counters_at: 96,
    goto: (82, 2),
};

pub(super) const V6: Layout = Layout {
    head: 168,
    target_at: 140,
    comefrom_at: 144,
    counters_at: 152,
    goto: (131, 4),
};

/// Where a rule of a standard target goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// To the next rule.
    Next,
    /// To a chain.
    Chain(String),
    /// A verdict (negative number), or an extension.
    Other,
}

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) bytes: Vec<u8>,
    pub(super) target: Target,
    /// Number in the table that was read; `None` for a new one.
    pub(super) number: Option<usize>,
}

/// A chain: of a hook, or user-defined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chain {
    pub(super) name: String,
    pub(super) hook: Option<usize>,
    /// Entry with the name, of a user-defined chain.
    head: Option<Entry>,
    pub(super) rules: Vec<Entry>,
    /// Policy, or the rule that returns.
    pub(super) tail: Entry,
}

/// All chains of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Blob {
    pub(super) layout: Layout,
    pub(super) chains: Vec<Chain>,
    end: Entry,
}

/// An encoded table with the offsets that the kernel needs.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Encoded {
    pub(super) bytes: Vec<u8>,
    pub(super) hook_entry: [u32; HOOKS],
    pub(super) underflow: [u32; HOOKS],
    /// For each entry its number in the table that was read.
    pub(super) numbers: Vec<Option<usize>>,
}

impl Layout {
    /// Returns target offset and size of the entry.
    fn offsets(self, entry: &[u8]) -> Option<(usize, usize)> {
        Some((
            usize::from(half(entry, self.target_at)?),
            usize::from(half(entry, self.target_at + 2)?),
        ))
    }

    /// Returns the name of the entry's target and its data.
    pub(super) fn target(self, entry: &[u8]) -> (String, &[u8]) {
        let target = self
            .offsets(entry)
            .and_then(|(at, _)| entry.get(at..))
            .unwrap_or_default();
        let name = target.get(2..31).unwrap_or_default();
        (text(name), target.get(EXTENSION..).unwrap_or_default())
    }

    /// Returns name, revision and data of the entry's matches.
    pub(super) fn matches(self, entry: &[u8]) -> Vec<(String, u32, &[u8])> {
        let mut found = Vec::new();
        let end = self.offsets(entry).map_or(0, |(target, _)| target);
        let mut at = self.head;
        while at + EXTENSION <= end {
            let size = usize::from(half(entry, at).unwrap_or(0));
            let Some(one) = entry
                .get(at..at + size)
                .filter(|one| one.len() >= EXTENSION)
            else {
                break;
            };
            found.push((text(&one[2..31]), one[31].into(), &one[EXTENSION..]));
            at += size;
        }
        found
    }

    /// Returns the verdict of a standard target.
    pub(super) fn verdict(self, entry: &[u8]) -> Option<i32> {
        let (name, data) = self.target(entry);
        let verdict = data.first_chunk::<4>().filter(|_| name.is_empty())?;
        Some(i32::from_ne_bytes(*verdict))
    }

    /// Makes an entry: header without conditions, matches, and a target.
    fn entry(self, matches: &[Vec<u8>], target: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; self.head];
        bytes.extend(matches.concat());
        let at = bytes.len();
        bytes.extend(target);
        for (place, value) in [(self.target_at, at), (self.target_at + 2, bytes.len())] {
            let value = u16::try_from(value).unwrap_or(u16::MAX);
            bytes.splice(place..place + 2, value.to_ne_bytes());
        }
        bytes
    }

    /// Makes an entry with a standard target.
    pub(super) fn standard(self, matches: &[Vec<u8>], verdict: i32) -> Entry {
        let mut target = extension(STANDARD, "", 0);
        target.splice(EXTENSION..EXTENSION + 4, verdict.to_ne_bytes());
        Entry {
            bytes: self.entry(matches, &target),
            target: Target::Other,
            number: None,
        }
    }

    /// Makes an entry that jumps to a chain.
    pub(super) fn jump(self, matches: &[Vec<u8>], chain: &str) -> Entry {
        Entry {
            target: Target::Chain(chain.to_owned()),
            ..self.standard(matches, 0)
        }
    }

    fn chain(self, name: &str) -> Chain {
        let mut target = extension(ERROR, "ERROR", 0);
        let name: Vec<u8> = name.bytes().take(29).collect();
        target.splice(EXTENSION..EXTENSION + name.len(), name.iter().copied());
        Chain {
            name: text(&name),
            hook: None,
            head: Some(Entry {
                bytes: self.entry(&[], &target),
                target: Target::Other,
                number: None,
            }),
            rules: Vec::new(),
            tail: self.standard(&[], RETURN),
        }
    }
}

/// Makes a match: header and data.
pub(super) fn new_match(name: &str, revision: u8, data: &[u8]) -> Vec<u8> {
    let mut bytes = extension(EXTENSION, name, revision);
    bytes.extend(data);
    let size = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
    bytes.splice(0..2, size.to_ne_bytes());
    bytes
}

fn extension(size: usize, name: &str, revision: u8) -> Vec<u8> {
    let mut bytes = vec![0; size];
    bytes.splice(0..2, u16::try_from(size).unwrap_or(0).to_ne_bytes());
    bytes.splice(2..2 + name.len(), name.bytes());
    if let Some(place) = bytes.get_mut(31) {
        *place = revision;
    }
    bytes
}

impl Blob {
    /// Parses a table; an error for one that is malformed.
    pub(super) fn parse(
        layout: Layout,
        bytes: &[u8],
        hook_entry: [u32; HOOKS],
        valid_hooks: u32,
    ) -> io::Result<Self> {
        parse(layout, bytes, hook_entry, valid_hooks).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, "malformed table of iptables")
        })
    }

    pub(super) fn get(&self, chain: &str) -> Option<&Chain> {
        self.chains.iter().find(|own| own.name == chain)
    }

    /// Returns a chain, which is made where it is missing. User-defined ones are sorted by name, as
    /// iptables expects them.
    pub(super) fn get_or_create(&mut self, name: &str) -> &mut Chain {
        let is_after = |chain: &Chain| chain.hook.is_none() && chain.name.as_str() > name;
        let present = self.chains.iter().position(|chain| chain.name == name);
        let at = present.unwrap_or_else(|| {
            let after = self.chains.iter().position(is_after);
            let at = after.unwrap_or(self.chains.len());
            self.chains.insert(at, self.layout.chain(name));
            at
        });
        &mut self.chains[at]
    }

    /// Identifies the rules without their counters.
    pub(super) fn fingerprint(&self) -> u64 {
        use std::hash::{DefaultHasher, Hash as _, Hasher as _};
        let mut hasher = DefaultHasher::new();
        for chain in &self.chains {
            chain.name.hash(&mut hasher);
            for entry in chain.rules.iter().chain([&chain.tail]) {
                let (from, to) = (self.layout.comefrom_at, self.layout.counters_at + 16);
                entry.bytes[..from].hash(&mut hasher);
                entry.bytes[to..].hash(&mut hasher);
            }
        }
        // Zero stands for a table that is not there.
        hasher.finish().max(1)
    }

    /// Encodes the table again, with the offsets of all jumps.
    pub(super) fn encode(&self) -> io::Result<Encoded> {
        let mut starts = BTreeMap::new();
        let mut at = 0;
        for chain in &self.chains {
            let head = chain.head.as_ref().map_or(0, |head| head.bytes.len());
            starts.insert(chain.name.as_str(), at + head);
            let rules = chain.rules.iter().chain([&chain.tail]);
            at += head + rules.map(|entry| entry.bytes.len()).sum::<usize>();
        }
        let mut encoded = Encoded {
            bytes: Vec::new(),
            hook_entry: [0; HOOKS],
            underflow: [0; HOOKS],
            numbers: Vec::new(),
        };
        for chain in &self.chains {
            if let Some(hook) = chain.hook {
                encoded.hook_entry[hook] = offset(encoded.bytes.len());
            }
            for entry in chain.head.iter().chain(&chain.rules) {
                self.append(entry, &starts, &mut encoded)?;
            }
            if let Some(hook) = chain.hook {
                encoded.underflow[hook] = offset(encoded.bytes.len());
            }
            self.append(&chain.tail, &starts, &mut encoded)?;
        }
        self.append(&self.end, &starts, &mut encoded)?;
        Ok(encoded)
    }

    fn append(
        &self,
        entry: &Entry,
        starts: &BTreeMap<&str, usize>,
        encoded: &mut Encoded,
    ) -> io::Result<()> {
        let mut bytes = entry.bytes.clone();
        let verdict = match &entry.target {
            Target::Other => None,
            Target::Next => Some(encoded.bytes.len() + bytes.len()),
            Target::Chain(name) => Some(*starts.get(name.as_str()).ok_or_else(|| {
                io::Error::new(io::ErrorKind::NotFound, format!("no chain {name}"))
            })?),
        };
        if let (Some(verdict), Some((at, _))) = (verdict, self.layout.offsets(&bytes)) {
            let at = at + EXTENSION;
            bytes.splice(at..at + 4, offset(verdict).to_ne_bytes());
        }
        encoded.bytes.extend(bytes);
        encoded.numbers.push(entry.number);
        Ok(())
    }
}

/// Parses bytes as a table of each family: the offsets of the first entries of three hooks, 16 bits
/// each, and the entries.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn fuzz(layout: Layout, bytes: &[u8]) -> Option<Blob> {
    let (offsets, entries) = bytes.split_first_chunk::<6>()?;
    let mut hook_entry = [u32::MAX; HOOKS];
    for (hook, at) in hook_entry[1..4].iter_mut().zip(offsets.as_chunks().0) {
        *hook = u16::from_ne_bytes(*at).into();
    }
    let mut blob = parse(layout, entries, hook_entry, 0b1110)?;
    let _ = (blob.fingerprint(), blob.encode());
    let read = blob.clone();
    blob.get_or_create("VIADUCT-FORWARD");
    let _ = blob.encode();
    Some(read)
}

/// Entries by offset.
type Entries<'a> = BTreeMap<usize, &'a [u8]>;
/// Names and hooks of chains by the offset of their first entry.
type Starts = BTreeMap<usize, (String, Option<usize>)>;

fn parse(layout: Layout, bytes: &[u8], hook_entry: [u32; HOOKS], valid_hooks: u32) -> Option<Blob> {
    let entries = split(layout, bytes)?;
    let (last, _) = entries.last_key_value()?;
    let starts = starts(layout, &entries, |at| {
        let is_at = |hook: &usize| valid_hooks & 1 << hook != 0 && hook_entry[*hook] as usize == at;
        (0..HOOKS).find(is_at)
    })?;
    let numbered = decode(layout, &entries, &starts)?;
    let mut chains = Vec::new();
    let ends = starts.keys().skip(1).chain([last]);
    for ((start, (name, hook)), end) in starts.iter().zip(ends) {
        let mut rules: Vec<Entry> = numbered
            .range(start..end)
            .map(|(_, it)| it.clone())
            .collect();
        let tail = rules.pop()?;
        let head = (hook.is_none() && !rules.is_empty()).then(|| rules.remove(0));
        (hook.is_some() || head.is_some()).then_some(())?;
        chains.push(Chain {
            name: name.clone(),
            hook: *hook,
            head,
            rules,
            tail,
        });
    }
    Some(Blob {
        layout,
        chains,
        end: numbered.get(last)?.clone(),
    })
}

fn split(layout: Layout, bytes: &[u8]) -> Option<Entries<'_>> {
    let mut entries = BTreeMap::new();
    let mut at = 0;
    while at < bytes.len() {
        let rest = bytes.get(at..).filter(|rest| rest.len() >= layout.head)?;
        let size = layout.offsets(rest)?.1;
        let entry = rest.get(..size).filter(|it| it.len() >= layout.head)?;
        entries.insert(at, entry);
        at += size;
    }
    Some(entries)
}

/// Returns the chains. The last entry, which ends the table, is of none.
fn starts(
    layout: Layout,
    entries: &Entries<'_>,
    hook: impl Fn(usize) -> Option<usize>,
) -> Option<Starts> {
    const NAMES: [&str; HOOKS] = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];
    let (last, _) = entries.last_key_value()?;
    let start = |(at, entry): (&usize, &&[u8])| {
        let (name, data) = layout.target(entry);
        match hook(*at) {
            Some(hook) => Some((*at, (NAMES[hook].to_owned(), Some(hook)))),
            None if name == "ERROR" => Some((*at, (text(data.get(..30)?), None))),
            None => None,
        }
    };
    Some(entries.range(..last).filter_map(start).collect())
}

/// Numbers the entries, and resolves the offsets of their jumps.
fn decode(
    layout: Layout,
    entries: &Entries<'_>,
    starts: &Starts,
) -> Option<BTreeMap<usize, Entry>> {
    // Offset of the first rule of each chain.
    let named: BTreeMap<usize, &str> = starts
        .iter()
        .map(|(at, (name, hook))| {
            let head = if hook.is_some() { 0 } else { entries[at].len() };
            (at + head, name.as_str())
        })
        .collect();
    let decode = |(number, (at, entry)): (usize, (&usize, &&[u8]))| {
        let target = match layout.verdict(entry).map(usize::try_from) {
            Some(Ok(next)) if next == at + entry.len() => Target::Next,
            Some(Ok(to)) => Target::Chain((*named.get(&to)?).to_owned()),
            Some(Err(_)) | None => Target::Other,
        };
        let entry = Entry {
            bytes: entry.to_vec(),
            target,
            number: Some(number),
        };
        Some((*at, entry))
    };
    entries.iter().enumerate().map(decode).collect()
}

fn offset(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    let half = bytes.get(at..)?.first_chunk::<2>()?;
    Some(u16::from_ne_bytes(*half))
}

pub(super) fn text(bytes: &[u8]) -> String {
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or(bytes);
    String::from_utf8_lossy(text).into_owned()
}

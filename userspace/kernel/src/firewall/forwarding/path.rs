//! Reads the statements of rules that forwarded packets meet, for the decision whether established
//! connections may bypass them.
//!
//! Rules are decoded as far as their names, and whether their conditions exclude packets of
//! established connections. Numbers of expressions and attributes are those of
//! `include/uapi/linux/netfilter/nf_tables.h`.

use std::collections::BTreeMap;
use std::io;

use abi::protocol;
use steps::{Action, PathHook, PathRule, PathTable, Statement};

use super::{decode, entry};
use crate::firewall::hostport_table;
use crate::firewall::nftables::{
    Family, Nftables, ReadChain, ReadElement, ReadExpression, ReadRule, expr, parse, text,
};

/// Sets of a table by name: `NFTA_SET_FLAGS`.
type Sets = BTreeMap<String, u32>;

/// Tables of nftables, with the generation that they were read in.
#[derive(Default)]
pub(crate) struct PathReader {
    nftables: Option<Nftables>,
    last: Option<(u32, Vec<PathTable>)>,
}

impl PathReader {
    /// Returns the tables of nftables with chains that forwarded packets meet. They are read again
    /// only if the ruleset has changed.
    pub(crate) fn read(&mut self) -> io::Result<Vec<PathTable>> {
        if self.nftables.is_none() {
            self.nftables = Nftables::open()?;
        }
        let Some(nftables) = &mut self.nftables else {
            return Ok(Vec::new());
        };
        let generation = match nftables.generation() {
            Ok(generation) => generation,
            // The kernel has netfilter without nftables.
            Err(error) if super::nft::is_unsupported(&error) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        if let Some((last, tables)) = &self.last
            && *last == generation
        {
            return Ok(tables.clone());
        }
        let tables = read_tables(nftables)?;
        self.last = Some((generation, tables.clone()));
        Ok(tables)
    }
}

fn read_tables(nftables: &mut Nftables) -> io::Result<Vec<PathTable>> {
    let chains = nftables.chains()?;
    let mut tables: BTreeMap<(Family, &str), PathTable> = BTreeMap::new();
    for chain in chains
        .iter()
        .filter(|chain| chain.table != hostport_table::TABLE)
    {
        let Some(hook) = hook(chain) else { continue };
        let table = tables
            .entry((chain.family, chain.table.as_str()))
            .or_default();
        table.bases.insert(chain.name.clone(), hook);
    }
    for ((family, name), table) in &mut tables {
        table.name = format!(
            "nftables: table {} {name}",
            super::nft::family_name(*family)
        );
        let sets = nftables.sets(*family, name)?;
        for (chain, rule) in nftables.rules_of_table(*family, name)? {
            let mut elements = |set: &str| nftables.elements(*family, name, set);
            let decoded = decode_rule(&rule, *family, &sets, &mut elements)?;
            table.chains.entry(chain).or_default().push(decoded);
        }
    }
    Ok(tables.into_values().collect())
}

/// Returns the place of a base chain on the path of forwarded packets; `None` for those of type
/// `nat`.
fn hook(chain: &ReadChain) -> Option<PathHook> {
    /// `NF_INET_INGRESS`, of the inet family.
    const INGRESS: u32 = 5;
    if chain.is_nat {
        return None;
    }
    match chain.hook?.0 {
        0 | INGRESS => Some(PathHook::Prerouting),
        2 => Some(PathHook::Forward),
        4 => Some(PathHook::Postrouting),
        _ => None,
    }
}

/// Returns the elements of a set.
type Elements<'a> = &'a mut dyn FnMut(&str) -> io::Result<Vec<ReadElement>>;

/// Decodes the statements of a rule.
fn decode_rule(
    rule: &ReadRule,
    family: Family,
    sets: &Sets,
    elements: Elements<'_>,
) -> io::Result<PathRule> {
    let mut decoder = Decoder {
        family,
        sets,
        loaded: Loaded::Other,
        mask: None,
        only_tcp: false,
        statements: Vec::new(),
    };
    for expression in &rule.expressions {
        decoder.read(expression, elements)?;
    }
    Ok(PathRule {
        statements: decoder.statements,
    })
}

/// What the register was loaded with last.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Loaded {
    State,
    TcpFlags,
    /// The transport protocol.
    Protocol,
    Other,
}

/// State of a packet of an established connection, and of one without a reply, as `ct state` loads
/// it.
const ESTABLISHED: u32 = 2;
const NEW: u32 = 8;
/// `NFT_SET_TIMEOUT | NFT_SET_EVAL`: elements come and go without a notification.
const CHANGING: u32 = 0x30;

struct Decoder<'a> {
    family: Family,
    sets: &'a Sets,
    loaded: Loaded,
    mask: Option<Vec<u8>>,
    /// Whether a condition before is met by TCP packets only.
    only_tcp: bool,
    statements: Vec<Statement>,
}

impl Decoder<'_> {
    fn read(&mut self, expression: &ReadExpression, elements: Elements<'_>) -> io::Result<()> {
        let has = |kind| expression.get(kind).is_some();
        let number = |kind| expression.number(kind);
        match expression.name.as_str() {
            // An attribute 3 (`NFTA_META_SREG`, `NFTA_CT_SREG`) writes.
            "meta" if has(3) && !has(1) => self.set("meta", number(2) == Some(expr::MARK)),
            "ct" if has(3) && !has(1) => self.set("ct", number(2) == Some(3)),
            "meta" => {
                self.load(&format!("meta {}", meta(number(2))));
                if number(2) == Some(expr::L4PROTO) {
                    self.loaded = Loaded::Protocol;
                }
            }
            "ct" if number(2) == Some(expr::CT_STATE) => self.load_special(Loaded::State),
            "ct" => self.load(&format!("ct {}", ct(number(2)))),
            // `NFTA_PAYLOAD_SREG`.
            "payload" if has(5) => self.name("payload set"),
            "payload" => self.payload((number(2), number(3), number(4))),
            "exthdr" => self.name(exthdr(expression)),
            "bitwise" => self.mask = decode::mask(expression).or(Some(Vec::new())),
            "cmp" => self.compare(expression),
            "range" | "byteorder" => self.name("compare"),
            "lookup" => return self.lookup(expression, elements),
            "immediate" => match decode::verdict(expression) {
                Some(action) => self.statements.push(Statement::Verdict(action)),
                None => self.name("immediate"),
            },
            "reject" => self.statements.push(Statement::Verdict(Action::Drop)),
            "objref" => self.name(objref(number(1))),
            "match" => {
                let name = expression.get(1).map(text).unwrap_or_default();
                let data = expression.get(3).unwrap_or_default();
                self.statements.extend(entry::statements(&name, data));
            }
            "target" => {
                let name = expression.get(1).map(text).unwrap_or_default();
                self.statements.extend(target(&name));
            }
            name => self.name(name),
        }
        Ok(())
    }

    fn name(&mut self, name: &str) {
        self.statements.push(Statement::Named(name.to_owned()));
    }

    fn set(&mut self, what: &str, is_mark: bool) {
        let key = if is_mark { " mark" } else { "" };
        self.name(&format!("{what}{key} set"));
    }

    fn load(&mut self, name: &str) {
        self.load_special(Loaded::Other);
        self.name(name);
    }

    /// Loads a register; the comparison that follows gives the statement.
    fn load_special(&mut self, loaded: Loaded) {
        self.loaded = loaded;
        self.mask = None;
    }

    fn payload(&mut self, place: (Option<u32>, Option<u32>, Option<u32>)) {
        const LINK: u32 = 0;
        let (Some(base), Some(offset), Some(length)) = place else {
            return self.load("payload");
        };
        let end = offset.saturating_add(length);
        match base {
            LINK if end <= 14 => self.load("payload link"),
            expr::NETWORK if is_address(self.family, offset, length) => {
                self.load("payload address");
                // `protocol` of an IPv4 header, `nexthdr` of an IPv6 header.
                if matches!((offset, length), (9 | 6, 1)) {
                    self.loaded = Loaded::Protocol;
                }
            }
            expr::TRANSPORT if end <= 4 => self.load("payload ports"),
            expr::TRANSPORT if (offset, length) == (13, 1) => self.load_special(Loaded::TcpFlags),
            _ => self.load("payload"),
        }
    }

    fn compare(&mut self, expression: &ReadExpression) {
        let operation = expression.number(2);
        let data = expression.get(3).and_then(|data| parse(data).next());
        let value = data.map(|(_, value)| value).unwrap_or_default();
        let is_equality = matches!(operation, Some(0 | 1));
        let wanted = operation == Some(0);
        let statement = match self.loaded {
            Loaded::State if is_equality => {
                let word = |bytes: &[u8]| bytes.first_chunk().map(|it| u32::from_ne_bytes(*it));
                let mask = match &self.mask {
                    Some(mask) => word(mask),
                    None => Some(u32::MAX),
                };
                let meets = |state: u32| {
                    mask.zip(word(value))
                        .is_none_or(|(mask, value)| (state & mask == value) == wanted)
                };
                Statement::State {
                    established: meets(ESTABLISHED),
                    new: meets(NEW),
                }
            }
            Loaded::TcpFlags if is_equality => {
                let mask = match &self.mask {
                    Some(mask) => mask.first().copied(),
                    None => Some(u8::MAX),
                }
                .unwrap_or(u8::MAX);
                entry::tcp_flags(mask, value.first().copied(), wanted, self.only_tcp)
            }
            Loaded::Protocol => {
                self.only_tcp |= wanted && value == [protocol::TCP];
                Statement::Named("compare".to_owned())
            }
            Loaded::State | Loaded::TcpFlags => Statement::Named("payload".to_owned()),
            Loaded::Other => Statement::Named("compare".to_owned()),
        };
        self.statements.push(statement);
        if self.loaded == Loaded::TcpFlags && !self.only_tcp {
            self.name("payload tcp flags");
        }
    }

    /// A lookup in a set (`NFTA_LOOKUP_SET`), or in a map, with `NFTA_LOOKUP_DREG`.
    fn lookup(&mut self, expression: &ReadExpression, elements: Elements<'_>) -> io::Result<()> {
        let set = expression.get(1).map(text).unwrap_or_default();
        let is_map = expression.number(3) == Some(0);
        let is_changing = self
            .sets
            .get(&set)
            .is_none_or(|flags| flags & CHANGING != 0);
        if self.loaded == Loaded::State && !is_changing && (is_map || expression.get(3).is_none()) {
            let elements = elements(&set)?;
            // Else the state is a part of the key only.
            if elements.iter().all(|it| it.key.len() == size_of::<u32>()) {
                let is_inverted = expression.number(5) == Some(1);
                self.statements
                    .push(lookup_of_state(&elements, is_map, is_inverted));
                return Ok(());
            }
        }
        self.name(match self.loaded {
            _ if is_changing => "lookup in a changing set",
            Loaded::TcpFlags => "payload",
            Loaded::State | Loaded::Protocol | Loaded::Other => "lookup",
        });
        if is_map {
            self.statements.push(Statement::Verdict(Action::Other));
        }
        Ok(())
    }
}

/// Returns the statement of a lookup of the connection's state.
fn lookup_of_state(elements: &[ReadElement], is_map: bool, is_inverted: bool) -> Statement {
    let find = |state: u32| elements.iter().find(|it| it.key == state.to_ne_bytes());
    let verdict = |state| Some(decode::encoded_verdict(&find(state)?.value));
    let meets = |state| find(state).is_some() != is_inverted;
    if is_map {
        Statement::Verdicts {
            established: verdict(ESTABLISHED),
            new: verdict(NEW),
        }
    } else {
        Statement::State {
            established: meets(ESTABLISHED),
            new: meets(NEW),
        }
    }
}

/// Returns the statements of a target of xtables.
pub(super) fn target(name: &str) -> Vec<Statement> {
    let named = Statement::Named(format!("target {name}"));
    match decode::target(name) {
        Action::Drop => vec![Statement::Verdict(Action::Drop)],
        Action::Continue => vec![named],
        action @ (Action::Accept
        | Action::Jump(_)
        | Action::Goto(_)
        | Action::Return
        | Action::Other) => {
            vec![named, Statement::Verdict(action)]
        }
    }
}

/// Returns whether these bytes of the network header are addresses or the protocol: the same for
/// all packets of a connection.
fn is_address(family: Family, offset: u32, length: u32) -> bool {
    let end = offset.saturating_add(length);
    let v4 = (offset, length) == (9, 1) || (offset >= 12 && end <= 20);
    let v6 = (offset, length) == (6, 1) || (offset >= 8 && end <= 40);
    match family {
        Family::Ip => v4,
        Family::Ip6 => v6,
        // Bytes 8 to 11 are the TTL and the checksum of an IPv4 header.
        Family::Inet | Family::Bridge => v4 || (v6 && (offset != 8 || length > 4)),
    }
}

/// Returns the name of a key of `meta` (`enum nft_meta_keys`).
const fn meta(key: Option<u32>) -> &'static str {
    match key {
        Some(0) => "length",
        Some(1) => "protocol",
        Some(2) => "priority",
        Some(3) => "mark",
        Some(4) => "iif",
        Some(5) => "oif",
        Some(6) => "iifname",
        Some(7) => "oifname",
        Some(8) => "iiftype",
        Some(9) => "oiftype",
        Some(15) => "nfproto",
        Some(16) => "l4proto",
        Some(17) => "ibrname",
        Some(18) => "obrname",
        Some(19) => "pkttype",
        Some(21) => "iifgroup",
        Some(22) => "oifgroup",
        Some(24) => "random",
        Some(26) => "iifkind",
        Some(27) => "oifkind",
        Some(30..=32) => "time",
        _ => "of another kind",
    }
}

/// Returns the name of a key of `ct` (`enum nft_ct_keys`).
const fn ct(key: Option<u32>) -> &'static str {
    match key {
        Some(1) => "direction",
        Some(2) => "status",
        Some(3) => "mark",
        Some(5) => "expiration",
        Some(6) => "helper",
        Some(7) => "l3protocol",
        Some(8 | 9 | 19..=22) => "address",
        Some(10) => "protocol",
        Some(11 | 12) => "ports",
        Some(13) => "labels",
        Some(14..=16) => "packets",
        Some(17) => "zone",
        _ => "of another kind",
    }
}

/// Returns the name of an expression on extension headers and TCP options.
fn exthdr(expression: &ReadExpression) -> &'static str {
    /// `NFT_EXTHDR_OP_TCPOPT`, and the option for the maximum segment size, which is in SYN
    /// segments.
    const TCP_OPTION: Option<u32> = Some(1);
    const MAXIMUM_SEGMENT_SIZE: u8 = 2;
    let writes = expression.get(7).is_some();
    let is_mss = expression.number(6) == TCP_OPTION
        && expression.get(2).and_then(<[u8]>::first) == Some(&MAXIMUM_SEGMENT_SIZE);
    match (writes, is_mss) {
        (true, true) => "exthdr maxseg set",
        (true, false) => "exthdr set",
        (false, _) => "exthdr",
    }
}

/// Returns the name of a reference to an object (`NFT_OBJECT_*`).
const fn objref(kind: Option<u32>) -> &'static str {
    match kind {
        Some(1) => "objref counter",
        Some(2) => "objref quota",
        Some(3) => "objref ct helper",
        Some(4) => "objref limit",
        Some(7) => "objref ct timeout",
        _ => "objref",
    }
}

#[cfg(test)]
mod tests;

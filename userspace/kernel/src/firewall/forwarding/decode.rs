//! Decodes rules of nftables: conditions and verdict, as far as the planner tells them apart.

use std::net::IpAddr;

use steps::{Action, Condition};

use super::entry;
use crate::firewall::nftables::{Family, ReadExpression, ReadRule, be32, expr, parse, text};

/// What the register was loaded with last.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Loaded {
    Input,
    Output,
    Protocol,
    Mark,
    State,
    Source,
    Destination,
    SourcePort,
    DestinationPort,
    DestinationType,
    Other,
}

/// Targets of xtables that give no verdict.
const WITHOUT_VERDICT: [&str; 21] = [
    "AUDIT",
    "CHECKSUM",
    "CLASSIFY",
    "CONNMARK",
    "CONNSECMARK",
    "CT",
    "DSCP",
    "ECN",
    "HL",
    "HMARK",
    "LED",
    "LOG",
    "MARK",
    "NFLOG",
    "NOTRACK",
    "RATEEST",
    "SECMARK",
    "SET",
    "TCPMSS",
    "TOS",
    "TTL",
];

/// Returns conditions and verdict of the rule.
pub(super) fn rule(rule: &ReadRule, family: Family) -> (Vec<Condition>, Action) {
    let mut reader = Reader {
        family,
        loaded: Loaded::Other,
        mask: None,
        conditions: Vec::new(),
        action: Action::Continue,
    };
    for expression in &rule.expressions {
        reader.read(expression);
    }
    (reader.conditions, reader.action)
}

/// Returns the verdict of a target of xtables, by name.
pub(super) fn target(name: &str) -> Action {
    match name {
        "REJECT" | "DROP" => Action::Drop,
        _ if WITHOUT_VERDICT.contains(&name) => Action::Continue,
        _ => Action::Other,
    }
}

struct Reader {
    family: Family,
    loaded: Loaded,
    mask: Option<Vec<u8>>,
    conditions: Vec<Condition>,
    action: Action,
}

impl Reader {
    fn read(&mut self, expression: &ReadExpression) {
        match expression.name.as_str() {
            // An attribute 3 (`NFTA_META_SREG`) sets metadata.
            "meta" | "ct" if expression.get(3).is_some() && expression.get(1).is_none() => {}
            "meta" => self.load(meta(expression.number(2))),
            // `NFTA_CT_KEY`, in another direction than the packet's with `NFTA_CT_DIRECTION`.
            "ct" => self.load(match expression.number(2) {
                Some(expr::CT_STATE) => Loaded::State,
                Some(3) => Loaded::Mark,
                _ => Loaded::Other,
            }),
            "payload" if expression.get(5).is_some() => {}
            "payload" => self.load(self.payload(expression)),
            "bitwise" => self.mask = mask(expression).or(Some(Vec::new())),
            "cmp" => self.compare(expression),
            "match" => self.conditions.extend(xt_match(expression)),
            "counter" | "log" | "objref" | "last" | "notrack" | "byteorder" => {}
            "immediate" => self.verdict(expression),
            "reject" => self.action = Action::Drop,
            "target" => {
                let name = expression.get(1).map(text).unwrap_or_default();
                self.action = target(&name);
            }
            "lookup" => self.lookup(expression),
            "fib" => self.load(fib(expression)),
            "limit" | "quota" | "connlimit" | "range" | "dynset" | "socket" | "numgen" | "rt"
            | "exthdr" | "osf" | "hash" | "xfrm" | "tunnel" | "inner" => {
                self.condition_or_load(expression);
            }
            _ => self.action = Action::Other,
        }
    }

    fn load(&mut self, loaded: Loaded) {
        self.loaded = loaded;
        self.mask = None;
    }

    /// Expressions that load a register, or stop by themselves.
    fn condition_or_load(&mut self, expression: &ReadExpression) {
        match expression.name.as_str() {
            "limit" | "quota" | "connlimit" | "range" | "dynset" => {
                self.conditions.push(Condition::Other);
            }
            _ => self.load(Loaded::Other),
        }
    }

    fn payload(&self, expression: &ReadExpression) -> Loaded {
        let place = (expression.number(2), expression.number(3));
        let is_port = expression.number(4) == Some(2);
        match (self.family, place) {
            (Family::Ip, (Some(expr::NETWORK), Some(12)))
            | (Family::Ip6, (Some(expr::NETWORK), Some(8))) => Loaded::Source,
            (Family::Ip, (Some(expr::NETWORK), Some(16)))
            | (Family::Ip6, (Some(expr::NETWORK), Some(24))) => Loaded::Destination,
            (_, (Some(expr::TRANSPORT), Some(0))) if is_port => Loaded::SourcePort,
            (_, (Some(expr::TRANSPORT), Some(2))) if is_port => Loaded::DestinationPort,
            _ => Loaded::Other,
        }
    }

    /// A lookup in a set is a condition; in a map of verdicts (`NFTA_LOOKUP_DREG` 0), one with a
    /// verdict that is not known.
    fn lookup(&mut self, expression: &ReadExpression) {
        // Maps of states have verdicts for answers, and for invalid packets.
        let is_state = self.loaded == Loaded::State && expression.number(3).is_some();
        self.conditions.push(if is_state {
            Condition::NotNew
        } else {
            Condition::Other
        });
        if expression.number(3) == Some(0) {
            self.action = Action::Other;
        }
    }

    fn verdict(&mut self, expression: &ReadExpression) {
        if let Some(action) = verdict(expression) {
            self.action = action;
        }
    }

    fn compare(&mut self, expression: &ReadExpression) {
        let operation = expression.number(2);
        let data = expression.get(3).and_then(|data| parse(data).next());
        let value = data.map(|(_, value)| value).unwrap_or_default();
        let negated = operation == Some(1);
        let condition = match operation {
            Some(0 | 1) => self.condition(value, negated),
            Some(_) | None => Condition::Other,
        };
        self.conditions.push(condition);
    }

    fn condition(&self, value: &[u8], negated: bool) -> Condition {
        match (self.loaded, &self.mask) {
            (Loaded::Input, None) => Condition::Input {
                name: interface(value),
                negated,
            },
            (Loaded::Output, None) => Condition::Output {
                name: interface(value),
                negated,
            },
            (Loaded::Protocol, None) => Condition::Protocol {
                number: value.first().copied().unwrap_or(0),
                negated,
            },
            (Loaded::SourcePort | Loaded::DestinationPort, None) => {
                value.first_chunk().map_or(Condition::Other, |port| {
                    let port = u16::from_be_bytes(*port);
                    Condition::Port {
                        source: self.loaded == Loaded::SourcePort,
                        ranges: vec![(port, port)],
                        negated,
                    }
                })
            }
            (Loaded::DestinationType, None) if value.first_chunk() == Some(&LOCAL) => {
                Condition::LocalDestination { negated }
            }
            (Loaded::Mark, _) if is_mark(value, negated) => Condition::Mark,
            (Loaded::State, Some(mask)) if is_not_new(mask, value, negated) => Condition::NotNew,
            (Loaded::State, None) if !negated && is_not_new(&[0xff; 4], value, false) => {
                Condition::NotNew
            }
            (Loaded::Source | Loaded::Destination, mask) => {
                let source = self.loaded == Loaded::Source;
                address(self.family, value, mask.as_deref()).map_or(
                    Condition::Other,
                    |(network, prefix_len)| Condition::Address {
                        source,
                        network,
                        prefix_len,
                        negated,
                    },
                )
            }
            (
                Loaded::Input
                | Loaded::Output
                | Loaded::Protocol
                | Loaded::Mark
                | Loaded::State
                | Loaded::SourcePort
                | Loaded::DestinationPort
                | Loaded::DestinationType
                | Loaded::Other,
                _,
            ) => Condition::Other,
        }
    }
}

/// Returns the verdict of an `immediate`; `None` for one that loads a register.
pub(super) fn verdict(expression: &ReadExpression) -> Option<Action> {
    if expression.number(1) != Some(0) {
        return None;
    }
    let verdict = expression.get(2).and_then(|data| parse(data).next());
    Some(verdict.map_or(Action::Other, |(_, value)| encoded_verdict(value)))
}

/// Returns an encoded verdict (`NFTA_VERDICT_*`).
pub(super) fn encoded_verdict(encoded: &[u8]) -> Action {
    let (mut code, mut chain) = (None, String::new());
    for (kind, value) in parse(encoded) {
        match kind {
            1 => code = be32(value).map(u32::cast_signed),
            2 => chain = text(value),
            _ => {}
        }
    }
    match code {
        Some(0) => Action::Drop,
        Some(1) => Action::Accept,
        Some(-1) => Action::Continue,
        Some(-3) => Action::Jump(chain),
        Some(-4) => Action::Goto(chain),
        Some(-5) => Action::Return,
        _ => Action::Other,
    }
}

fn meta(key: Option<u32>) -> Loaded {
    match key {
        Some(expr::IIFNAME) => Loaded::Input,
        Some(expr::OIFNAME) => Loaded::Output,
        Some(expr::L4PROTO) => Loaded::Protocol,
        Some(expr::MARK) => Loaded::Mark,
        _ => Loaded::Other,
    }
}

/// `RTN_LOCAL`, as the register has it.
const LOCAL: [u8; 4] = 2_u32.to_ne_bytes();

/// Returns what a `fib` loads: the type of the destination address, whatever its link
/// (`NFT_FIB_RESULT_ADDRTYPE`, `NFTA_FIB_F_DADDR`), or anything else.
fn fib(expression: &ReadExpression) -> Loaded {
    match (expression.number(2), expression.number(3)) {
        (Some(3), Some(2)) => Loaded::DestinationType,
        _ => Loaded::Other,
    }
}

/// Returns the mask of a `bitwise` that keeps bits and flips none.
pub(super) fn mask(expression: &ReadExpression) -> Option<Vec<u8>> {
    let value = |kind| {
        parse(expression.get(kind)?)
            .next()
            .map(|(_, value)| value.to_vec())
    };
    let flips = value(5)?.iter().any(|byte| *byte != 0);
    value(4).filter(|_| !flips)
}

/// A mark that is not zero must be there; zero must not.
fn is_mark(value: &[u8], negated: bool) -> bool {
    (value.iter().all(|byte| *byte == 0)) == negated
}

/// Whether the state of a new connection (bit 3) does not meet the condition: `state & mask` is
/// compared with `value`.
fn is_not_new(mask: &[u8], value: &[u8], negated: bool) -> bool {
    const NEW: u32 = 8;
    let word = |bytes: &[u8]| bytes.first_chunk::<4>().map(|it| u32::from_ne_bytes(*it));
    let (Some(mask), Some(value)) = (word(mask), word(value)) else {
        return false;
    };
    (NEW & mask == value) == negated
}

/// Returns the name, with `*` where the comparison ends before the final NUL.
fn interface(value: &[u8]) -> String {
    let name = text(value);
    if value.contains(&0) {
        name
    } else {
        format!("{name}*")
    }
}

fn address(family: Family, value: &[u8], mask: Option<&[u8]>) -> Option<(IpAddr, u8)> {
    let mut bytes = value.to_vec();
    let bits = match mask {
        Some(mask) => {
            let bits: u32 = mask.iter().map(|byte| byte.leading_ones()).sum();
            let set: u32 = mask.iter().map(|byte| byte.count_ones()).sum();
            (bits == set).then_some(bits)?
        }
        None => u32::try_from(value.len() * 8).ok()?,
    };
    let address = if family == Family::Ip {
        bytes.resize(4, 0);
        IpAddr::from(*bytes.first_chunk::<4>()?)
    } else {
        bytes.resize(16, 0);
        IpAddr::from(*bytes.first_chunk::<16>()?)
    };
    Some((address, u8::try_from(bits).ok()?))
}

/// Returns the condition of a match of xtables; `None` for a comment.
fn xt_match(expression: &ReadExpression) -> Option<Condition> {
    let name = expression.get(1).map(text).unwrap_or_default();
    let revision = expression.number(2).unwrap_or(0);
    entry::condition(&name, revision, expression.get(3).unwrap_or_default())
}

#[cfg(test)]
mod tests;

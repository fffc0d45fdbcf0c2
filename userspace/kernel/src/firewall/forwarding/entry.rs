//! Matches of xtables: layouts of their modules' structures, in host byte order unless said.

use steps::{Condition, Statement};

/// Size of `struct xt_conntrack_mtinfo3`, aligned.
const CONNTRACK: usize = 168;
/// Offsets of `match_flags`, `invert_flags` and `state_mask` in `struct xt_conntrack_mtinfo3`.
const MATCH_FLAGS: usize = 146;
const INVERT_FLAGS: usize = 148;
const STATE_MASK: usize = 150;
/// `XT_CONNTRACK_STATE` and `XT_CONNTRACK_EXPIRES`.
const STATE: u16 = 1;
const EXPIRES: u16 = 1 << 7;
/// Bits of the states (`XT_CONNTRACK_STATE_BIT`).
const ESTABLISHED: u16 = 2;
const RELATED: u16 = 4;
const NEW: u16 = 8;

/// TCP flags that tell packets apart: FIN, SYN, RST and ACK; and those of packets that may bypass
/// the stack.
const STATE_FLAGS: u8 = 0x17;
const ACK: u8 = 0x10;

/// Returns the data of `-m conntrack --ctstate RELATED,ESTABLISHED`, revision 3.
pub(super) fn answers() -> Vec<u8> {
    let mut info = vec![0; CONNTRACK];
    for (at, value) in [(MATCH_FLAGS, STATE), (STATE_MASK, ESTABLISHED | RELATED)] {
        info.splice(at..at + 2, value.to_ne_bytes());
    }
    info
}

/// Returns the data of `-m multiport --dports FIRST:LAST`, or of one port, revision 1 (`struct
/// xt_multiport_v1`).
pub(super) fn to_ports((first, last): (u16, u16)) -> Vec<u8> {
    /// `XT_MULTIPORT_DESTINATION`.
    const DESTINATION: u8 = 1;
    /// Offset of the flags that say whether a port begins a range (`pflags`).
    const BEGINS_RANGE: usize = 2 + 2 * 15;
    let mut info = vec![0; 48];
    info.splice(0..2, [DESTINATION, 1]);
    info.splice(2..4, first.to_ne_bytes());
    if first != last {
        // Number of ports: the range counts as two.
        info[1] = 2;
        info.splice(4..6, last.to_ne_bytes());
        info[BEGINS_RANGE] = 1;
    }
    info
}

/// Returns the condition of a match; `None` for one that every packet of the rule's protocol meets.
pub(super) fn condition(name: &str, revision: u32, info: &[u8]) -> Option<Condition> {
    match name {
        "comment" => None,
        "conntrack" if revision >= 2 && is_not_new(info) => Some(Condition::NotNew),
        "state" if number(info, 0).is_some_and(|mask| mask & NEW == 0) => Some(Condition::NotNew),
        // `struct xt_mark_mtinfo1`: mark, mask, and whether it is inverted.
        "mark" | "connmark" => Some(match info.get(..9) {
            Some([0, 0, 0, 0, ..]) | None => Condition::Other,
            Some([.., 0]) => Condition::Mark,
            Some(_) => Condition::Other,
        }),
        "tcp" | "udp" => ports(name, info),
        "multiport" => Some(listed_ports(revision, info)),
        "addrtype" if revision == 1 => Some(local_destination(info)),
        _ => Some(Condition::Other),
    }
}

/// Decodes `struct xt_tcp` and `struct xt_udp`: ranges of source and destination ports, and what
/// else tells packets apart.
fn ports(name: &str, info: &[u8]) -> Option<Condition> {
    let range = |at| Some((number(info, at)?, number(info, at + 2)?));
    // Of TCP `option`, `flg_mask` and `flg_cmp` come before `invflags`.
    let (has_more, inverted) = match (name, info.get(8..).unwrap_or_default()) {
        ("tcp", [option, mask, _, inverted, ..]) => (*option != 0 || *mask != 0, *inverted),
        ("udp", [inverted, ..]) => (false, *inverted),
        _ => return Some(Condition::Other),
    };
    let Some((sources, destinations)) = range(0).zip(range(4)) else {
        return Some(Condition::Other);
    };
    let port = |source: bool, range: (u16, u16)| Condition::Port {
        source,
        ranges: vec![range],
        negated: inverted & if source { 1 } else { 2 } != 0,
    };
    let is_any = |range, bit| range == (0, u16::MAX) && inverted & bit == 0;
    match (is_any(sources, 1), is_any(destinations, 2), has_more) {
        (true, true, false) => None,
        (true, false, false) => Some(port(false, destinations)),
        (false, true, false) => Some(port(true, sources)),
        (false, false, _) | (_, _, true) => Some(Condition::Other),
    }
}

/// Decodes `struct xt_multiport_v1`.
fn listed_ports(revision: u32, info: &[u8]) -> Condition {
    const MOST: usize = 15;
    let flags = info.get(2 + 2 * MOST..2 + 3 * MOST);
    let (Some([kind @ (0 | 1), count, ..]), Some(begins_range), Some(invert), 1) =
        (info.get(..2), flags, info.get(2 + 3 * MOST), revision)
    else {
        return Condition::Other;
    };
    let listed = (0..MOST.min(usize::from(*count))).filter_map(|at| {
        let port = number(info, 2 + 2 * at)?;
        Some((port, *begins_range.get(at)? != 0))
    });
    let (mut ranges, mut first) = (Vec::new(), None);
    for (port, begins) in listed {
        if begins {
            first = Some(port);
        } else {
            ranges.push((first.take().unwrap_or(port), port));
        }
    }
    Condition::Port {
        source: *kind == 0,
        ranges,
        negated: *invert != 0,
    }
}

/// Decodes `struct xt_addrtype_info_v1` of `--dst-type LOCAL`.
fn local_destination(info: &[u8]) -> Condition {
    /// `XT_ADDRTYPE_LOCAL` and `XT_ADDRTYPE_INVERT_DEST`.
    const LOCAL: u16 = 4;
    const INVERT: u32 = 2;
    let flags = info.get(4..).and_then(|flags| flags.first_chunk());
    match (number(info, 0), number(info, 2), flags) {
        (Some(0), Some(LOCAL), Some(flags)) if u32::from_ne_bytes(*flags) & !INVERT == 0 => {
            Condition::LocalDestination {
                negated: u32::from_ne_bytes(*flags) & INVERT != 0,
            }
        }
        _ => Condition::Other,
    }
}

/// Returns the statements of a match, for packets of connections that may bypass the stack; none
/// for a comment.
pub(super) fn statements(name: &str, info: &[u8]) -> Vec<Statement> {
    let named = |name: &str| Statement::Named(format!("match {name}"));
    let has = |at, bits| number(info, at).is_some_and(|value| value & bits != 0);
    let state = |at, is_inverted| Statement::State {
        established: has(at, ESTABLISHED) != is_inverted,
        new: has(at, NEW) != is_inverted,
    };
    match name {
        "comment" => Vec::new(),
        "conntrack" if info.len() < CONNTRACK => vec![named("conntrack of an old revision")],
        "conntrack" => {
            let mut found = Vec::new();
            if has(MATCH_FLAGS, EXPIRES) {
                found.push(named("conntrack expires"));
            }
            if has(MATCH_FLAGS, !(STATE | EXPIRES)) {
                found.push(named("conntrack"));
            }
            if has(MATCH_FLAGS, STATE) {
                found.push(state(STATE_MASK, has(INVERT_FLAGS, STATE)));
            }
            found
        }
        "state" => vec![state(0, false)],
        "tcp" => match info.get(8..12) {
            // `option`, `flg_mask`, `flg_cmp`, and `invflags` with `XT_TCP_INV_FLAGS` (4).
            Some([0, 0, ..]) => vec![named("tcp")],
            Some([0, mask, value, invert]) => {
                vec![
                    named("tcp"),
                    tcp_flags(*mask, Some(*value), invert & 4 == 0, true),
                ]
            }
            Some(_) | None => vec![named("tcp options")],
        },
        name => vec![named(name)],
    }
}

/// Returns the statement of a condition on TCP flags: `flags & mask` is compared with `value`, and
/// equality is wanted or not. UDP packets do not meet it where `only_tcp` does.
pub(super) fn tcp_flags(mask: u8, value: Option<u8>, wanted: bool, only_tcp: bool) -> Statement {
    match value {
        Some(value) if mask & !STATE_FLAGS == 0 => Statement::State {
            established: (ACK & mask == value) == wanted,
            new: !only_tcp,
        },
        _ => Statement::Named("match tcp flags".to_owned()),
    }
}

/// Whether the first packet of a connection does not meet the condition, by its state alone.
fn is_not_new(info: &[u8]) -> bool {
    let has = |at, bits| number(info, at).is_some_and(|value| value & bits != 0);
    has(MATCH_FLAGS, STATE) && has(STATE_MASK, NEW) == has(INVERT_FLAGS, STATE)
}

fn number(info: &[u8], at: usize) -> Option<u16> {
    let bytes = info.get(at..)?.first_chunk::<2>()?;
    Some(u16::from_ne_bytes(*bytes))
}

#[cfg(test)]
mod tests;

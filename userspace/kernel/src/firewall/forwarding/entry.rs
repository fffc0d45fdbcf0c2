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

/// Returns the condition of a match; `None` for a comment.
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
        _ => Some(Condition::Other),
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

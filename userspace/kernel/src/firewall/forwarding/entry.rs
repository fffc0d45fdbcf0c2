//! Matches of xtables: layouts of their modules' structures, in host byte order unless said.

use steps::Condition;

/// Size of `struct xt_conntrack_mtinfo3`, aligned.
const CONNTRACK: usize = 168;
/// Offsets of `match_flags`, `invert_flags` and `state_mask` in `struct xt_conntrack_mtinfo3`.
const MATCH_FLAGS: usize = 146;
const INVERT_FLAGS: usize = 148;
const STATE_MASK: usize = 150;
/// `XT_CONNTRACK_STATE`.
const STATE: u16 = 1;
/// Bits of the states (`XT_CONNTRACK_STATE_BIT`).
const ESTABLISHED: u16 = 2;
const RELATED: u16 = 4;
const NEW: u16 = 8;

/// Returns the data of `-m conntrack --ctstate RELATED,ESTABLISHED`, revision 3.
pub(super) fn answers() -> Vec<u8> {
    let mut info = vec![0; CONNTRACK];
    for (at, value) in [(MATCH_FLAGS, STATE), (STATE_MASK, ESTABLISHED | RELATED)] {
        info.splice(at..at + 2, value.to_ne_bytes());
    }
    info
}

/// Returns the data of `-m multiport --dports PORT`, revision 1 (`struct xt_multiport_v1`).
pub(super) fn to_port(port: u16) -> Vec<u8> {
    /// `XT_MULTIPORT_DESTINATION`.
    const DESTINATION: u8 = 1;
    let mut info = vec![0; 48];
    info.splice(0..2, [DESTINATION, 1]);
    info.splice(2..4, port.to_ne_bytes());
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

/// Whether the first packet of a connection does not meet the condition, by its state alone.
fn is_not_new(info: &[u8]) -> bool {
    let has = |at, bits| number(info, at).is_some_and(|value| value & bits != 0);
    has(MATCH_FLAGS, STATE) && has(STATE_MASK, NEW) == has(INVERT_FLAGS, STATE)
}

fn number(info: &[u8], at: usize) -> Option<u16> {
    let bytes = info.get(at..)?.first_chunk::<2>()?;
    Some(u16::from_ne_bytes(*bytes))
}

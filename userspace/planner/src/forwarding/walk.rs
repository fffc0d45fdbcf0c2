//! Finds where the default of a base chain takes effect.
//!
//! Follows the rules that apply to every packet, and passes by those with conditions: what is
//! reached in that way is the default.

use steps::{Action, BaseChain, FilterHook, FilterRule, Place, TableState};

/// A default that drops.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DefaultDrop {
    /// For people: `policy DROP of chain FORWARD`.
    pub(crate) what: String,
    pub(crate) hook: FilterHook,
    /// Name of the base chain.
    pub(crate) base: String,
    /// Where a jump is evaluated after all explicit rules; `None` where there is no such place.
    pub(crate) place: Option<Place>,
}

/// How the evaluation of a packet that meets no condition ends.
enum End {
    /// After the last rule of the chain, or by a rule that returns.
    Through,
    Accepted,
    Dropped,
    /// By a verdict that is not known.
    Unknown,
}

/// A position in a chain: before the rule of this index, or behind the last one.
struct Frame<'a> {
    chain: &'a str,
    rules: Vec<&'a FilterRule>,
    at: usize,
}

/// Returns the defaults that drop, one for each base chain at most.
pub(crate) fn defaults(state: &TableState) -> Vec<DefaultDrop> {
    state
        .base
        .iter()
        .filter_map(|base| default(state, base))
        .collect()
}

fn default(state: &TableState, base: &BaseChain) -> Option<DefaultDrop> {
    let mut frames = Vec::new();
    let end = follow(state, &base.name, &mut frames);
    let what = match end {
        End::Dropped => {
            let chain = frames
                .last()
                .map_or(base.name.as_str(), |frame| frame.chain);
            format!("last rule of chain {chain}")
        }
        End::Through if base.drops => format!("policy DROP of chain {}", base.name),
        End::Through | End::Accepted | End::Unknown => return None,
    };
    Some(DefaultDrop {
        what,
        hook: base.hook,
        base: base.name.clone(),
        place: place(state, frames),
    })
}

/// Follows the evaluation. On return, `frames` are the positions of the end, from the base chain
/// inwards.
fn follow<'a>(state: &'a TableState, chain: &'a str, frames: &mut Vec<Frame<'a>>) -> End {
    // The kernel refuses loops, and limits the depth to 16 (`NFT_JUMP_STACK_SIZE`).
    if frames.len() > 32 {
        return End::Unknown;
    }
    let rules = state.foreign_rules(chain);
    let depth = frames.len();
    frames.push(Frame {
        chain,
        rules,
        at: 0,
    });
    loop {
        let rule = frames
            .get(depth)
            .and_then(|frame| frame.rules.get(frame.at).copied());
        let Some(rule) = rule else {
            return End::Through;
        };
        if rule.is_unconditional() {
            match &rule.action {
                Action::Continue => {}
                Action::Accept => return End::Accepted,
                Action::Drop => return End::Dropped,
                Action::Other => return End::Unknown,
                Action::Return => return End::Through,
                Action::Goto(to) => return follow(state, to, frames),
                Action::Jump(to) => match follow(state, to, frames) {
                    End::Through => frames.truncate(depth + 1),
                    end @ (End::Accepted | End::Dropped | End::Unknown) => return end,
                },
            }
        }
        if let Some(frame) = frames.get_mut(depth) {
            frame.at += 1;
        }
    }
}

/// Returns the outermost place at which nothing but rules without verdict, or the default itself,
/// follows. In a chain that other rules reach as well there is none: a jump there would pass by
/// explicit rules.
fn place(state: &TableState, mut frames: Vec<Frame<'_>>) -> Option<Place> {
    while frames.len() > 1 && frames.last().is_some_and(|frame| is_pure(state, frame)) {
        frames.pop();
    }
    let reached_elsewhere = frames
        .iter()
        .skip(1)
        .any(|frame| references(state, frame.chain) > 1);
    if reached_elsewhere {
        return None;
    }
    let frame = frames.last()?;
    let chain = frame.chain.to_owned();
    Some(match frame.rules.get(frame.at) {
        Some(rule) => Place::Before {
            chain,
            handle: rule.handle,
        },
        None => Place::Last { chain },
    })
}

/// Whether no rule before the position has both conditions and a verdict, nor does one in a chain
/// that these rules evaluate.
fn is_pure(state: &TableState, frame: &Frame<'_>) -> bool {
    let mut before = frame.rules.iter().take(frame.at);
    before.all(|rule| is_pure_rule(state, rule, 0))
}

fn is_pure_rule(state: &TableState, rule: &FilterRule, depth: usize) -> bool {
    match &rule.action {
        Action::Continue => true,
        _ if !rule.is_unconditional() || depth > 32 => false,
        Action::Jump(to) | Action::Goto(to) => {
            let rules = state.foreign_rules(to);
            rules
                .iter()
                .all(|rule| is_pure_rule(state, rule, depth + 1))
        }
        Action::Accept | Action::Drop | Action::Return | Action::Other => true,
    }
}

fn references(state: &TableState, chain: &str) -> usize {
    let refers = |rule: &&FilterRule| matches!(&rule.action, Action::Jump(to) | Action::Goto(to) if to == chain);
    let chains = state.rules.values();
    chains
        .map(|rules| rules.iter().filter(refers).count())
        .sum()
}

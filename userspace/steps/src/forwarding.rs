//! Filter tables that forwarded packets pass, as observed, and the step that changes our rules in
//! them.

mod accept_rule;
mod apply;
mod names;
mod place;
mod step;
mod table;

pub use accept_rule::AcceptRule;
pub use names::{ADMIN_CHAIN, FORWARD_CHAIN};
pub use place::Place;
pub use step::{ForwardTables, ForwardingStep};
pub use table::{
    Action, BaseChain, Condition, FilterBackend, FilterFamily, FilterHook, FilterRule, FilterTable,
    OwnJump, TableState,
};

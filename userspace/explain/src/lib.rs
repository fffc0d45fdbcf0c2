//! Explains what happens to a packet, decision by decision: `viaductctl why`.
//!
//! Runs the datapath's own decisions, crate `verdict`, on a copy of the node's tables, and follows
//! the packet from hook to hook. Between the hooks bridge and stack decide; there the kernel's
//! route, its links and its filter tables say what becomes of the packet, as far as they can.
//!
//! Pure: the copy of the tables and the links are values, and [`Lookups`] answers for routes and
//! sockets. What the packet would change (flows, buckets, counters) changes the copy only.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod entrance;
mod explanation;
mod frame;
mod neighbour;
mod netfilter;
mod node;
mod question;
mod recorder;
mod sentences;
mod shape;
mod snapshot;
mod stack;
mod walk;

pub use entrance::{before_translation, link_of_held};
pub use explanation::{Decision, Explanation, HookRun, HookTrace, Leg, Outcome, Step};
pub use node::Node;
pub use question::{Question, Sender, sender_of};
pub use shape::Shape;
pub use snapshot::{LinkFacts, Lookups, Snapshot};
pub use verdict::Verdict;
pub use verdict::simulator::Place;
pub use walk::{explain, explain_at};

#[cfg(test)]
mod properties;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

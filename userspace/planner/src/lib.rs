//! Pure decisions: (intent, observation, record) in, plan out.
//!
//! Knows no async, no I/O, no clock, no randomness: all of these come in as arguments. A [`Plan`] leaves no choice
//! to whoever executes it. The words:
//!
//! * [`Observed`]: what is true in the kernel now, as plain data;
//! * [`model::Record`]: what was decided earlier;
//! * [`Step`]: one effect, with the step that undoes it;
//! * [`Plan`]: steps in order;
//! * [`Refusal`]: why a wish cannot be granted.

#![forbid(unsafe_code)]

mod entry;
mod observed;
mod plan;
mod step;

pub use entry::{Entries, Entry, EntryKey, LinkRef};
pub use observed::{Link, LinkKind, Observed, PodSide, RouteEntry, Scope};
pub use plan::Plan;
pub use step::{BridgeSpec, Hook, PodSpec, Step, SysctlKey, VethSpec};

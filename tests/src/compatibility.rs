//! Viaduct and the reference plugins on a node with other software: which traffic passes, and what
//! CHECK, STATUS and `viaductctl doctor` report.
//!
//! [`measure`] makes one row of the table in `docs/compatibility.md`, [`laws`] are what must hold
//! for all rows.

mod page;
mod probe;
mod recorder;
mod row;
mod scene;
mod software;
mod system;

pub use page::page;
pub use recorder::record;
pub use row::{Cell, Column, Row, laws};
pub use scene::measure;
pub use software::{Order, Software};
pub use system::System;

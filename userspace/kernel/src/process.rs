//! This process: its threads and its memory.

pub(crate) mod memory;
pub(crate) mod thread;

//! This process: its threads and its heap.

pub(crate) mod heap;
pub(crate) mod thread;

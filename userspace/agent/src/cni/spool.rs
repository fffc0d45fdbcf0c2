//! The spool of DELs, and a lock for its execution.

use api::Spool;
use tokio::sync::Mutex;

/// The spool, and a lock for its execution: an ADD must wait for the end of a running replay, or a
/// DEL of it could remove what the ADD has created.
#[derive(Debug)]
pub(crate) struct SpoolReplay {
    pub(crate) spool: Spool,
    pub(crate) lock: Mutex<()>,
}

impl SpoolReplay {
    pub(crate) fn of(spool: Spool) -> Self {
        let lock = Mutex::new(());
        Self { spool, lock }
    }
}

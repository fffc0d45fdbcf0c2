//! The error that ended the last agent of the unit, in a file of its runtime directory, for
//! `viaductctl doctor`. Other agents write none.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use api::LAST_FAILURE;

/// Writes the reason. A failure is ignored: the log has the reason too.
pub(crate) fn record(reason: &str) {
    if let Some(directory) = runtime_directory() {
        let _result = fs::write(directory.join(LAST_FAILURE), reason);
    }
}

/// Removes the reason of an earlier failure, when the agent serves.
pub(crate) fn clear() {
    if let Some(directory) = runtime_directory()
        && let Err(error) = remove(&directory)
    {
        tracing::warn!(%error, file = LAST_FAILURE, "cannot remove the reason of an earlier failure");
    }
}

/// Removes the file from a directory; one that is not there is success.
pub(crate) fn remove(directory: &Path) -> io::Result<()> {
    match fs::remove_file(directory.join(LAST_FAILURE)) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Returns the directory that systemd has made for the unit (`RuntimeDirectory=`), the first of
/// several.
fn runtime_directory() -> Option<PathBuf> {
    let directories = std::env::var_os("RUNTIME_DIRECTORY")?;
    std::env::split_paths(&directories).next()
}

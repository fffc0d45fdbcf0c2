//! Errors of the store, each naming the file.

use std::io;
use std::path::PathBuf;

/// Why records cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file is open elsewhere.
    #[error("another agent is running: it has {} open", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// What is in the file is not what was written.
    #[error(
        "{} is damaged ({what}); remove it only when no pod of this node is attached any more",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The file was written by another version.
    #[error("{} has format {found}, this agent reads format {known}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// Ours.
        known: u32,
    },
    /// The operating system refused.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// What was attempted.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The database refused.
    #[error("cannot {action} {}", path.display())]
    Database {
        /// What was attempted.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the database said.
        #[source]
        source: Box<redb::Error>,
    },
}

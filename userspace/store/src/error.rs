//! Errors of the store, each with the path of the file.

use std::io;
use std::path::PathBuf;

/// Why the store cannot be opened, read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process has the file open.
    #[error("another agent is running: it has {} open", path.display())]
    InUse {
        /// Path of the file.
        path: PathBuf,
    },
    /// The contents of the file are not what was written.
    #[error(
        "{} is damaged ({what}); remove it only when no pod of this node is attached",
        path.display()
    )]
    Damaged {
        /// Path of the file.
        path: PathBuf,
        /// What is wrong with the contents.
        what: String,
    },
    /// The file was written by an unknown version.
    #[error("{} has format {found}, this agent reads format {known}", path.display())]
    Format {
        /// Path of the file.
        path: PathBuf,
        /// Format number of the file.
        found: u32,
        /// Format number that this agent reads.
        known: u32,
    },
    /// A system call failed.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// Failed operation, as a verb.
        action: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
    /// A database operation failed.
    #[error("cannot {action} {}", path.display())]
    Database {
        /// Failed operation, as a verb.
        action: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Error of the database.
        #[source]
        source: Box<redb::Error>,
    },
}

//! Journal: a file beside the database with one line per change that the database does not have
//! yet.
//!
//! A database commit costs a hundred times as much as a line, and an attachment is stored twice
//! before its ADD is answered. So changes are appended here, and written to the database when the
//! agent is idle. An incomplete last line is ignored: the agent was killed while writing it, and
//! has done nothing that relies on it.

use std::fs::{self, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::change::Change;
use crate::{StoreError, format};

/// Hexadecimal digits of a checksum.
const DIGITS: usize = 8;

#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    file: fs::File,
    /// Length of the complete lines in bytes; the next line is written there.
    length: u64,
}

/// Returns the path of the journal of the database at `path`.
pub(crate) fn path_beside(path: &Path) -> PathBuf {
    path.with_extension("journal")
}

impl Journal {
    /// Opens or creates the journal of the database at `path`; returns it with its changes.
    pub(crate) fn open(path: &Path) -> Result<(Self, Vec<Change>), StoreError> {
        let path = path_beside(path);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let opened = options.mode(0o600).open(&path);
        let mut file = opened.map_err(|error| failed("open", &path, error))?;
        let mut bytes = Vec::new();
        (file.read_to_end(&mut bytes)).map_err(|error| failed("read", &path, error))?;
        let (changes, length) = read(&bytes).map_err(|what| StoreError::Damaged {
            path: path.clone(),
            what,
        })?;
        let journal = Self { path, file, length };
        Ok((journal, changes))
    }

    /// Returns the length of all lines in bytes.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Appends a change. After a failure the journal is as before.
    pub(crate) fn append(&mut self, change: &Change) -> Result<(), StoreError> {
        let line = line(change);
        if let Err(error) = self.file.write_all_at(&line, self.length) {
            let _as_before = self.file.set_len(self.length);
            return Err(failed("write", &self.path, error));
        }
        self.length += line.len() as u64;
        Ok(())
    }

    /// Removes all changes, after the database has them.
    pub(crate) fn clear(&mut self) -> Result<(), StoreError> {
        let cleared = self.file.set_len(0);
        cleared.map_err(|error| failed("empty", &self.path, error))?;
        self.length = 0;
        Ok(())
    }
}

/// Returns a line: CRC-32 of the change in eight hexadecimal digits, a space, the change as JSON, a
/// line feed.
pub(crate) fn line(change: &Change) -> Vec<u8> {
    let change = format::write_change(change);
    let mut line = format!("{:08x} ", crc32fast::hash(&change)).into_bytes();
    line.extend_from_slice(&change);
    line.push(b'\n');
    line
}

/// Parses the complete lines: returns the changes in order, and the length of the lines in bytes. A
/// rest without a line feed is ignored.
pub(crate) fn read(bytes: &[u8]) -> Result<(Vec<Change>, u64), String> {
    let whole = bytes
        .iter()
        .rposition(|byte| *byte == b'\n')
        .map_or(0, |end| end + 1);
    let lines = bytes[..whole].split_inclusive(|byte| *byte == b'\n');
    let changes = lines.enumerate().map(|(number, line)| {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let change = checked(line).and_then(format::read_change);
        change.map_err(|what| format!("line {}: {what}", number + 1))
    });
    Ok((changes.collect::<Result<_, _>>()?, whole as u64))
}

fn checked(line: &[u8]) -> Result<&[u8], String> {
    let (sum, change) = line.split_at_checked(DIGITS).ok_or("it is too short")?;
    let change = change.strip_prefix(b" ").ok_or("it has no checksum")?;
    let is_right = format!("{:08x}", crc32fast::hash(change)).as_bytes() == sum;
    is_right
        .then_some(change)
        .ok_or_else(|| "its checksum is wrong".to_owned())
}

fn failed(action: &'static str, path: &Path, source: io::Error) -> StoreError {
    StoreError::Io {
        action,
        path: path.to_owned(),
        source,
    }
}

//! The journal: a file of lines beside the database, one for each change that the database does not have yet.
//!
//! A commit of the database costs a hundred times what a line does, and an attachment is put twice before its ADD is
//! answered. So changes are written here, and into the database when nobody waits. A line is whole or it is not there:
//! one without its end was being written when the agent was killed, and nothing was done that relied on it.

use std::fs::{self, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::change::Change;
use crate::{StoreError, format};

/// Digits of a checksum.
const DIGITS: usize = 8;

#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    file: fs::File,
    /// Bytes that are good: the next line is written behind them.
    length: u64,
}

/// Where the journal of the database at `path` is.
pub(crate) fn path_beside(path: &Path) -> PathBuf {
    path.with_extension("journal")
}

impl Journal {
    /// Opens the journal beside the database at `path`, or makes one; with the changes that it has.
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

    /// Bytes of all lines.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Writes a change behind the others. After a failure it is as if nothing had been tried.
    pub(crate) fn append(&mut self, change: &Change) -> Result<(), StoreError> {
        let line = line(change);
        if let Err(error) = self.file.write_all_at(&line, self.length) {
            let _as_before = self.file.set_len(self.length);
            return Err(failed("write", &self.path, error));
        }
        self.length += line.len() as u64;
        Ok(())
    }

    /// Forgets all changes: the database has them.
    pub(crate) fn clear(&mut self) -> Result<(), StoreError> {
        let cleared = self.file.set_len(0);
        cleared.map_err(|error| failed("empty", &self.path, error))?;
        self.length = 0;
        Ok(())
    }
}

/// The checksum of the rest in hexadecimal digits, a space, the change and a line feed.
fn line(change: &Change) -> Vec<u8> {
    let change = format::write_change(change);
    let mut line = format!("{:08x} ", crc32fast::hash(&change)).into_bytes();
    line.extend_from_slice(&change);
    line.push(b'\n');
    line
}

/// The changes in the order in which they were made, and how many bytes they have; what is behind them is half a line.
fn read(bytes: &[u8]) -> Result<(Vec<Change>, u64), String> {
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

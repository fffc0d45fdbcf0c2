//! Journal: a file beside the database with one line per change that the database does not have
//! yet.
//!
//! A database commit costs a hundred times as much as a line, and an attachment is stored twice
//! before its ADD is answered. So changes are appended here, and written to the database when the
//! agent is idle. An incomplete last line is ignored: the agent was killed while writing it, and
//! has done nothing that relies on it.
//!
//! The file begins with a head of fixed length, which is rewritten in place behind each line: it
//! counts the lines, and names the compaction that the journal follows. The database has the number
//! of its last compaction. So a journal whose end was cut or zeroed, that was emptied, removed or
//! replaced, is damaged, and not a shorter one: records of live pods would be missing.
//!
//! Behind the lines, blocks are allocated for removals, which are possible on a full disk: an ADD
//! that finds no room removes its record again.

use std::fs::{self, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};

use crate::change::{Change, Subject};
use crate::{StoreError, format};

/// Bytes behind the lines that only removals may use: some hundred lines.
const RESERVE: u64 = 32 << 10;
/// Bytes that are allocated at a time.
const BLOCK: u64 = 4 << 10;
/// Hexadecimal digits of a checksum.
const DIGITS: usize = 8;
/// Begins the head.
const HEAD_WORD: &str = "viaduct-journal";
/// Length of the head in bytes: word, two decimal numbers of ten digits, checksum, line feed.
const HEAD: usize = HEAD_WORD.len() + 2 * 11 + 1 + DIGITS + 1;

#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    file: fs::File,
    /// The head as of the last line or compaction.
    head: Head,
    /// Number of the database's last compaction: another than the head's if [`Journal::clear`]
    /// failed.
    compaction: u32,
    /// Length of head and complete lines in bytes; the next line is written there.
    length: u64,
    /// Length in bytes for which blocks are allocated.
    allocated: u64,
}

/// Head of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    /// Number of the last compaction before the first line.
    compaction: u32,
    /// Number of complete lines, or one less if the agent was killed between a line and the head.
    lines: u32,
}

/// Compactions of the database, as far as the journal must know them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// The database of a version without heads: the journal has none, or that of an interrupted
    /// upgrade.
    Headless,
    /// Number of the database's last compaction.
    Compaction(u32),
}

/// Returns the path of the journal of the database at `path`.
pub(crate) fn path_beside(path: &Path) -> PathBuf {
    path.with_extension("journal")
}

/// Writes the empty journal of a new database.
pub(crate) fn create(path: &Path) -> Result<(), StoreError> {
    write_all(&path_beside(path), Head::default().line().as_bytes())
}

/// Writes a whole journal. It gets its name only when it is complete.
fn write_all(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let draft = draft(path);
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    options
        .open(&draft)
        .and_then(|file| file.write_all_at(bytes, 0))
        .and_then(|()| fs::rename(&draft, path))
        .map_err(|error| failed("write", path, error))
}

/// Returns the path of a journal until it is complete.
pub(crate) fn draft(path: &Path) -> PathBuf {
    path.with_extension("journal-draft")
}

impl Journal {
    /// Opens the journal of the database at `path`; returns it with its changes.
    pub(crate) fn open(path: &Path, expected: Expected) -> Result<(Self, Vec<Change>), StoreError> {
        let path = path_beside(path);
        let damaged = |what| StoreError::Damaged {
            path: path.clone(),
            what,
        };
        let mut options = OpenOptions::new();
        let mut open = || options.read(true).write(true).open(&path);
        let mut file = match open() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if expected != Expected::Headless {
                    return Err(damaged("it is missing".to_owned()));
                }
                write_all(&path, b"")?;
                open()
            }
            opened => opened,
        }
        .map_err(|error| failed("open", &path, error))?;
        let mut bytes = Vec::new();
        (file.read_to_end(&mut bytes)).map_err(|error| failed("read", &path, error))?;
        let (head, lines) = Head::split(&bytes);
        let (changes, length) = read(lines).map_err(damaged)?;
        let found = u32::try_from(changes.len()).unwrap_or(u32::MAX);
        let Some(head) = head else {
            if expected != Expected::Headless {
                return Err(damaged("its head is missing or wrong".to_owned()));
            }
            // Of a version without heads.
            let whole = usize::try_from(length).unwrap_or(lines.len());
            let head = Head {
                lines: found,
                ..Head::default()
            };
            let upgraded = [head.line().as_bytes(), &lines[..whole]].concat();
            write_all(&path, &upgraded)?;
            let file = open().map_err(|error| failed("open", &path, error))?;
            return Ok((Self::new(path, file, head, length), changes));
        };
        if expected == Expected::Compaction(head.compaction.wrapping_add(1)) {
            // The agent was killed between the commit and the new head: the database has all lines,
            // whether they are still there or not.
            let mut journal = Self::new(path, file, head, length);
            journal.clear()?;
            return Ok((journal, Vec::new()));
        }
        head.check(expected, found).map_err(damaged)?;
        let head = Head {
            lines: found,
            ..head
        };
        Ok((Self::new(path, file, head, length), changes))
    }

    fn new(path: PathBuf, file: fs::File, head: Head, lines: u64) -> Self {
        Self {
            path,
            file,
            head,
            compaction: head.compaction,
            length: HEAD as u64 + lines,
            allocated: 0,
        }
    }

    /// Allocates blocks for `more` bytes and the reserve, where the file system can.
    fn reserve(&mut self, more: u64) -> Result<(), StoreError> {
        let wanted = (self.length + more + RESERVE).next_multiple_of(BLOCK);
        if wanted <= self.allocated {
            return Ok(());
        }
        let length = i64::try_from(wanted).unwrap_or(i64::MAX);
        match fallocate(&self.file, FallocateFlags::FALLOC_FL_KEEP_SIZE, 0, length) {
            Ok(()) | Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => self.allocated = wanted,
            Err(error) => return Err(failed("extend", &self.path, error.into())),
        }
        Ok(())
    }

    /// Returns the length of all lines in bytes.
    pub(crate) fn length(&self) -> u64 {
        self.length - HEAD as u64
    }

    /// Returns the number of the compaction that empties this journal.
    pub(crate) fn next_compaction(&self) -> u32 {
        self.head.compaction.wrapping_add(1)
    }

    /// Appends a change. After a failure the journal is as before.
    pub(crate) fn append(&mut self, change: &Change) -> Result<(), StoreError> {
        let line = line(change);
        if !matches!(change.subject, Some(Subject::Removed(_))) {
            self.reserve(line.len() as u64)?;
        }
        let head = Head {
            compaction: self.compaction,
            lines: self.head.lines + 1,
        };
        // The line first: a head that counts a line which is not there means damage.
        let written = self
            .file
            .write_all_at(&line, self.length)
            .and_then(|()| self.write_head(head));
        if let Err(error) = written {
            let _as_before = self.write_head(self.head);
            let _as_before = self.file.set_len(self.length);
            self.allocated = 0;
            return Err(failed("write", &self.path, error));
        }
        self.head = head;
        self.length += line.len() as u64;
        Ok(())
    }

    /// Removes all changes, after the database has them, as of its compaction
    /// [`Journal::next_compaction`]. After a failure they may be left: they are repeated, which is
    /// harmless.
    pub(crate) fn clear(&mut self) -> Result<(), StoreError> {
        self.compaction = self.next_compaction();
        let head = Head {
            compaction: self.compaction,
            lines: 0,
        };
        // The head first: a shorter file than it counts means damage.
        let cleared = self
            .write_head(head)
            .and_then(|()| self.file.set_len(HEAD as u64));
        cleared.map_err(|error| failed("empty", &self.path, error))?;
        self.head = head;
        self.length = HEAD as u64;
        // Truncating has freed the blocks. The next line that needs them reports a full disk.
        self.allocated = 0;
        let _full = self.reserve(0);
        Ok(())
    }

    fn write_head(&self, head: Head) -> io::Result<()> {
        self.file.write_all_at(head.line().as_bytes(), 0)
    }
}

impl Default for Head {
    fn default() -> Self {
        Self {
            compaction: 1,
            lines: 0,
        }
    }
}

impl Head {
    /// Returns the head as it is written: [`HEAD`] bytes.
    fn line(self) -> String {
        let numbers = format!("{HEAD_WORD} {:010} {:010}", self.compaction, self.lines);
        let sum = crc32fast::hash(numbers.as_bytes());
        format!("{numbers} {sum:08x}\n")
    }

    /// Parses the head; returns `None` where there is none, and the rest of the file.
    fn split(bytes: &[u8]) -> (Option<Self>, &[u8]) {
        let Some((head, lines)) = bytes.split_at_checked(HEAD) else {
            return (None, bytes);
        };
        let number = |word: Option<&str>| word?.parse::<u32>().ok();
        let parse = || {
            let mut words = std::str::from_utf8(head).ok()?.split_whitespace().skip(1);
            let (compaction, lines) = (number(words.next())?, number(words.next())?);
            let parsed = Self { compaction, lines };
            (parsed.line().as_bytes() == head).then_some(parsed)
        };
        parse().map_or((None, bytes), |parsed| (Some(parsed), lines))
    }

    /// Compares the head with the database and with the number of lines.
    fn check(self, expected: Expected, found: u32) -> Result<(), String> {
        let Self { compaction, lines } = self;
        if let Expected::Compaction(last) = expected
            && last != compaction
        {
            return Err(format!(
                "it follows compaction {compaction} of the database, which is at {last}"
            ));
        }
        if found < lines {
            return Err(format!("{found} of its {lines} lines are left"));
        }
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

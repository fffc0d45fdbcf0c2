//! File of the latest events: an agent that starts goes on with the history of the one before.
//!
//! A line of JSON for each event, beside the records and for as long as they exist. A thread of its
//! own writes, because a file system that does not answer must stop no request. Nothing is synced:
//! what was written survives the process, and records end with the boot of the node as well.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::Duration;

use api::Event;
use nix::libc::{O_CLOEXEC, O_NOFOLLOW, O_NONBLOCK};

use super::HISTORY_LENGTH;

/// Name of the file in the state directory.
const NAME: &str = "events.jsonl";
/// Maximum number of bytes that a rewrite keeps: the latest events that fit.
const MAX_KEPT_BYTES: usize = 512 << 10;
/// Number of bytes, and of lines, from which the file is rewritten with the latest events only.
const REWRITE_BYTES: usize = 2 * MAX_KEPT_BYTES;
const REWRITE_LINES: usize = 2 * HISTORY_LENGTH;
/// Maximum size of a file that is read: larger ones are not the agent's.
const MAX_READ_BYTES: u64 = 8 << 20;
/// Number of events that may wait for the file system.
const QUEUE_LENGTH: usize = 256;
/// Time in which the file system must take the last events of an agent that stops.
const FINISH_TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes of the stack of the thread that writes.
const STACK: usize = 128 * 1024;

/// The writer of the file; clones share it.
#[derive(Clone, Debug)]
pub(crate) struct EventFile {
    queue: Arc<Queue>,
}

#[derive(Debug)]
struct Queue {
    sender: SyncSender<Command>,
    /// Whether events were lost because the file system does not take them: logged once.
    is_full: AtomicBool,
}

#[derive(Debug)]
enum Command {
    Append(Arc<Event>),
    /// Ends the writer after everything before; the sender is dropped then.
    Finish(SyncSender<()>),
}

/// Contents of the file at the start.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pub(super) events: VecDeque<Arc<Event>>,
    /// Number of lines, which may be more.
    lines: usize,
    /// What was wrong with the file, and where it is now.
    pub(super) damage: Option<String>,
}

impl EventFile {
    /// Reads the file in `directory`, and starts the thread that continues it. A damaged file is
    /// renamed, and those of its events that can be read are kept.
    pub(super) fn open(directory: &Path) -> io::Result<(Self, Kept)> {
        let path = directory.join(NAME);
        let (kept, is_whole) = read(&path);
        // A file with a torn or damaged line would be read as damaged again: it is rewritten.
        let writer = Writer::new(path, &kept, !is_whole);
        let (sender, commands) = sync_channel(QUEUE_LENGTH);
        thread::Builder::new()
            .name("event-file".to_owned())
            .stack_size(STACK)
            .spawn(move || writer.run(&commands))?;
        let queue = Queue {
            sender,
            is_full: AtomicBool::new(false),
        };
        let queue = Arc::new(queue);
        Ok((Self { queue }, kept))
    }

    /// Appends an event; returns at once. Without space in the queue, the file misses the event.
    pub(super) fn append(&self, event: Arc<Event>) {
        let sent = self.queue.sender.try_send(Command::Append(event));
        let is_full = matches!(sent, Err(TrySendError::Full(_)));
        if is_full && !self.queue.is_full.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "the file system of the state directory does not answer: the file of events misses some"
            );
        }
    }

    /// Waits until all events are in the file, and ends its writer: later events are not kept.
    pub(crate) fn finish(&self) {
        let (sender, finished) = sync_channel(0);
        if self.queue.sender.try_send(Command::Finish(sender)).is_ok() {
            // An error is the end of the writer, or a file system that does not answer.
            let _ended = finished.recv_timeout(FINISH_TIMEOUT);
        }
    }
}

/// Returns the files that an event file in `directory` may consist of.
pub(crate) fn files(directory: &Path) -> [PathBuf; 3] {
    let path = directory.join(NAME);
    [draft(&path), aside(&path), path]
}

fn draft(path: &Path) -> PathBuf {
    path.with_extension("jsonl.new")
}

fn aside(path: &Path) -> PathBuf {
    path.with_extension("damaged")
}

/// Returns the events of the file, and whether each of its lines is one of them.
fn read(path: &Path) -> (Kept, bool) {
    let text = match read_bytes(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return (Kept::default(), true),
        Err(error) => return (damaged(path, VecDeque::new(), &error.to_string()), false),
    };
    let mut events: VecDeque<Arc<Event>> = VecDeque::new();
    let (mut lines, mut unreadable) = (0, 0);
    let (whole, torn) = match text.iter().rposition(|byte| *byte == b'\n') {
        Some(end) => text.split_at(end + 1),
        None => text.split_at(0),
    };
    for line in whole.split_inclusive(|byte| *byte == b'\n') {
        lines += 1;
        match serde_json::from_slice::<Event>(line) {
            Ok(event) if follows(&event, events.back()) => {
                if events.len() == HISTORY_LENGTH {
                    events.pop_front();
                }
                events.push_back(Arc::new(event));
            }
            Ok(_) | Err(_) => unreadable += 1,
        }
    }
    if unreadable > 0 {
        let what = format!("{unreadable} of its lines are no events");
        return (damaged(path, events, &what), false);
    }
    // A process that was killed may leave the beginning of a line: no damage, and no event.
    let kept = Kept {
        events,
        lines,
        damage: None,
    };
    (kept, torn.is_empty())
}

/// Returns whether an event has a number that may come after that of another one.
fn follows(event: &Event, before: Option<&Arc<Event>>) -> bool {
    let least = before.map_or(1, |before| before.sequence + 1);
    (least..u64::MAX / 2).contains(&event.sequence)
}

fn read_bytes(path: &Path) -> io::Result<Vec<u8>> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)
        .open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    if metadata.len() > MAX_READ_BYTES {
        return Err(io::Error::other(format!(
            "it has more than {MAX_READ_BYTES} bytes"
        )));
    }
    let mut text = Vec::new();
    file.take(MAX_READ_BYTES).read_to_end(&mut text)?;
    Ok(text)
}

/// Renames the damaged file.
fn damaged(path: &Path, events: VecDeque<Arc<Event>>, what: &str) -> Kept {
    let aside = aside(path);
    let moved = match fs::rename(path, &aside) {
        Ok(()) => format!("it is now {}", aside.display()),
        Err(error) => format!("it cannot be renamed: {error}"),
    };
    Kept {
        events,
        lines: 0,
        damage: Some(format!(
            "the file of events {} is damaged: {what}; {moved}",
            path.display()
        )),
    }
}

/// State of the thread that writes.
#[derive(Debug)]
struct Writer {
    path: PathBuf,
    /// The latest events, as in the agent's history.
    latest: VecDeque<Arc<Event>>,
    file: Option<File>,
    /// Bytes and lines of the file.
    bytes: usize,
    lines: usize,
    /// Whether the file must be written anew.
    is_stale: bool,
    /// Whether the last write failed: a lasting failure is logged once.
    has_failed: bool,
}

impl Writer {
    fn new(path: PathBuf, kept: &Kept, is_stale: bool) -> Self {
        Self {
            path,
            latest: kept.events.clone(),
            file: None,
            bytes: 0,
            lines: kept.lines,
            is_stale,
            has_failed: false,
        }
    }

    /// Writes until the last handle is dropped, or until [`Command::Finish`].
    fn run(mut self, commands: &Receiver<Command>) {
        for command in commands {
            match command {
                Command::Append(event) => self.append(&event),
                Command::Finish(_ends_with_this_scope) => return,
            }
        }
    }

    fn append(&mut self, event: &Arc<Event>) {
        if self.latest.len() == HISTORY_LENGTH {
            self.latest.pop_front();
        }
        self.latest.push_back(Arc::clone(event));
        let written = if self.is_stale || self.is_large() {
            self.rewrite()
        } else {
            self.append_line(event)
        };
        // The next event writes the whole file, with this one in it.
        self.is_stale = written.is_err();
        if let Err(error) = &written
            && !self.has_failed
        {
            tracing::warn!(
                file = %self.path.display(), %error,
                "cannot write the file of events: a restart of the agent loses the latest ones"
            );
        }
        self.has_failed = written.is_err();
    }

    fn is_large(&self) -> bool {
        self.lines >= REWRITE_LINES || self.bytes >= REWRITE_BYTES
    }

    fn append_line(&mut self, event: &Event) -> io::Result<()> {
        let line = super::line(event);
        let file = match &mut self.file {
            Some(file) => file,
            none => {
                let file = options().append(true).open(&self.path)?;
                self.bytes = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
                none.insert(file)
            }
        };
        file.write_all(line.as_bytes())?;
        self.bytes += line.len();
        self.lines += 1;
        Ok(())
    }

    /// Replaces the file by one with the latest events.
    fn rewrite(&mut self) -> io::Result<()> {
        let mut lines: Vec<String> = Vec::new();
        let mut bytes = 0;
        for event in self.latest.iter().rev() {
            let line = super::line(event);
            bytes += line.len();
            if bytes > MAX_KEPT_BYTES {
                break;
            }
            lines.push(line);
        }
        lines.reverse();
        let text = lines.concat();
        let draft = draft(&self.path);
        let mut file = options().write(true).truncate(true).open(&draft)?;
        file.write_all(text.as_bytes())?;
        fs::rename(&draft, &self.path)?;
        (self.bytes, self.lines) = (text.len(), lines.len());
        self.file = None;
        Ok(())
    }
}

/// Returns options that create a file for its owner only, and follow no symbolic link.
fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options
        .create(true)
        .mode(0o600)
        .custom_flags(O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    options
}

#[cfg(test)]
mod tests;

//! Reads the datapath log: records of aya-log in a ring buffer of the current programs.
//!
//! The ring belongs to the programs that write to it, and lives as long as they do. A full ring
//! loses records, and never packets.

mod record;

use std::io;
use std::os::fd::AsFd as _;
use std::thread;

use aya_log::EbpfLogger;
use log::{Log, Metadata, Record};
use model::{DatapathLogLevel, IfName};
use steps::LinkRef;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Builder;
use tokio::sync::oneshot;

pub use self::record::DatapathLogRecord;
use crate::ObserveError;
use crate::error::{Attempt as _, io_error};
use crate::netlink::ifindex::Names;

/// Name of the ring buffer, which aya-log gives it.
pub(crate) const RING: &str = "AYA_LOGS";
/// Bytes of the ring buffer: some thousand records.
const RING_CAPACITY: u32 = 512 * 1024;
/// Bytes of a ring buffer to which no program writes: one page.
const SMALLEST_RING: u32 = 4096;

/// The datapath log of the current programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatapathLog {
    /// Level of the programs.
    pub level: DatapathLogLevel,
    /// Id of a program that writes to the ring buffer, by which [`follow_datapath_log`] finds it;
    /// 0 for a kernel without one.
    pub program: u32,
}

/// Returns the capacity of the ring buffer in bytes.
pub(crate) const fn ring_capacity(level: DatapathLogLevel) -> u32 {
    match level {
        DatapathLogLevel::Off => SMALLEST_RING,
        DatapathLogLevel::Error
        | DatapathLogLevel::Warn
        | DatapathLogLevel::Info
        | DatapathLogLevel::Debug
        | DatapathLogLevel::Trace => RING_CAPACITY,
    }
}

/// Reads the ring buffer of the program with this id on a thread of its own, and calls `forward`
/// for each record, until `stop` is sent or dropped. Then forwards what the ring still has.
///
/// `forward` may sleep, to limit the work: meanwhile the ring fills, and loses records.
pub fn follow_datapath_log(
    program: u32,
    stop: oneshot::Receiver<()>,
    forward: impl Fn(DatapathLogRecord) + Send + Sync + 'static,
) -> Result<(), ObserveError> {
    let call = || format!("read the datapath log of program {program}");
    let names = Names::open().attempt(call)?;
    let logger = EbpfLogger::init_from_id_with_logger(program, Forward { names, forward })
        .map_err(|error| io_error(&error))
        .attempt(call)?;
    let read = move || {
        if let Err(error) = read(logger, stop) {
            tracing::warn!(%error, "cannot read the datapath log any more");
        }
    };
    let thread = thread::Builder::new().name("datapath-log".to_owned());
    thread.spawn(read).attempt(call)?;
    Ok(())
}

/// Reads the ring buffer whenever it is readable. On a thread and a runtime of its own: the library
/// reads until the ring is empty, which may never be while programs write.
fn read<T: Log>(mut logger: EbpfLogger<T>, mut stop: oneshot::Receiver<()>) -> io::Result<()> {
    let runtime = Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        loop {
            tokio::select! {
                ready = readable(&logger) => {
                    ready?;
                    logger.flush();
                }
                _ = &mut stop => {
                    logger.flush();
                    return Ok(());
                }
            }
        }
    })
}

/// Waits until the ring buffer is readable.
#[expect(
    unsafe_code,
    reason = "tokio has no safe function to register a borrowed descriptor"
)]
async fn readable<T: Log>(logger: &EbpfLogger<T>) -> io::Result<()> {
    // SAFETY: the borrow of the ring buffer outlives the registration, which ends with this call.
    let ring = unsafe { AsyncFd::register_with_interest(logger.as_fd(), Interest::READABLE)? };
    let _ready = ring.readable().await?;
    Ok(())
}

/// The logger that aya-log calls.
struct Forward<F> {
    names: Names,
    forward: F,
}

impl<F: Fn(DatapathLogRecord) + Send + Sync> Log for Forward<F> {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let text = record.args().to_string();
        let name = |index: u32| self.name(index);
        (self.forward)(DatapathLogRecord::parse(record.level(), &text, name));
    }

    fn flush(&self) {}
}

impl<F> Forward<F> {
    fn name(&self, index: u32) -> Option<IfName> {
        match self.names.named(index) {
            LinkRef::Name(name) => Some(name),
            LinkRef::Gone(_) => None,
        }
    }
}

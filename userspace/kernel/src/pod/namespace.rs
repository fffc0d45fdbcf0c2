//! Network namespaces for the command line: throw-away ones, and those of pods. Its probes and
//! captures open sockets in them.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;

use model::NetnsPath;

use crate::pod::netns::{OpenNetns, run_in, run_on_own_thread};

/// An open network namespace. One that was created ends with this value and with the sockets that
/// were opened in it, also when the process is killed.
#[derive(Debug)]
pub struct Namespace(File);

impl Namespace {
    /// Creates a namespace whose only link is a loopback that is down. Needs `CAP_SYS_ADMIN`.
    pub fn create() -> io::Result<Self> {
        run_on_own_thread(|own| Ok((own.enter_new()?, ()))).map(Self)
    }

    /// Opens the namespace at `path`; `None` when there is none.
    pub fn find(path: &NetnsPath) -> io::Result<Option<Self>> {
        Ok(OpenNetns::find(path)?.map(|open| Self(open.into_file())))
    }

    /// Returns a path by which other processes can open the namespace as long as this value exists.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// Runs `work` with the calling thread in the namespace. Sockets that `work` opens stay inside
    /// when the thread has returned.
    pub fn run<T>(&self, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        run_in(&self.0, work)
    }
}

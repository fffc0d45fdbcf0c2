//! Threads of this process, and what they wait for in the kernel.

use std::fs;

use nix::unistd::{Pid, gettid};

/// A thread of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadId(Pid);

impl ThreadId {
    /// Returns the calling thread.
    pub fn current() -> Self {
        Self(gettid())
    }

    /// Returns the kernel's function that the thread waits in; `None` if it runs, or if the kernel
    /// does not tell.
    pub fn waits_in(self) -> Option<String> {
        let function = fs::read_to_string(format!("/proc/self/task/{}/wchan", self.0)).ok()?;
        (function != "0" && !function.is_empty()).then_some(function)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_waiting_thread_waits_in_a_function_and_a_running_one_does_not() {
        let (sender, receiver) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            sender.send(ThreadId::current()).unwrap();
            ended.recv().unwrap_err();
        });
        let waiting = receiver.recv().unwrap();
        let function = std::iter::repeat_with(|| waiting.waits_in())
            .flatten()
            .next();
        assert!(function.is_some_and(|name| name.contains("futex")));
        assert_eq!(ThreadId::current().waits_in(), None);
        drop(end);
        thread.join().unwrap();
        assert_eq!(waiting.waits_in(), None);
    }
}

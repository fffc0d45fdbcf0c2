//! Integration with systemd, or a service manager with the same protocol: notifications
//! (`sd_notify`), watchdog, and socket activation. Without a service manager nothing is sent.

use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixListener;
use std::time::Duration;

use anyhow::{Context, Result};
use engine::Handle;
use listenfd::ListenFd;
use sd_notify::NotifyState;
use tokio::time::{MissedTickBehavior, interval};

use super::last_failure;

/// A notification to the service manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notification<'a> {
    /// The agent serves requests.
    Ready,
    /// The configuration is being reloaded; [`Notification::Ready`] follows.
    Reloading,
    /// The agent finishes running requests and then exits.
    Stopping,
    /// Watchdog ping: the engine responds.
    Alive,
    /// A status line for `systemctl status`.
    Status(&'a str),
}

/// Sends a notification. A failure is logged only.
pub(crate) fn notify(notification: Notification<'_>) {
    let sent = match notification {
        Notification::Ready => {
            last_failure::clear();
            sd_notify::notify(&[NotifyState::Ready])
        }
        // With the time, the manager distinguishes this reload from an earlier one.
        Notification::Reloading => NotifyState::monotonic_usec_now()
            .and_then(|now| sd_notify::notify(&[NotifyState::Reloading, now])),
        Notification::Stopping => sd_notify::notify(&[NotifyState::Stopping]),
        Notification::Alive => sd_notify::notify(&[NotifyState::Watchdog]),
        Notification::Status(line) => sd_notify::notify(&[NotifyState::Status(line)]),
    };
    if let Err(error) = sent {
        tracing::warn!(%error, ?notification, "cannot notify the service manager");
    }
}

/// Returns the socket that the service manager has passed (socket activation); `None` if there is
/// none.
pub(crate) fn passed_socket() -> Result<Option<UnixListener>> {
    let mut passed = ListenFd::from_env();
    if passed.len() > 1 {
        tracing::warn!(
            sockets = passed.len(),
            "service manager passed several sockets: only the first is used"
        );
    }
    if passed.len() == 0 {
        return Ok(None);
    }
    let socket = passed.take_unix_listener(0);
    socket.context("cannot use the socket that the service manager passed")
}

/// Returns whether standard error is connected to the journal: `JOURNAL_STREAM` then has its device
/// and inode numbers, as `systemd.exec(5)` defines it.
pub(crate) fn logs_to_journal() -> bool {
    let journal = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    let own = io::stderr()
        .as_fd()
        .try_clone_to_owned()
        .and_then(|stream| File::from(stream).metadata());
    own.is_ok_and(|own| format!("{}:{}", own.dev(), own.ino()) == journal)
}

/// Starts to send watchdog pings, twice per `WatchdogSec=`, as long as the engine responds. An
/// engine that is stuck in the kernel sends none, and the manager restarts the agent.
pub(crate) fn start_watchdog(handle: Handle) {
    if let Some(granted) = sd_notify::watchdog_enabled() {
        tokio::spawn(watch(handle, granted / 2, || notify(Notification::Alive)));
    }
}

async fn watch(handle: Handle, every: Duration, alive: impl Fn()) {
    let mut tick = interval(every);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        if handle.pulse().await.is_ok() {
            alive();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::mpsc::{Receiver, Sender, channel};

    use engine::{Engine, Settings};
    use kernel::fake::Fake;
    use kernel::{Kernel, Measured, Observe, ObserveError, StepError};
    use steps::{Question, Step};
    use store::Store;
    use tokio::time::timeout;

    use super::*;

    /// A kernel in which a sweep blocks until the test ends.
    struct Stuck {
        fake: Fake,
        reached: Sender<()>,
        never: Receiver<()>,
    }

    impl<Q: Question> Observe<Q> for Stuck
    where
        Fake: Observe<Q>,
    {
        fn observe(&mut self, question: &Q) -> Result<Q::Answer, ObserveError> {
            self.fake.observe(question)
        }
    }

    impl Kernel for Stuck {
        fn execute(&mut self, step: &Step) -> Result<(), StepError> {
            if *step == Step::Sweep {
                self.reached.send(()).unwrap();
                // Returns when the test has dropped the sender.
                let _dropped = self.never.recv();
            }
            self.fake.execute(step)
        }

        fn measure(&mut self) -> Result<Measured, ObserveError> {
            self.fake.measure()
        }

        fn sent(
            &mut self,
            slots: &BTreeSet<u32>,
        ) -> Result<BTreeMap<u32, abi::Counters>, ObserveError> {
            self.fake.sent(slots)
        }
    }

    /// Returns an engine, a receiver that reports when it is stuck, and a sender that releases it
    /// on drop.
    fn engine() -> (Handle, Receiver<()>, Sender<()>) {
        let (reached, is_stuck) = channel();
        let (release, never) = channel();
        let directory = tempfile::tempdir().unwrap();
        let options = <crate::config::Options as clap::Parser>::parse_from(["viaductd"]);
        let config = crate::config::Config::load(options).unwrap();
        let settings = Settings {
            default_network: config.default_network(),
            uplinks: config.uplinks,
            non_masquerade: config.non_masquerade,
            egress: config.egress,
            flow_entries: abi::maps::FLOWS_CAPACITY,
            bypass: config.bypass,
            forwarding: config.forwarding,
            shaper: config.shaper,
            xdp_prefilter: config.xdp_prefilter,
            peers: config.peers,
            boot_id: "this boot".to_owned(),
        };
        let (handle, _) = engine::spawn(move || {
            let store = Store::open(&directory.path().join("records.redb"))?;
            let fake = Fake::new();
            let kernel = Stuck {
                fake,
                reached,
                never,
            };
            anyhow::Ok(Engine::start(kernel, store, settings, 1_700_000_000)?)
        })
        .unwrap();
        (handle, is_stuck, release)
    }

    fn block_on(future: impl Future<Output = ()>) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_time().build().unwrap().block_on(future);
    }

    #[test]
    fn the_watchdog_is_notified_while_the_engine_responds() {
        let (handle, _, _release) = engine();
        let (ping, mut pings) = tokio::sync::mpsc::unbounded_channel();
        let every = Duration::from_millis(1);
        block_on(async {
            tokio::spawn(watch(handle, every, move || {
                ping.send(()).unwrap_or_default();
            }));
            for _ in 0..3 {
                pings.recv().await.unwrap();
            }
        });
    }

    #[test]
    fn a_stuck_engine_is_a_degradation_that_names_its_operation() {
        let (handle, is_stuck, release) = engine();
        assert_eq!(handle.stuck(), None);
        handle.sweep();
        is_stuck.recv().unwrap();
        // Waits for the condition: it holds some seconds after the start of the sweep.
        let stuck = std::iter::repeat_with(|| {
            std::thread::park_timeout(Duration::from_millis(20));
            handle.stuck()
        });
        let stuck = stuck.flatten().next().unwrap();
        assert_eq!(stuck.reason(), model::DegradedReason::EngineStuck);
        let text = stuck.to_string();
        assert!(text.starts_with("sweep has not ended for"), "{text}");
        assert!(text.contains("waits in the kernel (futex"), "{text}");
        let network = "any".parse().unwrap();
        assert_eq!(stuck.effect_on_add(&network), engine::AddEffect::Fails);
        assert!(handle.live_status().degraded.contains(&stuck) || handle.stuck().is_some());
        drop(release);
        block_on(async { handle.pulse().await.unwrap() });
        assert_eq!(handle.stuck(), None);
    }

    #[test]
    fn the_watchdog_is_not_notified_while_the_engine_is_stuck() {
        let (handle, is_stuck, _release) = engine();
        handle.sweep();
        is_stuck.recv().unwrap();
        block_on(async {
            // The paused clock advances whenever all tasks are idle.
            tokio::time::pause();
            let watched = watch(handle, Duration::from_secs(1), || {
                panic!("a ping from a stuck engine")
            });
            timeout(Duration::from_hours(1), watched).await.unwrap_err();
        });
    }
}

//! What systemd, or another service manager that speaks its protocol, is told and gives: whether the agent is ready,
//! reloads, stops and lives, and a socket that was listening before it. Without one all of this is silent.

use std::os::unix::net::UnixListener;
use std::time::Duration;

use anyhow::{Context, Result};
use engine::Handle;
use listenfd::ListenFd;
use sd_notify::NotifyState;
use tokio::time::{MissedTickBehavior, interval};

/// Something that the manager is to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News<'a> {
    /// Requests are answered.
    Ready,
    /// Another configuration is being taken; [`News::Ready`] follows.
    Reloading,
    /// What runs is finished, and then the agent ends.
    Stopping,
    /// The engine works.
    Alive,
    /// A line for people.
    Status(&'a str),
}

/// Tells the manager. One that does not listen changes nothing.
pub(crate) fn tell(news: News<'_>) {
    let told = match news {
        News::Ready => sd_notify::notify(&[NotifyState::Ready]),
        // The time is what lets the manager tell this reload from an earlier one.
        News::Reloading => NotifyState::monotonic_usec_now()
            .and_then(|now| sd_notify::notify(&[NotifyState::Reloading, now])),
        News::Stopping => sd_notify::notify(&[NotifyState::Stopping]),
        News::Alive => sd_notify::notify(&[NotifyState::Watchdog]),
        News::Status(line) => sd_notify::notify(&[NotifyState::Status(line)]),
    };
    if let Err(error) = told {
        tracing::warn!(%error, ?news, "the service manager does not listen");
    }
}

/// The socket that the manager has been listening on for us, if it has.
pub(crate) fn passed_socket() -> Result<Option<UnixListener>> {
    let mut passed = ListenFd::from_env();
    if passed.len() > 1 {
        tracing::warn!(
            sockets = passed.len(),
            "of the sockets that were passed only the first is served"
        );
    }
    if passed.len() == 0 {
        return Ok(None);
    }
    let socket = passed.take_unix_listener(0);
    socket.context("cannot use the socket that was passed")
}

/// Tells the manager that the engine works, twice in the time that it grants, for as long as that is so. An engine that
/// does not come back from the kernel is silent, and the manager starts another.
pub(crate) fn start_watchdog(handle: Handle) {
    if let Some(granted) = sd_notify::watchdog_enabled() {
        tokio::spawn(watch(handle, granted / 2, || tell(News::Alive)));
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
    use kernel::{Kernel, Measured, ObserveError, StepError};
    use planner::{Observed, Scope, Step};
    use store::Store;
    use tokio::time::timeout;

    use super::*;

    /// A kernel in which sweeps last until the test ends.
    struct Stuck {
        fake: Fake,
        reached: Sender<()>,
        never: Receiver<()>,
    }

    impl Kernel for Stuck {
        fn observe(&mut self, scope: &Scope) -> Result<Observed, ObserveError> {
            self.fake.observe(scope)
        }

        fn execute(&mut self, step: &Step) -> Result<(), StepError> {
            if *step == Step::Sweep {
                self.reached.send(()).unwrap();
                // It is over when the test has dropped the other end.
                let _over = self.never.recv();
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

    /// An engine; what says that it is stuck; and what must live as long as it is to be.
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
            shaper: config.shaper,
            guard: config.guard,
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
    fn an_engine_that_works_is_told_again_and_again() {
        let (handle, _, _release) = engine();
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        let every = Duration::from_millis(1);
        block_on(async {
            tokio::spawn(watch(handle, every, move || {
                tell.send(()).unwrap_or_default();
            }));
            for _ in 0..3 {
                told.recv().await.unwrap();
            }
        });
    }

    #[test]
    fn an_engine_that_does_not_come_back_from_the_kernel_is_silent() {
        let (handle, is_stuck, _release) = engine();
        handle.sweep();
        is_stuck.recv().unwrap();
        block_on(async {
            // From here on the clock goes on by itself whenever nothing else can happen.
            tokio::time::pause();
            let watched = watch(handle, Duration::from_secs(1), || {
                panic!("it does not work")
            });
            timeout(Duration::from_hours(1), watched).await.unwrap_err();
        });
    }
}

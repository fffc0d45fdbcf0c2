//! Background tasks of the agent: sweeps the flow table, executes spooled DELs, and reconciles
//! records and kernel when links, addresses, routes or foreign rules change, and periodically.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{io, thread};

use kernel::{Change, Changes, EventReporter, RuleChanges};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use crate::app::App;
use crate::clock;
use crate::process::offload::{self, OffloadCounts};

/// Interval between two sweeps of the flow table.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum interval between two reconciliations: there is no notification of removed programs, map
/// entries and changed sysctls.
const AUDIT_INTERVAL: Duration = Duration::from_secs(5);
/// Delay from a change to the reconciliation, because changes come in groups.
const DEBOUNCE: Duration = Duration::from_millis(500);
/// Delay after a change of the node's addresses: until then, flows may leave with an address that
/// is gone. Also the minimum interval between two reconciliations, and between two reads of
/// notifications.
const MIN_DELAY: Duration = Duration::from_millis(20);

/// Interval between two reads of foreign rules whose changes are not notified.
const RULES_INTERVAL: Duration = Duration::from_secs(1);

/// Bytes of the stack of the thread that reports events.
const STACK: usize = 128 * 1024;

/// Starts the background tasks; they end with the runtime.
pub(crate) fn start(app: Arc<App>) -> io::Result<()> {
    let changes = Changes::open()?;
    // A kernel without nf_tables has no such rules; later TC programs are found by reconciliations
    // there.
    if let Ok(rules) = RuleChanges::open() {
        tokio::spawn(follow_rules(Arc::clone(&app), rules));
    }
    tokio::spawn(run(app, changes));
    Ok(())
}

/// Starts the threads beside the runtime: that which reports events, and that which offloads
/// connections. Returns the counts of the latter.
pub(crate) fn start_threads(bpffs: &Path) -> Arc<Mutex<OffloadCounts>> {
    report_events(bpffs);
    offload::start(bpffs)
}

/// Starts the thread that reports changes of routes and neighbours to the programs. Not a task of
/// the runtime: reports must not wait for anything else. Without it, programs look routes up more
/// often.
fn report_events(bpffs: &Path) {
    if let Err(error) = start_reporter(bpffs) {
        tracing::warn!(
            error = format!("{error:#}"),
            "cannot report route changes: cached verdicts follow a change after ten jiffies"
        );
    }
}

fn start_reporter(bpffs: &Path) -> anyhow::Result<()> {
    let mut reporter = EventReporter::open(bpffs)?;
    let report = move || {
        let Err(error) = reporter.run();
        tracing::warn!(
            %error,
            "reports of route changes stopped: cached verdicts follow a change after ten jiffies"
        );
    };
    thread::Builder::new()
        .name("events".to_owned())
        .stack_size(STACK)
        .spawn(report)?;
    Ok(())
}

/// Reconciles when foreign rules change, because they decide whether traffic may bypass netfilter,
/// and a new rule is expected to apply immediately. Changes of nftables and IPsec are notified;
/// xtables and TC programs behind the agent's are polled.
async fn follow_rules(app: Arc<App>, rules: RuleChanges) {
    let handle = &app.handle;
    let mut rules = Some(rules);
    let mut tick = interval(RULES_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last = None;
    loop {
        tokio::select! {
            change = next_rule(&mut rules) => {
                if let Err(error) = change {
                    tracing::warn!(
                        %error,
                        "nftables notifications failed: rule changes are found by periodic reconciliations only"
                    );
                    rules = None;
                }
                handle.reconcile(clock::now());
            }
            _ = tick.tick() => {
                let reader = app.rules.clone();
                let read = move || Ok::<_, io::Error>((reader.read()?, reader.fingerprint()?));
                let seen = spawn_blocking(read).await.ok().and_then(Result::ok);
                if seen != last {
                    handle.reconcile(clock::now());
                    last = seen;
                }
            }
        }
    }
}

/// Waits for the next change of rules; forever without a listener.
async fn next_rule(listener: &mut Option<RuleChanges>) -> io::Result<()> {
    match listener {
        Some(rules) => rules.next().await,
        None => std::future::pending().await,
    }
}

async fn run(app: Arc<App>, listener: Changes) {
    let mut listener = Some(listener);
    let mut sweep = interval(SWEEP_INTERVAL);
    sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last = Instant::now();
    let mut due = last + AUDIT_INTERVAL;
    let mut read_at = last;
    loop {
        tokio::select! {
            change = next(&mut listener, read_at) => {
                read_at = Instant::now() + MIN_DELAY;
                let wait = match change {
                    // On a new uplink, packets of pods are dropped until the programs are attached.
                    Ok(Change::EgressRoute) => Duration::ZERO,
                    Ok(Change::Address) => MIN_DELAY,
                    Ok(Change::Other) => DEBOUNCE,
                    Err(error) => {
                        tracing::warn!(
                            %error,
                            "rtnetlink notifications failed: changes of the node are found by periodic \
                             reconciliations only"
                        );
                        listener = None;
                        DEBOUNCE
                    }
                };
                due = due.min((Instant::now() + wait).max(last + MIN_DELAY));
            }
            () = sleep_until(due) => {
                app.replay().await;
                app.handle.reconcile(clock::now());
                last = Instant::now();
                due = last + AUDIT_INTERVAL;
            }
            _ = sweep.tick() => app.handle.sweep(),
        }
    }
}

/// Waits for the next change, and reads it at `read_at` or later: an ADD causes a dozen
/// notifications, and reading each of them immediately would delay it. Waits forever without a
/// listener.
async fn next(listener: &mut Option<Changes>, read_at: Instant) -> io::Result<Change> {
    sleep_until(read_at).await;
    match listener {
        Some(changes) => changes.next().await,
        None => std::future::pending().await,
    }
}

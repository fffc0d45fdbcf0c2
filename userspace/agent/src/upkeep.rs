//! What the agent does without being asked: forgets ended flows, executes DELs that wait in the spool, and compares records and kernel when links, addresses
//! or routes change, and now and then anyway.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use kernel::{Change, Changes, RuleChanges};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use crate::clock;
use crate::requests::App;

/// Between two sweeps of the flow table.
const SWEEP: Duration = Duration::from_secs(5);
/// Between two comparisons when nothing seems to change: programs, table entries and sysctls may go without a word.
const AUDIT: Duration = Duration::from_secs(5);
/// From a change to the comparison: changes come in groups.
const QUIET: Duration = Duration::from_millis(500);
/// As [`QUIET`], when the node has gained or lost an address: until then flows leave with one that may be gone. Also
/// the least time between two comparisons, and between two looks at what has changed.
const SOON: Duration = Duration::from_millis(20);

/// Between two looks at the rules of others that change without a word.
const LOOK: Duration = Duration::from_secs(1);

/// Starts the upkeep of the engine; it ends with the runtime.
pub(crate) fn start(app: Arc<App>) -> io::Result<()> {
    let changes = Changes::open()?;
    // A kernel without netfilter has no rules that could change; programs behind ours are found by comparisons there.
    if let Ok(rules) = RuleChanges::open() {
        tokio::spawn(follow_rules(Arc::clone(&app), rules));
    }
    tokio::spawn(run(app, changes));
    Ok(())
}

/// Rules of others decide whether packets go past them: whoever adds one expects it to hold at once. nftables and IPsec tell
/// of changes; the older tables, and programs behind ours, are looked at.
async fn follow_rules(app: Arc<App>, rules: RuleChanges) {
    let handle = &app.handle;
    let mut rules = Some(rules);
    let mut look = interval(LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last = None;
    loop {
        tokio::select! {
            heard = next_rule(&mut rules) => {
                if let Err(error) = heard {
                    tracing::warn!(%error, "changes of nftables' rules are noticed late from now on");
                    rules = None;
                }
                handle.reconcile(clock::now());
            }
            _ = look.tick() => {
                let reader = app.rules.clone();
                let seen = spawn_blocking(move || reader.read()).await.ok().and_then(Result::ok);
                if seen != last {
                    handle.reconcile(clock::now());
                    last = seen;
                }
            }
        }
    }
}

/// The next change; without a listener there is none.
async fn next_rule(listener: &mut Option<RuleChanges>) -> io::Result<()> {
    match listener {
        Some(rules) => rules.next().await,
        None => std::future::pending().await,
    }
}

async fn run(app: Arc<App>, listener: Changes) {
    let mut listener = Some(listener);
    let mut sweep = interval(SWEEP);
    sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last = Instant::now();
    let mut due = last + AUDIT;
    let mut deaf = last;
    loop {
        tokio::select! {
            heard = next(&mut listener, deaf) => {
                deaf = Instant::now() + SOON;
                let wait = match heard {
                    // Pods' packets are dropped there until the agent has attached.
                    Ok(Change::WayOut) => Duration::ZERO,
                    Ok(Change::Address) => SOON,
                    Ok(Change::Other) => QUIET,
                    Err(error) => {
                        tracing::warn!(%error, "changes of the node are noticed late from now on");
                        listener = None;
                        QUIET
                    }
                };
                due = due.min((Instant::now() + wait).max(last + SOON));
            }
            () = sleep_until(due) => {
                app.replay().await;
                app.handle.reconcile(clock::now());
                last = Instant::now();
                due = last + AUDIT;
            }
            _ = sweep.tick() => app.handle.sweep(),
        }
    }
}

/// The next change, heard at `deaf` or later: to hear each of a dozen that an ADD makes would be to get in its way. Without
/// a listener there is none.
async fn next(listener: &mut Option<Changes>, deaf: Instant) -> io::Result<Change> {
    sleep_until(deaf).await;
    match listener {
        Some(changes) => changes.next().await,
        None => std::future::pending().await,
    }
}

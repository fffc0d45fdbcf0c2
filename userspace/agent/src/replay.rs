//! DELs that came while the agent was away: executed before anything that they free can be given again.

use api::{CniRequest, EventOutcome, Spool, Spooled, TRY_AGAIN_LATER};
use cni::Command;
use tokio::sync::Mutex;

use crate::events::News;
use crate::requests::App;

/// What waits, and that it is executed by one at a time: an ADD that finds a DEL under way must wait for its end, or
/// the DEL could remove what the ADD has made.
#[derive(Debug)]
pub(crate) struct Replay {
    spool: Spool,
    turn: Mutex<()>,
}

impl Replay {
    pub(crate) fn of(spool: Spool) -> Self {
        let turn = Mutex::new(());
        Self { spool, turn }
    }
}

impl App {
    /// Executes the DELs that wait. What cannot be executed now waits on.
    pub(crate) async fn replay(&self) {
        let _turn = self.replay.turn.lock().await;
        let waiting = match self.replay.spool.waiting() {
            Ok(waiting) => waiting,
            Err(error) => {
                tracing::error!(%error, "cannot read the DELs that wait");
                return;
            }
        };
        for spooled in waiting {
            self.replay_one(&spooled).await;
        }
    }

    async fn replay_one(&self, spooled: &Spooled) {
        let file = spooled.path.display();
        let done = match &spooled.request {
            Err(why) => {
                tracing::error!(%file, why, "a DEL that cannot be read is given up; CNI GC removes what it was for");
                true
            }
            Ok(request) => self.redo(request.clone()).await,
        };
        if done && let Err(error) = self.replay.spool.remove(spooled) {
            tracing::error!(%file, %error, "cannot remove a DEL that was executed");
        }
    }

    /// Whether the DEL needs not be tried again: what of it failed is on record, and is repaired like all else.
    async fn redo(&self, request: CniRequest) -> bool {
        let subject = format!("{}/{}", request.container_id, request.ifname);
        let result = self.cni(Command::Del, request).await;
        let (outcome, message) = match &result {
            Ok(_) => (EventOutcome::Done, String::new()),
            Err(failure) => (EventOutcome::Failed, failure.to_string()),
        };
        tracing::info!(
            subject,
            outcome = outcome.word(),
            "a DEL that came while the agent was away"
        );
        self.events
            .tell(News::new("replay", subject, outcome, message));
        result.map_or_else(|failure| failure.error().code != TRY_AGAIN_LATER, |_| true)
    }
}

//! DELs that came while the agent was away: executed before anything that they free can be given again.

use api::{CniRequest, Spool, Spooled, TRY_AGAIN_LATER};
use cni::Command;
use tokio::sync::Mutex;

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
        let container = request.container_id.clone();
        match self.cni(Command::Del, request).await {
            Ok(_) => {
                tracing::info!(
                    container,
                    "executed a DEL that came while the agent was away"
                );
                true
            }
            Err(failure) => {
                tracing::warn!(container, %failure, "a DEL that came while the agent was away");
                failure.error().code != TRY_AGAIN_LATER
            }
        }
    }
}

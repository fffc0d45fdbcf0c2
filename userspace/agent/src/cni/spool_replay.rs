//! Replay of spooled DELs, which arrived while no agent ran: executed before the addresses and
//! ports that they free can be assigned again.

use api::{CniRequest, EventOutcome, Spooled, TRY_AGAIN_LATER};
use cni::Command;

use crate::app::App;
use crate::http::names;
use crate::telemetry::events::NewEvent;

impl App {
    /// Executes all spooled DELs. Those that fail with code 11 stay in the spool.
    pub(crate) async fn replay(&self) {
        let _guard = self.replay.lock.lock().await;
        let waiting = match self.replay.spool.waiting() {
            Ok(waiting) => waiting,
            Err(error) => {
                tracing::error!(%error, "cannot read the spool of DELs");
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
                tracing::error!(
                    %file,
                    why,
                    "spooled DEL discarded: cannot parse it; CNI GC removes its attachment"
                );
                true
            }
            Ok(request) => self.execute_spooled(request.clone()).await,
        };
        if done && let Err(error) = self.replay.spool.remove(spooled) {
            tracing::error!(%file, %error, "cannot remove the file of an executed spooled DEL");
        }
    }

    /// Executes a spooled DEL. Returns whether its file can be removed: after any other failure
    /// than code 11 the attachment is on record, and reconciliations remove the rest.
    async fn execute_spooled(&self, request: CniRequest) -> bool {
        let subject = format!("{}/{}", request.container_id, request.ifname);
        let pod = cni::pod_of(&request.args).as_ref().map(names::pod);
        let result = self.cni(Command::Del, request, None).await;
        let (outcome, message) = match &result {
            Ok(_) => (EventOutcome::Done, String::new()),
            Err(failure) => (EventOutcome::Failed, failure.to_string()),
        };
        tracing::info!(
            subject,
            outcome = outcome.word(),
            "spooled DEL executed: it arrived while no agent ran"
        );
        self.events
            .emit(NewEvent::new("replay", subject, outcome, message).of_pod(pod));
        result.map_or_else(|failure| failure.error().code != TRY_AGAIN_LATER, |_| true)
    }
}

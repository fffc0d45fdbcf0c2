//! The condition `NetworkUnavailable` of this Node. Cloud providers set it until something has
//! connected the node, and the scheduler places no pods there meanwhile.

use std::cell::RefCell;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{Patch, PatchParams};
use model::PeerName;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::connection::Credentials;
use crate::node_store::NodeStore;
use crate::objects::{NETWORK_UNAVAILABLE, Node};

/// Delay after an error, and after a refusal, which lasts until an operator changes the rights.
const RETRY: Duration = Duration::from_secs(10);
const RETRY_FORBIDDEN: Duration = Duration::from_mins(10);

/// Clears the condition whenever it is set on this Node and the agent has peers.
pub(crate) async fn clear(
    credentials: &Credentials,
    own: &PeerName,
    nodes: &RefCell<NodeStore>,
    mut changes: watch::Receiver<u64>,
    mut synced: watch::Receiver<Option<u64>>,
) {
    let is_set = || {
        let store = nodes.borrow();
        let facts = store.nodes().and_then(|all| all.get(own.as_str()));
        facts.and_then(|facts| facts.network_unavailable) == Some(true)
    };
    let mut is_logged = false;
    loop {
        changes.borrow_and_update();
        let is_synced = synced.borrow_and_update().is_some();
        if is_synced && is_set() {
            match patch(credentials, own).await {
                Ok(()) => {
                    is_logged = false;
                    tracing::info!(
                        condition = NETWORK_UNAVAILABLE,
                        "condition of this Node is now False"
                    );
                }
                Err(error) => {
                    if !is_logged {
                        tracing::warn!(condition = NETWORK_UNAVAILABLE, error = %format!("{error:#}"), "cannot change the condition of this Node");
                    }
                    is_logged = true;
                    sleep(delay(&error)).await;
                    continue;
                }
            }
        }
        let ended = tokio::select! {
            result = changes.changed() => result,
            result = synced.changed() => result,
        };
        if ended.is_err() {
            return;
        }
    }
}

fn delay(error: &anyhow::Error) -> Duration {
    match error.downcast_ref() {
        Some(kube::Error::Api(status)) if status.code == 403 => RETRY_FORBIDDEN,
        _ => RETRY,
    }
}

async fn patch(credentials: &Credentials, own: &PeerName) -> anyhow::Result<()> {
    let nodes: Api<Node> = Api::all(credentials.client().await?);
    let body = Patch::Strategic(body(Timestamp::now()));
    let params = PatchParams::default();
    nodes.patch_status(own.as_str(), &params, &body).await?;
    Ok(())
}

/// Returns the patch. Conditions are merged by their type.
fn body(now: Timestamp) -> Value {
    // The API has seconds only.
    let seconds = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    json!({ "status": { "conditions": [{
        "type": NETWORK_UNAVAILABLE,
        "status": "False",
        "reason": "ViaductIsUp",
        "message": "Viaduct has pod CIDRs and routes to the other nodes",
        "lastHeartbeatTime": seconds,
        "lastTransitionTime": seconds,
    }] } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_patch_sets_one_condition_with_times_in_seconds() {
        let body = body("2026-01-02T03:04:05.678Z".parse().unwrap());
        let conditions = body["status"]["conditions"].as_array().unwrap();
        assert_eq!(conditions.len(), 1);
        assert_eq!(conditions[0]["status"], "False");
        assert_eq!(conditions[0]["lastTransitionTime"], "2026-01-02T03:04:05Z");
    }
}

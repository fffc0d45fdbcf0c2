//! The condition `NetworkUnavailable` of this Node. Cloud providers set it until something has
//! connected the node, and the scheduler places no pods there meanwhile.

use std::cell::RefCell;
use std::time::Duration;

use api::ClientError;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{Patch, PatchParams};
use model::PeerName;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::agent::{Agent, ListedPeer};
use crate::connection::Credentials;
use crate::node_store::NodeStore;
use crate::objects::{NETWORK_UNAVAILABLE, Node};

/// Delay after an error, and after a refusal, which lasts until an operator changes the rights.
const RETRY: Duration = Duration::from_secs(10);
const RETRY_FORBIDDEN: Duration = Duration::from_mins(10);
/// States of peers to which no route is missing: that of conflicts only leave no prefix to reach.
const ROUTED: [&str; 3] = ["routed", "refused", "this-node"];

/// Why the condition stays.
#[derive(Debug, thiserror::Error)]
enum Obstacle {
    #[error("{count} nodes lack routes, such as {example}, which is {state}: see viaductctl peers")]
    Routes {
        count: usize,
        example: String,
        state: String,
    },
    #[error("the agent does not list its peers: {0}")]
    Agent(#[from] ClientError),
    #[error("{0:#}")]
    ApiServer(anyhow::Error),
}

/// Clears the condition whenever it is set on this Node and the agent has routes to its peers.
pub(crate) async fn clear(
    credentials: &Credentials,
    own: &PeerName,
    agent: &Agent,
    nodes: &RefCell<NodeStore>,
    mut changes: watch::Receiver<u64>,
    mut synced: watch::Receiver<Option<u64>>,
) {
    let is_set = || {
        let store = nodes.borrow();
        let facts = store.nodes().and_then(|all| all.get(own.as_str()));
        facts.and_then(|facts| facts.network_unavailable) == Some(true)
    };
    let mut logged = String::new();
    loop {
        changes.borrow_and_update();
        let is_synced = synced.borrow_and_update().is_some();
        if is_synced && is_set() {
            match clear_once(credentials, own, agent).await {
                Ok(()) => {
                    logged.clear();
                    tracing::info!(
                        condition = NETWORK_UNAVAILABLE,
                        "condition of this Node is now False"
                    );
                }
                Err(obstacle) => {
                    log_once(&mut logged, &obstacle);
                    sleep(delay(&obstacle)).await;
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

/// Changes the condition if no route is missing. Queries the agent each time, since states change
/// after the list was sent, for example when a link comes up.
async fn clear_once(
    credentials: &Credentials,
    own: &PeerName,
    agent: &Agent,
) -> Result<(), Obstacle> {
    check_routes(agent).await?;
    patch(credentials, own).await.map_err(Obstacle::ApiServer)
}

/// Checks that no peer is `unrouted` (as with `between-nodes = "none"`), `unreachable` or
/// `partial`. A peer without an address is reached from no node, which its own Node reports.
async fn check_routes(agent: &Agent) -> Result<(), Obstacle> {
    let peers = agent.peers().await?;
    let lacks_routes =
        |peer: &&ListedPeer| !ROUTED.contains(&peer.state.as_str()) && !peer.addresses.is_empty();
    let mut without = peers.iter().filter(lacks_routes);
    match without.next() {
        None => Ok(()),
        Some(first) => Err(Obstacle::Routes {
            count: 1 + without.count(),
            example: first.name.clone(),
            state: first.state.clone(),
        }),
    }
}

fn log_once(logged: &mut String, obstacle: &Obstacle) {
    let text = obstacle.to_string();
    if *logged != text {
        tracing::warn!(condition = NETWORK_UNAVAILABLE, error = %text, "cannot change the condition of this Node");
    }
    *logged = text;
}

fn delay(obstacle: &Obstacle) -> Duration {
    match obstacle {
        Obstacle::ApiServer(error) => match error.downcast_ref() {
            Some(kube::Error::Api(status)) if status.code == 403 => RETRY_FORBIDDEN,
            _ => RETRY,
        },
        Obstacle::Routes { .. } | Obstacle::Agent(_) => RETRY,
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
        "message": "Viaduct has pod CIDRs, and routes to all nodes with an address and a prefix of their own",
        "lastHeartbeatTime": seconds,
        "lastTransitionTime": seconds,
    }] } })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::fake::{Answer, FakeAgent, block_on};

    fn checked(peers: &Value) -> Result<(), String> {
        let answer = Answer::json(200, &peers.to_string());
        let agent = FakeAgent::start(move |request| {
            assert_eq!(request.path, api::path::PEERS);
            answer.clone()
        });
        block_on(check_routes(&agent.client())).map_err(|obstacle| obstacle.to_string())
    }

    fn peer(name: &str, state: &str) -> Value {
        let view = api::PeerView {
            name: name.to_owned(),
            prefixes: vec!["10.1.2.0/24".to_owned()],
            addresses: vec!["192.0.2.2".to_owned()],
            state: state.to_owned(),
            ..api::PeerView::default()
        };
        serde_json::to_value(view).unwrap()
    }

    #[test]
    fn the_condition_stays_while_a_peer_lacks_routes() {
        for state in ["unrouted", "unreachable", "partial"] {
            let peers = json!([peer("a", "routed"), peer("b", state), peer("c", state)]);
            let obstacle = checked(&peers).unwrap_err();
            let expected = format!("2 nodes lack routes, such as b, which is {state}");
            assert!(obstacle.starts_with(&expected), "{obstacle}");
        }
    }

    #[test]
    fn peers_that_no_node_can_reach_do_not_keep_the_condition() {
        let mut nowhere = peer("c", "unreachable");
        nowhere["addresses"] = json!([]);
        let peers = json!([
            peer("a", "routed"),
            peer("b", "this-node"),
            nowhere,
            peer("d", "refused"),
        ]);
        assert_eq!(checked(&peers), Ok(()));
        assert_eq!(checked(&json!([])), Ok(()));
    }

    #[test]
    fn the_condition_stays_while_the_agent_does_not_list_its_peers() {
        let agent = FakeAgent::start(|_| Answer::refusal(api::TRY_AGAIN_LATER, "busy"));
        let obstacle = block_on(check_routes(&agent.client())).unwrap_err();
        assert_eq!(delay(&obstacle), RETRY);
        assert!(obstacle.to_string().contains("busy"), "{obstacle}");
    }

    #[test]
    fn the_patch_sets_one_condition_with_times_in_seconds() {
        let body = body("2026-01-02T03:04:05.678Z".parse().unwrap());
        let conditions = body["status"]["conditions"].as_array().unwrap();
        assert_eq!(conditions.len(), 1);
        assert_eq!(conditions[0]["status"], "False");
        assert_eq!(conditions[0]["lastTransitionTime"], "2026-01-02T03:04:05Z");
    }
}

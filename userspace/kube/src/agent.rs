//! The agent of this node: whether it serves, and requests to it.
//!
//! The stream of its events ends when the agent ends, and begins when the next one serves. So a
//! restart is noticed at once, and without polling.

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use api::{
    AttachmentView, BandwidthSetting, Client, ClientError, Event, PeerSourceSetting, PodCidrs,
    PoliciesSetting, path,
};
use model::{Cidr, Peers};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::Instant;

/// Time between attempts to connect to an agent that does not serve.
const RETRY: Duration = Duration::from_millis(300);
/// Timeout of a request. Thousands of routes take seconds.
const DEADLINE: Duration = Duration::from_mins(2);
/// Name of an event of an attached interface.
const ADD: &str = "add";

/// State of the agent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AgentState {
    /// Number of the agent's starts that were noticed; 0 before the first.
    pub(crate) generation: u64,
    pub(crate) is_serving: bool,
    /// Since when.
    pub(crate) since: Instant,
}

/// A peer as the agent lists it, without what is not used here: lists have thousands.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct ListedPeer {
    pub(crate) name: String,
    pub(crate) addresses: Vec<String>,
    /// See [`api::PeerView::state`].
    pub(crate) state: String,
}

/// The agent.
#[derive(Clone, Debug)]
pub(crate) struct Agent {
    client: Client,
    pub(crate) state: watch::Receiver<AgentState>,
    /// Changes whenever an interface was attached.
    pub(crate) attached: watch::Receiver<u64>,
}

impl Agent {
    /// Starts to follow the agent that listens on the client's socket.
    pub(crate) fn follow(client: Client) -> Result<Self> {
        let (states, state) = watch::channel(AgentState {
            generation: 0,
            is_serving: false,
            since: Instant::now(),
        });
        let (attachments, attached) = watch::channel(0);
        let follower = client.clone();
        thread::Builder::new()
            .name("agent".to_owned())
            .spawn(move || {
                while !states.is_closed() {
                    follow_once(&follower, &states, &attachments);
                    thread::sleep(RETRY);
                }
            })
            .context("cannot start a thread")?;
        Ok(Self {
            client: client.with_deadline(DEADLINE),
            state,
            attached,
        })
    }

    /// Sets the pod CIDRs.
    pub(crate) async fn put_pod_cidrs(&self, cidrs: &[Cidr]) -> Result<(), ClientError> {
        let pod_cidrs = cidrs.iter().map(ToString::to_string).collect();
        self.put(path::POD_CIDRS.to_owned(), PodCidrs { pod_cidrs })
            .await
    }

    /// Replaces the list of peers.
    pub(crate) async fn put_peers(&self, peers: &Peers) -> Result<(), ClientError> {
        self.put(path::PEERS.to_owned(), settings(peers)).await
    }

    /// Says whether the list of peers may be out of date.
    pub(crate) async fn put_peer_source(
        &self,
        source: PeerSourceSetting,
    ) -> Result<(), ClientError> {
        self.put(path::PEER_SOURCE.to_owned(), source).await
    }

    /// Replaces all network policies.
    pub(crate) async fn put_policies(&self, policies: PoliciesSetting) -> Result<(), ClientError> {
        self.put(path::POLICIES.to_owned(), policies).await
    }

    /// Returns the peers with their present states.
    pub(crate) async fn peers(&self) -> Result<Vec<ListedPeer>, ClientError> {
        let client = self.client.clone();
        blocking(move || client.get(path::PEERS)?.decode()).await
    }

    /// Returns all attachments.
    pub(crate) async fn attachments(&self) -> Result<Vec<AttachmentView>, ClientError> {
        let client = self.client.clone();
        blocking(move || client.get(path::ATTACHMENTS)?.decode()).await
    }

    /// Sets the limits of an interface.
    pub(crate) async fn put_limits(
        &self,
        id: &str,
        ifname: &str,
        limits: BandwidthSetting,
    ) -> Result<(), ClientError> {
        let path = path::BANDWIDTH
            .replace("{id}", id)
            .replace("{ifname}", ifname);
        self.put(path, limits).await
    }

    async fn put(
        &self,
        path: String,
        body: impl Serialize + Send + 'static,
    ) -> Result<(), ClientError> {
        let client = self.client.clone();
        blocking(move || {
            let reply = client.put(&path, &body)?;
            if reply.is_success() {
                Ok(())
            } else {
                Err(ClientError::Refused(reply.error()))
            }
        })
        .await
    }
}

/// Follows one agent until it ends.
fn follow_once(client: &Client, states: &watch::Sender<AgentState>, attached: &watch::Sender<u64>) {
    let mut is_serving = false;
    let path = format!("{}?follow=true", path::EVENTS);
    let ended = client.follow(&path, |line| {
        if !is_serving {
            is_serving = true;
            set(states, true);
        }
        if serde_json::from_str::<Event>(line).is_ok_and(|event| event.action == ADD) {
            attached.send_modify(|count| *count += 1);
        }
        !states.is_closed()
    });
    match ended {
        Ok(reply) if !reply.is_success() => {
            tracing::warn!(error = %reply.error(), "the agent does not report its events");
        }
        Ok(_) | Err(_) => {}
    }
    if is_serving {
        set(states, false);
    }
}

fn set(states: &watch::Sender<AgentState>, is_serving: bool) {
    states.send_modify(|state| {
        state.generation += u64::from(is_serving);
        state.is_serving = is_serving;
        state.since = Instant::now();
    });
    if is_serving {
        tracing::info!("the agent serves");
    } else {
        tracing::warn!("the agent does not serve");
    }
}

/// Executes a blocking request on a thread for such requests.
async fn blocking<T: Send + 'static>(
    request: impl FnOnce() -> Result<T, ClientError> + Send + 'static,
) -> Result<T, ClientError> {
    match spawn_blocking(request).await {
        Ok(result) => result,
        // A request does not panic, and the runtime does not stop before its tasks.
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

fn settings(peers: &Peers) -> Vec<api::PeerSetting> {
    let texts = |items: &mut dyn Iterator<Item = String>| items.collect();
    let peers = peers.list().iter();
    peers
        .map(|peer| api::PeerSetting {
            name: peer.name().to_string(),
            prefixes: texts(&mut peer.prefixes().iter().map(ToString::to_string)),
            addresses: texts(&mut peer.addresses().iter().map(ToString::to_string)),
        })
        .collect()
}

#[cfg(test)]
pub(crate) mod fake;

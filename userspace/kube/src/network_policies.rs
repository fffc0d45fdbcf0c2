//! `NetworkPolicy` of Kubernetes: watches policies, and the Namespaces and Pods that they select,
//! and sends the agent what it enforces on this node.
//!
//! Nothing is sent before all lists that the policies need are complete. While the API server is
//! away, or refuses a list, the agent keeps what it has.

mod cluster;
mod compile;
#[cfg(test)]
mod conformance;
mod objects;
mod peers;
mod pods;
mod policy;
mod selector;
mod store;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::future::pending;
use std::time::Duration;

use api::{ClientError, PoliciesSetting};
use kube::Resource;
use kube::runtime::watcher::Event;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use self::cluster::{Cluster, Needs, PodScope};
use crate::agent::Agent;
use crate::metrics::{Metrics, Sent};
use crate::watching::{self, Source};

/// What is watched, in logs and as values of the metrics' label. Pods are watched for bandwidth
/// annotations as well.
const POLICIES: &str = "networkpolicies";
const NAMESPACES: &str = "namespaces";
const PODS: &str = "policy-pods";
/// Time for further changes, so that the pods of one rollout are sent together.
const SETTLE: Duration = Duration::from_millis(200);
/// Policies are compiled and sent for at most this part of the time: a fifth.
const REST: u32 = 4;
const LONGEST_REST: Duration = Duration::from_secs(10);
/// Delays after a refusal double up to the longest.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(30);

/// Keeps the agent's policies as the API server has them, without an end. `source` returns what is
/// watched, from its name and a field selector.
pub(crate) async fn follow(
    own: &str,
    source: impl Fn(&'static str, Option<String>) -> Source,
    agent: Agent,
    metrics: &Metrics,
) {
    let cluster = RefCell::new(Cluster::new(own));
    let (sender, changes) = watch::channel(0_u64);
    let (needed, needs) = watch::channel(Needs::default());
    let notify = |is_changed: bool| {
        if is_changed {
            sender.send_modify(|count| *count += 1);
        }
    };
    let policies = watching::follow(source(POLICIES, None), |event| {
        let is_changed = cluster.borrow_mut().apply_policy(event);
        let present = cluster.borrow().needs();
        needed.send_if_modified(|before| std::mem::replace(before, present) != present);
        notify(is_changed);
    });
    let namespaces = watch_needed(
        needs.clone(),
        |needs| needs.has_namespaces.then_some(()),
        |_| {
            cluster.borrow_mut().begin_namespaces();
            metrics.not_watched(NAMESPACES);
        },
        |()| source(NAMESPACES, None),
        |event| notify(cluster.borrow_mut().apply_namespace(event)),
    );
    let pods = watch_needed(
        needs,
        |needs| needs.pods,
        |scope| {
            cluster.borrow_mut().begin_pods(scope);
            metrics.not_watched(PODS);
        },
        |scope| {
            let of_this_node = format!("spec.nodeName={own}");
            source(PODS, (scope == PodScope::Node).then_some(of_this_node))
        },
        |event| notify(cluster.borrow_mut().apply_pod(event)),
    );
    let send = send(&cluster, agent, changes, metrics);
    tokio::join!(policies, namespaces, pods, send);
}

/// Watches objects while `scope` returns which. Calls `begin` whenever that changes, and `each`
/// with the events since then.
async fn watch_needed<K, S>(
    mut needs: watch::Receiver<Needs>,
    scope: impl Fn(&Needs) -> Option<S>,
    begin: impl Fn(Option<S>),
    source: impl Fn(S) -> Source,
    each: impl Fn(Event<K>),
) where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
    S: Copy + PartialEq,
{
    loop {
        let present = scope(&needs.borrow_and_update());
        begin(present);
        let watch = async {
            match present {
                Some(scope) => watching::follow(source(scope), &each).await,
                None => pending().await,
            }
        };
        tokio::select! {
            () = watch => {}
            ended = needs.wait_for(|now| scope(now) != present) => {
                if ended.is_err() {
                    return;
                }
            }
        }
    }
}

/// What was logged, so that it is logged once.
#[derive(Debug, Default)]
struct Logged {
    /// Policies without a meaning, and why.
    problems: BTreeMap<String, String>,
    refusal: Option<String>,
}

/// Sends what has changed, and everything again to an agent that has started.
async fn send(
    cluster: &RefCell<Cluster>,
    mut agent: Agent,
    mut changes: watch::Receiver<u64>,
    metrics: &Metrics,
) {
    let mut sent: Option<(u64, PoliciesSetting)> = None;
    let mut logged = Logged::default();
    let mut retry = FIRST_RETRY;
    loop {
        changes.borrow_and_update();
        let state = *agent.state.borrow_and_update();
        let started = Instant::now();
        report(&cluster.borrow(), &mut logged, metrics);
        let desired = cluster
            .borrow()
            .setting()
            .filter(|_| state.is_serving)
            .map(|setting| (state.generation, setting))
            .filter(|desired| sent.as_ref() != Some(desired));
        let mut pause = None;
        if let Some((generation, setting)) = desired {
            let result = agent.put_policies(setting.clone()).await;
            metrics.sent(Sent::Policies, result.is_ok());
            metrics.policies_synced(result.is_ok());
            match result {
                Ok(()) => {
                    log_sent(&setting);
                    sent = Some((generation, setting));
                    logged.refusal = None;
                    retry = FIRST_RETRY;
                }
                Err(error) => {
                    log_refusal(&mut logged, &error);
                    pause = Some(retry);
                    retry = (retry * 2).min(LAST_RETRY);
                }
            }
        }
        let rest = (started.elapsed() * REST).min(LONGEST_REST);
        tokio::select! {
            ended = changes.changed() => {
                if ended.is_err() {
                    return;
                }
                sleep(SETTLE.max(rest)).await;
            }
            _ = agent.state.changed() => {}
            () = sleep(pause.unwrap_or_default()), if pause.is_some() => {}
        }
    }
}

fn log_sent(setting: &PoliciesSetting) {
    let policies = setting.policies.len();
    let addresses: usize = setting.groups.values().map(Vec::len).sum();
    let groups = setting.groups.len();
    tracing::info!(policies, groups, addresses, "network policies sent");
}

/// Counts the policies, and logs those without a meaning that are new, and those that are not any
/// more.
fn report(cluster: &Cluster, logged: &mut Logged, metrics: &Metrics) {
    let Some(policies) = cluster.policies() else {
        return;
    };
    let problems: BTreeMap<String, String> = policies
        .iter()
        .filter_map(|(key, policy)| Some((key.to_string(), policy.problem.as_ref()?.to_string())))
        .collect();
    metrics.policies(policies.len() - problems.len(), problems.len());
    for (policy, error) in &problems {
        if logged.problems.get(policy) != Some(error) {
            tracing::warn!(%policy, %error, "network policy not understood: its pods are isolated, and none of its rules is in effect");
        }
    }
    for policy in logged.problems.keys() {
        if !problems.contains_key(policy) {
            tracing::info!(%policy, "network policy changed or deleted: it is no longer invalid");
        }
    }
    logged.problems = problems;
}

/// Logs an error once until a request succeeds or fails in another way.
fn log_refusal(logged: &mut Logged, error: &ClientError) {
    let text = match error {
        ClientError::Refused(body) => format!("{body} {}", body.details),
        ClientError::Unreachable { .. }
        | ClientError::Timeout { .. }
        | ClientError::Broken { .. }
        | ClientError::Response { .. }
        | ClientError::Body(_) => error.to_string(),
    };
    if logged.refusal.as_ref() != Some(&text) {
        tracing::warn!(error = %text, "the agent has not applied the network policies");
    }
    logged.refusal = Some(text);
}

#[cfg(test)]
mod tests;

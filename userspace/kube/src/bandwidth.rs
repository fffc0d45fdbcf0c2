//! Bandwidth annotations of running pods. The runtime passes those of a new pod with its ADD; a
//! change after that is applied here, by the agent's live change of limits.
//!
//! Only pods that have, or have had, one of the annotations are changed, and only when an
//! annotation changes or is seen for the first time: a limit that an operator has set by hand stays
//! until then.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use api::{AttachmentView, BandwidthSetting, ClientError, LimitView};
use kube::ResourceExt as _;
use kube::runtime::watcher::Event;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::agent::Agent;
use crate::metrics::{Metrics, Sent};
use crate::objects::Pod;

/// Annotations of limits to and from the pod.
const INGRESS: &str = "kubernetes.io/ingress-bandwidth";
const EGRESS: &str = "kubernetes.io/egress-bandwidth";
/// The interface that a container runtime makes; others are those of delegates.
const IFNAME: &str = "eth0";
/// Time for further changes.
const SETTLE: Duration = Duration::from_millis(200);
/// Delay after an error.
const RETRY: Duration = Duration::from_secs(5);
/// CNI's error code "container unknown": the attachment has gone since the agent listed it.
const UNKNOWN_CONTAINER: u32 = 3;

/// Namespace and name of a pod.
type PodKey = (String, String);

/// What a pod's annotations say about one direction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Annotation {
    /// There was never one.
    #[default]
    Never,
    /// There was one, or an unusable one.
    Gone,
    /// In bit/s.
    Rate(u64),
    /// Text and error.
    Invalid(String),
}

/// A direction of a pod's traffic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Direction {
    annotation: Annotation,
    /// Whether the agent's limit is to be compared with the annotation.
    is_pending: bool,
}

impl Direction {
    /// Returns the direction with the annotation of now.
    fn with(&self, text: Option<String>) -> Self {
        let annotation = follow(&self.annotation, text);
        let is_pending = self.is_pending || annotation != self.annotation;
        Self {
            annotation,
            is_pending,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct PodLimits {
    ingress: Direction,
    egress: Direction,
}

impl PodLimits {
    fn is_pending(&self) -> bool {
        self.ingress.is_pending || self.egress.is_pending
    }
}

/// The pods of this node that have, or have had, an annotation.
#[derive(Debug, Default)]
pub(crate) struct PodStore {
    pods: BTreeMap<PodKey, PodLimits>,
    /// Those of a list that is being received.
    listed: BTreeMap<PodKey, [Option<String>; 2]>,
}

/// What a pod's attachment needs.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Planned {
    pod: PodKey,
    /// The annotations for which it was planned.
    limits: PodLimits,
    container_id: String,
    /// The limits that differ.
    change: BandwidthSetting,
}

impl PodStore {
    /// Applies an event, and returns whether limits may have changed.
    pub(crate) fn apply(&mut self, event: Event<Pod>) -> bool {
        match event {
            Event::Init => {
                self.listed.clear();
                false
            }
            Event::InitApply(pod) => {
                self.listed.insert(key(&pod), annotations(&pod));
                false
            }
            Event::InitDone => {
                let listed = std::mem::take(&mut self.listed);
                self.pods.retain(|key, _| listed.contains_key(key));
                let changed = listed
                    .into_iter()
                    .map(|(key, texts)| self.update(key, texts));
                changed.fold(false, |any, one| any | one)
            }
            Event::Apply(pod) => self.update(key(&pod), annotations(&pod)),
            Event::Delete(pod) => {
                self.pods.remove(&key(&pod));
                false
            }
        }
    }

    fn update(&mut self, key: PodKey, texts: [Option<String>; 2]) -> bool {
        let old = self.pods.get(&key);
        if old.is_none() && texts.iter().all(Option::is_none) {
            return false;
        }
        let [ingress, egress] = texts;
        let old = old.cloned().unwrap_or_default();
        let new = PodLimits {
            ingress: old.ingress.with(ingress),
            egress: old.egress.with(egress),
        };
        if new == old {
            return false;
        }
        for (name, direction) in [(INGRESS, &new.ingress), (EGRESS, &new.egress)] {
            if let Annotation::Invalid(error) = &direction.annotation {
                let pod = format!("{}/{}", key.0, key.1);
                tracing::warn!(%pod, annotation = name, %error, "bandwidth annotation ignored");
            }
        }
        self.pods.insert(key, new);
        true
    }

    fn has_pending(&self) -> bool {
        self.pods.values().any(PodLimits::is_pending)
    }

    /// Returns what the agent's attachments need.
    fn changes(&self, attachments: &[AttachmentView]) -> Vec<Planned> {
        let pending = self.pods.iter().filter(|(_, limits)| limits.is_pending());
        let with_view = pending.filter_map(|(key, limits)| {
            let view = attachments.iter().find(|view| is_of(view, key))?;
            Some(planned(key, limits, view))
        });
        with_view.collect()
    }

    /// Ends the work on the ingress and egress limit of a pod, unless the annotation has changed
    /// since it was planned.
    fn done(&mut self, planned: &Planned, [ingress, egress]: [bool; 2]) {
        if let Some(limits) = self.pods.get_mut(&planned.pod) {
            for (is_done, now, before) in [
                (ingress, &mut limits.ingress, &planned.limits.ingress),
                (egress, &mut limits.egress, &planned.limits.egress),
            ] {
                if is_done && now.annotation == before.annotation {
                    now.is_pending = false;
                }
            }
        }
    }
}

fn key(pod: &Pod) -> PodKey {
    (pod.namespace().unwrap_or_default(), pod.name_any())
}

fn annotations(pod: &Pod) -> [Option<String>; 2] {
    [INGRESS, EGRESS].map(|name| pod.annotation(name).map(str::to_owned))
}

/// Returns what the annotation says now.
fn follow(old: &Annotation, text: Option<String>) -> Annotation {
    match text.map(|text| cni::parse_rate(&text)) {
        Some(Ok(rate)) => Annotation::Rate(rate),
        Some(Err(error)) => Annotation::Invalid(error),
        None if *old == Annotation::Never => Annotation::Never,
        None => Annotation::Gone,
    }
}

fn is_of(view: &AttachmentView, (namespace, name): &PodKey) -> bool {
    let pod = view.pod.as_ref();
    view.ifname == IFNAME
        && view.state == "attached"
        && pod.is_some_and(|pod| pod.namespace == *namespace && pod.name == *name)
}

/// Returns how the limits of an attachment differ from the annotations.
fn planned(pod: &PodKey, limits: &PodLimits, view: &AttachmentView) -> Planned {
    Planned {
        pod: pod.clone(),
        limits: limits.clone(),
        container_id: view.container_id.clone(),
        change: BandwidthSetting {
            ingress: setting(&limits.ingress, view.bandwidth.ingress.as_ref()),
            egress: setting(&limits.egress, view.bandwidth.egress.as_ref()),
        },
    }
}

fn setting(wanted: &Direction, found: Option<&LimitView>) -> Option<String> {
    if !wanted.is_pending {
        return None;
    }
    match (&wanted.annotation, found) {
        (Annotation::Rate(rate), Some(found)) if found.rate == *rate => None,
        (Annotation::Rate(rate), _) => Some(rate.to_string()),
        (Annotation::Gone, Some(_)) => Some("none".to_owned()),
        (Annotation::Gone, None) | (Annotation::Never | Annotation::Invalid(_), _) => None,
    }
}

/// Applies the annotations whenever they change, and when a pod is attached.
pub(crate) async fn apply(
    pods: &RefCell<PodStore>,
    agent: &mut Agent,
    mut changes: watch::Receiver<u64>,
    metrics: &Metrics,
) {
    loop {
        changes.borrow_and_update();
        agent.attached.borrow_and_update();
        let is_serving = agent.state.borrow_and_update().is_serving;
        let mut is_failed = false;
        if is_serving && pods.borrow().has_pending() {
            is_failed = !apply_pending(pods, agent, metrics).await;
        }
        tokio::select! {
            ended = changes.changed() => {
                if ended.is_err() {
                    return;
                }
            }
            _ = agent.attached.changed() => {}
            _ = agent.state.changed() => {}
            () = sleep(RETRY), if is_failed => {}
        }
        sleep(SETTLE).await;
    }
}

/// Applies what is pending, and returns whether nothing has failed.
async fn apply_pending(pods: &RefCell<PodStore>, agent: &Agent, metrics: &Metrics) -> bool {
    let attachments = match agent.attachments().await {
        Ok(attachments) => attachments,
        Err(error) => {
            tracing::warn!(%error, "cannot list the agent's attachments");
            return false;
        }
    };
    let planned = pods.borrow().changes(&attachments);
    let mut is_complete = true;
    for one in planned {
        let differing = directions(&one.change);
        pods.borrow_mut()
            .done(&one, differing.map(|differs| !differs));
        if differing != [false; 2] {
            is_complete &= apply_planned(pods, agent, metrics, &one).await;
        }
    }
    is_complete
}

/// Applies the change of one pod, and returns whether it needs no other attempt.
async fn apply_planned(
    pods: &RefCell<PodStore>,
    agent: &Agent,
    metrics: &Metrics,
    planned: &Planned,
) -> bool {
    let pod = format!("{}/{}", planned.pod.0, planned.pod.1);
    let mut is_complete = true;
    let mut requests = vec![planned.change.clone()];
    while let Some(limits) = requests.pop() {
        let (ingress, egress) = (limits.ingress.as_deref(), limits.egress.as_deref());
        let changed = directions(&limits);
        let sent = agent
            .put_limits(&planned.container_id, IFNAME, limits.clone())
            .await;
        metrics.sent(Sent::Limits, sent.is_ok());
        match sent {
            Ok(()) => {
                tracing::info!(%pod, ?ingress, ?egress, "bandwidth limits of a pod changed");
                pods.borrow_mut().done(planned, changed);
            }
            Err(error) if !is_final(&error) => {
                tracing::warn!(%pod, %error, "bandwidth limits of a pod not changed");
                is_complete = false;
            }
            // The agent applies both or none, so the other one may be valid.
            Err(_) if changed == [true; 2] => requests.extend(each_direction(limits)),
            Err(error) => {
                tracing::warn!(%pod, ?ingress, ?egress, %error, "bandwidth limit of a pod refused: sent again when the annotation changes");
                pods.borrow_mut().done(planned, changed);
            }
        }
    }
    is_complete
}

/// Returns whether the agent will refuse the same request again. An attachment that has gone is not
/// in its next list.
fn is_final(error: &ClientError) -> bool {
    matches!(error, ClientError::Refused(body)
        if body.code != api::TRY_AGAIN_LATER && body.code != UNKNOWN_CONTAINER)
}

/// Returns whether there is a limit of ingress and of egress.
fn directions(limits: &BandwidthSetting) -> [bool; 2] {
    [&limits.ingress, &limits.egress].map(Option::is_some)
}

/// Returns a request for egress and one for ingress.
fn each_direction(limits: BandwidthSetting) -> [BandwidthSetting; 2] {
    let of_egress = BandwidthSetting {
        ingress: None,
        ..limits.clone()
    };
    let of_ingress = BandwidthSetting {
        egress: None,
        ..limits
    };
    [of_egress, of_ingress]
}

#[cfg(test)]
mod tests;

//! Bandwidth annotations of running pods. The runtime passes those of a new pod with its ADD; a
//! change after that is applied here, by the agent's live change of limits.
//!
//! Only pods that have, or have had, one of the annotations are changed, and only when an
//! annotation changes or is seen for the first time: a limit that an operator has set by hand stays
//! until then.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use api::{AttachmentView, BandwidthSetting, LimitView};
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

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct PodLimits {
    ingress: Annotation,
    egress: Annotation,
    /// Whether the agent is to be compared with them.
    is_pending: bool,
}

/// The pods of this node that have, or have had, an annotation.
#[derive(Debug, Default)]
pub(crate) struct PodStore {
    pods: BTreeMap<PodKey, PodLimits>,
    /// Those of a list that is being received.
    listed: BTreeMap<PodKey, [Option<String>; 2]>,
}

/// A limit to change.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Change {
    pod: PodKey,
    container_id: String,
    limits: BandwidthSetting,
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
            ingress: follow(&old.ingress, ingress),
            egress: follow(&old.egress, egress),
            is_pending: old.is_pending,
        };
        if new == old {
            return false;
        }
        for (name, annotation) in [(INGRESS, &new.ingress), (EGRESS, &new.egress)] {
            if let Annotation::Invalid(error) = annotation {
                let pod = format!("{}/{}", key.0, key.1);
                tracing::warn!(%pod, annotation = name, %error, "bandwidth annotation ignored");
            }
        }
        self.pods.insert(
            key,
            PodLimits {
                is_pending: true,
                ..new
            },
        );
        true
    }

    fn has_pending(&self) -> bool {
        self.pods.values().any(|one| one.is_pending)
    }

    /// Returns the changes that the agent's attachments need.
    fn changes(&self, attachments: &[AttachmentView]) -> Vec<(PodKey, Option<Change>)> {
        let pending = self.pods.iter().filter(|(_, limits)| limits.is_pending);
        let with_view = pending.filter_map(|(key, limits)| {
            let view = attachments.iter().find(|view| is_of(view, key))?;
            Some((key.clone(), change(key, limits, view)))
        });
        with_view.collect()
    }

    fn done(&mut self, key: &PodKey) {
        if let Some(limits) = self.pods.get_mut(key) {
            limits.is_pending = false;
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
fn change(pod: &PodKey, limits: &PodLimits, view: &AttachmentView) -> Option<Change> {
    let differing = BandwidthSetting {
        ingress: setting(&limits.ingress, view.bandwidth.ingress.as_ref()),
        egress: setting(&limits.egress, view.bandwidth.egress.as_ref()),
    };
    (differing != BandwidthSetting::default()).then(|| Change {
        pod: pod.clone(),
        container_id: view.container_id.clone(),
        limits: differing,
    })
}

fn setting(wanted: &Annotation, found: Option<&LimitView>) -> Option<String> {
    match (wanted, found) {
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
    for (key, change) in planned {
        let Some(change) = change else {
            pods.borrow_mut().done(&key);
            continue;
        };
        let pod = format!("{}/{}", key.0, key.1);
        let (ingress, egress) = (change.limits.ingress.clone(), change.limits.egress.clone());
        let sent = agent
            .put_limits(&change.container_id, IFNAME, change.limits)
            .await;
        metrics.sent(Sent::Limits, sent.is_ok());
        match sent {
            Ok(()) => {
                tracing::info!(%pod, ?ingress, ?egress, "bandwidth limits of a pod changed");
                pods.borrow_mut().done(&key);
            }
            Err(error) => {
                tracing::warn!(%pod, %error, "bandwidth limits of a pod not changed");
                is_complete = false;
            }
        }
    }
    is_complete
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, annotations: &[(&str, &str)]) -> Pod {
        let annotations: BTreeMap<_, _> = annotations.iter().copied().collect();
        let json = json!({ "metadata": {
            "namespace": "default", "name": name, "annotations": annotations } });
        serde_json::from_value(json).unwrap()
    }

    fn attachment(name: &str, ingress: Option<u64>) -> AttachmentView {
        let view = json!({
            "network": "viaduct", "containerID": format!("id-{name}"), "ifname": "eth0",
            "netns": "/x", "host_link": "v", "bridge": "cbr0", "mac": "", "mtu": 1500,
            "addresses": [], "slot": 1, "generation": 1, "state": "attached", "created_at": 1,
            "pod": { "namespace": "default", "name": name },
        });
        let mut view: AttachmentView = serde_json::from_value(view).unwrap();
        view.bandwidth.ingress = ingress.map(|rate| LimitView {
            rate,
            ..LimitView::default()
        });
        view
    }

    fn settings(store: &PodStore, views: &[AttachmentView]) -> Vec<(String, Option<String>)> {
        let planned = store.changes(views).into_iter();
        let changes = planned.filter_map(|(_, change)| change);
        changes
            .map(|one| (one.container_id, one.limits.ingress))
            .collect()
    }

    #[test]
    fn an_annotation_that_changes_and_goes_changes_the_limit_and_lifts_it() {
        let mut store = PodStore::default();
        assert!(store.apply(Event::Apply(pod("a", &[(INGRESS, "10M")]))));
        // As the ADD has set it.
        assert_eq!(settings(&store, &[attachment("a", Some(10_000_000))]), []);
        let views = [attachment("a", Some(10_000_000)), attachment("b", None)];
        assert!(store.apply(Event::Apply(pod("a", &[(INGRESS, "5M")]))));
        let expected = |text: &str| [("id-a".to_owned(), Some(text.to_owned()))];
        assert_eq!(settings(&store, &views), expected("5000000"));
        assert!(store.apply(Event::Apply(pod("a", &[]))));
        assert_eq!(settings(&store, &views), expected("none"));
    }

    #[test]
    fn a_pod_without_annotations_keeps_the_limit_that_it_has() {
        let mut store = PodStore::default();
        assert!(!store.apply(Event::Apply(pod("a", &[("other", "x")]))));
        assert!(!store.has_pending());
        store.apply(Event::Apply(pod("b", &[(EGRESS, "1M")])));
        assert_eq!(
            settings(&store, &[attachment("b", Some(7))]),
            [("id-b".to_owned(), None)]
        );
    }

    #[test]
    fn an_applied_annotation_is_not_compared_again_until_it_changes() {
        let mut store = PodStore::default();
        store.apply(Event::Apply(pod("a", &[(INGRESS, "10M")])));
        store.done(&("default".to_owned(), "a".to_owned()));
        assert!(!store.apply(Event::Apply(pod("a", &[(INGRESS, "10M")]))));
        assert!(!store.has_pending());
        assert!(store.apply(Event::Apply(pod("a", &[(INGRESS, "11M")]))));
        assert!(store.has_pending());
    }

    #[test]
    fn a_new_list_forgets_pods_that_have_gone_and_keeps_an_invalid_annotation_out() {
        let mut store = PodStore::default();
        store.apply(Event::Init);
        store.apply(Event::InitApply(pod("a", &[(INGRESS, "10M")])));
        store.apply(Event::InitApply(pod("b", &[(INGRESS, "much")])));
        assert!(store.apply(Event::InitDone));
        assert_eq!(settings(&store, &[attachment("b", Some(7))]), []);
        store.apply(Event::Init);
        assert!(!store.apply(Event::InitDone));
        assert!(store.pods.is_empty());
    }
}

//! Tests of annotations and of what is sent to the agent.

use serde_json::{Value, json};

use super::*;
use crate::agent::fake::{Answer, FakeAgent, block_on};

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
    planned
        .filter(|one| directions(&one.change) != [false; 2])
        .map(|one| (one.container_id, one.change.ingress))
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
    let planned = store.changes(&[attachment("a", None)]);
    store.done(&planned[0], [true; 2]);
    assert!(!store.apply(Event::Apply(pod("a", &[(INGRESS, "10M")]))));
    assert!(!store.has_pending());
    assert!(store.apply(Event::Apply(pod("a", &[(INGRESS, "11M")]))));
    assert!(store.has_pending());
}

#[test]
fn an_annotation_that_changes_while_the_old_one_is_sent_stays_pending() {
    let mut store = PodStore::default();
    store.apply(Event::Apply(pod("a", &[(INGRESS, "10M")])));
    let planned = store.changes(&[attachment("a", None)]);
    store.apply(Event::Apply(pod("a", &[(INGRESS, "5M")])));
    store.done(&planned[0], [true; 2]);
    assert!(store.has_pending());
}

/// An agent with the pod "a", whose ceiling of ingress is 10 Mbit/s.
fn agent_with_ceiling() -> FakeAgent {
    let attachments = serde_json::to_string(&[attachment("a", None)]).unwrap();
    FakeAgent::start(move |request| {
        if request.method == "GET" {
            Answer::json(200, &attachments)
        } else if request.body.contains("1000000000") {
            Answer::refusal(7, "above the ceiling")
        } else {
            Answer::json(200, "{}")
        }
    })
}

/// Applies what is pending once, and returns the limits that were sent, and whether no other
/// attempt is needed.
fn applied(pods: &RefCell<PodStore>, fake: &FakeAgent) -> (Vec<Value>, bool) {
    let agent = fake.client();
    let is_complete = block_on(apply_pending(pods, &agent, &Metrics::new(false)));
    let puts = fake.take().into_iter().filter(|one| one.method == "PUT");
    let bodies = puts.map(|one| serde_json::from_str(&one.body).unwrap());
    (bodies.collect(), is_complete)
}

#[test]
fn a_refused_limit_is_sent_again_only_when_its_annotation_changes() {
    let fake = agent_with_ceiling();
    let pods = RefCell::<PodStore>::default();
    let annotate = |ingress: &str, egress: &str| {
        let annotations = [(INGRESS, ingress), (EGRESS, egress)];
        pods.borrow_mut()
            .apply(Event::Apply(pod("a", &annotations)))
    };
    let body = |ingress: Option<&str>, egress: Option<&str>| json!({ "ingress": ingress, "egress": egress });
    // Refused together, so the valid one is sent alone.
    annotate("1G", "5M");
    let (sent, is_complete) = applied(&pods, &fake);
    assert!(is_complete && !pods.borrow().has_pending());
    let (high, low) = (Some("1000000000"), Some("5000000"));
    assert_eq!(sent, [body(high, low), body(high, None), body(None, low)]);
    assert!(!annotate("1G", "5M"));
    // Another annotation of the other direction does not repeat the refused one.
    assert!(annotate("1G", "6M"));
    let (sent, _) = applied(&pods, &fake);
    assert_eq!(sent, [body(None, Some("6000000"))]);
    assert!(annotate("7M", "6M"));
    let (sent, _) = applied(&pods, &fake);
    assert_eq!(sent, [body(Some("7000000"), None)]);
    assert!(!pods.borrow().has_pending());
}

#[test]
fn a_limit_that_the_agent_cannot_set_now_stays_pending() {
    for code in [api::TRY_AGAIN_LATER, UNKNOWN_CONTAINER] {
        let attachments = serde_json::to_string(&[attachment("a", None)]).unwrap();
        let fake = FakeAgent::start(move |request| match request.method.as_str() {
            "GET" => Answer::json(200, &attachments),
            _ => Answer::refusal(code, "not now"),
        });
        let pods = RefCell::<PodStore>::default();
        let annotated = pod("a", &[(INGRESS, "1M"), (EGRESS, "1M")]);
        pods.borrow_mut().apply(Event::Apply(annotated));
        let (sent, is_complete) = applied(&pods, &fake);
        assert_eq!(sent.len(), 1, "{sent:?}");
        assert!(!is_complete && pods.borrow().has_pending());
    }
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

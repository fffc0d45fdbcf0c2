//! Tests of what is sent to the agent, and when.

use super::*;
use crate::agent::fake::{Answer, FakeAgent, block_on};

/// A policy that isolates pods of this node.
fn deny() -> Value {
    json!({ "metadata": { "namespace": "x", "name": "deny" }, "spec": { "podSelector": {} } })
}

/// A policy that allows connections from pods of its namespace.
fn near() -> Value {
    json!({ "metadata": { "namespace": "x", "name": "near" }, "spec": { "podSelector": {},
        "ingress": [{ "from": [{ "podSelector": {} }] }] } })
}

/// A policy that allows connections from all namespaces.
fn allow() -> Value {
    json!({ "metadata": { "namespace": "x", "name": "allow" }, "spec": { "podSelector": {},
        "ingress": [{ "from": [{ "namespaceSelector": {} }] }] } })
}

fn pod(name: &str) -> Value {
    json!({ "metadata": { "namespace": "x", "name": name }, "spec": { "nodeName": "n1" } })
}

/// The task that sends, with what it sees.
struct Scene {
    agent: FakeAgent,
    cluster: RefCell<Cluster>,
    changed: watch::Sender<u64>,
    metrics: Metrics,
}

impl Scene {
    fn new(agent: FakeAgent) -> Self {
        Self {
            agent,
            cluster: RefCell::new(Cluster::new("n1")),
            changed: watch::Sender::new(0),
            metrics: Metrics::new(false),
        }
    }

    /// Runs the task while `script` runs.
    fn run(&self, script: impl Future<Output = ()>) {
        let send = send(
            &self.cluster,
            self.agent.client(),
            self.changed.subscribe(),
            &self.metrics,
        );
        block_on(async {
            tokio::select! {
                () = send => panic!("the task has ended"),
                () = script => {}
            }
        });
    }

    /// Makes a change, and returns the names of the policies that were sent after it; `None` if
    /// nothing was.
    async fn after(&self, change: impl FnOnce(&mut Cluster)) -> Option<Vec<String>> {
        change(&mut self.cluster.borrow_mut());
        self.changed.send_modify(|count| *count += 1);
        self.sent().await
    }

    async fn sent(&self) -> Option<Vec<String>> {
        sleep(SETTLE * 3).await;
        let mut requests = self.agent.take();
        assert!(requests.len() < 2, "{requests:?}");
        let request = requests.pop()?;
        assert_eq!(
            (request.method.as_str(), request.path.as_str()),
            ("PUT", api::path::POLICIES)
        );
        let setting: PoliciesSetting = serde_json::from_str(&request.body).unwrap();
        let policies = setting.policies.into_iter();
        Some(policies.map(|one| one.name).collect())
    }
}

fn policies(cluster: &mut Cluster, list: &[Value]) {
    for event in complete(list) {
        cluster.apply_policy(event);
    }
}

fn pods(cluster: &mut Cluster, list: &[Value]) {
    for event in complete(list) {
        cluster.apply_pod(event);
    }
}

#[expect(
    clippy::unnecessary_wraps,
    reason = "compared with what may be nothing"
)]
fn names(list: &[&str]) -> Option<Vec<String>> {
    Some(list.iter().map(ToString::to_string).collect())
}

#[test]
fn nothing_is_sent_before_all_lists_that_the_policies_need_are_complete() {
    let scene = Scene::new(FakeAgent::start(|_| Answer::json(200, "{}")));
    scene.run(async {
        assert_eq!(scene.sent().await, None);
        // Half of a list.
        let half = |cluster: &mut Cluster| {
            for event in complete(&[deny()]).into_iter().take(2) {
                cluster.apply_policy(event);
            }
        };
        assert_eq!(scene.after(half).await, None);
        assert_eq!(
            scene.after(|cluster| policies(cluster, &[deny()])).await,
            None
        );
        let of_node = Some(PodScope::Node);
        assert_eq!(
            scene.after(|cluster| cluster.begin_pods(of_node)).await,
            None
        );
        let sent = scene.after(|cluster| pods(cluster, &[pod("a")])).await;
        assert_eq!(sent, names(&["x/deny"]));
        // Policies that need more: the agent keeps what it has until everything is there.
        let both = [deny(), near()];
        assert_eq!(scene.after(|cluster| policies(cluster, &both)).await, None);
        let of_cluster = Some(PodScope::Cluster);
        assert_eq!(
            scene.after(|cluster| cluster.begin_pods(of_cluster)).await,
            None
        );
        let sent = scene.after(|cluster| pods(cluster, &[pod("a")])).await;
        assert_eq!(sent, names(&["x/deny", "x/near"]));
        let all = [deny(), near(), allow()];
        assert_eq!(scene.after(|cluster| policies(cluster, &all)).await, None);
        let listed = scene.after(|cluster| {
            for event in complete(&[json!({ "metadata": { "name": "x" } })]) {
                cluster.apply_namespace(event);
            }
        });
        assert_eq!(listed.await, names(&["x/allow", "x/deny", "x/near"]));
    });
}

#[test]
fn the_last_policies_are_sent_once_and_again_to_an_agent_that_has_started() {
    let scene = Scene::new(FakeAgent::start(|_| Answer::json(200, "{}")));
    scene.run(async {
        // That there is none is sent, too: the agent may have policies of before.
        assert_eq!(
            scene.after(|cluster| policies(cluster, &[])).await,
            names(&[])
        );
        let isolated = scene.after(|cluster| {
            policies(cluster, &[deny()]);
            cluster.begin_pods(Some(PodScope::Node));
            pods(cluster, &[pod("a")]);
        });
        assert_eq!(isolated.await, names(&["x/deny"]));
        // The same list again, and a change that leaves the result as it is.
        assert_eq!(
            scene.after(|cluster| policies(cluster, &[deny()])).await,
            None
        );
        let unlabelled = scene.after(|cluster| {
            cluster.apply_policy(Event::Apply(parsed(
                &json!({ "metadata": { "namespace": "y", "name": "other" } }),
            )));
        });
        assert_eq!(unlabelled.await, None);
        scene.agent.restart();
        assert_eq!(scene.sent().await, names(&["x/deny"]));
    });
    let text = scene.metrics.text().unwrap();
    for line in [
        "viaduct_kube_network_policies{kind=\"valid\"} 2",
        "viaduct_kube_network_policies_synced{resource=\"networkpolicies\"} 1",
        "viaduct_kube_agent_requests_total{what=\"policies\",outcome=\"done\"} 3",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
}

#[test]
fn a_refused_request_is_sent_again() {
    let mut refusals = 1;
    let scene = Scene::new(FakeAgent::start(move |_| {
        if refusals > 0 {
            refusals -= 1;
            Answer::refusal(api::TRY_AGAIN_LATER, "busy")
        } else {
            Answer::json(200, "{}")
        }
    }));
    scene.run(async {
        assert_eq!(
            scene.after(|cluster| policies(cluster, &[])).await,
            names(&[])
        );
        sleep(FIRST_RETRY).await;
        assert_eq!(scene.sent().await, names(&[]));
        assert_eq!(scene.sent().await, None);
    });
}

//! Tests of network policies: the cases of Kubernetes' own tests, single rules, and what is sent
//! when.

mod evaluate;
mod oracle;
mod random;
mod sending;
mod single;

use std::collections::BTreeMap;
use std::net::IpAddr;

use kube::runtime::watcher::Event;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use self::evaluate::Connection;
use self::oracle::Objects;
use super::conformance::{self, Change, Check};
use super::*;

const NODES: [&str; 2] = ["n1", "n2"];

/// A cluster: its objects, and what `viaduct-kube` of each node knows.
#[derive(Debug)]
struct World {
    objects: Objects,
    nodes: BTreeMap<&'static str, Watched>,
}

/// What one node knows, and what it watches.
#[derive(Debug)]
struct Watched {
    cluster: Cluster,
    own: &'static str,
    needs: Needs,
}

impl Watched {
    fn new(own: &'static str, objects: &Objects) -> Self {
        let mut cluster = Cluster::new(own);
        let needs = Needs::default();
        for event in complete(objects.policies.values()) {
            cluster.apply_policy(event);
        }
        let mut new = Self {
            cluster,
            own,
            needs,
        };
        new.follow_needs(objects);
        new
    }

    /// Begins and ends watches as the policies need them.
    fn follow_needs(&mut self, objects: &Objects) {
        let needs = self.cluster.needs();
        let cluster = &mut self.cluster;
        if needs.pods != self.needs.pods {
            cluster.begin_pods(needs.pods);
            let is_listed = |pod: &&Value| is_watched(pod, needs, self.own);
            let pods = objects.pods.values().filter(is_listed);
            let events = complete(pods).into_iter();
            let count = if needs.pods.is_some() { usize::MAX } else { 0 };
            for event in events.take(count) {
                cluster.apply_pod(event);
            }
        }
        if needs.has_namespaces != self.needs.has_namespaces {
            cluster.begin_namespaces();
            if needs.has_namespaces {
                for event in complete(objects.namespaces.values()) {
                    cluster.apply_namespace(event);
                }
            }
        }
        self.needs = needs;
    }

    fn put(&mut self, kind: &str, object: &Value) {
        let (cluster, needs) = (&mut self.cluster, self.needs);
        match kind {
            "Namespace" if needs.has_namespaces => {
                cluster.apply_namespace(Event::Apply(parsed(object)));
            }
            "Pod" if is_watched(object, needs, self.own) => {
                cluster.apply_pod(Event::Apply(parsed(object)));
            }
            "NetworkPolicy" => {
                cluster.apply_policy(Event::Apply(parsed(object)));
            }
            _ => {}
        }
    }
}

fn is_watched(pod: &Value, needs: Needs, own: &str) -> bool {
    match needs.pods {
        None => false,
        Some(PodScope::Node) => pod["spec"]["nodeName"] == own,
        Some(PodScope::Cluster) => true,
    }
}

impl Default for World {
    fn default() -> Self {
        let objects = Objects::default();
        let nodes = NODES.map(|name| (name, Watched::new(name, &objects)));
        Self {
            objects,
            nodes: nodes.into(),
        }
    }
}

/// Returns the events of a complete list.
fn complete<'a, T: DeserializeOwned>(
    objects: impl IntoIterator<Item = &'a Value>,
) -> Vec<Event<T>> {
    let listed = objects.into_iter().map(|one| Event::InitApply(parsed(one)));
    [Event::Init]
        .into_iter()
        .chain(listed)
        .chain([Event::InitDone])
        .collect()
}

fn parsed<T: DeserializeOwned>(object: &Value) -> T {
    T::deserialize(object).unwrap()
}

fn key(object: &Value) -> String {
    let metadata = &object["metadata"];
    let name = metadata["name"].as_str().unwrap();
    match metadata["namespace"].as_str() {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name.to_owned(),
    }
}

impl World {
    /// Creates or replaces an object.
    fn put(&mut self, kind: &str, object: &Value) {
        let objects = match kind {
            "Namespace" => &mut self.objects.namespaces,
            "Pod" => &mut self.objects.pods,
            _ => &mut self.objects.policies,
        };
        objects.insert(key(object), object.clone());
        for watched in self.nodes.values_mut() {
            watched.put(kind, object);
            watched.follow_needs(&self.objects);
        }
    }

    fn change(&mut self, change: Change) {
        match change {
            Change::Policy(policy) => self.put("NetworkPolicy", &policy),
            Change::Delete(namespace, name) => {
                let key = format!("{namespace}/{name}");
                let policy = self.objects.policies.remove(&key).unwrap();
                for watched in self.nodes.values_mut() {
                    let event = Event::Delete(parsed(&policy));
                    assert!(watched.cluster.apply_policy(event));
                    watched.follow_needs(&self.objects);
                }
            }
            Change::LabelNamespace(name, [label, value]) => {
                let mut namespace = self.objects.namespaces[name].clone();
                namespace["metadata"]["labels"][label] = json!(value);
                self.put("Namespace", &namespace);
            }
            Change::LabelPod(name, [label, value]) => {
                let mut pod = self.objects.pods[name].clone();
                pod["metadata"]["labels"][label] = json!(value);
                self.put("Pod", &pod);
            }
        }
    }

    /// Returns what each node's agent is sent. Events have the same result as new lists.
    fn settings(&self) -> BTreeMap<&'static str, PoliciesSetting> {
        let compiled = self.nodes.iter().map(|(name, watched)| {
            let setting = watched.cluster.setting().unwrap();
            evaluate::check(&setting);
            let listed = Watched::new(name, &self.objects);
            assert_eq!(listed.cluster.setting().as_ref(), Some(&setting));
            (*name, setting)
        });
        compiled.collect()
    }
}

/// Returns the node and the address of each pod of the conformance cases.
fn places(is_ipv4: bool) -> BTreeMap<String, (&'static str, IpAddr)> {
    let places = conformance::pods().enumerate().map(|(index, pod)| {
        let node = NODES[index % NODES.len()];
        let text = if is_ipv4 {
            format!("10.244.{}.{}", index % 2, index + 1)
        } else {
            format!("fd00:10:244:{}::{}", index % 2, index + 1)
        };
        (pod, (node, text.parse().unwrap()))
    });
    places.collect()
}

#[test]
fn policies_allow_what_kubernetes_own_tests_expect() {
    let mut count = 0;
    for is_ipv4 in [true, false] {
        let places = places(is_ipv4);
        for case in conformance::cases(&|pod| places[pod].1) {
            let mut world = World::default();
            for name in conformance::NAMESPACES {
                world.put("Namespace", &conformance::namespace(name));
            }
            for (pod, (node, address)) in &places {
                world.put("Pod", &conformance::pod(pod, node, &[*address]));
            }
            for step in case.steps {
                step.changes.into_iter().for_each(|one| world.change(one));
                let settings = world.settings();
                for check in &step.checks {
                    count += check_table(case.name, check, &world, &settings, &places);
                }
            }
        }
    }
    assert!(count > 50_000, "{count}");
}

/// Checks each entry of a table, and returns their number.
fn check_table(
    case: &str,
    check: &Check,
    world: &World,
    settings: &BTreeMap<&'static str, PoliciesSetting>,
    places: &BTreeMap<String, (&'static str, IpAddr)>,
) -> usize {
    let (protocol, port) = (check.protocol, check.port);
    for (from, to, expected) in check.table.entries() {
        let ends = [(from, to, false), (to, from, true)].map(|(own, other, is_ingress)| {
            let connection = Connection {
                is_ingress,
                peer: places[other].1,
                protocol,
                port,
            };
            let setting = &settings[places[own].0];
            let found = evaluate::allows(setting, own, connection);
            let by_objects = oracle::allows(&world.objects, &world.objects.pods[own], connection);
            assert_eq!(found, by_objects, "{case}: {own} {connection:?}");
            found
        });
        let found = ends == [true; 2];
        assert_eq!(found, expected, "{case}: {from} to {to}, {protocol} {port}");
    }
    check.table.entries().count()
}

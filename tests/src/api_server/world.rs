//! The objects of the server, their versions, and the changes that watches send.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

use super::Faults;

/// Kind of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Nodes,
    Pods,
    Namespaces,
    NetworkPolicies,
}

impl Kind {
    /// All kinds.
    pub(super) const ALL: [Self; 4] = [
        Self::Nodes,
        Self::Pods,
        Self::Namespaces,
        Self::NetworkPolicies,
    ];

    /// Returns the plural and the kind of an object.
    pub(super) fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Nodes => ("nodes", "Node"),
            Self::Pods => ("pods", "Pod"),
            Self::Namespaces => ("namespaces", "Namespace"),
            Self::NetworkPolicies => ("networkpolicies", "NetworkPolicy"),
        }
    }

    /// Returns the version of the API.
    pub(super) fn api_version(self) -> &'static str {
        match self {
            Self::Nodes | Self::Pods | Self::Namespaces => "v1",
            Self::NetworkPolicies => "networking.k8s.io/v1",
        }
    }

    /// Returns the path of all objects.
    pub(super) fn path(self) -> String {
        let (plural, _) = self.names();
        let version = self.api_version();
        let root = if version == "v1" { "/api" } else { "/apis" };
        format!("{root}/{version}/{plural}")
    }
}

/// A change, as watches send it.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) version: u64,
    pub(super) kind: Kind,
    /// `ADDED`, `MODIFIED` or `DELETED`.
    pub(super) event: &'static str,
    pub(super) object: Object,
}

/// An object: its text with its version, as lists have it, without kind and version of the API; and
/// the node that it is on.
#[derive(Clone, Debug)]
pub(super) struct Object {
    pub(super) text: Arc<str>,
    pub(super) node: Option<String>,
}

#[derive(Debug, Default)]
struct State {
    version: u64,
    /// Changes up to this version are forgotten.
    compacted: u64,
    objects: BTreeMap<(Kind, String), Object>,
    changes: Vec<Change>,
    faults: Faults,
    connections: Vec<TcpStream>,
    requests: Vec<(String, String)>,
    /// Advanced to end watches.
    epoch: u64,
}

#[derive(Debug)]
pub(super) struct World {
    state: Mutex<State>,
    changed: Condvar,
}

impl World {
    pub(super) fn new() -> Self {
        let state = State {
            version: 1000,
            compacted: 999,
            ..State::default()
        };
        Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn faults(&self) -> Faults {
        self.lock().faults.clone()
    }

    pub(super) fn change_faults(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.lock().faults);
        self.changed.notify_all();
    }

    /// Takes one of the events that are to be sent by half.
    pub(super) fn take_half_event(&self) -> bool {
        let mut state = self.lock();
        let is_half = state.faults.half_events > 0;
        state.faults.half_events = state.faults.half_events.saturating_sub(1);
        is_half
    }

    /// Registers a connection; `false` if it is closed at once.
    pub(super) fn connected(&self, stream: &TcpStream) -> bool {
        let mut state = self.lock();
        if state.faults.is_gone {
            return false;
        }
        state.connections.extend(stream.try_clone());
        true
    }

    pub(super) fn disconnect(&self) {
        let mut state = self.lock();
        state.epoch += 1;
        for stream in state.connections.drain(..) {
            // It fails if the client has closed it.
            let _result = stream.shutdown(Shutdown::Both);
        }
        self.changed.notify_all();
    }

    pub(super) fn put(&self, kind: Kind, mut object: Value) {
        let mut state = self.lock();
        state.version += 1;
        let version = state.version;
        let key = (kind, key_of(&object));
        let old = state.objects.get(&key);
        let event = if old.is_some() { "MODIFIED" } else { "ADDED" };
        let created = old.map_or_else(
            || json!(time_of(version)),
            |old| parsed(&old.text)["metadata"]["creationTimestamp"].clone(),
        );
        let metadata = &mut object["metadata"];
        metadata["resourceVersion"] = json!(version.to_string());
        if metadata["creationTimestamp"].is_null() {
            metadata["creationTimestamp"] = created;
        }
        for key in ["kind", "apiVersion"] {
            let _removed = object.as_object_mut().and_then(|all| all.remove(key));
        }
        let object = Object {
            node: object["spec"]["nodeName"].as_str().map(str::to_owned),
            text: object.to_string().into(),
        };
        state.objects.insert(key, object.clone());
        state.changes.push(Change {
            version,
            kind,
            event,
            object,
        });
        self.changed.notify_all();
    }

    pub(super) fn delete(&self, kind: Kind, key: &str) {
        let mut state = self.lock();
        let Some(mut object) = state.objects.remove(&(kind, key.to_owned())) else {
            return;
        };
        state.version += 1;
        let version = state.version;
        let mut value = parsed(&object.text);
        value["metadata"]["resourceVersion"] = json!(version.to_string());
        object.text = value.to_string().into();
        state.changes.push(Change {
            version,
            kind,
            event: "DELETED",
            object,
        });
        self.changed.notify_all();
    }

    pub(super) fn get(&self, kind: Kind, key: &str) -> Option<Value> {
        let state = self.lock();
        let object = state.objects.get(&(kind, key.to_owned()))?;
        Some(parsed(&object.text))
    }

    pub(super) fn compact(&self) {
        let mut state = self.lock();
        // A version that no object has, as other resources advance it.
        state.version += 10;
        state.compacted = state.version - 1;
        state.changes.clear();
    }

    /// Returns the version, and all objects of the kind that `wanted` selects, after `after`.
    pub(super) fn list(
        &self,
        kind: Kind,
        after: &str,
        wanted: &dyn Fn(&Object) -> bool,
    ) -> (u64, Vec<(String, Object)>) {
        let state = self.lock();
        let objects = state
            .objects
            .iter()
            .filter(|((its, key), object)| *its == kind && key.as_str() > after && wanted(object))
            .map(|((_, key), object)| (key.clone(), object.clone()));
        (state.version, objects.collect())
    }

    pub(super) fn is_compacted(&self, version: u64) -> bool {
        version < self.lock().compacted
    }

    pub(super) fn epoch(&self) -> u64 {
        self.lock().epoch
    }

    /// Waits for changes of the kind after `version`, at most for `time`; `None` if connections
    /// are closed.
    pub(super) fn changes_after(
        &self,
        kind: Kind,
        version: u64,
        epoch: u64,
        time: Duration,
    ) -> Option<Vec<Change>> {
        let is_idle = |state: &mut State| {
            let newest = state.changes.last().map_or(0, |one| one.version);
            state.epoch == epoch && newest <= version
        };
        let waited = self.changed.wait_timeout_while(self.lock(), time, is_idle);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if state.epoch != epoch {
            return None;
        }
        // In the order of their versions.
        let from = state.changes.partition_point(|one| one.version <= version);
        let newer = state.changes[from..].iter().filter(|one| one.kind == kind);
        Some(newer.cloned().collect())
    }

    pub(super) fn record(&self, request: &str, query: &str) {
        let entry = (request.to_owned(), query.to_owned());
        self.lock().requests.push(entry);
    }

    pub(super) fn requests(&self) -> BTreeSet<String> {
        let state = self.lock();
        state.requests.iter().map(|(one, _)| one.clone()).collect()
    }

    pub(super) fn count(&self, request: &str) -> usize {
        let state = self.lock();
        state
            .requests
            .iter()
            .filter(|(one, _)| one == request)
            .count()
    }

    pub(super) fn last_query(&self, request: &str) -> String {
        let state = self.lock();
        let mut latest = state.requests.iter().rev();
        let found = latest.find(|(one, _)| one == request);
        found.map(|(_, query)| query.clone()).unwrap_or_default()
    }
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_default()
}

/// Returns the name, with the namespace before it if there is one.
fn key_of(object: &Value) -> String {
    let metadata = &object["metadata"];
    let name = metadata["name"].as_str().unwrap_or_default();
    match metadata["namespace"].as_str() {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name.to_owned(),
    }
}

/// Returns a time that grows with the version, a second each.
fn time_of(version: u64) -> String {
    let seconds = version % 86_400;
    let (hours, minutes) = (seconds / 3_600, seconds / 60 % 60);
    let days = version / 86_400 % 28 + 1;
    format!(
        "2026-01-{days:02}T{hours:02}:{minutes:02}:{:02}Z",
        seconds % 60
    )
}

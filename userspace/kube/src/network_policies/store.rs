//! Objects as the last complete list and the events after it have them.

use std::collections::BTreeMap;
use std::fmt;

use kube::runtime::watcher::Event;

/// Namespace and name of an object. Those of a namespace follow each other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ObjectKey {
    pub(super) namespace: Box<str>,
    pub(super) name: Box<str>,
}

impl ObjectKey {
    /// Returns the key of an object; `None` for one without a name.
    pub(super) fn of(namespace: Option<String>, name: Option<String>) -> Option<Self> {
        Some(Self {
            namespace: namespace.unwrap_or_default().into(),
            name: name?.into(),
        })
    }

    /// Returns a key before those of all objects of a namespace.
    pub(super) fn first(namespace: &str) -> Self {
        Self {
            namespace: namespace.into(),
            name: "".into(),
        }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Facts about the objects of one kind, and a list that is being received.
#[derive(Debug)]
pub(crate) struct Store<K, T> {
    objects: Option<BTreeMap<K, T>>,
    listing: BTreeMap<K, T>,
}

impl<K, T> Default for Store<K, T> {
    fn default() -> Self {
        Self {
            objects: None,
            listing: BTreeMap::new(),
        }
    }
}

impl<K: Ord, T: PartialEq> Store<K, T> {
    /// Returns the objects; `None` before the first complete list.
    pub(super) fn objects(&self) -> Option<&BTreeMap<K, T>> {
        self.objects.as_ref()
    }

    /// Applies an event, and returns whether anything has changed. `facts` returns the key of an
    /// object, with its facts if it is to be stored. A list that ends early changes nothing.
    pub(super) fn apply<O>(
        &mut self,
        event: Event<O>,
        mut facts: impl FnMut(O) -> Option<(K, Option<T>)>,
    ) -> bool {
        match event {
            Event::Init => {
                self.listing.clear();
                false
            }
            Event::InitApply(object) => {
                if let Some((key, Some(facts))) = facts(object) {
                    self.listing.insert(key, facts);
                }
                false
            }
            Event::InitDone => {
                let listed = Some(std::mem::take(&mut self.listing));
                let is_changed = self.objects != listed;
                self.objects = listed;
                is_changed
            }
            Event::Apply(object) => {
                let (Some(objects), Some((key, facts))) = (&mut self.objects, facts(object)) else {
                    return false;
                };
                let is_changed = objects.get(&key) != facts.as_ref();
                match facts {
                    Some(facts) => objects.insert(key, facts),
                    None => objects.remove(&key),
                };
                is_changed
            }
            Event::Delete(object) => match (&mut self.objects, facts(object)) {
                (Some(objects), Some((key, _))) => objects.remove(&key).is_some(),
                _ => false,
            },
        }
    }
}

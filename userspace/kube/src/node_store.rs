//! The Nodes as the last complete list and the events after it have them.

use kube::runtime::watcher::Event;

use crate::cluster::Nodes;
use crate::objects::Node;

/// The Nodes, and a list that is being received.
#[derive(Debug, Default)]
pub(crate) struct NodeStore {
    nodes: Option<Nodes>,
    listing: Nodes,
}

impl NodeStore {
    /// Returns the Nodes; `None` before the first complete list.
    pub(crate) fn nodes(&self) -> Option<&Nodes> {
        self.nodes.as_ref()
    }

    /// Applies an event, and returns whether a Node has changed in a way that matters. A list that
    /// ends early changes nothing.
    pub(crate) fn apply(&mut self, event: Event<Node>) -> bool {
        match event {
            Event::Init => {
                self.listing.clear();
                false
            }
            Event::InitApply(node) => {
                self.listing.extend(node.into_facts());
                false
            }
            Event::InitDone => {
                let listed = Some(std::mem::take(&mut self.listing));
                let is_changed = self.nodes != listed;
                self.nodes = listed;
                is_changed
            }
            Event::Apply(node) => {
                let (Some(nodes), Some((name, facts))) = (&mut self.nodes, node.into_facts())
                else {
                    return false;
                };
                if nodes.get(&name) == Some(&facts) {
                    return false;
                }
                nodes.insert(name, facts);
                true
            }
            Event::Delete(node) => {
                let (Some(nodes), Some((name, _))) = (&mut self.nodes, node.into_facts()) else {
                    return false;
                };
                nodes.remove(&name).is_some()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, cidr: &str) -> Node {
        let json =
            format!(r#"{{"metadata":{{"name":"{name}"}},"spec":{{"podCIDRs":["{cidr}"]}}}}"#);
        serde_json::from_str(&json).unwrap()
    }

    fn names(store: &NodeStore) -> Vec<&str> {
        let nodes = store.nodes().unwrap();
        nodes.keys().map(AsRef::as_ref).collect()
    }

    #[test]
    fn nodes_are_known_after_a_complete_list_and_a_broken_one_changes_nothing() {
        let mut store = NodeStore::default();
        assert!(!store.apply(Event::Init));
        assert!(!store.apply(Event::InitApply(node("a", "10.1.1.0/24"))));
        assert!(store.nodes().is_none());
        // The connection ended: the list begins again.
        assert!(!store.apply(Event::Init));
        assert!(!store.apply(Event::InitApply(node("b", "10.1.2.0/24"))));
        assert!(store.apply(Event::InitDone));
        assert_eq!(names(&store), ["b"]);
        // A list without changes, and one that ends early.
        store.apply(Event::Init);
        store.apply(Event::InitApply(node("b", "10.1.2.0/24")));
        assert!(!store.apply(Event::InitDone));
        store.apply(Event::Init);
        assert_eq!(names(&store), ["b"]);
    }

    #[test]
    fn a_heartbeat_of_a_node_is_no_change() {
        let mut store = NodeStore::default();
        store.apply(Event::Init);
        assert!(store.apply(Event::InitDone));
        assert!(store.apply(Event::Apply(node("a", "10.1.1.0/24"))));
        assert!(!store.apply(Event::Apply(node("a", "10.1.1.0/24"))));
        assert!(store.apply(Event::Apply(node("a", "10.1.9.0/24"))));
        assert!(store.apply(Event::Delete(node("a", "10.1.9.0/24"))));
        assert!(!store.apply(Event::Delete(node("a", "10.1.9.0/24"))));
    }
}

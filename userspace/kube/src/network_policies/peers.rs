//! The pods that peers of rules select, and the names of groups of their addresses.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::IpAddr;

use api::MAX_POLICY_NAME;
use model::Cidr;

use super::pods::{Namespaces, PodFacts, Pods};
use super::policy::Peer;
use super::selector::Selector;
use super::store::ObjectKey;

/// Where pods are selected.
#[derive(Clone, Copy)]
pub(super) struct Peers<'a> {
    pub(super) namespaces: &'a Namespaces,
    pub(super) pods: &'a Pods,
}

/// Which addresses of a selected pod are meant.
#[derive(Clone, Copy)]
pub(super) enum Addresses<'a> {
    All,
    /// Those of a prefix, without others within it.
    Within(&'a Cidr, &'a [Cidr]),
}

impl Addresses<'_> {
    /// Returns those addresses of a pod.
    pub(super) fn of(self, pod: &PodFacts) -> impl Iterator<Item = IpAddr> {
        let is_meant = move |address: &IpAddr| match self {
            Self::All => true,
            Self::Within(cidr, except) => {
                cidr.contains(*address) && !except.iter().any(|hole| hole.contains(*address))
            }
        };
        pod.addresses.iter().copied().filter(is_meant)
    }
}

impl<'a> Peers<'a> {
    /// Returns the pods of a namespace.
    pub(super) fn in_namespace(
        self,
        namespace: &str,
    ) -> impl Iterator<Item = (&'a ObjectKey, &'a PodFacts)> {
        let namespace: Box<str> = namespace.into();
        self.pods
            .range(ObjectKey::first(&namespace)..)
            .take_while(move |(key, _)| key.namespace == namespace)
    }

    /// Returns the pods that a peer of a policy of `namespace` selects; all for `None`. A pod whose
    /// Namespace is not listed yet is selected by no selector of Namespaces.
    pub(super) fn selected(
        self,
        namespace: &'a str,
        peer: Option<&'a Peer>,
    ) -> Box<dyn Iterator<Item = (&'a PodFacts, Addresses<'a>)> + 'a> {
        let whole = |facts| (facts, Addresses::All);
        match peer {
            None => Box::new(self.pods.values().map(whole)),
            Some(Peer::Block { cidr, except }) => {
                let within = Addresses::Within(cidr, except);
                Box::new(self.pods.values().map(move |facts| (facts, within)))
            }
            Some(Peer::Pods { namespaces, pods }) => {
                let in_one = move |namespace: &'a str| self.in_namespace(namespace);
                let candidates: Box<dyn Iterator<Item = _> + 'a> = match namespaces {
                    None => Box::new(in_one(namespace)),
                    Some(selector) => Box::new(self.namespaces_of(selector).flat_map(in_one)),
                };
                let selected = candidates.filter(|(_, facts)| pods.matches(&facts.template.labels));
                Box::new(selected.map(move |(_, facts)| whole(facts)))
            }
        }
    }

    fn namespaces_of(self, selector: &'a Selector) -> impl Iterator<Item = &'a str> {
        let selected = self
            .namespaces
            .iter()
            .filter(|(_, labels)| selector.matches(labels));
        selected.map(|(name, _)| &**name)
    }
}

/// Returns the name of the group of the pods that a peer of a policy of `namespace` selects. Peers
/// that select different pods have different names.
pub(super) fn group_name(namespace: &str, peer: Option<&Peer>) -> String {
    match peer {
        None => "pods of all namespaces".to_owned(),
        Some(Peer::Block { cidr, except }) => {
            let texts: Vec<String> = except.iter().map(ToString::to_string).collect();
            match texts.as_slice() {
                [] => format!("pods in {cidr}"),
                _ => format!("pods in {cidr} except {}", texts.join(",")),
            }
        }
        Some(Peer::Pods { namespaces, pods }) => {
            let pods = if pods.is_empty() {
                "pods".to_owned()
            } else {
                format!("pods {pods}")
            };
            match namespaces {
                None => format!("{pods} of namespace {namespace}"),
                Some(selector) if selector.is_empty() => format!("{pods} of all namespaces"),
                Some(selector) => format!("{pods} of namespaces {selector}"),
            }
        }
    }
}

/// Returns a name that the agent accepts: of a long one the beginning, and a hash of it all.
/// Selectors have no bound that the agent's names could have.
pub(super) fn bounded(name: String) -> String {
    if name.len() <= MAX_POLICY_NAME {
        return name;
    }
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    let hash = format!(" #{:016x}", hasher.finish());
    let beginning = name.floor_char_boundary(MAX_POLICY_NAME - hash.len());
    format!("{}{hash}", &name[..beginning])
}

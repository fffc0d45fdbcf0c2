//! A policy: what is read from a `NetworkPolicy`, with the defaults of the API applied.
//!
//! The API server accepts no policy without a meaning. One that this program does not understand,
//! such as one of a later version of the API, forbids what it applies to: it has no rule.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use model::{Cidr, InvalidBlock, PolicyPeer, Protocol};

use super::objects::{BlockObject, NetworkPolicy, PeerObject, PolicySpec, PortObject, RuleObject};
use super::selector::{InvalidSelector, Selector};
use super::store::ObjectKey;

const INGRESS: &str = "Ingress";
const EGRESS: &str = "Egress";

/// A policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Policy {
    /// The pods of its namespace to which it applies.
    pub(super) pods: Selector,
    /// Rules of connections to those pods; `None` if the policy does not isolate them.
    pub(super) ingress: Option<Vec<Rule>>,
    /// Rules of connections from those pods, as above.
    pub(super) egress: Option<Vec<Rule>>,
    /// Why the policy has no rule, although it may have some in the API.
    pub(super) problem: Option<InvalidPolicy>,
}

/// Error of a policy without a meaning.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum InvalidPolicy {
    #[error(transparent)]
    Selector(#[from] InvalidSelector),
    #[error("peer with neither podSelector, namespaceSelector nor ipBlock")]
    EmptyPeer,
    #[error("peer with both ipBlock and a selector")]
    MixedPeer,
    #[error("invalid prefix {0:?}")]
    Prefix(String),
    #[error("except {0:?} is not within the prefix of its ipBlock")]
    Except(String),
    #[error("unknown protocol {0:?}")]
    Protocol(String),
    #[error("invalid port {0}")]
    Port(i32),
    #[error("endPort without a number as port")]
    EndPort,
    #[error("unknown policy type {0:?}")]
    PolicyType(String),
}

/// Connections that a policy allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rule {
    /// The other ends; `None` for all.
    pub(super) peers: Option<Vec<Peer>>,
    /// Ports of the end that accepts the connection; `None` for all ports and protocols.
    pub(super) ports: Option<Vec<Port>>,
}

/// Other ends of connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    /// The addresses of a prefix, without those of others within it.
    Block { cidr: Cidr, except: Vec<Cidr> },
    /// Pods; `namespaces` is `None` for the policy's own namespace.
    Pods {
        namespaces: Option<Selector>,
        pods: Selector,
    },
}

/// Ports of a protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Port {
    pub(super) protocol: Protocol,
    pub(super) number: PortNumber,
}

/// Ports, by number or name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PortNumber {
    All,
    One(u16),
    /// First and last port.
    Range(u16, u16),
    /// The port that the accepting pod has under this name.
    Named(Box<str>),
}

impl NetworkPolicy {
    /// Returns key and policy; `None` for an object without a name.
    pub(super) fn into_policy(self) -> Option<(ObjectKey, Policy)> {
        let key = ObjectKey::of(self.metadata.namespace, self.metadata.name)?;
        Some((key, Policy::parse(self.spec)))
    }
}

impl Policy {
    fn parse(mut spec: PolicySpec) -> Self {
        let (pods, selector_error) = match parse_selector(spec.pod_selector.take()) {
            Ok(pods) => (pods, None),
            Err(error) => (error.rest.clone(), Some(InvalidPolicy::from(error))),
        };
        let (isolates, type_error) = isolated_directions(&spec);
        let [ingress, egress] = isolates;
        let ingress = ingress.then(|| parse_rules(spec.ingress)).transpose();
        let egress = egress.then(|| parse_rules(spec.egress)).transpose();
        match (ingress, egress, selector_error.or(type_error)) {
            (Ok(ingress), Ok(egress), None) => Self {
                pods,
                ingress,
                egress,
                problem: None,
            },
            (_, _, Some(error)) | (Err(error), _, None) | (_, Err(error), None) => Self {
                pods,
                ingress: isolates[0].then(Vec::new),
                egress: isolates[1].then(Vec::new),
                problem: Some(error),
            },
        }
    }

    /// Returns the rules of both directions.
    pub(super) fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.ingress.iter().chain(&self.egress).flatten()
    }
}

/// Returns whether the policy isolates pods in the directions of ingress and egress. Without policy
/// types it does so in that of ingress, and in that of egress if it has rules of it. A policy of
/// unknown types only isolates in both.
fn isolated_directions(spec: &PolicySpec) -> ([bool; 2], Option<InvalidPolicy>) {
    let types = spec.policy_types.as_deref().unwrap_or_default();
    if types.is_empty() {
        let has_egress = spec.egress.as_ref().is_some_and(|rules| !rules.is_empty());
        return ([true, has_egress], None);
    }
    let unknown = types
        .iter()
        .find(|one| *one != INGRESS && *one != EGRESS)
        .cloned();
    let known = [INGRESS, EGRESS].map(|known| types.iter().any(|one| one == known));
    let isolates = if known == [false; 2] {
        [true; 2]
    } else {
        known
    };
    (isolates, unknown.map(InvalidPolicy::PolicyType))
}

/// An absent selector is an empty one, which selects everything.
fn parse_selector(selector: Option<LabelSelector>) -> Result<Selector, InvalidSelector> {
    Selector::parse(selector.unwrap_or_default())
}

fn parse_rules(rules: Option<Vec<RuleObject>>) -> Result<Vec<Rule>, InvalidPolicy> {
    let rules = rules.into_iter().flatten();
    rules.map(parse_rule).collect()
}

/// Empty lists of peers and ports are those of all.
fn parse_rule(rule: RuleObject) -> Result<Rule, InvalidPolicy> {
    let peers = rule.peers.filter(|peers| !peers.is_empty());
    let ports = rule.ports.filter(|ports| !ports.is_empty());
    Ok(Rule {
        peers: peers
            .map(|peers| peers.into_iter().map(parse_peer).collect())
            .transpose()?,
        ports: ports
            .map(|ports| ports.into_iter().map(parse_port).collect())
            .transpose()?,
    })
}

fn parse_peer(peer: PeerObject) -> Result<Peer, InvalidPolicy> {
    match (peer.ip_block, peer.namespace_selector, peer.pod_selector) {
        (Some(block), None, None) => parse_block(block),
        (Some(_), _, _) => Err(InvalidPolicy::MixedPeer),
        (None, None, None) => Err(InvalidPolicy::EmptyPeer),
        (None, namespaces, pods) => Ok(Peer::Pods {
            namespaces: namespaces.map(Selector::parse).transpose()?,
            pods: parse_selector(pods)?,
        }),
    }
}

fn parse_block(block: BlockObject) -> Result<Peer, InvalidPolicy> {
    let cidr = parse_cidr(block.cidr)?;
    let texts = block.except.into_iter().flatten();
    let except: Vec<Cidr> = texts.map(parse_cidr).collect::<Result<_, _>>()?;
    // The agent refuses a list with any other block.
    match PolicyPeer::block(cidr, except.clone()) {
        Ok(_) => Ok(Peer::Block { cidr, except }),
        Err(InvalidBlock::Except { hole, .. }) => Err(InvalidPolicy::Except(hole.to_string())),
        Err(InvalidBlock::Mapped(prefix)) => Err(InvalidPolicy::Prefix(prefix.to_string())),
    }
}

/// The API server accepts prefixes whose host bits are set.
fn parse_cidr(text: String) -> Result<Cidr, InvalidPolicy> {
    Cidr::masked(&text).map_err(|_| InvalidPolicy::Prefix(text))
}

fn parse_port(port: PortObject) -> Result<Port, InvalidPolicy> {
    let number = match (port.port, port.end_port) {
        (None, None) => PortNumber::All,
        (Some(IntOrString::Int(first)), None) => PortNumber::One(port_number(first)?),
        (Some(IntOrString::Int(first)), Some(last)) if first <= last => {
            PortNumber::Range(port_number(first)?, port_number(last)?)
        }
        (Some(IntOrString::Int(_)), Some(last)) => return Err(InvalidPolicy::Port(last)),
        (Some(IntOrString::String(name)), None) => PortNumber::Named(name.into()),
        (None | Some(IntOrString::String(_)), Some(_)) => return Err(InvalidPolicy::EndPort),
    };
    let protocol = match port.protocol {
        None => Protocol::Tcp,
        Some(text) => text.parse().map_err(|_| InvalidPolicy::Protocol(text))?,
    };
    Ok(Port { protocol, number })
}

fn port_number(number: i32) -> Result<u16, InvalidPolicy> {
    let port = u16::try_from(number).ok().filter(|port| *port > 0);
    port.ok_or(InvalidPolicy::Port(number))
}

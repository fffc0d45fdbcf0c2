//! Parser of network policies: JSON becomes a validated list, completely or not at all.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use api::{MAX_POLICY_NAME, PoliciesSetting, PolicyPeerSetting, PolicyPortSetting, PolicySetting};
use model::{
    Cidr, NetworkPolicies, NetworkPolicy, PodName, PodSelector, PolicyDirection, PolicyPeer,
    PolicyPort, PolicyRule, refuse_mapped,
};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

/// Most policies.
const MAX_POLICIES: usize = 4096;

/// Most prefixes of all groups and rules together, and most selectors of pods.
const MAX_PREFIXES: usize = 65_536;

/// [`PoliciesSetting`] without unknown keys: a misspelt key would allow what it should forbid.
#[derive(Debug)]
pub(crate) struct KnownKeys(pub(crate) PoliciesSetting);

impl<'de> Deserialize<'de> for KnownKeys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let mut unknown = None;
        let setting = serde_ignored::deserialize(deserializer, |path| {
            let key = path.to_string();
            // A field of the answer to `GET`, which may be sent back.
            if !key.ends_with(".container_ids") {
                unknown.get_or_insert(key);
            }
        })?;
        match unknown {
            None => Ok(Self(setting)),
            Some(key) => Err(D::Error::custom(format!("unknown key {key}"))),
        }
    }
}

/// Parses the text of a file: [`PoliciesSetting`] as JSON.
pub(crate) fn parse(text: &str) -> Result<NetworkPolicies> {
    let KnownKeys(setting) = serde_json::from_str(text).context("invalid JSON")?;
    validate(&setting)
}

/// Validates all policies. Host bits of prefixes are ignored. Errors name the policy and the rule,
/// or the group.
pub(crate) fn validate(setting: &PoliciesSetting) -> Result<NetworkPolicies> {
    let PoliciesSetting { policies, groups } = setting;
    check_amounts(setting)?;
    let mut names = BTreeSet::new();
    for policy in policies {
        check_name(&policy.name).context("policy")?;
        let is_new = names.insert(&policy.name);
        ensure!(is_new, "policy {}: a second one of this name", policy.name);
    }
    let groups: BTreeMap<String, BTreeSet<Cidr>> = groups
        .iter()
        .map(|(name, texts)| {
            check_name(name).context("group")?;
            let prefixes: Result<BTreeSet<Cidr>> = texts.iter().map(|text| members(text)).collect();
            Ok((
                name.clone(),
                prefixes.with_context(|| format!("group {name}"))?,
            ))
        })
        .collect::<Result<_>>()?;
    let policies: Result<Vec<NetworkPolicy>> = policies
        .iter()
        .map(|setting| policy(setting, &groups).with_context(|| format!("policy {}", setting.name)))
        .collect();
    Ok(NetworkPolicies {
        policies: policies?,
        groups,
    })
}

/// Refuses lists that are larger than the tables of the datapath.
fn check_amounts(setting: &PoliciesSetting) -> Result<()> {
    let PoliciesSetting { policies, groups } = setting;
    let of_rules: usize = policies
        .iter()
        .flat_map(|policy| {
            let from = policy.ingress.iter().flatten().map(|rule| &rule.from);
            let to = policy.egress.iter().flatten().map(|rule| &rule.to);
            from.chain(to).flatten()
        })
        .map(|peer| 1 + peer.except.len())
        .sum();
    let of_groups: usize = groups.values().map(Vec::len).sum();
    for (what, count, most) in [
        ("policies", policies.len(), MAX_POLICIES),
        ("prefixes", of_rules + of_groups, MAX_PREFIXES),
        (
            "selectors of pods",
            policies.iter().map(|policy| policy.pods.len()).sum(),
            MAX_PREFIXES,
        ),
    ] {
        ensure!(
            count <= most,
            "the list has {count} {what}: {most} is the maximum"
        );
    }
    Ok(())
}

fn check_name(name: &str) -> Result<()> {
    let length = name.len();
    ensure!(
        (1..=MAX_POLICY_NAME).contains(&length),
        "the name has {length} bytes instead of 1 to {MAX_POLICY_NAME}"
    );
    ensure!(
        !name.contains(char::is_control),
        "{name:?}: the name has a control character"
    );
    Ok(())
}

fn policy(
    setting: &PolicySetting,
    groups: &BTreeMap<String, BTreeSet<Cidr>>,
) -> Result<NetworkPolicy> {
    ensure!(
        setting.ingress.is_some() || setting.egress.is_some(),
        "neither ingress nor egress"
    );
    let ingress = setting.ingress.as_ref().map(|list| {
        let parts = list.iter().map(|rule| (&*rule.from, &*rule.ports));
        rules(PolicyDirection::Ingress, parts, groups)
    });
    let egress = setting.egress.as_ref().map(|list| {
        let parts = list.iter().map(|rule| (&*rule.to, &*rule.ports));
        rules(PolicyDirection::Egress, parts, groups)
    });
    Ok(NetworkPolicy {
        name: setting.name.clone(),
        pods: setting
            .pods
            .iter()
            .map(|text| selector(text))
            .collect::<Result<_>>()?,
        ingress: ingress.transpose()?,
        egress: egress.transpose()?,
    })
}

/// Parses the rules of a direction, each from its peers and ports.
fn rules<'a>(
    direction: PolicyDirection,
    parts: impl Iterator<Item = (&'a [PolicyPeerSetting], &'a [PolicyPortSetting])>,
    groups: &BTreeMap<String, BTreeSet<Cidr>>,
) -> Result<Vec<PolicyRule>> {
    parts
        .zip(1..)
        .map(|((peers, ports), number)| {
            rule(peers, ports, groups).with_context(|| format!("{direction} rule {number}"))
        })
        .collect()
}

fn rule(
    peers: &[PolicyPeerSetting],
    ports: &[PolicyPortSetting],
    groups: &BTreeMap<String, BTreeSet<Cidr>>,
) -> Result<PolicyRule> {
    let named: Vec<PolicyPeer> = peers
        .iter()
        .map(|setting| peer(setting, groups))
        .collect::<Result<_>>()?;
    Ok(PolicyRule {
        peers: (!named.is_empty()).then_some(named),
        ports: ports.iter().map(port).collect::<Result<_>>()?,
    })
}

fn peer(
    setting: &PolicyPeerSetting,
    groups: &BTreeMap<String, BTreeSet<Cidr>>,
) -> Result<PolicyPeer> {
    let PolicyPeerSetting {
        cidr,
        except,
        group,
    } = setting;
    match (cidr, group) {
        (Some(text), None) => block(text, except),
        (None, Some(name)) => {
            ensure!(groups.contains_key(name), "group {name:?} is not in groups");
            ensure!(except.is_empty(), "group {name:?}: except needs a cidr");
            Ok(PolicyPeer::Group(name.clone()))
        }
        (Some(_), Some(_)) => bail!("a peer has both cidr and group"),
        (None, None) => bail!("a peer has neither cidr nor group"),
    }
}

fn block(text: &str, except: &[String]) -> Result<PolicyPeer> {
    let except: Result<Vec<Cidr>, _> = except.iter().map(|text| Cidr::masked(text)).collect();
    Ok(PolicyPeer::block(Cidr::masked(text)?, except?)?)
}

fn port(setting: &PolicyPortSetting) -> Result<PolicyPort> {
    let PolicyPortSetting {
        protocol,
        port,
        last_port,
    } = setting;
    let ports = match (*port, *last_port) {
        (None, None) => None,
        (Some(0), _) => bail!("port 0"),
        (Some(only), None) => Some((only, only)),
        (Some(first), Some(last)) if first <= last => Some((first, last)),
        (Some(first), Some(last)) => bail!("last_port {last} is less than port {first}"),
        (None, Some(last)) => bail!("last_port {last} without port"),
    };
    Ok(PolicyPort {
        protocol: protocol.parse()?,
        ports,
    })
}

/// Parses a pod's name, or a prefix or address of pods. A text that could be meant as a prefix is
/// never a name: the namespaces of Kubernetes have neither `.` nor `:`.
fn selector(text: &str) -> Result<PodSelector> {
    if let Ok(prefix) = members(text) {
        return Ok(PodSelector::Prefix(prefix));
    }
    let name = text
        .split_once('/')
        .filter(|(namespace, name)| is_label(namespace) && name.split('.').all(is_label));
    let (namespace, name) = name.ok_or_else(|| {
        anyhow!("{text:?} is neither a pod (namespace/name) nor a prefix or address of pods")
    })?;
    Ok(PodSelector::Name(PodName {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }))
}

/// Returns whether a text is a label of a DNS name, as Kubernetes has them (RFC 1123).
fn is_label(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !text.is_empty() && text.bytes().all(is_inner) && !text.starts_with('-') && !text.ends_with('-')
}

/// Parses a prefix, or an address as the prefix that has no other.
fn members(text: &str) -> Result<Cidr> {
    let Ok(address) = text.parse::<IpAddr>() else {
        return prefix(text);
    };
    let bits = if address.is_ipv4() { 32 } else { 128 };
    let only = Cidr::containing(address, bits).context("no prefix")?;
    Ok(refuse_mapped(only)?)
}

fn prefix(text: &str) -> Result<Cidr> {
    Ok(refuse_mapped(Cidr::masked(text)?)?)
}

#[cfg(test)]
mod tests;

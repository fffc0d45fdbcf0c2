//! The sysctls that the node needs: forwarding, and what must go with it (DATAPATH §3.9).
//!
//! A sysctl is written only where it differs, and one that the kernel does not have (no IPv6) is left alone. Knows
//! nothing of `br_netfilter` and `rp_filter`: they are the operator's and kube-proxy's.

use std::collections::BTreeSet;

use model::IfName;

use crate::uplink::{Ours, followed};
use crate::{NodeIntent, Observed, Step, SysctlKey};

/// The sysctls that [`crate::plan_node`] and [`crate::plan_bridge`] want to see. They depend on the links that are
/// there: observe the node without sysctls first, then with these.
pub fn node_sysctls(intent: &NodeIntent, observed: &Observed) -> BTreeSet<SysctlKey> {
    let ours = Ours::of_networks(&intent.networks, observed);
    let mut keys = BTreeSet::from([v4_forwarding(), v6_forwarding()]);
    for network in &intent.networks {
        let links = [Some(network.bridge.clone()), network.gateway_link()];
        let quiet = links
            .into_iter()
            .flatten()
            .flat_map(|link| quiet_keys(&link));
        keys.extend(quiet.flatten());
    }
    keys.extend(followed(observed, &ours).iter().map(accept_ra));
    keys
}

impl SysctlKey {
    /// The link that it is of; `None` where it is of the whole node.
    pub fn link(&self) -> Option<&str> {
        let mut parts = self.0.split('/').skip(2);
        let of = parts
            .next()
            .filter(|kind| ["conf", "neigh"].contains(kind))
            .and_then(|_| parts.next());
        of.filter(|name| !["all", "default"].contains(name))
    }
}

/// Which families are forwarded.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Families {
    pub(crate) v4: bool,
    pub(crate) v6: bool,
}

/// Turns forwarding on. A forwarding node ignores router advertisements unless `accept_ra` is 2, and purges the
/// routes it has from them at the moment that forwarding is turned on: so the uplinks come first.
pub(crate) fn forward(families: Families, observed: &Observed, ours: &Ours) -> Vec<Step> {
    let mut steps = Vec::new();
    if families.v6 {
        let listening = followed(observed, ours)
            .into_iter()
            .map(|link| accept_ra(&link))
            .filter(|key| value(observed, key) == Some("1"));
        steps.extend(listening.filter_map(|key| set(observed, key, "2")));
        steps.extend(set(observed, v6_forwarding(), "1"));
    }
    if families.v4 {
        steps.extend(set(observed, v4_forwarding(), "1"));
    }
    steps
}

/// Keeps IPv6 on a bridge of ours from waiting for duplicates of its link-local address and from listening to the
/// pods' router advertisements. A bridge that is yet to be made has the values of `default`.
pub(crate) fn quiet(bridge: &IfName, observed: &Observed) -> Vec<Step> {
    let made = observed.links.contains_key(bridge);
    let keys = quiet_keys(bridge).into_iter();
    let step = |[key, default]: [SysctlKey; 2]| {
        let now = value(observed, if made { &key } else { &default })?;
        (now != "0").then(|| Step::SetSysctl {
            key,
            value: "0".to_owned(),
            previous: now.to_owned(),
        })
    };
    keys.filter_map(step).collect()
}

fn set(observed: &Observed, key: SysctlKey, wanted: &str) -> Option<Step> {
    let now = value(observed, &key)?;
    (now != wanted).then(|| Step::SetSysctl {
        key,
        value: wanted.to_owned(),
        previous: now.to_owned(),
    })
}

fn value<'a>(observed: &'a Observed, key: &SysctlKey) -> Option<&'a str> {
    observed.sysctls.get(key).map(String::as_str)
}

fn v4_forwarding() -> SysctlKey {
    SysctlKey("net/ipv4/ip_forward".to_owned())
}

fn v6_forwarding() -> SysctlKey {
    SysctlKey("net/ipv6/conf/all/forwarding".to_owned())
}

fn accept_ra(link: &IfName) -> SysctlKey {
    SysctlKey(format!("net/ipv6/conf/{link}/accept_ra"))
}

/// Each with the key that a new link inherits it from.
fn quiet_keys(bridge: &IfName) -> [[SysctlKey; 2]; 2] {
    ["accept_dad", "accept_ra"].map(|name| {
        let key = |of: &str| SysctlKey(format!("net/ipv6/conf/{of}/{name}"));
        [key(bridge.as_str()), key("default")]
    })
}

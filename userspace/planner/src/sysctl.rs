//! Sysctls of the node: forwarding, router advertisements on uplinks, and autoconfiguration on
//! bridges.
//!
//! A sysctl is written only where it differs. One that the kernel does not have (no IPv6) is left
//! out. `br_netfilter` and `rp_filter` belong to the operator and kube-proxy, and are not touched.

use std::collections::BTreeSet;

use model::IfName;
use steps::{Observed, Step, SysctlKey};

use crate::NodeIntent;
use crate::own_links::OwnLinks;
use crate::uplink::detected_uplinks;

/// Returns the sysctls that [`crate::plan_node`] and [`crate::plan_bridge`] read. They depend on
/// the links of the node: observe it without sysctls first, then with these.
pub fn node_sysctls(intent: &NodeIntent, observed: &Observed) -> BTreeSet<SysctlKey> {
    let ours = OwnLinks::of_networks(&intent.networks, observed);
    let mut keys = BTreeSet::from([v4_forwarding(), v6_forwarding()]);
    for network in &intent.networks {
        let links = [Some(network.bridge.clone()), network.gateway_link()];
        for link in links.into_iter().flatten() {
            keys.extend(autoconf_keys(&link).into_iter().flatten());
            keys.extend(link_local_keys(&link).into_iter().flatten());
        }
        keys.extend(network.gateway_link().map(|link| link_forwarding(&link)));
    }
    keys.extend(detected_uplinks(observed, &ours).iter().map(accept_ra));
    keys
}

/// Address families of a network, or of all networks.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Families {
    pub(crate) v4: bool,
    pub(crate) v6: bool,
}

/// Plans to turn forwarding on, for the node and for the links of ours that had it turned off
/// since. A forwarding node ignores router advertisements unless `accept_ra`
/// is 2, and purges the routes learnt from them at the moment when forwarding is turned on: so
/// `accept_ra` of the uplinks comes first.
pub(crate) fn forward(families: Families, observed: &Observed, ours: &OwnLinks) -> Vec<Step> {
    let mut steps = Vec::new();
    if families.v6 {
        let listening = detected_uplinks(observed, ours)
            .into_iter()
            .map(|link| accept_ra(&link))
            .filter(|key| value(observed, key) == Some("1"));
        steps.extend(listening.filter_map(|key| set(observed, key, "2")));
        steps.extend(set(observed, v6_forwarding(), "1"));
    }
    if families.v4 {
        let all = set(observed, v4_forwarding(), "1");
        // To turn forwarding on sets it for each link.
        if all.is_none() {
            let links = observed.links.keys().filter(|name| ours.has(name));
            let keys = links.map(link_forwarding);
            let off = keys.filter(|key| value(observed, key) == Some("0"));
            steps.extend(off.filter_map(|key| set(observed, key, "1")));
        }
        steps.extend(all);
    }
    steps
}

/// Plans to turn duplicate address detection and router advertisements off on a bridge of ours: its
/// link-local address is usable at once, and pods' advertisements are ignored. A bridge that does
/// not exist yet gets the values of `default`.
pub(crate) fn disable_autoconf(bridge: &IfName, observed: &Observed) -> Vec<Step> {
    let step = |keys: [SysctlKey; 2]| {
        let now = value_of_link(observed, bridge, &keys)?;
        let [key, _] = keys;
        (now != "0").then(|| Step::SetSysctl {
            key,
            value: "0".to_owned(),
            previous: now.to_owned(),
        })
    };
    autoconf_keys(bridge).into_iter().filter_map(step).collect()
}

/// Returns whether the kernel gives `link` a link-local address that derives from its MAC address:
/// IPv6 is on, and `addr_gen_mode` is that of RFC 4291 (`IN6_ADDR_GEN_MODE_EUI64`).
pub(crate) fn derives_link_local(link: &IfName, observed: &Observed) -> bool {
    link_local_keys(link)
        .iter()
        .all(|keys| value_of_link(observed, link, keys) == Some("0"))
}

/// Returns the value of a sysctl of `link`: that of the link, or the one that it inherits when it
/// is created.
fn value_of_link<'a>(
    observed: &'a Observed,
    link: &IfName,
    [key, default]: &[SysctlKey; 2],
) -> Option<&'a str> {
    let exists = observed.links.contains_key(link);
    value(observed, if exists { key } else { default })
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
    observed.sysctls.get(key)?.as_deref()
}

fn v4_forwarding() -> SysctlKey {
    SysctlKey("net/ipv4/ip_forward".to_owned())
}

fn link_forwarding(link: &IfName) -> SysctlKey {
    SysctlKey(format!("net/ipv4/conf/{link}/forwarding"))
}

fn v6_forwarding() -> SysctlKey {
    SysctlKey("net/ipv6/conf/all/forwarding".to_owned())
}

fn accept_ra(link: &IfName) -> SysctlKey {
    SysctlKey(format!("net/ipv6/conf/{link}/accept_ra"))
}

/// Returns the sysctls to turn off, each with the `default` key that a new link inherits it from.
fn autoconf_keys(bridge: &IfName) -> [[SysctlKey; 2]; 2] {
    ["accept_dad", "accept_ra"].map(|name| link_and_default(bridge, name))
}

/// Returns the sysctls that decide about the link-local address, each with its `default` key.
fn link_local_keys(link: &IfName) -> [[SysctlKey; 2]; 2] {
    ["addr_gen_mode", "disable_ipv6"].map(|name| link_and_default(link, name))
}

fn link_and_default(link: &IfName, name: &str) -> [SysctlKey; 2] {
    [link.as_str(), "default"].map(|of| SysctlKey(format!("net/ipv6/conf/{of}/{name}")))
}

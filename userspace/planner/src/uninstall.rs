//! Plans the uninstall of Viaduct from a node without attached pods.
//!
//! Removes what is provably ours: routes with our protocol number, programs on uplinks and the
//! cgroup, tunnels with our alias, bridges with our alias and without ports of others, VLAN
//! interfaces with our alias, and values of sysctls that are unchanged since this agent wrote them.
//! The tables go with their pins. State that stays is reported.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use model::{IfName, Network};
use steps::{Hook, LinkKind, NodeLink, Observed, SocketHookState, Step, SysctlKey, VlanStep};

use crate::Plan;
use crate::alias::{bridge_alias, is_gateway_port, is_our_alias};
use crate::socket_hook::plan_detach_socket_hooks;

/// A sysctl that this agent has written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenSysctl {
    /// Value before the first write.
    pub before: String,
    /// Value of the last write.
    pub ours: String,
}

/// Plan of the uninstall, and the state that stays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Uninstall {
    /// Removes everything that is ours.
    pub plan: Plan,
    /// State that stays on the node, with the reason.
    pub left: Vec<Leftover>,
}

/// State that this agent has created or changed and that stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leftover {
    /// A bridge of ours that still has ports of other software.
    Bridge(IfName),
    /// A sysctl that other software has changed since.
    Sysctl {
        /// Path of the sysctl.
        key: SysctlKey,
        /// Value before this agent's first write.
        before: String,
        /// Current value.
        now: String,
    },
}

/// Plans the uninstall after the last attachment is gone. `observed` has the sysctls of `written`.
pub fn plan_uninstall(
    observed: &Observed,
    written: &BTreeMap<SysctlKey, WrittenSysctl>,
) -> Uninstall {
    let mut uninstall = Uninstall::default();
    uninstall.plan.append(crate::peers::remove_routes(observed));
    uninstall.plan.append(detach_uplinks(observed));
    uninstall
        .plan
        .append(crate::peers::remove_tunnels(observed));
    let table = crate::netfilter_table::remove(None, observed);
    uninstall.plan.append(Plan::of(table));
    uninstall
        .plan
        .append(crate::xdp_prefilter::detach_all(observed));
    let is_there = |_, link| link != SocketHookState::Absent;
    (uninstall.plan).append(plan_detach_socket_hooks(&observed.socket_hooks, is_there));
    // Before the bridges: our VLAN interfaces may also be on bridges of other software, which stay.
    (uninstall.plan).append(delete_vlan_links(observed, |_| true));
    for (name, link) in observed
        .links
        .iter()
        .filter(|(_, link)| is_our_bridge(link))
    {
        if has_ports(link, observed) {
            uninstall.left.push(Leftover::Bridge(name.clone()));
        } else {
            uninstall.plan.push(Step::DeleteBridge {
                name: name.clone(),
                alias: link.alias.clone().unwrap_or_default(),
            });
        }
    }
    for (key, written) in written
        .iter()
        .filter(|(key, _)| is_persistent_sysctl(key, observed))
    {
        restore(key, written, observed, &mut uninstall);
    }
    uninstall
}

/// Plans the removal of a network's bridge, with our VLAN interfaces on it: if it has the alias of
/// the network, no ports of others, and is the bridge of none of `others`.
pub fn plan_remove_bridge<'a>(
    network: &Network,
    mut others: impl Iterator<Item = &'a Network>,
    observed: &Observed,
) -> Plan {
    let name = &network.bridge;
    let alias = bridge_alias(&network.name);
    let link = observed
        .links
        .get(name)
        .filter(|link| link.alias.as_ref() == Some(&alias) && !has_ports(link, observed));
    let Some(bridge) = link.filter(|_| !others.any(|other| other.bridge == *name)) else {
        return Plan::default();
    };
    let is_on_it = |link: &NodeLink| {
        let of = link.switching.vlan_of;
        of.is_some_and(|(index, _)| index == bridge.index)
    };
    let mut plan = delete_vlan_links(observed, is_on_it);
    plan.push(Step::DeleteBridge {
        name: name.clone(),
        alias,
    });
    plan
}

/// Plans the removal of our VLAN interfaces that `which` selects.
fn delete_vlan_links(observed: &Observed, which: impl Fn(&NodeLink) -> bool) -> Plan {
    let links = observed.links.iter();
    let steps = links
        .filter(|(_, link)| is_our_vlan(link) && which(link))
        .map(|(name, link)| {
            Step::Vlan(VlanStep::DeleteLink {
                name: name.clone(),
                alias: link.alias.clone().unwrap_or_default(),
            })
        });
    Plan::of(steps)
}

/// Returns whether a bridge has ports besides those of our VLAN interfaces.
fn has_ports(bridge: &NodeLink, observed: &Observed) -> bool {
    let mut ports = observed.links.values();
    ports.any(|port| port.controller == Some(bridge.index) && !is_gateway_port(port))
}

/// Returns the sysctls that `plan` writes and that outlast our links. Sysctls of our own links are
/// removed with them.
pub fn persistent_sysctls(plan: &Plan, observed: &Observed) -> BTreeMap<SysctlKey, WrittenSysctl> {
    plan.steps()
        .iter()
        .filter_map(|step| {
            let Step::SetSysctl {
                key,
                value,
                previous,
            } = step
            else {
                return None;
            };
            let written = WrittenSysctl {
                before: previous.clone(),
                ours: value.clone(),
            };
            is_persistent_sysctl(key, observed).then(|| (key.clone(), written))
        })
        .collect()
}

/// Returns whether a sysctl is node-wide, or of an existing link that is not ours.
pub fn is_persistent_sysctl(key: &SysctlKey, observed: &Observed) -> bool {
    let mut links = observed.links.iter();
    match key.link() {
        None => true,
        Some(of) => {
            links.any(|(name, link)| name.as_str() == of && !is_our_alias(link.alias.as_deref()))
        }
    }
}

fn detach_uplinks(observed: &Observed) -> Plan {
    let uplink = [Hook::UplinkIn, Hook::UplinkOut];
    let steps = observed.links.iter().filter_map(|(name, link)| {
        let hooks: BTreeSet<Hook> = uplink
            .into_iter()
            .filter(|hook| link.hooks.contains(hook))
            .collect();
        (!hooks.is_empty()).then(|| Step::Detach {
            link: name.clone(),
            hooks,
        })
    });
    Plan::of(steps)
}

fn is_our_bridge(link: &NodeLink) -> bool {
    link.kind == LinkKind::Bridge && is_our_alias(link.alias.as_deref())
}

fn is_our_vlan(link: &NodeLink) -> bool {
    link.switching.vlan_of.is_some() && is_our_alias(link.alias.as_deref())
}

fn restore(
    key: &SysctlKey,
    written: &WrittenSysctl,
    observed: &Observed,
    uninstall: &mut Uninstall,
) {
    let WrittenSysctl { before, ours } = written;
    match observed.sysctls.get(key).and_then(Option::as_ref) {
        // The sysctl was of a link that is gone.
        None => {}
        Some(now) if now == before => {}
        Some(now) if now == ours => uninstall.plan.push(Step::SetSysctl {
            key: key.clone(),
            value: before.clone(),
            previous: now.clone(),
        }),
        Some(now) => uninstall.left.push(Leftover::Sysctl {
            key: key.clone(),
            before: before.clone(),
            now: now.clone(),
        }),
    }
}

impl fmt::Display for Leftover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bridge(name) => write!(f, "bridge {name} has foreign ports"),
            Self::Sysctl { key, before, now } => {
                write!(
                    f,
                    "sysctl {key} was {before} before Viaduct, and other software has set it to {now}"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests;

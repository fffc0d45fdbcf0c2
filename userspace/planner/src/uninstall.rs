//! Taking Viaduct off a node that no pod is attached to any more.
//!
//! What goes is what is provably ours: programs on uplinks and sockets, bridges with our alias and without ports, ends of
//! VLANs with our alias, and the values of sysctls that nobody has changed since we did. The tables go with their pins. What stays is told.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use model::IfName;

use crate::bridge::is_our_alias;
use crate::socket_hook::detach_sockets;
use crate::{Hook, Link, LinkKind, Observed, Plan, SocketLink, Step, SysctlKey, VlanStep};

/// A sysctl that we have written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// What it was before us.
    pub before: String,
    /// What we wrote last.
    pub ours: String,
}

/// What is to be taken away, and what is not ours to take.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Uninstall {
    /// Takes everything away.
    pub plan: Plan,
    /// What stays on the node, and why.
    pub left: Vec<Left>,
}

/// Something that we have made or changed and that stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Left {
    /// A bridge of ours with ports of others.
    Bridge(IfName),
    /// A sysctl that somebody else has changed since.
    Sysctl {
        /// Which.
        key: SysctlKey,
        /// What it was before us.
        before: String,
        /// What it is.
        now: String,
    },
}

/// Plans what is left to do when the last attachment is gone. `observed` is of [`crate::Scope::Node`] with the sysctls
/// of `written`.
pub fn plan_uninstall(observed: &Observed, written: &BTreeMap<SysctlKey, Written>) -> Uninstall {
    let mut uninstall = Uninstall::default();
    uninstall.plan.append(detach_uplinks(observed));
    uninstall.plan.append(crate::guard::withdraw_all(observed));
    let is_there = |_, link| link != SocketLink::Absent;
    (uninstall.plan).append(detach_sockets(&observed.socket_hooks, is_there));
    // Ours may be above bridges of others, which stay.
    for (name, link) in observed.links.iter().filter(|(_, link)| is_our_vlan(link)) {
        uninstall.plan.push(Step::Vlan(VlanStep::DeleteLink {
            name: name.clone(),
            alias: link.alias.clone().unwrap_or_default(),
        }));
    }
    for (name, link) in observed
        .links
        .iter()
        .filter(|(_, link)| is_our_bridge(link))
    {
        let mut links = observed.links.values();
        if links.any(|port| port.controller == Some(link.index)) {
            uninstall.left.push(Left::Bridge(name.clone()));
        } else {
            uninstall.plan.push(Step::DeleteBridge {
                name: name.clone(),
                alias: link.alias.clone().unwrap_or_default(),
            });
        }
    }
    for (key, written) in written.iter().filter(|(key, _)| is_lasting(key, observed)) {
        restore(key, written, observed, &mut uninstall);
    }
    uninstall
}

/// The sysctls that `plan` writes and that outlast what we make: none of a link of ours, with which they go.
pub fn lasting_sysctls(plan: &Plan, observed: &Observed) -> BTreeMap<SysctlKey, Written> {
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
            let written = Written {
                before: previous.clone(),
                ours: value.clone(),
            };
            is_lasting(key, observed).then(|| (key.clone(), written))
        })
        .collect()
}

/// Whether a sysctl is of the whole node, or of a link that is there and that is not ours.
pub fn is_lasting(key: &SysctlKey, observed: &Observed) -> bool {
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

fn is_our_bridge(link: &Link) -> bool {
    link.kind == LinkKind::Bridge && is_our_alias(link.alias.as_deref())
}

fn is_our_vlan(link: &Link) -> bool {
    link.switching.vlan_of.is_some() && is_our_alias(link.alias.as_deref())
}

fn restore(key: &SysctlKey, written: &Written, observed: &Observed, uninstall: &mut Uninstall) {
    let Written { before, ours } = written;
    match observed.sysctls.get(key) {
        // It was of a link that is gone.
        None => {}
        Some(now) if now == before => {}
        Some(now) if now == ours => uninstall.plan.push(Step::SetSysctl {
            key: key.clone(),
            value: before.clone(),
            previous: now.clone(),
        }),
        Some(now) => uninstall.left.push(Left::Sysctl {
            key: key.clone(),
            before: before.clone(),
            now: now.clone(),
        }),
    }
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bridge(name) => write!(f, "bridge {name} has ports of others"),
            Self::Sysctl { key, before, now } => {
                write!(
                    f,
                    "sysctl {key} was {before} and somebody has made it {now}"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests;

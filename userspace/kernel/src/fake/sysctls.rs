//! Sysctls in memory: those that the planner reads, and those that come with a link.

use std::collections::{BTreeMap, BTreeSet};

use model::IfName;
use steps::SysctlKey;

use super::world::World;

/// Returns the sysctls that the planner reads, with the kernel's defaults.
pub(super) fn first_sysctls() -> BTreeMap<SysctlKey, String> {
    let defaults = [
        ("net/ipv4/ip_forward", "0"),
        ("net/ipv4/conf/all/rp_filter", "0"),
        ("net/ipv4/conf/default/rp_filter", "0"),
        ("net/ipv4/conf/default/forwarding", "0"),
        ("net/ipv6/conf/all/forwarding", "0"),
        ("net/ipv6/conf/default/forwarding", "0"),
        ("net/ipv6/conf/default/accept_ra", "1"),
        ("net/ipv6/conf/default/accept_dad", "1"),
        ("net/ipv6/conf/default/addr_gen_mode", "0"),
        ("net/ipv6/conf/default/disable_ipv6", "0"),
    ];
    let owned = |(key, value): (&str, &str)| (SysctlKey(key.to_owned()), value.to_owned());
    defaults.into_iter().map(owned).collect()
}

impl World {
    /// Adds the sysctls of a new link, with the values of `conf/default`.
    pub(super) fn inherit_sysctls(&mut self, name: &IfName) {
        let copy = |(key, value): (&SysctlKey, &String)| {
            let (head, tail) = key.0.split_once("/conf/default/")?;
            Some((
                SysctlKey(format!("{head}/conf/{name}/{tail}")),
                value.clone(),
            ))
        };
        let copies: Vec<_> = self.sysctls.iter().filter_map(copy).collect();
        self.sysctls.extend(copies);
    }

    /// Sets a sysctl as the kernel does: forwarding of IPv4 is that of each link as well.
    pub(super) fn put_sysctl(&mut self, key: SysctlKey, value: &str) {
        if key.0 == "net/ipv4/ip_forward" {
            let of_links = self.sysctls.iter_mut().filter(|(key, _)| {
                key.0.starts_with("net/ipv4/conf/") && key.0.ends_with("/forwarding")
            });
            let flag = if value == "0" { "0" } else { "1" };
            of_links.for_each(|(_, value)| flag.clone_into(value));
        }
        self.sysctls.insert(key, value.to_owned());
    }

    pub(super) fn chosen_sysctls(
        &self,
        keys: &BTreeSet<SysctlKey>,
    ) -> BTreeMap<SysctlKey, Option<String>> {
        keys.iter()
            .map(|key| (key.clone(), self.sysctls.get(key).cloned()))
            .collect()
    }
}

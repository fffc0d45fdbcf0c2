//! Names of sysctls.

use std::fmt;

/// A sysctl as a path below `/proc/sys`, for example `net/ipv4/ip_forward`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SysctlKey(pub String);

impl fmt::Display for SysctlKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl SysctlKey {
    /// Returns the link of a per-interface sysctl; `None` for `all`, `default` and node-wide ones.
    pub fn link(&self) -> Option<&str> {
        let mut parts = self.0.split('/').skip(2);
        let of = parts
            .next()
            .filter(|kind| ["conf", "neigh"].contains(kind))
            .and_then(|_| parts.next());
        of.filter(|name| !["all", "default"].contains(name))
    }
}

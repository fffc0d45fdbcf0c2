//! Whether the container's network namespace is the one that this process runs in: to plumb the host's own namespace
//! as if it were a pod's would cut the node off. Refuses to know more about namespaces than their inodes.

use std::fs;
use std::os::unix::fs::MetadataExt;

use cni::Error;

/// Set to `1` or `true` by whoever means it.
const OVERRIDE: &str = "CNI_NETNS_OVERRIDE";

/// Refuses the namespace of this process (behaviour S7). One that cannot be looked at is not it.
pub(crate) fn refuse_own(path: &str) -> Result<(), Error> {
    let intended = std::env::var(OVERRIDE).unwrap_or_default();
    if !same(path, "/proc/self/ns/net") || matches!(intended.as_str(), "1" | "true" | "True") {
        return Ok(());
    }
    Err(Error::host_netns(format!(
        "plugin's netns and netns from CNI_NETNS should not be the same: {path}"
    ))
    .with_details(format!("set {OVERRIDE}=1 if this is meant")))
}

fn same(a: &str, b: &str) -> bool {
    let inode = |path| fs::metadata(path).map(|found| (found.dev(), found.ino()));
    matches!((inode(a), inode(b)), (Ok(a), Ok(b)) if a == b)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// behaviour S7
    #[test]
    fn the_hosts_own_namespace_is_code_8() {
        let error = refuse_own("/proc/self/ns/net").unwrap_err();
        assert_eq!(error.code, 8);
        assert!(error.msg.contains("/proc/self/ns/net"));
    }

    /// behaviour S10
    #[test]
    fn a_namespace_that_is_gone_or_not_given_is_not_the_hosts() {
        assert_eq!(refuse_own(""), Ok(()));
        assert_eq!(refuse_own("/run/netns/gone"), Ok(()));
    }
}

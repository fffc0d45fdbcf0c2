//! Refuses to attach the host's own network namespace: configuring it as a pod's would disconnect
//! the node.
//!
//! Compares namespaces by device and inode only.

use std::fs;
use std::os::unix::fs::MetadataExt;

use cni::Error;

/// Environment variable that allows the host namespace with `1` or `true`.
const OVERRIDE: &str = "CNI_NETNS_OVERRIDE";

/// Returns an error for the namespace of this process (behaviour S7). A path without a namespace is
/// not refused here.
pub(crate) fn refuse_host(path: &str) -> Result<(), Error> {
    let override_value = std::env::var(OVERRIDE).unwrap_or_default();
    if !is_same_file(path, "/proc/self/ns/net")
        || matches!(override_value.as_str(), "1" | "true" | "True")
    {
        return Ok(());
    }
    Err(Error::host_netns(format!(
        "plugin's netns and netns from CNI_NETNS should not be the same: {path}"
    ))
    .with_details(format!(
        "set {OVERRIDE}=1 to attach the host's namespace nevertheless"
    )))
}

fn is_same_file(a: &str, b: &str) -> bool {
    let inode = |path| fs::metadata(path).map(|found| (found.dev(), found.ino()));
    matches!((inode(a), inode(b)), (Ok(a), Ok(b)) if a == b)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// behaviour S7
    #[test]
    fn the_host_namespace_is_refused_with_code_8() {
        let error = refuse_host("/proc/self/ns/net").unwrap_err();
        assert_eq!(error.code, 8);
        assert!(error.msg.contains("/proc/self/ns/net"));
    }

    /// behaviour S10
    #[test]
    fn a_missing_or_empty_namespace_is_not_the_host_namespace() {
        assert_eq!(refuse_host(""), Ok(()));
        assert_eq!(refuse_host("/run/netns/gone"), Ok(()));
    }
}

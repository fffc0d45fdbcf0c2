//! Records the rules of real software, for tests and benchmarks that do not run it.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use super::scene::FIRST;
use super::software::Software;
use crate::Sandbox;
use crate::company::{RecordedRules, rules_of};

/// Starts kube-proxy and Docker, each on a node of its own, and writes their rules to `folder`.
pub fn record(folder: &Path) -> Result<()> {
    for (software, recorded) in [
        (Software::KubeProxy, RecordedRules::KubeProxy),
        (Software::Docker, RecordedRules::Docker),
    ] {
        let sandbox = Sandbox::new()?;
        // Docker sets the policy of FORWARD only where it turns forwarding on itself.
        sandbox.node.sysctl("ipv4/ip_forward", "1")?;
        sandbox.node.sysctl("ipv6/conf/all/forwarding", "1")?;
        let _running = software.start(&sandbox.node, FIRST)?;
        let rules = rules_of(&sandbox.node)?;
        for (name, text) in recorded.files().into_iter().zip(rules) {
            let file = folder.join(name);
            fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
        }
    }
    Ok(())
}

//! ufw with its default policies: incoming and routed packets are dropped.

use anyhow::{Context as _, Result, ensure};

use crate::Machine;

/// An enabled ufw.
#[derive(Debug)]
pub struct Ufw {
    node: Machine,
}

impl Ufw {
    /// Enables ufw, with a copy of its configuration.
    pub fn enable(node: &Machine) -> Result<Self> {
        node.call("mkdir -p /run/company")?;
        // The machine's own configuration must not change.
        for (own, copy) in [("/etc/ufw", "ufw"), ("/etc/default/ufw", "ufw.default")] {
            node.call(&format!("cp -a {own} /run/company/{copy}"))?;
            node.call(&format!("mount --bind /run/company/{copy} {own}"))?;
        }
        let ufw = Self { node: node.clone() };
        ufw.call("--force enable")?;
        let status = ufw.call("status")?;
        ensure!(status.contains("Status: active"), "ufw is off: {status}");
        Ok(ufw)
    }

    /// Runs `ufw` with the arguments in `line`, and returns its output.
    pub fn call(&self, line: &str) -> Result<String> {
        self.node.call(&format!("ufw {line}"))
    }

    /// Returns its version.
    pub fn version(&self) -> Result<String> {
        let printed = self.call("version")?;
        let number = printed.split_whitespace().nth(1);
        Ok(number.context("ufw prints its version")?.to_owned())
    }
}

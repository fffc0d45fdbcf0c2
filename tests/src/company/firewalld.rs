//! firewalld with its default zone, on a system bus of its own.

use std::path::Path;

use anyhow::{Context as _, Result, bail};

use crate::{Machine, Process, until};

/// Configuration of the bus: each process of the sandbox may own each name and call each method.
const BUS: &str = r#"<busconfig>
  <type>system</type>
  <listen>unix:path=/run/dbus/system_bus_socket</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow user="*"/>
    <allow own="*"/>
    <allow send_type="method_call"/>
    <allow send_type="method_return"/>
    <allow send_type="error"/>
    <allow send_type="signal"/>
    <allow receive_type="method_call"/>
    <allow receive_type="method_return"/>
    <allow receive_type="error"/>
    <allow receive_type="signal"/>
  </policy>
</busconfig>
"#;

/// A running firewalld. Dropping it ends it; its rules stay with the network namespace.
#[derive(Debug)]
pub struct Firewalld {
    node: Machine,
    daemon: Process,
    _bus: Process,
}

impl Firewalld {
    /// Starts a bus and firewalld, and waits until its rules are in force.
    pub fn start(node: &Machine) -> Result<Self> {
        let config = "/run/company/bus.conf";
        node.call("mkdir -p /run/dbus /run/firewalld /run/company")?;
        node.run(|| std::fs::write(config, BUS))?;
        let bus = Process::start(
            node,
            &[
                "dbus-daemon",
                &format!("--config-file={config}"),
                "--nofork",
                "--nopidfile",
            ],
        )?;
        until("the bus listens", || {
            Ok(node
                .run(|| Path::new("/run/dbus/system_bus_socket").exists())
                .then_some(()))
        })?;
        // What a test configures must not remain on the machine.
        node.call("cp -a /etc/firewalld /run/company/firewalld")?;
        node.call("mount --bind /run/company/firewalld /etc/firewalld")?;
        let daemon = Process::start(
            node,
            &[
                "firewalld",
                "--nofork",
                "--nopid",
                "--log-file=/run/company/firewalld.log",
            ],
        )?;
        let firewalld = Self {
            node: node.clone(),
            daemon,
            _bus: bus,
        };
        firewalld.await_start()?;
        Ok(firewalld)
    }

    /// Runs `firewall-cmd` with the arguments in `line`, and returns its output.
    pub fn call(&self, line: &str) -> Result<String> {
        self.node.call(&format!("firewall-cmd {line}"))
    }

    /// Returns its version.
    pub fn version(&self) -> Result<String> {
        Ok(self.call("--version")?.trim().to_owned())
    }

    fn await_start(&self) -> Result<()> {
        until("firewalld runs", || {
            if let Some(status) = self.daemon.ended()? {
                bail!("firewalld exited ({status}): {}", self.daemon.output());
            }
            let state = self.call("--state").unwrap_or_default();
            Ok((state.trim() == "running").then_some(()))
        })
        .with_context(|| self.daemon.output())
    }
}

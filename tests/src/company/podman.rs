//! podman as Debian installs it: the reference plugins, its own default network, and its own holder
//! of published ports.

use std::path::Path;

use anyhow::Result;
use serde_json::json;

use super::neighbour::{self, ARCHIVE, COMMAND, Container, IMAGE};
use crate::Machine;
use crate::chain::{PluginSource, folder};
use crate::containers::unified_cgroups;

/// podman, which has no daemon. Dropping it removes its containers.
#[derive(Debug)]
pub struct DebianPodman {
    node: Machine,
}

impl DebianPodman {
    /// Configures podman with the installed reference plugins, and imports the image.
    pub fn new(node: &Machine) -> Result<Self> {
        unified_cgroups(node)?;
        neighbour::make_archive(node)?;
        let plugins = folder(PluginSource::Reference)?;
        node.run(|| configure(&plugins))?;
        let podman = Self { node: node.clone() };
        podman.call(&format!("import --quiet {ARCHIVE} {IMAGE}"))?;
        Ok(podman)
    }

    /// Runs podman with the arguments in `line`, and returns its output.
    pub fn call(&self, line: &str) -> Result<String> {
        self.node.call(&format!(
            "env CONTAINERS_CONF=/run/company/containers.conf podman --root /run/company/podman/root \
             --runroot /run/company/podman/run --storage-driver vfs {line}"
        ))
    }

    /// Returns its version.
    pub fn version(&self) -> Result<String> {
        let printed = self.call("version --format {{.Client.Version}}")?;
        Ok(printed
            .trim()
            .split('+')
            .next()
            .unwrap_or_default()
            .to_owned())
    }

    /// Starts a container of this name. Its `port` is published as `published`, for TCP and UDP.
    pub fn run(&self, name: &str, published: u16, port: u16) -> Result<Container> {
        let ports = neighbour::publish(published, port);
        let command = COMMAND.join(" ");
        self.call(&format!(
            "run --detach --cgroups=disabled --name {name} {ports} {IMAGE} {command}"
        ))?;
        let process = self.call(&format!("inspect --format {{{{.State.Pid}}}} {name}"))?;
        Ok(Container {
            machine: neighbour::of_process(&self.node, name, &process)?,
            published,
            port,
        })
    }
}

impl Drop for DebianPodman {
    fn drop(&mut self) {
        let _gone = self.call("rm --force --time 0 --all");
    }
}

/// Writes podman's configuration: its default network, with IPv6 added.
fn configure(plugins: &Path) -> Result<()> {
    let nets = "/run/company/podman/nets";
    std::fs::create_dir_all(nets)?;
    let network = json!({ "cniVersion": "0.4.0", "name": "podman", "plugins": [
        { "type": "bridge", "bridge": "cni-podman0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
          "ipam": { "type": "host-local", "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }],
                    "ranges": [[{ "subnet": "10.88.0.0/16", "gateway": "10.88.0.1" }], [{ "subnet": "fd00:88::/64" }]] } },
        { "type": "portmap", "capabilities": { "portMappings": true } },
        { "type": "firewall", "backend": "" },
        { "type": "tuning" },
    ] });
    std::fs::write(format!("{nets}/87-podman.conflist"), network.to_string())?;
    let settings = format!(
        "[network]\nnetwork_backend = \"cni\"\ncni_plugin_dirs = [\"{}\"]\nnetwork_config_dir = \"{nets}\"\n\
         [engine]\nruntime = \"crun\"\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\n\
         [containers]\ndefault_ulimits = [\"nofile=1024:1024\", \"nproc=1024:1024\"]\nlog_driver = \"k8s-file\"\n",
        plugins.display()
    );
    Ok(std::fs::write("/run/company/containers.conf", settings)?)
}

//! Containers of other engines, in which a test runs its own servers and clients.

use anyhow::{Context as _, Result};

use crate::Machine;

/// Name of the image in each engine.
pub(super) const IMAGE: &str = "localhost/sleeper:1";

/// The archive of the image's files.
pub(super) const ARCHIVE: &str = "/run/company/image.tar";

/// The command of a container. It ends by itself, so that none outlives a killed test for long.
pub(super) const COMMAND: [&str; 2] = ["/bin/sleep", "900"];

/// A running container, and the port by which its engine publishes it.
#[derive(Clone, Debug)]
pub struct Container {
    /// Its network namespace.
    pub machine: Machine,
    /// The port on all addresses of the node, for TCP and UDP.
    pub published: u16,
    /// The port in the container.
    pub port: u16,
}

/// Writes [`ARCHIVE`]: busybox, statically linked, which is all that a container needs.
pub(super) fn make_archive(node: &Machine) -> Result<()> {
    let root = "/run/company/root";
    node.call(&format!("mkdir -p {root}/bin"))?;
    node.call(&format!("cp /bin/busybox {root}/bin/busybox"))
        .context("busybox-static is not installed: `cargo xtask setup`")?;
    node.call(&format!("ln -sf busybox {root}/bin/sleep"))?;
    node.call(&format!("tar -C {root} -cf {ARCHIVE} ."))
        .map(drop)
}

/// Returns the network namespace of the container that `printed`, the output of an engine's
/// `inspect`, names by its process.
pub(super) fn of_process(node: &Machine, name: &str, printed: &str) -> Result<Machine> {
    let pid: u32 = printed
        .trim()
        .parse()
        .with_context(|| format!("{name} has no process: {printed}"))?;
    node.of_process(name, pid)
}

/// Returns the options that publish `port` of a container as `published`.
pub(super) fn publish(published: u16, port: u16) -> String {
    format!("--publish {published}:{port}/tcp --publish {published}:{port}/udp")
}

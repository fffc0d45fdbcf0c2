//! The programs that tests and the demo call, and the packages that bring them.

use std::path::Path;

use anyhow::Result;

use super::apt::Apt;
use crate::privilege;
use crate::progress::Steps;

/// Program and Debian package.
const PROGRAMS: [(&str, &str); 11] = [
    ("ip", "iproute2"),
    ("systemctl", "systemd"),
    ("iperf3", "iperf3"),
    ("tcpdump", "tcpdump"),
    ("ethtool", "ethtool"),
    ("ping", "iputils-ping"),
    ("nft", "nftables"),
    ("iptables", "iptables"),
    ("ebtables", "ebtables"),
    ("bpftool", "bpftool"),
    ("curl", "curl"),
];

/// The reference plugins, which are not on PATH.
const REFERENCE_PLUGINS: (&str, &str) = ("/usr/lib/cni/bridge", "containernetworking-plugins");

/// Programs that run guests. Newer releases of Debian have virtiofsd in a package of its own.
const GUEST_PROGRAMS: [(&[&str], &str); 4] = [
    (&["qemu-system-x86_64"], "qemu-system-x86"),
    (&["busybox"], "busybox-static"),
    (&["xz"], "xz-utils"),
    (
        &[
            "virtiofsd",
            "/usr/lib/qemu/virtiofsd",
            "/usr/libexec/virtiofsd",
        ],
        "virtiofsd",
    ),
];

/// Programs that write and install packages.
const PACKAGING: [(&str, &str); 3] = [("dpkg-deb", "dpkg"), ("rpmbuild", "rpm"), ("gzip", "gzip")];

pub(super) fn ensure_packaging(apt: &mut Apt<'_>) -> Result<()> {
    let missing: Vec<&str> = PACKAGING
        .iter()
        .filter(|(program, _)| privilege::find(program).is_none())
        .map(|(_, package)| *package)
        .collect();
    apt.install("write packages", &missing)
}

pub(super) fn ensure_guests(apt: &mut Apt<'_>) -> Result<()> {
    for (places, package) in GUEST_PROGRAMS {
        if !places.iter().any(|place| privilege::find(place).is_some()) {
            apt.install("run guests", &[package])?;
        }
    }
    Ok(())
}

/// Container runtimes, their helpers (crun and conmon of podman, runc of containerd), busybox for
/// images, the name service of podman's networks, and a browser for the page of `--web-page`.
const RUNTIMES: [(&str, &str); 8] = [
    ("chromium", "chromium"),
    ("podman", "podman"),
    ("crun", "crun"),
    ("conmon", "conmon"),
    ("containerd", "containerd"),
    ("runc", "runc"),
    ("busybox", "busybox-static"),
    ("/usr/lib/podman/aardvark-dns", "aardvark-dns"),
];

pub(super) fn ensure_runtimes(apt: &mut Apt<'_>) -> Result<()> {
    let missing: Vec<&str> = RUNTIMES
        .iter()
        .filter(|(program, _)| privilege::find(program).is_none())
        .map(|(_, package)| *package)
        .collect();
    apt.install("test with container runtimes and a browser", &missing)
}

/// Firewalls and a container engine that tests run on the node of a sandbox.
const COMPANY: [(&str, &str); 4] = [
    ("dockerd", "docker.io"),
    ("firewalld", "firewalld"),
    ("ufw", "ufw"),
    ("dbus-daemon", "dbus"),
];

/// Exists where systemd runs the machine.
const SYSTEMD: &str = "/run/systemd/system";

/// Installs other software of a node. systemd would start it with the machine, firewalls included,
/// so there it is only named.
pub(super) fn ensure_company(steps: &Steps, apt: &mut Apt<'_>) -> Result<()> {
    let missing: Vec<&str> = COMPANY
        .iter()
        .filter(|(program, _)| privilege::find(program).is_none())
        .map(|(_, package)| *package)
        .collect();
    if !missing.is_empty() && Path::new(SYSTEMD).exists() {
        steps.note(&format!(
            "tests skip what is not installed: {}. systemd would start it on this machine",
            missing.join(", ")
        ));
        return Ok(());
    }
    apt.install("test beside other software", &missing)
}

pub(super) fn ensure(steps: &Steps, apt: &mut Apt<'_>) -> Result<()> {
    let mut missing: Vec<&str> = PROGRAMS
        .iter()
        .filter(|(program, _)| privilege::find(program).is_none())
        .map(|(_, package)| *package)
        .collect();
    let (plugin, package) = REFERENCE_PLUGINS;
    if !["/opt/cni/bin/bridge", plugin]
        .iter()
        .any(|path| Path::new(path).exists())
    {
        missing.push(package);
    }
    apt.install("run the tests and the demo", &missing)?;
    let names: Vec<&str> = PROGRAMS.iter().map(|(program, _)| *program).collect();
    steps.already(&format!(
        "for tests and the demo: {}, reference CNI plugins",
        names.join(", ")
    ));
    Ok(())
}

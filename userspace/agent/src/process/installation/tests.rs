//! Tests of what an uninstall reports and a purge removes.

use std::os::unix::fs::symlink;

use super::*;

struct Node(tempfile::TempDir);

impl Node {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn put(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn link(&self, path: &str, target: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
    }

    fn report(&self, purge: bool) -> Report {
        let installation = Installation {
            root: self.0.path().to_owned(),
            socket: PathBuf::from(api::DEFAULT_SOCKET),
            docker: Some(StateFile::new(
                self.0.path().join("var/lib/viaduct/docker.json"),
            )),
        };
        let relative = |lines: Vec<String>| {
            let root = format!("{}/", self.0.path().display());
            lines.iter().map(|line| line.replace(&root, "")).collect()
        };
        let report = installation.report(purge);
        Report {
            removed: relative(report.removed),
            remaining: relative(report.remaining),
        }
    }
}

/// A node with an installation, and with files of other software under similar names.
fn node() -> Node {
    let node = Node::new();
    let plugin = "\u{7f}ELF…/run/viaduct/viaduct.sock…";
    for (path, text) in [
        (
            "etc/cni/net.d/05-viaduct.conflist",
            include_str!("../../../../../xtask/assets/05-viaduct.conflist"),
        ),
        (
            "etc/cni/net.d/10-shared.conflist",
            r#"{"plugins": [{"type": "viaduct"}, {"type": "sbr"}]}"#,
        ),
        ("etc/cni/net.d/20-single.conf", r#"{"type": "viaduct"}"#),
        (
            "etc/cni/net.d/30-other-agent.conflist",
            r#"{"plugins": [{"type": "viaduct", "socket": "/run/other/v.sock"}]}"#,
        ),
        (
            "etc/cni/net.d/40-viaduct.conflist",
            r#"{"plugins": [{"type": "bridge"}]}"#,
        ),
        ("etc/cni/net.d/50-broken.conflist", "{"),
        (
            "etc/cni/net.d/60-viaduct.conflist.bak",
            r#"{"type": "viaduct"}"#,
        ),
        ("opt/cni/bin/viaduct", plugin),
        ("opt/cni/bin/portmap", plugin),
        ("opt/cni/bin/bridge", "the reference's"),
        ("opt/cni/bin/other", plugin),
        (
            "etc/systemd/system/viaductd.service",
            include_str!("../../../../../xtask/assets/viaductd.service"),
        ),
        (
            "etc/systemd/system/viaductd.socket",
            "[Socket]\nExecStartPre=/bin/true\n",
        ),
        ("usr/bin/viaductd", plugin),
    ] {
        node.put(path, text);
    }
    node.link("opt/cni/bin/loopback", "viaduct");
    let wanted = "etc/systemd/system/multi-user.target.wants/viaductd.service";
    node.link(wanted, "/etc/systemd/system/viaductd.service");
    node
}

#[test]
fn an_uninstall_reports_installed_files_with_their_consequence() {
    let report = node().report(false);
    assert!(report.removed.is_empty());
    insta::assert_snapshot!(report.remaining.join("\n"), @r"
    etc/cni/net.d/05-viaduct.conflist: network configuration of Viaduct: new pods fail until it is removed
    etc/cni/net.d/10-shared.conflist: network configuration that names the plugin viaduct: new pods fail until it is changed
    etc/cni/net.d/20-single.conf: network configuration of Viaduct: new pods fail until it is removed
    etc/systemd/system/multi-user.target.wants/viaductd.service: enabled unit: systemd starts the agent at the next boot
    etc/systemd/system/viaductd.service: unit of the agent
    opt/cni/bin/viaduct: plugin of Viaduct, which does not work without the agent
    opt/cni/bin/portmap: plugin of Viaduct, which does not work without the agent
    opt/cni/bin/loopback: plugin of Viaduct, which does not work without the agent
    ");
}

#[test]
fn a_purge_removes_installed_files_and_nothing_of_other_software() {
    let node = node();
    let report = node.report(true);
    assert_eq!(report.removed.len(), 7, "{report:?}");
    assert_eq!(report.remaining.len(), 1, "{report:?}");
    assert!(report.remaining[0].starts_with("etc/cni/net.d/10-shared.conflist"));
    let left = |folder: &str| -> Vec<String> {
        let paths = entries(&node.0.path().join(folder));
        let names = paths.iter().filter_map(|path| path.file_name()?.to_str());
        names.map(str::to_owned).collect()
    };
    assert_eq!(
        left("etc/cni/net.d"),
        [
            "10-shared.conflist",
            "30-other-agent.conflist",
            "40-viaduct.conflist",
            "50-broken.conflist",
            "60-viaduct.conflist.bak",
        ]
    );
    assert_eq!(left("opt/cni/bin"), ["bridge", "other"]);
    assert_eq!(left("usr/bin"), ["viaductd"]);
    assert_eq!(
        left("etc/systemd/system"),
        ["multi-user.target.wants", "viaductd.socket"]
    );
    let again = node.report(true);
    assert!(again.removed.is_empty() && again.remaining.len() == 1);
}

#[test]
fn a_purge_leaves_the_plugins_of_packages_to_the_package_manager() {
    let node = node();
    let list = "/opt/cni/bin/viaduct\n/opt/cni/bin/absent\n";
    node.put("usr/share/viaduct/packages/viaduct", list);
    let report = node.report(true);
    assert_eq!(report.removed.len(), 6, "{report:?}");
    insta::assert_snapshot!(report.remaining.join("\n"), @r"
    etc/cni/net.d/10-shared.conflist: network configuration that names the plugin viaduct: new pods fail until it is changed
    opt/cni/bin/viaduct: plugin of an installed package, which the package manager removes
    ");
}

#[test]
fn a_purge_removes_dockers_networks_unless_the_file_is_unknown() {
    let node = Node::new();
    let path = "var/lib/viaduct/docker.json";
    node.put(path, &docker::State::default().to_json());
    let report = node.report(false);
    let expected =
        format!("{path}: networks of Docker: an agent with this docker-state makes them again");
    assert_eq!(report.remaining, [expected]);
    assert_eq!(node.report(true).removed, [format!("removed {path}")]);
    assert!(!node.0.path().join("var/lib/viaduct").exists());

    node.put(path, "{}");
    let report = node.report(true);
    assert!(report.removed.is_empty());
    assert!(
        report.remaining[0].contains("damaged or of a later agent"),
        "{report:?}"
    );
}

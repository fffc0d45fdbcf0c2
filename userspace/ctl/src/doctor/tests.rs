//! Tests of `viaductctl doctor`.

use api::{Degraded, NetworkView, Version};

use super::*;

fn status() -> Status {
    Status {
        version: Version {
            agent: "1.2.3".to_owned(),
            ..Version::default()
        },
        networks: vec![NetworkView {
            name: "default".to_owned(),
            is_default: true,
            ..NetworkView::default()
        }],
        ..Status::default()
    }
}

fn doctor(directory: &Path) -> Doctor {
    Doctor {
        configurations: directory.to_owned(),
        path: directory.display().to_string(),
        output: Output::default(),
    }
}

fn write(directory: &Path, name: &str, plugin: &str) {
    let text =
        format!(r#"{{"cniVersion":"1.0.0","name":"pods","plugins":[{{"type":"{plugin}"}}]}}"#);
    fs::write(directory.join(name), text).unwrap();
}

fn find<'a>(section: &'a Section, name: &str) -> &'a Check {
    let mut checks = section.checks.iter();
    checks
        .find(|check| check.name == name)
        .unwrap_or_else(|| panic!("{name}: {section:?}"))
}

#[test]
fn doctor_without_an_agent_reports_it_and_still_checks_the_installation() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), "00-other.conflist", "bridge");
    write(directory.path(), "10-viaduct.conflist", "viaduct");
    let client = Client::new("/nonexistent/viaduct.sock");
    let report = doctor(directory.path()).run(&client, |_| Some("Start it."));
    assert!(!report.healthy);
    let text = render(&report);
    for words in [
        "- agent-unreachable: no agent listens on /nonexistent/viaduct.sock",
        "  Start it.\n",
        "- conflist-shadowed: ",
        "00-other.conflist comes before 10-viaduct.conflist",
        "- plugin-missing: ",
        "  Rename one of the files",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let parsed: serde_json::Value = serde_json::to_value(&report).unwrap();
    assert_eq!(parsed["healthy"], false);
    assert_eq!(parsed["sections"][0]["checks"][0]["outcome"], "bad");
}

#[test]
fn doctor_lists_each_degradation_with_what_to_do() {
    let degraded = Status {
        degraded: vec![Degraded {
            reason: "no-uplink".to_owned(),
            message: "the node has no uplink".to_owned(),
            advice: "Set a link up.".to_owned(),
        }],
        ..status()
    };
    let report = Report::of(vec![agent(&degraded)]);
    let text = render(&report);
    assert!(
        text.starts_with("Health: DEGRADED for 1 reason\n"),
        "{text}"
    );
    assert!(
        text.contains("- no-uplink: the node has no uplink\n  Set a link up.\n"),
        "{text}"
    );
    let well = render(&Report::of(vec![agent(&status())]));
    assert!(well.starts_with("Health: good\n"), "{well}");
}

#[test]
fn doctor_shows_missing_kernel_features_with_the_kernels_error() {
    let features = [FeatureView {
        name: "socket-hooks".to_owned(),
        available: false,
        chosen: "processes of the node do not reach all hostports".to_owned(),
        reason: "there is no cgroup".to_owned(),
    }];
    let report = Report::of(vec![kernel(&features)]);
    let text = render(&report);
    let missing = "Kernel feature socket-hooks: missing (there is no cgroup): processes of the node do not reach all hostports";
    assert!(text.contains(missing), "{text}");
    assert!(report.healthy);
}

#[test]
fn doctor_reads_forwarding_and_pins_of_the_node_without_an_agent() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("proc/sys/net/ipv4");
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join("ip_forward"), "0\n").unwrap();
    let section = node(root.path(), None);
    assert_eq!(find(&section, "forwarding-off").outcome, Outcome::Warning);
    assert_eq!(find(&section, "datapath").outcome, Outcome::Info);
    fs::write(directory.join("ip_forward"), "1\n").unwrap();
    fs::create_dir_all(root.path().join("sys/fs/bpf/viaduct")).unwrap();
    fs::create_dir_all(root.path().join(SYSTEMD)).unwrap();
    let section = node(root.path(), None);
    assert_eq!(find(&section, "forwarding").outcome, Outcome::Good);
    assert_eq!(find(&section, "datapath").outcome, Outcome::Good);
    assert_eq!(find(&section, "unit").outcome, Outcome::Info);
}

#[test]
fn doctor_compares_the_release_of_plugin_and_agent() {
    assert_eq!(
        release("CNI viaduct plugin v1.2.3\nCNI protocol versions supported: 1.0.0"),
        Some("1.2.3")
    );
    assert_eq!(release("CNI bridge plugin v1.1.1"), None);
    let missing = plugin(&["/nonexistent".into()], Some(&status()));
    assert_eq!(missing.outcome, Outcome::Warning);
}

#[test]
fn a_conflist_for_the_default_network_needs_a_pod_cidr() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), "10-viaduct.conflist", "viaduct");
    fs::write(directory.path().join("viaduct"), "").unwrap();
    let found = invoke::installation(directory.path(), &[directory.path().to_owned()]).unwrap();
    let names = |status: &Status| -> Vec<String> {
        let checks = configurations(directory.path(), &found, Some(status));
        checks.into_iter().map(|check| check.name).collect()
    };
    assert_eq!(names(&status()), ["conflist", "no-pod-cidr"]);
    let mut served = status();
    served.networks[0].pools.push(api::PoolView::default());
    assert_eq!(names(&served), ["conflist"]);
}

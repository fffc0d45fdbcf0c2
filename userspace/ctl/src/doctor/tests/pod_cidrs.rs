//! Pod CIDRs of the agent's configuration, as doctor finds them.

use super::*;

#[test]
fn the_pod_cidr_of_the_configuration_is_the_network_that_doctor_checks() {
    let root = Root::new();
    let read = || configuration::read(root.files(), "/etc/viaduct/viaductd.toml");
    let (configured, check) = read();
    assert_eq!(check.outcome, Outcome::Info, "not installed yet: {check:?}");
    assert!(configured.intent.networks.is_empty());
    let text = "pod-cidr = [\"10.213.0.0/20,fd00:1::/64\"]\nbridge = \"br9\"\nforwarding = \"leave\"\nlog-level = \"debug\"\n";
    root.write("etc/viaduct/viaductd.toml", text);
    let (configured, check) = read();
    assert_eq!(check.outcome, Outcome::Ok);
    assert!(
        check.message.contains("10.213.0.0/20 and fd00:1::/64"),
        "{check:?}"
    );
    assert_eq!(configured.intent.networks[0].bridge.as_str(), "br9");
    assert_eq!(configured.forwarding, ForwardingMode::Leave);
    root.write(
        "etc/viaduct/viaductd.toml",
        "pod-cidr = [\"10.213.0.0/33\"]",
    );
    let (_, check) = read();
    assert_eq!(check.outcome, Outcome::Fail);
    assert!(check.message.contains("pod-cidr: "), "{check:?}");
    root.write("etc/viaduct/viaductd.toml", "forwarding = \"maybe\"");
    assert_eq!(read().1.outcome, Outcome::Fail);
}

#[test]
fn the_pod_cidr_file_of_the_configuration_is_read_as_the_agent_reads_it() {
    let root = Root::new();
    let read = || {
        let (configured, check) = configuration::read(root.files(), "/etc/viaduct/viaductd.toml");
        let networks = configured.intent.networks.iter();
        let subnets: Vec<String> = networks
            .flat_map(::model::Network::subnets)
            .map(|subnet| subnet.to_string())
            .collect();
        (check.outcome, check.message, subnets)
    };
    let file = "pod-cidr-file = \"/run/viaduct/pod-cidrs\"\n";
    root.write("etc/viaduct/viaductd.toml", file);
    let (outcome, message, subnets) = read();
    assert_eq!(outcome, Outcome::Warn);
    assert!(
        message.contains("/run/viaduct/pod-cidrs cannot be read"),
        "{message}"
    );
    assert!(subnets.is_empty());
    root.write("run/viaduct/pod-cidrs", "10.214.0.0/24\nfd00:2::/64\n");
    let (outcome, message, subnets) = read();
    assert_eq!(outcome, Outcome::Ok);
    assert!(
        message.starts_with("/run/viaduct/pod-cidrs: the pod CIDR is"),
        "{message}"
    );
    assert_eq!(subnets, ["10.214.0.0/24", "fd00:2::/64"]);
    let both = format!("{file}pod-cidr = [\"10.213.0.0/24\"]\n");
    root.write("etc/viaduct/viaductd.toml", &both);
    assert_eq!(read().2, ["10.214.0.0/24", "fd00:2::/64"], "the file wins");
    for broken in ["", "10.214.0.0/33"] {
        root.write("run/viaduct/pod-cidrs", broken);
        let (outcome, message, subnets) = read();
        assert_eq!(outcome, Outcome::Warn);
        assert!(message.contains("ignores the pod-cidr-file"), "{message}");
        assert_eq!(subnets, ["10.213.0.0/24"]);
    }
    root.remove("run/viaduct/pod-cidrs");
    assert_eq!(
        read(),
        (
            Outcome::Ok,
            "/etc/viaduct/viaductd.toml: the pod CIDR is 10.213.0.0/24".to_owned(),
            vec!["10.213.0.0/24".to_owned()]
        )
    );
}

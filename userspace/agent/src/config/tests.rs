//! Flags, keys, their defaults and errors.

use std::fs;
use std::path::Path;

use clap::Parser;

use super::file::parse as parse_file;
use super::*;

fn from_file(text: &str) -> Result<Config> {
    Config::from_keys(parse_file(text)?)
}

fn from_flags(flags: &[&str]) -> Result<Config> {
    let options = Options::try_parse_from([&["viaductd"], flags].concat())?;
    Config::load(options)
}

fn subnets(config: &Config) -> Vec<String> {
    config
        .ranges
        .iter()
        .flat_map(RangeSet::ranges)
        .map(|range| range.subnet().to_string())
        .collect()
}

#[test]
fn everything_has_a_default_but_the_pod_cidrs() {
    let config = from_flags(&[]).unwrap();
    assert_eq!(config.socket, Path::new("/run/viaduct/viaduct.sock"));
    assert_eq!(config.bridge.as_str(), "cbr0");
    assert_eq!(config.mtu, None);
    assert_eq!(config.hairpin, HairpinMode::HairpinVeth);
    assert!(config.ranges.is_empty() && config.uplinks.is_empty());
}

#[test]
fn a_flag_wins_over_the_file() {
    let file = parse_file("bridge = \"br7\"\nmtu = 1400\npod-cidr = [\"10.7.0.0/24\"]").unwrap();
    let options = Options::try_parse_from(["viaductd", "--mtu", "1300"]).unwrap();
    let config = Config::from_keys(options.keys.merge_over(file)).unwrap();
    assert_eq!(config.mtu, Some(1300));
    assert_eq!(config.bridge.as_str(), "br7");
    assert_eq!(subnets(&config), ["10.7.0.0/24"]);
}

/// behaviour K12 (without its bug) and K14.
#[test]
fn pod_cidrs_come_repeated_or_with_commas_and_lose_their_host_bits() {
    let config = from_flags(&["--pod-cidr", "fd00::1/64, 10.1.2.3/24"]).unwrap();
    assert_eq!(subnets(&config), ["10.1.2.0/24", "fd00::/64"]);
    let config = from_flags(&["--pod-cidr=10.1.0.0/24", "--pod-cidr=fd00:1::/64"]).unwrap();
    assert_eq!(subnets(&config), ["10.1.0.0/24", "fd00:1::/64"]);
}

#[test]
fn an_unknown_key_is_an_error_that_names_it() {
    let error = from_file("bridge = \"br0\"\npod-cdir = []").unwrap_err();
    assert_eq!(
        error.to_string(),
        "unknown key pod-cdir (did you mean pod-cidr?)"
    );
    assert!(from_flags(&["--metrics-address", "127.0.0.1:1"]).is_err());
}

#[test]
fn config_errors_name_the_key() {
    for (flags, words) in [
        (["--pod-cidr", "10.0.0.0"], "pod-cidr: invalid CIDR"),
        (["--pod-cidr", "10.0.0.0/31"], "pod-cidr"),
        (["--pod-cidr", "10.0.0.0/16,10.0.3.0/24"], "overlap"),
        (["--mtu", "100"], "mtu: 100"),
        (["--bridge", "a/b"], "bridge: invalid interface name"),
        (["--socket", "x.sock"], "socket: x.sock is not an absolute"),
        (["--hairpin-mode", "on"], "hairpin-mode: \"on\""),
        (
            ["--hostport-annotation", "a b"],
            "hostport-annotation: \"a b\"",
        ),
        (["--egress-address", "192.0.2"], "egress-address: "),
        (
            ["--egress-address", "192.0.2.1,192.0.2.2"],
            "more than one address of a family",
        ),
        (["--flow-table-size", "5"], "flow-table-size: 5"),
        (["--forwarding", "no"], "forwarding: \"no\""),
        (["--bypass-netfilter", "on"], "bypass-netfilter: \"on\""),
        (["--xdp-guard", "on"], "xdp-guard: \"on\""),
        (["--shaper", "tbf"], "shaper: \"tbf\""),
        (["--egress-default", "fast"], "egress-default: \"fast\""),
        (["--uplink", "eth0,a b"], "uplink: invalid interface name"),
        (
            ["--log-level", "warning"],
            "log-level: unknown level \"warning\": must be error, warn, info, debug, trace or off",
        ),
        (
            ["--log-level", "info,x y=warn"],
            "log-level: invalid target",
        ),
    ] {
        let error = from_flags(&flags).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
    }
}

fn destinations(config: &Config) -> Vec<String> {
    config.non_masquerade.iter().map(Cidr::to_string).collect()
}

#[test]
fn kubenet_sets_kubelets_defaults_of_hairpin_mode_and_non_masquerade_cidr() {
    let without = from_flags(&[]).unwrap();
    assert!(!without.kubenet);
    assert!(without.non_masquerade.is_empty());
    for config in [
        from_flags(&["--kubenet"]),
        from_flags(&["--kubenet=true"]),
        from_file("kubenet = true"),
    ] {
        let config = config.unwrap();
        assert!(config.kubenet);
        assert_eq!(config.hairpin, HairpinMode::PromiscuousBridge);
        assert_eq!(destinations(&config), ["10.0.0.0/8"]);
    }
    assert_eq!(from_flags(&["--kubenet=false"]).unwrap(), without);
    assert_eq!(from_file("kubenet = false").unwrap(), without);
    assert!(from_flags(&["--kubenet=on"]).is_err());
    assert!(from_file("kubenet = \"on\"").is_err());
}

#[test]
fn the_default_network_is_internal_or_without_direct_access_by_keys_of_their_own() {
    use model::NetworkAccess::{Direct, Internal, Published};
    let access = |flags: &[&str]| {
        let network = from_flags(flags).map(|config| config.default_network())?;
        anyhow::Ok(network.options.port.access)
    };
    for (flags, expected) in [
        (&[][..], Direct),
        (&["--direct-access", "--internal=false"], Direct),
        (&["--direct-access=false"], Published),
        (&["--internal"], Internal),
        (&["--internal", "--direct-access=false"], Internal),
    ] {
        assert_eq!(access(flags).unwrap(), expected, "{flags:?}");
    }
    let error = access(&["--internal", "--direct-access"]).unwrap_err();
    assert!(error.to_string().contains("both true"), "{error}");
    let file = from_file("direct-access = false").unwrap();
    assert_eq!(file.network_access, Published);
    let restart = from_flags(&[]).unwrap().needs_restart(&file);
    assert_eq!(restart, ["direct-access, internal"]);
}

#[test]
fn explicit_keys_win_over_kubenets_defaults() {
    let config = from_flags(&["--kubenet", "--hairpin-mode", "hairpin-veth"]).unwrap();
    assert_eq!(config.hairpin, HairpinMode::HairpinVeth);
    assert_eq!(destinations(&config), ["10.0.0.0/8"]);
    let config = from_flags(&["--kubenet", "--non-masquerade-cidr", "192.0.2.0/24"]).unwrap();
    assert_eq!(config.hairpin, HairpinMode::PromiscuousBridge);
    assert_eq!(destinations(&config), ["192.0.2.0/24"]);
    let config = from_file("kubenet = true\nnon-masquerade-cidr = []").unwrap();
    assert!(
        config.non_masquerade.is_empty(),
        "an empty list is explicit"
    );
}

#[test]
fn the_kubenet_flag_and_the_file_are_merged_key_by_key() {
    let merged = |flag: &str, text: &str| {
        let options = Options::try_parse_from(["viaductd", flag]).unwrap();
        let keys = options.keys.merge_over(parse_file(text).unwrap());
        Config::from_keys(keys).unwrap()
    };
    let config = merged("--kubenet", "hairpin-mode = \"none\"");
    assert_eq!(config.hairpin, HairpinMode::None);
    assert_eq!(destinations(&config), ["10.0.0.0/8"]);
    assert!(!merged("--kubenet=false", "kubenet = true").kubenet);
}

#[test]
fn a_reload_reports_a_changed_kubenet_key_and_keeps_the_running_defaults() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let options = Options::try_parse_from(["viaductd", "--config", path]).unwrap();
    let mut running = Config::load(options.clone()).unwrap();
    fs::write(path, "kubenet = true").unwrap();
    let wanted = running.load_again(options.clone()).unwrap();
    assert_eq!(running.needs_restart(&wanted), ["kubenet"]);
    assert_eq!(wanted.hairpin, running.hairpin);
    assert_eq!(wanted.non_masquerade, running.non_masquerade);
    running.adopt_reloadable(wanted);
    assert!(!running.kubenet, "not before the next start");

    let mut restarted = Config::load(options.clone()).unwrap();
    assert_eq!(restarted.hairpin, HairpinMode::PromiscuousBridge);
    fs::write(path, "hairpin-mode = \"none\"").unwrap();
    let wanted = restarted.load_again(options).unwrap();
    assert_eq!(restarted.needs_restart(&wanted), ["kubenet"]);
    assert_eq!(wanted.hairpin, HairpinMode::None, "set explicitly");
    assert_eq!(destinations(&wanted), ["10.0.0.0/8"]);
    restarted.adopt_reloadable(wanted);
    assert!(restarted.kubenet, "until the next start");
}

#[test]
fn the_command_line_is_sound() {
    <Options as clap::CommandFactory>::command().debug_assert();
}

fn has_name(names: &str, key: &str) -> bool {
    names.split(", ").any(|name| match name.strip_prefix('*') {
        Some(end) => key.ends_with(end),
        None => key == name,
    })
}

#[test]
fn every_key_has_one_rule_for_reloads() {
    for key in file::keys() {
        let rules = RULES.iter().filter(|(_, names)| has_name(names, &key));
        assert_eq!(rules.count(), 1, "{key}");
    }
}

#[test]
fn the_sample_says_live_for_the_keys_that_a_reload_applies_and_no_other() {
    let sample = sample();
    let with_word = sample.split("\n\n").skip(1).filter_map(|key| {
        let (comment, line) = key.trim_end().rsplit_once('\n')?;
        let comment = comment.replace("\n# ", " ");
        let name = line.trim_start_matches("# ").split_once(" = ")?.0;
        comment.contains(". Live.").then(|| name.to_owned())
    });
    let marked: Vec<String> = with_word.collect();
    for key in file::keys() {
        let (rule, _) = (RULES.iter())
            .find(|(_, names)| has_name(names, &key))
            .unwrap();
        assert_eq!(marked.contains(&key), *rule == Rule::Live, "{key}");
    }
}

#[test]
fn the_keys_with_a_particular_rule_in_the_documentation_are_live() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operations.md");
    let page = fs::read_to_string(page).unwrap();
    let (_, reload) = page.split_once("\n## Reload\n").unwrap();
    let (reload, _) = reload.split_once("\n## ").unwrap();
    let rows = reload.lines().filter_map(|line| line.strip_prefix("| `"));
    let keys: Vec<&str> = rows
        .flat_map(|row| row.split("` |").next().unwrap_or_default().split("`, `"))
        .collect();
    assert!(keys.contains(&"pod-cidr"), "{keys:?}");
    for key in keys {
        assert!(is_live(key), "{key}");
    }
}

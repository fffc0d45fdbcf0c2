//! Flags and keys, and what is said of wrong ones.

use clap::Parser;

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
    let config = Config::from_keys(options.keys.over(file)).unwrap();
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
    assert_eq!(error.to_string(), "unknown key pod-cdir");
    assert!(from_flags(&["--metrics-listen", "127.0.0.1:1"]).is_err());
}

#[test]
fn what_is_wrong_is_said_by_the_name_of_the_key() {
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
        (["--bypass-netfilter", "on"], "bypass-netfilter: \"on\""),
        (["--xdp-guard", "on"], "xdp-guard: \"on\""),
        (["--shaper", "tbf"], "shaper: \"tbf\""),
        (["--egress-default", "fast"], "egress-default: \"fast\""),
        (["--uplink", "eth0,a b"], "uplink: invalid interface name"),
    ] {
        let error = from_flags(&flags).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
    }
}

#[test]
fn the_command_line_is_sound() {
    <Options as clap::CommandFactory>::command().debug_assert();
}

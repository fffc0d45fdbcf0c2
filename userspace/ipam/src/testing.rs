//! Values for tests.

use std::fmt::Debug;
use std::str::FromStr;

use model::{AttachmentKey, HairpinMode, Network, Range, RangeSet};

pub(crate) fn parse<T: FromStr<Err: Debug>>(text: &str) -> T {
    text.parse().expect(text)
}

/// A network with one range set per CIDR.
pub(crate) fn network_of(name: &str, bridge: &str, cidrs: &[&str]) -> Network {
    let set = |cidr: &&str| RangeSet::of_cidr(parse(cidr)).expect("a usable CIDR");
    Network {
        name: parse(name),
        bridge: parse(bridge),
        ranges: cidrs.iter().map(set).collect(),
        routes: Vec::new(),
        default_route: true,
        mtu: None,
        hairpin: HairpinMode::HairpinVeth,
        masquerade: true,
        options: model::BridgeOptions::default(),
    }
}

pub(crate) fn network() -> Network {
    network_of("net", "cbr0", &["10.1.0.0/24", "fd00:1::/64"])
}

/// A set of one range from `first` to `last`.
pub(crate) fn span(subnet: &str, first: &str, last: &str) -> RangeSet {
    let range = Range::new(parse(subnet), Some(parse(first)), Some(parse(last)), None);
    RangeSet::new(vec![range.expect("a usable range")]).expect("a usable set")
}

pub(crate) fn key(container: &str) -> AttachmentKey {
    AttachmentKey {
        network: parse("net"),
        container_id: parse(container),
        ifname: parse("eth0"),
    }
}

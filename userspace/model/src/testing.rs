//! Values for the tests of this crate's users.
//!
//! The functions panic where a text is not of the type: the texts are a test's own.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::fs;
use std::path::Path;
use std::str::FromStr;

use crate::{AttachmentKey, BridgeOptions, HairpinMode, Network, Range, RangeSet};

/// Parses a value.
///
/// # Panics
/// If the text is not valid.
pub fn parse<T: FromStr<Err: Debug>>(text: &str) -> T {
    text.parse().expect(text)
}

/// Returns the files of a fuzz target's corpus, by name.
///
/// # Panics
/// If there is none, or if one cannot be read.
pub fn corpus(target: &str) -> BTreeMap<String, Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fuzz/corpus");
    let entries = fs::read_dir(folder.join(target)).expect("a folder");
    let files: BTreeMap<_, _> = entries
        .map(|entry| {
            let entry = entry.expect("an entry");
            let bytes = fs::read(entry.path()).expect("a file that can be read");
            (entry.file_name().display().to_string(), bytes)
        })
        .collect();
    assert!(!files.is_empty(), "the corpus of {target} has files");
    files
}

/// Damage to the bytes of an input: a place, a number of bytes, and a value.
pub type Damage = (u16, u8, u8);

/// Returns `bytes`, damaged. Each damage writes its value, or removes or repeats its number of
/// bytes, at its place modulo the length; the lowest bits of the value select what.
pub fn damaged(bytes: &[u8], damages: &[Damage]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for &(place, number, value) in damages {
        let start = usize::from(place) % (bytes.len() + 1);
        let end = (start + usize::from(number)).min(bytes.len());
        match value % 4 {
            0 => drop(bytes.drain(start..end)),
            1 => {
                let part = bytes[start..end].to_vec();
                drop(bytes.splice(start..start, part));
            }
            _ => {
                if let Some(byte) = bytes.get_mut(start) {
                    *byte = value;
                }
            }
        }
    }
    bytes
}

/// Returns a network with one range set per CIDR.
///
/// # Panics
/// If a text is not valid.
pub fn network_of(name: &str, bridge: &str, cidrs: &[&str]) -> Network {
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
        options: BridgeOptions::default(),
    }
}

/// Returns the network `net` on `cbr0`, with a range of each family.
pub fn network() -> Network {
    network_of("net", "cbr0", &["10.1.0.0/24", "fd00:1::/64"])
}

/// Returns a set of one range from `first` to `last`.
///
/// # Panics
/// If a text is not valid, or the range is not within the subnet.
pub fn span(subnet: &str, first: &str, last: &str) -> RangeSet {
    let range = Range::new(parse(subnet), Some(parse(first)), Some(parse(last)), None);
    RangeSet::new(vec![range.expect("a usable range")]).expect("a usable set")
}

/// Returns the key of the container's interface `eth0` in [`network`].
///
/// # Panics
/// If the text is no container ID.
pub fn key(container: &str) -> AttachmentKey {
    AttachmentKey {
        network: parse("net"),
        container_id: parse(container),
        ifname: parse("eth0"),
    }
}

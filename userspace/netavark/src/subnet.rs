//! Choice of subnets for networks that are created without.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use cni::Error;
use model::Cidr;

use crate::input::{Network, parse};

/// podman's pools of subnets, without those that Kubernetes uses for services: first and last
/// number of the second byte below 10.0.0.0/8.
const POOLS: [(u8, u8); 2] = [(89, 95), (128, 255)];
/// Prefix length of a chosen subnet.
const PREFIX_LEN_V4: u8 = 24;
const PREFIX_LEN_V6: u8 = 64;

/// Returns the subnets of a network's JSON, such as a file of podman's configuration; none of a
/// text that is no network.
pub fn subnets(network: &str) -> Vec<Cidr> {
    let parsed = parse::<Network>("network", network).ok();
    let subnets = parsed.into_iter().flat_map(|network| network.subnets);
    subnets.filter_map(|subnet| subnet.prefix().ok()).collect()
}

/// Returns a /24 of podman's pools that overlaps with none of `used`. The search starts at a place
/// that depends on the network's ID, so that networks whose subnets are unknown to each other
/// rarely choose the same one.
pub(crate) fn free_ipv4(id: [u8; 5], used: &[Cidr]) -> Result<Cidr, Error> {
    let all: Vec<u8> = POOLS
        .iter()
        .flat_map(|(first, last)| *first..=*last)
        .collect();
    let count = all.len() * 256;
    let start = u32::from_be_bytes([id[0], id[1], id[2], id[3]]) as usize % count;
    let candidates = (0..count).filter_map(|step| {
        let place = (start + step) % count;
        let third = u8::try_from(place % 256).ok()?;
        let address = Ipv4Addr::new(10, all[place / 256], third, 0);
        Cidr::containing(IpAddr::V4(address), PREFIX_LEN_V4)
    });
    first_free(candidates, used)
        .ok_or_else(|| Error::taken("no free /24 in the pools of podman: choose one with --subnet"))
}

/// Returns a unique local /64 (RFC 4193) whose global ID is from the network's ID, or the next ones
/// if `used` has it.
pub(crate) fn free_ipv6(id: [u8; 5], used: &[Cidr]) -> Result<Cidr, Error> {
    let candidates = (0..=u16::MAX).filter_map(|subnet| {
        let mut bytes = [0; 16];
        bytes[0] = 0xfd;
        bytes[1..6].copy_from_slice(&id);
        bytes[6..8].copy_from_slice(&subnet.to_be_bytes());
        Cidr::containing(IpAddr::V6(Ipv6Addr::from(bytes)), PREFIX_LEN_V6)
    });
    first_free(candidates, used)
        .ok_or_else(|| Error::taken("no free /64: choose one with --subnet"))
}

fn first_free(mut candidates: impl Iterator<Item = Cidr>, used: &[Cidr]) -> Option<Cidr> {
    candidates.find(|candidate| !used.iter().any(|other| other.overlaps(candidate)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cidr(text: &str) -> Cidr {
        text.parse().unwrap()
    }

    #[test]
    fn a_subnet_is_chosen_by_the_id_and_a_used_one_is_skipped() {
        assert_eq!(free_ipv4([0; 5], &[]).unwrap(), cidr("10.89.0.0/24"));
        assert_eq!(
            free_ipv4([0, 0, 7, 0, 9], &[]).unwrap(),
            cidr("10.128.0.0/24")
        );
        let used = [cidr("10.89.0.0/16"), cidr("10.90.0.128/25")];
        assert_eq!(free_ipv4([0; 5], &used).unwrap(), cidr("10.90.1.0/24"));
        // The last subnet of the pools is followed by the first.
        let last = free_ipv4([0, 0, 134, 255, 0], &[]).unwrap();
        assert_eq!(last, cidr("10.255.255.0/24"));
        assert_eq!(
            free_ipv4([0, 0, 134, 255, 0], &[last]).unwrap(),
            cidr("10.89.0.0/24")
        );
        let error = free_ipv4([0; 5], &[cidr("10.0.0.0/8")]).unwrap_err();
        assert!(error.msg.contains("--subnet"), "{error}");
    }

    #[test]
    fn an_ipv6_subnet_is_a_unique_local_one() {
        let id = [0x12, 0x34, 0x56, 0x78, 0x9a];
        let first = free_ipv6(id, &[]).unwrap();
        assert_eq!(first, cidr("fd12:3456:789a::/64"));
        assert_eq!(
            free_ipv6(id, &[first]).unwrap(),
            cidr("fd12:3456:789a:1::/64")
        );
    }

    #[test]
    fn the_subnets_of_podmans_files_are_read() {
        let file = r#"{"name":"a","id":"1f","driver":"bridge","subnets":[{"subnet":"10.9.0.0/24","gateway":"10.9.0.1"},{"subnet":"x"}]}"#;
        assert_eq!(subnets(file), [cidr("10.9.0.0/24")]);
        assert!(subnets("{}").is_empty());
    }
}

//! Parser of pod CIDRs: comma-separated lists become range sets, all of them or none (behaviour
//! K12).

use anyhow::{Context, Result, bail};
use model::{Cidr, RangeSet};

/// Returns one range set for each prefix, IPv4 first. Host bits are ignored, as kubenet does
/// (behaviour K14). Overlapping prefixes are an error.
pub(crate) fn parse<'a>(lists: impl IntoIterator<Item = &'a str>) -> Result<Vec<RangeSet>> {
    let mut prefixes = prefixes(lists)?;
    prefixes.sort_by_key(|prefix| !prefix.is_ipv4());
    for (index, prefix) in prefixes.iter().enumerate() {
        if let Some(other) = prefixes[..index].iter().find(|o| o.overlaps(prefix)) {
            bail!("{other} and {prefix} overlap");
        }
    }
    prefixes
        .into_iter()
        .map(RangeSet::of_cidr)
        .collect::<Result<_, _>>()
        .context("unusable pod CIDR")
}

/// Parses the prefixes of comma-separated lists; host bits are ignored.
pub(crate) fn prefixes<'a>(lists: impl IntoIterator<Item = &'a str>) -> Result<Vec<Cidr>> {
    let items = items(lists);
    items.map(|text| Ok(Cidr::masked(text)?)).collect()
}

/// Returns the items of comma-separated lists, without surrounding spaces and without empty items.
pub(crate) fn items<'a>(lists: impl IntoIterator<Item = &'a str>) -> impl Iterator<Item = &'a str> {
    lists
        .into_iter()
        .flat_map(|list| list.split(','))
        .map(str::trim)
        .filter(|item| !item.is_empty())
}

/// Returns the subnets of ranges as strings.
pub(crate) fn texts(ranges: &[RangeSet]) -> Vec<String> {
    ranges
        .iter()
        .flat_map(RangeSet::ranges)
        .map(|range| range.subnet().to_string())
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// behaviour K12, without its bug: one bad entry rejects all.
    #[test]
    fn one_bad_pod_cidr_rejects_the_whole_list() {
        for list in [
            "10.1.0.0/24,nonsense",
            "10.1.0.0/24,fd00::/129",
            "10.1.0.0/24,10.0.0.0/8",
        ] {
            assert!(parse([list]).is_err(), "{list}");
        }
        assert_eq!(
            texts(&parse(["fd00::1/64, 10.1.2.3/24"]).unwrap()),
            ["10.1.2.0/24", "fd00::/64"]
        );
    }

    proptest! {
        /// behaviour K14: subnet and gateway are those of the prefix, whatever its host bits.
        #[test]
        fn host_bits_change_neither_subnet_nor_gateway(bits: u32, length in 1_u8..=30) {
            let address = std::net::Ipv4Addr::from_bits(bits);
            let whole = Cidr::containing(address.into(), length).unwrap();
            let given = parse([format!("{address}/{length}").as_str()]).unwrap();
            prop_assert_eq!(&given, &parse([whole.to_string().as_str()]).unwrap());
            let [range] = given[0].ranges() else { panic!("one range") };
            prop_assert_eq!(range.subnet(), whole);
            let first = std::net::Ipv4Addr::from_bits(match whole.network() {
                std::net::IpAddr::V4(v4) => v4.to_bits() + 1,
                std::net::IpAddr::V6(_) => unreachable!(),
            });
            prop_assert_eq!(range.gateway(), Some(std::net::IpAddr::V4(first)));
        }

        /// behaviour K14 for IPv6.
        #[test]
        fn host_bits_of_ipv6_change_neither_subnet_nor_gateway(bits: u128, length in 1_u8..=126) {
            prop_assume!(bits >> 32 != 0xffff && bits >> 120 != 0);
            let address = std::net::Ipv6Addr::from_bits(bits);
            let given = parse([format!("{address}/{length}").as_str()]).unwrap();
            let again = texts(&given);
            prop_assert_eq!(&given, &parse([again[0].as_str()]).unwrap());
        }
    }
}

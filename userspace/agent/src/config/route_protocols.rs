//! Parser of `--non-masquerade-routes`: names and numbers of software that adds routes.

use std::collections::BTreeSet;

use anyhow::{Result, bail};
use steps::PEER_ROUTE_PROTOCOL;

use super::items;

/// Names and numbers of `include/uapi/linux/rtnetlink.h` and of iproute2's `rt_protos`. The
/// kernel's own routes and redirects are left out: they are no software's choice.
const NAMES: [(&str, u8); 17] = [
    ("boot", 3),
    ("static", 4),
    ("gated", 8),
    ("ra", 9),
    ("mrt", 10),
    ("zebra", 11),
    ("bird", 12),
    ("xorp", 14),
    ("dhcp", 16),
    ("keepalived", 18),
    ("babel", 42),
    ("openr", 99),
    ("bgp", 186),
    ("isis", 187),
    ("ospf", 188),
    ("rip", 189),
    ("eigrp", 192),
];

/// Returns the numbers. Those of the kernel (0 to 2) and ours are refused.
pub(super) fn parse(lists: &[String]) -> Result<BTreeSet<u8>> {
    items(lists).map(number).collect()
}

fn number(text: &str) -> Result<u8> {
    let named = NAMES.iter().find(|(name, _)| *name == text);
    let known = named
        .map(|(_, number)| *number)
        .or_else(|| text.parse().ok());
    match known {
        None => {
            let all = NAMES.map(|(name, _)| name).join(", ");
            bail!("non-masquerade-routes: {text:?} is neither a number nor one of {all}")
        }
        Some(number) if number <= 2 || number == PEER_ROUTE_PROTOCOL => {
            bail!("non-masquerade-routes: {number} is not the number of other software")
        }
        Some(number) => Ok(number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn route_protocols_are_parsed_by_name_and_number() {
        let lists = ["bird, zebra".to_owned(), "200".to_owned()];
        assert_eq!(parse(&lists).unwrap(), BTreeSet::from([11, 12, 200]));
        for text in ["kernel", "2", "118", "256", "frr"] {
            assert!(parse(&[text.to_owned()]).is_err(), "{text}");
        }
    }
}

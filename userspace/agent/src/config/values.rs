//! Parsers and limits of single values of the configuration.

use std::collections::BTreeSet;
use std::net::IpAddr;

use anyhow::{Result, bail};

use super::{items, parse};

/// Minimum MTU in bytes: datagrams of this size every IPv4 host must accept (RFC 791), and
/// kubenet's minimum.
const SMALLEST_MTU: u32 = 576;
/// Largest MTU of a veth and of a bridge.
const LARGEST_MTU: u32 = 65_535;

/// Minimum and maximum capacity of the flow table, in entries.
const SMALLEST_TABLE: u32 = 4_096;
const LARGEST_TABLE: u32 = 16_777_216;

/// Validates the key of an annotation, as far as a mistake is likely: it is not empty and has no
/// spaces.
pub(super) fn annotation(key: Option<String>) -> Result<Option<String>> {
    match key {
        Some(key) if key.is_empty() || key.contains(char::is_whitespace) => {
            bail!("hostport-annotation: {key:?} is not an annotation key")
        }
        key => Ok(key),
    }
}

pub(super) fn mtu(bytes: u32) -> Result<Option<u32>> {
    match bytes {
        0 => Ok(None),
        SMALLEST_MTU..=LARGEST_MTU => Ok(Some(bytes)),
        _ => bail!("mtu: {bytes} is neither 0 nor from {SMALLEST_MTU} to {LARGEST_MTU}"),
    }
}

/// Parses egress addresses. Two of one family are refused: there is no rule to choose between them.
pub(super) fn egress(lists: &[String]) -> Result<BTreeSet<IpAddr>> {
    let addresses: BTreeSet<IpAddr> = items(lists)
        .map(|text| parse("egress-address", text))
        .collect::<Result<_>>()?;
    for ipv4 in [true, false] {
        let of_family = addresses.iter().filter(|own| own.is_ipv4() == ipv4);
        if of_family.count() > 1 {
            bail!("egress-address: more than one address of a family");
        }
    }
    Ok(addresses)
}

pub(super) fn flow_entries(entries: u32) -> Result<Option<u32>> {
    match entries {
        0 => Ok(None),
        SMALLEST_TABLE..=LARGEST_TABLE => Ok(Some(entries)),
        _ => bail!(
            "flow-table-size: {entries} is neither 0 nor from {SMALLEST_TABLE} to {LARGEST_TABLE}"
        ),
    }
}

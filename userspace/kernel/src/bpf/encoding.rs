//! Converts addresses and flags of the planner's types into the ABI's types, and back.
//!
//! Pure functions, for the tables that use them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use abi::{Address, EndpointFlags, PrefixKey};
use model::{Cidr, Families, IngressPolicy, Mac, NetworkAccess};

/// Prefix length of `::ffff:0:0/96`, in which IPv4 addresses are stored.
const MAPPED_BITS: u8 = 96;

pub(crate) fn address(address: IpAddr) -> Address {
    match address {
        IpAddr::V4(v4) => Address::v4(v4.octets()),
        IpAddr::V6(v6) => Address::v6(v6.octets()),
    }
}

/// Converts an address; `None` becomes the all-zero address.
pub(crate) fn address_or_any(given: Option<IpAddr>) -> Address {
    given.map_or(Address::ANY, address)
}

pub(crate) fn ip(address: Address) -> IpAddr {
    let bytes = address.bytes();
    if address.is_v4() {
        let [.., a, b, c, d] = bytes;
        Ipv4Addr::new(a, b, c, d).into()
    } else {
        Ipv6Addr::from(bytes).into()
    }
}

pub(crate) fn ip_or_none(address: Address) -> Option<IpAddr> {
    (!address.is_any()).then(|| ip(address))
}

pub(crate) fn mac(mac: Mac) -> abi::Mac {
    abi::Mac::new(mac.0)
}

pub(crate) fn model_mac(mac: abi::Mac) -> Mac {
    Mac(mac.bytes())
}

/// Returns the masquerade flags.
pub(crate) fn masquerade_flags(families: Families) -> u32 {
    of_families(families, MASQUERADE)
}

/// Returns the flags of routed addresses.
pub(crate) fn routed_flags(families: Families) -> u32 {
    of_families(families, ROUTED)
}

/// Flags of IPv4 and IPv6.
const MASQUERADE: [u32; 2] = [EndpointFlags::MASQUERADE_V4, EndpointFlags::MASQUERADE_V6];
const ROUTED: [u32; 2] = [EndpointFlags::ROUTED_V4, EndpointFlags::ROUTED_V6];

fn of_families(families: Families, [v4, v6]: [u32; 2]) -> u32 {
    let flag = |has: bool, flag: u32| if has { flag } else { 0 };
    flag(families.v4, v4) | flag(families.v6, v6)
}

fn families(flags: u32, [v4, v6]: [u32; 2]) -> Families {
    Families {
        v4: flags & v4 != 0,
        v6: flags & v6 != 0,
    }
}

/// Returns [`EndpointFlags::SPOOF_CHECK`], unless the pod is trusted.
pub(crate) fn spoof_check(trusted: bool) -> u32 {
    if trusted {
        0
    } else {
        EndpointFlags::SPOOF_CHECK
    }
}

pub(crate) fn is_trusted(flags: u32) -> bool {
    flags & EndpointFlags::SPOOF_CHECK == 0
}

pub(crate) fn bypass(bypass: bool) -> u32 {
    if bypass { EndpointFlags::BYPASS } else { 0 }
}

pub(crate) fn may_bypass(flags: u32) -> bool {
    flags & EndpointFlags::BYPASS != 0
}

pub(crate) fn isolated(isolated: bool) -> u32 {
    if isolated { EndpointFlags::ISOLATED } else { 0 }
}

pub(crate) fn is_isolated(flags: u32) -> bool {
    flags & EndpointFlags::ISOLATED != 0
}

pub(crate) fn ingress(policy: IngressPolicy) -> u32 {
    match policy {
        IngressPolicy::Open => 0,
        IngressPolicy::SameBridge => EndpointFlags::SAME_BRIDGE,
        IngressPolicy::Isolated => EndpointFlags::SAME_BRIDGE | EndpointFlags::INGRESS_ISOLATED,
    }
}

pub(crate) fn ingress_policy(flags: u32) -> IngressPolicy {
    if flags & EndpointFlags::INGRESS_ISOLATED != 0 {
        IngressPolicy::Isolated
    } else if flags & EndpointFlags::SAME_BRIDGE != 0 {
        IngressPolicy::SameBridge
    } else {
        IngressPolicy::Open
    }
}

pub(crate) fn access(access: NetworkAccess) -> u32 {
    match access {
        NetworkAccess::Direct => 0,
        NetworkAccess::Published => EndpointFlags::PUBLISHED_ONLY,
        NetworkAccess::Internal => EndpointFlags::PUBLISHED_ONLY | EndpointFlags::INTERNAL,
    }
}

pub(crate) fn network_access(flags: u32) -> NetworkAccess {
    let is_internal = flags & EndpointFlags::INTERNAL != 0;
    NetworkAccess::new(is_internal, flags & EndpointFlags::PUBLISHED_ONLY == 0)
}

pub(crate) fn published(published: bool) -> u32 {
    if published {
        EndpointFlags::PUBLISHED
    } else {
        0
    }
}

pub(crate) fn is_published(flags: u32) -> bool {
    flags & EndpointFlags::PUBLISHED != 0
}

pub(crate) fn limited(limited: bool) -> u32 {
    if limited { EndpointFlags::LIMITED } else { 0 }
}

pub(crate) fn is_limited(flags: u32) -> bool {
    flags & EndpointFlags::LIMITED != 0
}

pub(crate) fn masqueraded(flags: u32) -> Families {
    families(flags, MASQUERADE)
}

pub(crate) fn routed(flags: u32) -> Families {
    families(flags, ROUTED)
}

pub(crate) fn prefix_key(prefix: Cidr) -> PrefixKey {
    let offset = if prefix.is_ipv4() { MAPPED_BITS } else { 0 };
    PrefixKey {
        prefix_len: u32::from(offset + prefix.prefix_len()),
        address: address(prefix.network()),
    }
}

/// Converts a prefix. `None` for one that [`prefix_key`] never returns.
pub(crate) fn prefix(key: PrefixKey) -> Option<Cidr> {
    let length = u8::try_from(key.prefix_len).ok()?;
    let is_v4 = key.address.is_v4() && length >= MAPPED_BITS;
    let length = if is_v4 { length - MAPPED_BITS } else { length };
    Cidr::containing(ip(key.address), length)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_key_of_an_ipv4_prefix_counts_the_mapped_bits() {
        let key = prefix_key("10.1.0.0/16".parse().unwrap());
        assert_eq!(key.prefix_len, 112);
        assert_eq!(prefix(key), "10.1.0.0/16".parse().ok());
        assert_eq!(
            prefix(prefix_key("::/0".parse().unwrap())),
            "::/0".parse().ok()
        );
        assert_eq!(
            prefix(prefix_key("0.0.0.0/0".parse().unwrap())),
            "0.0.0.0/0".parse().ok()
        );
    }

    proptest! {
        #[test]
        fn addresses_survive_the_round_trip_through_the_abi(given: IpAddr) {
            // An IPv4-mapped IPv6 address is the IPv4 address.
            prop_assert_eq!(ip(address(given)), given.to_canonical());
        }
    }
}

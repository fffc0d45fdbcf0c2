//! Interface addresses, prefixes (CIDR) and Ethernet addresses.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use ipnetwork::IpNetwork;

/// Why a text is not a [`Cidr`] or an [`InterfaceAddress`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CidrError {
    /// The text is not `address/length`.
    #[error("invalid CIDR address: {0}")]
    Syntax(String),
    /// Bits after the prefix are set. The text is host-local's (behaviour K14).
    #[error(
        "Network has host bits set. For a subnet mask of length {prefix_len} the network address is {network}"
    )]
    HostBits {
        /// Prefix length in bits.
        prefix_len: u8,
        /// Network address without the host bits.
        network: IpAddr,
    },
}

fn parse(text: &str) -> Result<IpNetwork, CidrError> {
    let has_length = text.contains('/');
    text.parse::<IpNetwork>()
        .ok()
        .filter(|_| has_length)
        .ok_or_else(|| CidrError::Syntax(text.to_owned()))
}

/// A prefix whose host bits are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cidr {
    network: IpAddr,
    prefix_len: u8,
}

impl Cidr {
    /// Returns the prefix of `prefix_len` bits that contains `address`; `None` when the family has
    /// fewer bits.
    pub fn containing(address: IpAddr, prefix_len: u8) -> Option<Self> {
        let parsed = IpNetwork::new(address, prefix_len).ok()?;
        Some(Self {
            network: parsed.network(),
            prefix_len,
        })
    }

    /// Parses a text whose host bits may be set, as kubenet reads a pod CIDR; the host bits are
    /// cleared.
    pub fn masked(text: &str) -> Result<Self, CidrError> {
        let parsed = parse(text)?;
        Ok(Self {
            network: parsed.network(),
            prefix_len: parsed.prefix(),
        })
    }

    /// Returns the network address, the first of the prefix.
    pub fn network(&self) -> IpAddr {
        self.network
    }

    /// Returns the prefix length in bits.
    pub fn prefix_len(&self) -> u8 {
        self.prefix_len
    }

    /// Returns the last address of the prefix (IPv4: the broadcast address).
    pub fn last(&self) -> IpAddr {
        match self.network {
            IpAddr::V4(v4) => IpAddr::V4(Ipv4Addr::from_bits(
                v4.to_bits() | v4_host_mask(self.prefix_len),
            )),
            IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(
                v6.to_bits() | v6_host_mask(self.prefix_len),
            )),
        }
    }

    /// Returns whether the prefix contains `address`.
    pub fn contains(&self, address: IpAddr) -> bool {
        Self::containing(address, self.prefix_len).is_some_and(|other| other == *self)
    }

    /// Returns whether the two prefixes share an address.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.contains(other.network) || other.contains(self.network)
    }

    /// Returns whether the prefix is IPv4.
    pub fn is_ipv4(&self) -> bool {
        self.network.is_ipv4()
    }
}

fn v4_host_mask(prefix_len: u8) -> u32 {
    u32::MAX.checked_shr(u32::from(prefix_len)).unwrap_or(0)
}

fn v6_host_mask(prefix_len: u8) -> u128 {
    u128::MAX.checked_shr(u32::from(prefix_len)).unwrap_or(0)
}

impl FromStr for Cidr {
    type Err = CidrError;

    fn from_str(text: &str) -> Result<Self, CidrError> {
        let parsed = parse(text)?;
        if parsed.ip() == parsed.network() {
            Ok(Self {
                network: parsed.network(),
                prefix_len: parsed.prefix(),
            })
        } else {
            Err(CidrError::HostBits {
                prefix_len: parsed.prefix(),
                network: parsed.network(),
            })
        }
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.prefix_len)
    }
}

/// An address of an interface with the prefix length of its subnet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InterfaceAddress {
    /// IPv4 or IPv6 address.
    pub address: IpAddr,
    /// Prefix length of its subnet in bits.
    pub prefix_len: u8,
}

impl InterfaceAddress {
    /// Returns the subnet; `None` when the prefix length exceeds the bits of the family.
    pub fn subnet(&self) -> Option<Cidr> {
        Cidr::containing(self.address, self.prefix_len)
    }
}

impl FromStr for InterfaceAddress {
    type Err = CidrError;

    fn from_str(text: &str) -> Result<Self, CidrError> {
        let parsed = parse(text)?;
        Ok(Self {
            address: parsed.ip(),
            prefix_len: parsed.prefix(),
        })
    }
}

impl fmt::Display for InterfaceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix_len)
    }
}

/// Error of a text that is no Ethernet address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid MAC address {0:?}")]
pub struct MacError(pub String);

/// An Ethernet (MAC) address, in the order of transmission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// Returns a locally administered unicast address (IEEE 802): first byte `02`, then `bytes`.
    pub fn local(bytes: [u8; 5]) -> Self {
        let mut address = [0x02; 6];
        address[1..].copy_from_slice(&bytes);
        Self(address)
    }

    /// Returns the link-local address that derives from this address (RFC 4291, appendix A;
    /// `ipv6_generate_eui64` in `net/ipv6/addrconf.c`).
    pub fn link_local(self) -> InterfaceAddress {
        let Self([first, second, third, rest @ ..]) = self;
        let mut interface = [first ^ 2, second, third, 0xff, 0xfe, 0, 0, 0];
        interface[5..].copy_from_slice(&rest);
        let interface = u64::from_be_bytes(interface);
        let bits = 0xfe80_u128 << 112 | u128::from(interface);
        InterfaceAddress {
            address: Ipv6Addr::from_bits(bits).into(),
            prefix_len: 64,
        }
    }
}

impl FromStr for Mac {
    type Err = MacError;

    fn from_str(text: &str) -> Result<Self, MacError> {
        let error = || MacError(text.to_owned());
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts
                .next()
                .filter(|part| part.len() == 2)
                .ok_or_else(error)?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| error())?;
        }
        if parts.next().is_some() {
            Err(error())
        } else {
            Ok(Self(bytes))
        }
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hex = self.0.map(|byte| format!("{byte:02x}"));
        f.write_str(&hex.join(":"))
    }
}

/// Returns whether this is an IPv6 link-local address. IPv4's 169.254.0.0/16 is not counted: some
/// clouds route it.
pub fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn host_bits_are_refused_with_the_network_that_was_meant() {
        let error = "10.47.128.1/24".parse::<Cidr>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "Network has host bits set. For a subnet mask of length 24 the network address is 10.47.128.0"
        );
    }

    #[test]
    fn a_pod_cidr_with_host_bits_is_masked_as_kubenet_does() {
        assert_eq!(Cidr::masked("10.47.128.1/24"), "10.47.128.0/24".parse());
    }

    #[test]
    fn the_whole_address_space_is_a_prefix() {
        let all: Cidr = "0.0.0.0/0".parse().unwrap();
        assert_eq!(all.last(), IpAddr::from([255; 4]));
        assert!(all.contains(IpAddr::from([192, 0, 2, 1])));
        assert!(!all.contains("::1".parse().unwrap()));
    }

    /// The example of RFC 2464, section 4.
    #[test]
    fn a_link_local_address_has_the_inverted_universal_bit_and_fffe() {
        let mac: Mac = "34:56:78:9a:bc:de".parse().unwrap();
        assert_eq!(mac.link_local().to_string(), "fe80::3656:78ff:fe9a:bcde/64");
        let local = Mac::local([0, 0, 0, 0, 1]).link_local();
        assert_eq!(local.to_string(), "fe80::ff:fe00:1/64");
    }

    #[test]
    fn an_address_without_a_length_is_no_cidr() {
        assert!("10.0.0.0".parse::<Cidr>().is_err());
        assert!("10.0.0.0/33".parse::<Cidr>().is_err());
    }

    proptest! {
        #[test]
        fn a_prefix_holds_its_first_and_last_address(bits: u32, len in 0u8..=32) {
            let cidr = Cidr::containing(IpAddr::V4(Ipv4Addr::from_bits(bits)), len).unwrap();
            prop_assert!(cidr.contains(cidr.network()));
            prop_assert!(cidr.contains(cidr.last()));
            prop_assert_eq!(cidr.to_string().parse::<Cidr>(), Ok(cidr));
        }

        #[test]
        fn a_mac_survives_being_printed(bytes: [u8; 6]) {
            prop_assert_eq!(Mac(bytes).to_string().parse(), Ok(Mac(bytes)));
        }
    }
}

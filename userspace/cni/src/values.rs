//! Values that several parts of a request spell alike: addresses, ingress policies, and the name of
//! the capability for annotations.

use std::net::IpAddr;

use model::{IngressPolicy, InterfaceAddress, Mac};

use crate::Error;
use crate::json::Object;

/// The capability with which runtimes pass pod annotations.
pub(crate) const CAPABILITY: &str = "io.kubernetes.cri.pod-annotations";

/// A requested address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestedAddress {
    /// The address.
    pub address: IpAddr,
    /// The prefix length of its subnet, if given. Static addresses need it; for ranges it is
    /// ignored.
    pub prefix_len: Option<u8>,
}

/// Parses an address, with or without prefix length.
pub(crate) fn parse_requested_address(text: &str) -> Result<RequestedAddress, String> {
    let alone = text.parse().ok().map(|address| RequestedAddress {
        address,
        prefix_len: None,
    });
    let with_length = || {
        let own = text.parse::<InterfaceAddress>().ok()?;
        Some(RequestedAddress {
            address: own.address,
            prefix_len: Some(own.prefix_len),
        })
    };
    alone
        .or_else(with_length)
        .ok_or_else(|| format!("invalid IP address {text:?}"))
}

/// Parses an address as [`parse_requested_address`] does, and drops the prefix length.
pub(crate) fn parse_address(text: &str) -> Result<IpAddr, String> {
    parse_requested_address(text).map(|own| own.address)
}

/// Parses a MAC address with colons or, as in Go, with hyphens.
pub(crate) fn parse_mac(text: &str) -> Result<Mac, String> {
    let parsed = text.replace('-', ":").parse();
    parsed.map_err(|_| format!("invalid MAC address {text:?}"))
}

/// Parses `ingressPolicy` of the firewall plugin.
pub(crate) fn ingress_policy(config: &Object<'_>) -> Result<Option<IngressPolicy>, Error> {
    let Some(node) = config.get("ingressPolicy") else {
        return Ok(None);
    };
    let policy = node.text()?.parse();
    policy
        .map(Some)
        .map_err(|error| node.invalid(format_args!("unrecognized ingress policy: {error}")))
}

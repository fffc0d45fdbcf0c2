//! Why no address can be given. Where host-local has a text for the same error, it is used
//! verbatim: people search for it.

use std::net::IpAddr;

use model::{AttachmentKey, NetworkName};

/// A request for addresses that is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressRefusal {
    /// Every address of a range set is taken (behaviour R10).
    #[error("no IP addresses available in range set: {set}")]
    Exhausted {
        /// The set as `first-last`, its ranges separated by commas.
        set: String,
    },
    /// The requested address is taken, or can never be given (behaviour R9).
    #[error("requested IP address {address} is not available in range set {set}")]
    AddressTaken {
        /// Requested or conflicting address.
        address: IpAddr,
        /// The set as `first-last`, its ranges separated by commas.
        set: String,
    },
    /// The requested address is the gateway's (behaviour R9).
    #[error("requested ip {address} is subnet's gateway")]
    GatewayRequested {
        /// Requested or conflicting address.
        address: IpAddr,
    },
    /// Requested addresses that no range set offers, or a second one of the same set (behaviour
    /// R9).
    #[error("failed to allocate all requested IPs: {}", words(addresses))]
    RequestsLeft {
        /// Addresses that no range set could give.
        addresses: Vec<IpAddr>,
    },
    /// The owner already has an address of the set (behaviour R10).
    #[error("{address} has been allocated to {}, duplicate allocation is not allowed", owner.container_id)]
    DuplicateAllocation {
        /// Address that it has.
        address: IpAddr,
        /// Attachment that has it.
        owner: AttachmentKey,
    },
    /// The network has no address range.
    #[error("network {network} has no address range: it needs a pod CIDR")]
    NoRanges {
        /// Name of the network.
        network: NetworkName,
    },
    /// The node itself has the address, or it is a broadcast address of one of its links.
    #[error(
        "address {address} belongs to the node itself: a pod with it would get the node's packets"
    )]
    AddressOfNode {
        /// Requested or conflicting address.
        address: IpAddr,
    },
}

fn words(addresses: &[IpAddr]) -> String {
    let words: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    words.join(" ")
}

//! Stored form of published ports: a range of ports is one entry.

use std::net::IpAddr;
use std::num::NonZeroU16;

use model::{PortMapping, PortRange, Protocol};
use serde::{Deserialize, Serialize};

use super::Text;

/// Published ports that follow each other.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(try_from = "StoredRange", into = "StoredRange")]
pub(super) struct StoredPorts(PortRange);

#[derive(Serialize, Deserialize)]
struct StoredRange {
    host_port: NonZeroU16,
    container_port: NonZeroU16,
    protocol: Text<Protocol>,
    host_address: Option<IpAddr>,
    /// Number of ports from these on; absent in older records, and for single ports.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    count: NonZeroU16,
}

fn one() -> NonZeroU16 {
    NonZeroU16::MIN
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_one(count: &NonZeroU16) -> bool {
    *count == NonZeroU16::MIN
}

impl From<StoredPorts> for StoredRange {
    fn from(StoredPorts(range): StoredPorts) -> Self {
        let first = range.first();
        Self {
            host_port: first.host_port,
            container_port: first.container_port,
            protocol: Text(first.protocol),
            host_address: first.host_address,
            count: range.count(),
        }
    }
}

impl TryFrom<StoredRange> for StoredPorts {
    type Error = String;

    fn try_from(stored: StoredRange) -> Result<Self, String> {
        let first = PortMapping {
            host_port: stored.host_port,
            container_port: stored.container_port,
            protocol: stored.protocol.0,
            host_address: stored.host_address,
        };
        let range = PortRange::new(first, stored.count);
        range
            .map(Self)
            .ok_or_else(|| format!("{} ports from {first} end above 65535", stored.count))
    }
}

/// Returns the stored form of mappings, in their order.
pub(super) fn stored<'a>(mappings: impl IntoIterator<Item = &'a PortMapping>) -> Vec<StoredPorts> {
    let ranges = PortRange::of(mappings).into_iter();
    ranges.map(StoredPorts).collect()
}

/// Returns the mappings of a stored form.
pub(super) fn mappings(stored: &[StoredPorts]) -> Vec<PortMapping> {
    let ranges = stored.iter();
    ranges
        .flat_map(|StoredPorts(range)| range.mappings())
        .collect()
}

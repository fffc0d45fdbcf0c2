//! Results that an old version of the protocol cannot express.

use model::{Intent, RangeSet};

use crate::{Error, Version};

/// Why a version of the protocol cannot express the result of an ADD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InexpressibleResult {
    /// The pod gets no address, and results before version 0.3.0 are addresses only.
    NoAddress,
    /// The pod gets several addresses of one family, and results before version 0.3.0 have one.
    SeveralPerFamily(Version),
}

impl InexpressibleResult {
    /// Returns why `version` cannot express the result of an ADD; `None` if it can, and for an ADD
    /// that has no result yet.
    pub fn of(intent: &Intent, version: Version) -> Option<Self> {
        if intent.requested.awaits_addresses || version >= Version::V0_3_0 {
            return None;
        }
        if intent.network.ranges.is_empty() {
            return Some(Self::NoAddress);
        }
        Self::of_ranges(&intent.network.ranges, version)
    }

    /// Returns why `version` cannot express one address of each range set (behaviour R8).
    pub(crate) fn of_ranges(sets: &[RangeSet], version: Version) -> Option<Self> {
        let ipv4 = sets.iter().filter(|set| set.is_ipv4()).count();
        let several = ipv4 > 1 || sets.len() - ipv4 > 1;
        (several && version < Version::V0_3_0).then_some(Self::SeveralPerFamily(version))
    }
}

/// In the words of the reference plugins.
impl From<InexpressibleResult> for Error {
    fn from(reason: InexpressibleResult) -> Self {
        Self::incompatible_version(match reason {
            InexpressibleResult::NoAddress => "cannot convert: no valid IP addresses".to_owned(),
            InexpressibleResult::SeveralPerFamily(version) => {
                format!("CNI version {version} does not support more than 1 address per family")
            }
        })
    }
}

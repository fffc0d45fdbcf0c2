//! The versions of the CNI protocol, and the report of VERSION.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use crate::{Error, json};

/// A supported version of the CNI protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// 0.1.0: results have one address per family and no interfaces.
    V0_1_0,
    /// 0.2.0: results as in 0.1.0.
    V0_2_0,
    /// 0.3.0: results have interfaces and any number of addresses.
    V0_3_0,
    /// 0.3.1: results as in 0.3.0.
    V0_3_1,
    /// 0.4.0: adds CHECK.
    V0_4_0,
    /// 1.0.0: removes the address family from results.
    V1_0_0,
    /// 1.1.0: adds GC, STATUS, and further keys of interfaces and routes.
    V1_1_0,
}

impl Version {
    /// All supported versions, oldest first.
    pub const ALL: [Self; 7] = [
        Self::V0_1_0,
        Self::V0_2_0,
        Self::V0_3_0,
        Self::V0_3_1,
        Self::V0_4_0,
        Self::V1_0_0,
        Self::V1_1_0,
    ];

    /// The newest supported version.
    pub const NEWEST: Self = Self::V1_1_0;

    /// Returns the version as in `cniVersion`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V0_1_0 => "0.1.0",
            Self::V0_2_0 => "0.2.0",
            Self::V0_3_0 => "0.3.0",
            Self::V0_3_1 => "0.3.1",
            Self::V0_4_0 => "0.4.0",
            Self::V1_0_0 => "1.0.0",
            Self::V1_1_0 => "1.1.0",
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Version {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let known = Self::ALL
            .into_iter()
            .find(|version| version.as_str() == text);
        known.ok_or_else(|| {
            Error::incompatible_version(format!(
                "incompatible CNI versions: config is {text:?}, plugin supports {:?}",
                Self::ALL.map(Self::as_str)
            ))
        })
    }
}

/// Returns the JSON that VERSION prints (behaviour S4).
pub fn version_report() -> String {
    let report = VersionReport {
        cni_version: Version::NEWEST.as_str(),
        supported_versions: Version::ALL.map(Version::as_str),
    };
    json::print(&report)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct VersionReport {
    cni_version: &'static str,
    supported_versions: [&'static str; 7],
}

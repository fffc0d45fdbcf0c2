//! Where our programs of traffic control go.

use std::fmt;

/// Which of our programs goes where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hook {
    /// `from_pod`, where packets of a pod enter the host.
    FromPod,
    /// `from_busy_pod`, in front of `from_pod`: only for pods that send much, and never needed.
    FromBusyPod,
    /// `to_pod`, where packets leave the host for a pod.
    ToPod,
    /// `uplink_in`, where packets enter the node.
    UplinkIn,
    /// `uplink_out`, where packets leave the node.
    UplinkOut,
}

impl Hook {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::FromPod,
        Self::FromBusyPod,
        Self::ToPod,
        Self::UplinkIn,
        Self::UplinkOut,
    ];

    /// Whether it is for the host's end of a pod's veth.
    pub fn is_of_pods(self) -> bool {
        match self {
            Self::FromPod | Self::FromBusyPod | Self::ToPod => true,
            Self::UplinkIn | Self::UplinkOut => false,
        }
    }
}

impl fmt::Display for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use abi::maps::programs;
        f.write_str(match self {
            Self::FromPod => programs::FROM_POD,
            Self::FromBusyPod => programs::FROM_BUSY_POD,
            Self::ToPod => programs::TO_POD,
            Self::UplinkIn => programs::UPLINK_IN,
            Self::UplinkOut => programs::UPLINK_OUT,
        })
    }
}

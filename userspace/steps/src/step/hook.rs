//! Attachment points of the traffic-control (TC and TCX) programs.

use std::fmt;

/// A TC program and the place where it is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hook {
    /// `from_pod`: ingress of the host's end of a pod's veth, where packets of the pod enter the
    /// host.
    FromPod,
    /// `from_busy_pod`: TCX fast path in front of `from_pod`, optional and only for high-traffic
    /// pods.
    FromBusyPod,
    /// `to_pod`: egress of the host's end of a pod's veth, where packets leave the host for the
    /// pod.
    ToPod,
    /// `uplink_in`: ingress of an uplink, where packets enter the node.
    UplinkIn,
    /// `uplink_out`: egress of an uplink, where packets leave the node.
    UplinkOut,
}

impl Hook {
    /// Every hook, in the order of the variants.
    pub const ALL: [Self; 5] = [
        Self::FromPod,
        Self::FromBusyPod,
        Self::ToPod,
        Self::UplinkIn,
        Self::UplinkOut,
    ];

    /// Returns whether the program belongs on the host's end of a pod's veth, not on an uplink.
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

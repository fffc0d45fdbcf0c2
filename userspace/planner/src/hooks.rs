//! Programs of each kind of link.

use steps::Hook;

/// The programs on the host's end of every pod's veth.
pub(crate) const POD_HOOKS: [Hook; 2] = [Hook::FromPod, Hook::ToPod];

/// The programs of an uplink.
pub(crate) const UPLINK_HOOKS: [Hook; 2] = [Hook::UplinkIn, Hook::UplinkOut];

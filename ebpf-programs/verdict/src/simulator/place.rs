//! The hooks of the simulated node. Decides nothing.

/// The hook at which a packet enters the datapath.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// [`crate::hooks::from_pod`].
    FromPod,
    /// [`crate::hooks::to_pod`].
    ToPod,
    /// [`crate::hooks::uplink_in`].
    UplinkIn,
    /// [`crate::hooks::uplink_out`].
    UplinkOut,
}

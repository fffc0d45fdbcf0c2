//! Steps that change settings inside a pod: their undo step and their text.

use std::fmt;

use super::Step;

impl Step {
    /// Returns the step that restores the settings of an interface.
    pub(super) fn restored_settings(&self) -> Option<Self> {
        let Self::TunePod {
            netns,
            ifname,
            settings,
            previous,
        } = self
        else {
            return None;
        };
        Some(Self::TunePod {
            netns: netns.clone(),
            ifname: ifname.clone(),
            settings: previous.clone(),
            previous: settings.clone(),
        })
    }

    /// Writes the line of a step that changes settings inside a pod.
    pub(super) fn write_inside(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Self::SetPodMtu { netns, ifname, mtu } = self {
            write!(f, "set the MTU of {ifname} in {} to {mtu}", netns.path)?;
        }
        if let Self::SetLoopback { netns, up } = self {
            let state = if *up { "up" } else { "down" };
            write!(f, "set lo in {} {state}", netns.path)?;
        }
        if let Self::AwaitAddresses { netns, ifname } = self {
            let path = &netns.path;
            f.write_str("wait for duplicate address detection of ")?;
            write!(f, "{ifname} in {path}")?;
        }
        if let Self::TunePod {
            netns,
            ifname,
            settings,
            ..
        } = self
        {
            write!(f, "tune {ifname} in {}: {settings:?}", netns.path)?;
        }
        Ok(())
    }
}

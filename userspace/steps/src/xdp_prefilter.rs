//! XDP prefilter of an uplink: what is attached, and the step that changes it.

use std::fmt;

use model::IfName;

/// An XDP prefilter of ours that is attached to a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttachedPrefilter {
    /// Whether it is the program that this agent has loaded, not one of a previous agent.
    pub is_current: bool,
}

/// One effect on the XDP prefilter of one link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum XdpPrefilterStep {
    /// Attaches the prefilter to an uplink, or replaces a previous agent's program there.
    Attach(IfName),
    /// Detaches the prefilter from a link.
    Detach(IfName),
}

impl XdpPrefilterStep {
    /// Returns the step that undoes this one.
    pub(crate) fn undo(&self) -> Self {
        match self.clone() {
            Self::Attach(link) => Self::Detach(link),
            Self::Detach(link) => Self::Attach(link),
        }
    }
}

impl fmt::Display for XdpPrefilterStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Attach(link) => write!(f, "attach the XDP prefilter to {link}"),
            Self::Detach(link) => write!(f, "detach the XDP prefilter from {link}"),
        }
    }
}

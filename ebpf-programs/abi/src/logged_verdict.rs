//! Verdicts in the datapath log.

/// A verdict in the datapath log. The number is that of the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum LoggedVerdict {
    /// To the next program, and then to the stack.
    Pass = 0,
    /// To the pod behind a veth, past bridge and stack.
    RedirectPeer = 1,
    /// Out of the node by an uplink, to a next hop, past the stack.
    RedirectNeigh = 2,
    /// Out of the node by an uplink, with MAC addresses already written.
    Redirect = 3,
    /// The packet is held, or its copies have been sent through the hook again.
    Consume = 4,
}

impl LoggedVerdict {
    /// All verdicts, in the order of their numbers.
    pub const ALL: [Self; 5] = [
        Self::Pass,
        Self::RedirectPeer,
        Self::RedirectNeigh,
        Self::Redirect,
        Self::Consume,
    ];

    /// Returns the name in log lines.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pass => "pass-to-stack",
            Self::RedirectPeer => "redirect-to-pod",
            Self::RedirectNeigh => "redirect-to-next-hop",
            Self::Redirect => "redirect",
            Self::Consume => "hold",
        }
    }
}

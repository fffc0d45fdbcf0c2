//! How packets of pods travel between nodes (`--between-nodes`).

use std::fmt;
use std::str::FromStr;

/// How packets of pods travel between nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BetweenNodes {
    /// By a route to each peer that is on a link of this node.
    #[default]
    Direct,
    /// By a tunnel to each peer.
    Tunnel,
    /// By a route where the peer is on a link of this node, and by a tunnel elsewhere.
    Auto,
    /// By routes that other software or the network has: the agent adds none.
    None,
}

impl BetweenNodes {
    /// Returns whether tunnels lead to some peers.
    pub const fn has_tunnels(self) -> bool {
        matches!(self, Self::Tunnel | Self::Auto)
    }

    /// Returns the value as the configuration spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Tunnel => "tunnel",
            Self::Auto => "auto",
            Self::None => "none",
        }
    }
}

impl fmt::Display for BetweenNodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for BetweenNodes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let modes = [Self::Direct, Self::Tunnel, Self::Auto, Self::None];
        let named = modes.into_iter().find(|mode| mode.name() == text);
        named.ok_or_else(|| format!("{text:?} is none of direct, tunnel, auto, none"))
    }
}

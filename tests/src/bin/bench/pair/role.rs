//! Which of the three machines this is, and how they find each other: all of it is in the addresses of their cards.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};

use anyhow::{Context as _, Result};

/// What the hardware addresses of all cards begin with; then come the card's number and the machine's.
const OURS: &str = "52:54:00:56:";

/// One of the three machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    NodeA = 1,
    NodeB = 2,
    Client = 3,
}

impl Role {
    const ALL: [Self; 3] = [Self::NodeA, Self::NodeB, Self::Client];

    /// Of this machine.
    pub(super) fn own() -> Result<Self> {
        let found = Self::ALL.into_iter().find(|role| role.card(0).is_ok());
        found.context(
            "this machine is none of a pair; `cargo xtask vm --topology pair` boots three that are",
        )
    }

    /// The interface of its card of that number; 0 is the one by which orders come.
    pub(super) fn card(self, number: usize) -> Result<String> {
        let wanted = format!("{OURS}{number:02x}:{:02x}", self as u8);
        let mut links = fs::read_dir("/sys/class/net")?.flatten();
        let link = links
            .find(|link| {
                let mac = fs::read_to_string(link.path().join("address"));
                mac.is_ok_and(|mac| mac.trim() == wanted)
            })
            .with_context(|| format!("no card has the address {wanted}"))?;
        Ok(link.file_name().to_string_lossy().into_owned())
    }

    /// Its address in each system's network.
    pub(super) fn address(self) -> IpAddr {
        Ipv4Addr::new(192, 0, 2, self as u8).into()
    }

    /// Its address where orders come.
    pub(super) fn desk(self) -> IpAddr {
        Ipv4Addr::new(198, 51, 100, self as u8).into()
    }

    /// The network of its pods, but for the last number.
    pub(super) fn pods(self) -> [u8; 3] {
        [10, 244, self as u8]
    }

    /// The same as a prefix.
    pub(super) fn pod_cidr(self) -> String {
        let [a, b, c] = self.pods();
        format!("{a}.{b}.{c}.0/24")
    }

    /// The other node, of a node.
    pub(super) fn peer(self) -> Option<Self> {
        match self {
            Self::NodeA => Some(Self::NodeB),
            Self::NodeB => Some(Self::NodeA),
            Self::Client => None,
        }
    }
}

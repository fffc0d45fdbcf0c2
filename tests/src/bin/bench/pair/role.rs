//! Role of this machine, from the MAC addresses of its network cards, and the addresses of all
//! roles.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};

use anyhow::{Context as _, Result};

/// Prefix of the cards' MAC addresses. The card's number and the machine's number follow.
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

    /// Returns the role of this machine.
    pub(super) fn own() -> Result<Self> {
        let found = Self::ALL.into_iter().find(|role| role.card(0).is_ok());
        found.context(
            "this machine has no card of the pair topology; `cargo xtask vm --topology pair` boots three machines that have",
        )
    }

    /// Returns the name of the interface of a card; card 0 carries measurement requests.
    pub(super) fn card(self, number: usize) -> Result<String> {
        let wanted = format!("{OURS}{number:02x}:{:02x}", self as u8);
        let mut links = fs::read_dir("/sys/class/net")?.flatten();
        let link = links
            .find(|link| {
                let mac = fs::read_to_string(link.path().join("address"));
                mac.is_ok_and(|mac| mac.trim() == wanted)
            })
            .with_context(|| format!("no card has the MAC address {wanted}"))?;
        Ok(link.file_name().to_string_lossy().into_owned())
    }

    /// Returns its address in the network of each system.
    pub(super) fn address(self) -> IpAddr {
        Ipv4Addr::new(192, 0, 2, self as u8).into()
    }

    /// Returns its address on card 0.
    pub(super) fn control_address(self) -> IpAddr {
        Ipv4Addr::new(198, 51, 100, self as u8).into()
    }

    /// Returns the first three bytes of its pods' /24.
    pub(super) fn pods(self) -> [u8; 3] {
        [10, 244, self as u8]
    }

    /// Returns its pod CIDR.
    pub(super) fn pod_cidr(self) -> String {
        let [a, b, c] = self.pods();
        format!("{a}.{b}.{c}.0/24")
    }

    /// Returns the other node; `None` for the client.
    pub(super) fn peer(self) -> Option<Self> {
        match self {
            Self::NodeA => Some(Self::NodeB),
            Self::NodeB => Some(Self::NodeA),
            Self::Client => None,
        }
    }
}

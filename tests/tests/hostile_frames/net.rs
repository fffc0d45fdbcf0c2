//! Addresses of the pods, the node and the world, and the receivers of frames.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use abi::Mac;
use anyhow::{Context as _, Result};
use e2e::{Machine, UPLINK};

/// Who may receive a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Receiver {
    /// Another pod on the bridge of the attacker, with a published port.
    Mate,
    /// A pod on another bridge.
    Far,
    /// The node's own namespace.
    Node,
    /// A machine on the uplink.
    World,
}

/// An interface with its addresses.
#[derive(Clone, Debug)]
pub(crate) struct Party {
    pub(crate) mac: Mac,
    /// IPv4 first.
    pub(crate) addresses: [IpAddr; 2],
    pub(crate) link_local: Ipv6Addr,
}

impl Party {
    /// Reads MAC and link-local address of a link. Waits until no address is tentative: that would
    /// end between two looks at the receivers.
    pub(crate) fn of(machine: &Machine, link: &str, addresses: [IpAddr; 2]) -> Result<Self> {
        machine.await_addresses(link)?;
        let shown = machine.call_json(&format!("ip -j address show dev {link}"))?;
        let text = shown[0]["address"].as_str().context("no MAC address")?;
        let mut bytes = [0; 6];
        for (byte, digits) in bytes.iter_mut().zip(text.split(':')) {
            *byte = u8::from_str_radix(digits, 16)?;
        }
        let addresses_shown = shown[0]["addr_info"].as_array().context("addresses")?;
        let link_local = addresses_shown
            .iter()
            .filter_map(|one| one["local"].as_str()?.parse::<Ipv6Addr>().ok())
            .find(Ipv6Addr::is_unicast_link_local)
            .with_context(|| format!("{} {link}: no link-local address", machine.name()))?;
        Ok(Self {
            mac: Mac::new(bytes),
            addresses,
            link_local,
        })
    }

    pub(crate) fn v4(&self) -> Ipv4Addr {
        match self.addresses[0] {
            IpAddr::V4(v4) => v4,
            IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED,
        }
    }

    pub(crate) fn v6(&self) -> Ipv6Addr {
        match self.addresses[1] {
            IpAddr::V6(v6) => v6,
            IpAddr::V4(_) => Ipv6Addr::UNSPECIFIED,
        }
    }

    pub(crate) fn has(&self, address: IpAddr) -> bool {
        self.addresses.contains(&address) || address == self.link_local
    }

    fn text(&self) -> String {
        self.mac.bytes().map(|byte| format!("{byte:02x}")).join(":")
    }
}

/// The parties of a scene.
#[derive(Clone, Debug)]
pub(crate) struct Net {
    pub(crate) attacker: Party,
    pub(crate) mate: Party,
    pub(crate) far: Party,
    /// The bridge of attacker and mate, which is their gateway.
    pub(crate) gateway: Party,
    /// The bridge of the other pod.
    pub(crate) far_gateway: Party,
    /// The node's uplink.
    pub(crate) node: Party,
    pub(crate) world: Party,
}

impl Net {
    /// Returns whether a neighbour entry is true: the address is that of a party with this MAC
    /// address, and on the link where the party is. On the uplink any machine may have an address
    /// that is not the world's: no route to a pod leads there.
    pub(crate) fn is_neighbour(&self, address: IpAddr, mac: &str, link: &str) -> bool {
        let on_uplink = link == UPLINK;
        if on_uplink && !self.world.has(address) {
            return true;
        }
        let parties = [
            (&self.attacker, false),
            (&self.mate, false),
            (&self.far, false),
            (&self.gateway, false),
            (&self.far_gateway, false),
            (&self.node, false),
            (&self.world, true),
        ];
        parties.into_iter().any(|(party, outside)| {
            party.has(address) && party.text() == mac && outside == on_uplink
        })
    }

    /// Returns the neighbours of a receiver: address, MAC address and link.
    pub(crate) fn neighbours(
        &self,
        receiver: Receiver,
    ) -> impl Iterator<Item = (IpAddr, String, &'static str)> {
        let parties = match receiver {
            Receiver::Mate => vec![(&self.attacker, "eth0"), (&self.gateway, "eth0")],
            Receiver::Far => vec![(&self.far_gateway, "eth0")],
            Receiver::World => vec![(&self.node, "eth0")],
            Receiver::Node => vec![
                (&self.attacker, "br7"),
                (&self.mate, "br7"),
                (&self.far, "br8"),
                (&self.world, UPLINK),
            ],
        };
        parties
            .into_iter()
            .flat_map(|(party, link)| party.addresses.map(|address| (address, party.text(), link)))
    }

    /// Returns the parties that a pod may pretend to be, with their names.
    pub(crate) fn others(&self) -> [(&'static str, &Party); 5] {
        [
            ("mate", &self.mate),
            ("far", &self.far),
            ("gateway", &self.gateway),
            ("node", &self.node),
            ("world", &self.world),
        ]
    }
}

/// The ingress policy of the networks of all pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    Open,
    SameBridge,
    Isolated,
}

impl Policy {
    /// Returns the value of `ingressPolicy`.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::SameBridge => "same-bridge",
            Self::Isolated => "isolated",
        }
    }

    /// Returns whether a pod may reach this receiver by its own address.
    pub(crate) const fn lets(self, receiver: Receiver) -> bool {
        match receiver {
            Receiver::Mate => matches!(self, Self::Open | Self::SameBridge),
            Receiver::Far => matches!(self, Self::Open),
            Receiver::Node | Receiver::World => true,
        }
    }
}

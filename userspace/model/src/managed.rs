//! Links created by this agent, and the names and Ethernet addresses that derive from their keys.
//!
//! A node is full of links of other software: Docker's, libvirt's, another CNI plugin's, the
//! operator's. To leave one of ours behind is a leak; to delete a foreign one is an outage. So
//! deletion takes a [`ManagedLink`], which can be constructed only from an attachment's key.
//! Besides, the kernel's link must have the alias that the agent set. Where the agent was killed
//! before it set the alias, the link must have the Ethernet address that derives from the same key.

use std::fmt;

use crate::{AttachmentKey, IfName, Mac, Network};

/// Host's end of the veth of one attachment, created by this agent.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ManagedLink {
    name: IfName,
    mac: Mac,
}

impl ManagedLink {
    /// Returns the link of `key`. Its name is `veth` and eight hexadecimal digits of a hash of the
    /// key.
    pub fn of(key: &AttachmentKey) -> Self {
        Self {
            name: IfName::derived(format!("veth{:08x}", of_key(key, 0) >> 32)),
            mac: key.host_mac(),
        }
    }

    /// Returns the interface name.
    pub fn name(&self) -> &IfName {
        &self.name
    }

    /// Returns the Ethernet address, which is set by the message that creates the link.
    pub fn mac(&self) -> Mac {
        self.mac
    }
}

impl fmt::Display for ManagedLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name.fmt(f)
    }
}

impl AttachmentKey {
    /// Returns the Ethernet address of the host's end of the veth.
    pub fn host_mac(&self) -> Mac {
        mac(of_key(self, 1))
    }

    /// Returns the Ethernet address of the pod's end of the veth, unless the runtime requests
    /// another.
    pub fn pod_mac(&self) -> Mac {
        mac(of_key(self, 2))
    }
}

impl Network {
    /// Returns the Ethernet address of the network's bridge. It derives from the network's name,
    /// not from its gateway: the pods' neighbour entries stay right when the bridge is created
    /// again, and when its addresses change.
    pub fn bridge_mac(&self) -> Mac {
        mac(digest(&[self.name.as_str()], 3))
    }
}

fn mac(digest: u64) -> Mac {
    let [_, _, _, host @ ..] = digest.to_be_bytes();
    Mac::local(host)
}

fn of_key(key: &AttachmentKey, salt: u8) -> u64 {
    let parts = [
        key.network.as_str(),
        key.container_id.as_str(),
        key.ifname.as_str(),
    ];
    digest(&parts, salt)
}

/// Hashes `parts` and `salt`: 64-bit FNV-1a with the finaliser of `MurmurHash3`. It must never
/// change, because interface names derive from it.
fn digest(parts: &[&str], salt: u8) -> u64 {
    let hash = parts
        .iter()
        .flat_map(|part| part.bytes().chain([0]))
        .chain([salt])
        .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
    let hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(network: &str, container: &str, ifname: &str) -> AttachmentKey {
        AttachmentKey {
            network: network.parse().unwrap(),
            container_id: container.parse().unwrap(),
            ifname: ifname.parse().unwrap(),
        }
    }

    #[test]
    fn the_name_of_a_link_depends_on_the_whole_key_and_never_changes() {
        let link = ManagedLink::of(&key("net", "c1", "eth0"));
        assert_eq!(
            link.name().as_str(),
            "vethb2b0ff9d",
            "a new name would orphan every link on every node"
        );
        for other in [
            key("net2", "c1", "eth0"),
            key("net", "c2", "eth0"),
            key("net", "c1", "net1"),
        ] {
            assert_ne!(link, ManagedLink::of(&other));
        }
    }

    #[test]
    fn the_two_ends_of_a_veth_have_different_local_unicast_addresses() {
        let key = key("net", "c1", "eth0");
        assert_ne!(key.host_mac(), key.pod_mac());
        assert_eq!(key.pod_mac().0[0] & 0b11, 0b10);
    }

    #[test]
    fn the_address_of_a_bridge_depends_on_the_name_of_its_network_alone() {
        let network = |name: &str, mtu: Option<u32>| Network {
            name: name.parse().unwrap(),
            bridge: "cbr0".parse().unwrap(),
            ranges: Vec::new(),
            routes: Vec::new(),
            default_route: true,
            mtu,
            hairpin: crate::HairpinMode::default(),
            masquerade: true,
            options: crate::BridgeOptions::default(),
        };
        let mac = network("net", None).bridge_mac();
        assert_eq!(mac, network("net", Some(1400)).bridge_mac());
        assert_ne!(mac, network("net2", None).bridge_mac());
        assert_eq!(
            mac.to_string(),
            "02:f3:86:03:b8:c3",
            "a new address would outdate every pod's neighbour entry"
        );
    }
}

//! Attachments: the runtime's request (intent), the decided attachment, and its stored record.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use crate::{
    AttachmentKey, Bandwidth, Families, HostLink, IfName, InterfaceAddress, Mac, ManagedLink,
    NetnsPath, Network, PortMapping, PortOptions, Route, StandbyPort, printable,
};

/// A network namespace: its path, and the inode that identifies it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Netns {
    /// `CNI_NETNS`: path given by the runtime.
    pub path: NetnsPath,
    /// Device number of the namespace's inode.
    pub device: u64,
    /// Inode number. A different inode at the same path is a different namespace.
    pub inode: u64,
}

/// Kubernetes name of a pod, from `K8S_POD_NAMESPACE` and `K8S_POD_NAME` in `CNI_ARGS`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodName {
    /// Kubernetes namespace, for example `default`.
    pub namespace: String,
    /// Name of the pod in its namespace.
    pub name: String,
}

/// Shows `namespace/name`, with control characters escaped: the names come from `CNI_ARGS`.
impl fmt::Display for PodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (namespace, name) = (printable(&self.namespace), printable(&self.name));
        write!(f, "{namespace}/{name}")
    }
}

/// Parameters of an ADD that the runtime requests besides the network's defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requested {
    /// Requested addresses, at most one of each range set.
    pub addresses: Vec<IpAddr>,
    /// Requested Ethernet address of the pod's end.
    pub mac: Option<Mac>,
    /// Addresses of the network that other IPAM state lists as taken, with their owners: they are
    /// not given.
    pub taken: BTreeMap<IpAddr, AttachmentKey>,
    /// Addresses that other IPAM state lists as given last, by index of the range set. Allocation
    /// continues after them where the store has none.
    pub last_reserved: BTreeMap<usize, IpAddr>,
    /// Gateways of the pod's default routes on other networks. This network adds no default route
    /// of their families.
    pub default_gateways: Vec<IpAddr>,
    /// Whether a delegated IPAM plugin provides the addresses later: the interface is created
    /// without any.
    pub awaits_addresses: bool,
    /// Process of a runtime that binds the published ports itself after the ADD.
    pub port_binder: Option<u32>,
}

/// A validated ADD: everything that can be checked without the kernel has been checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intent {
    /// Unique key of the attachment.
    pub key: AttachmentKey,
    /// Path of the pod's network namespace; the node's own where the runtime moves the pod's end
    /// itself.
    pub netns: NetnsPath,
    /// Network from the CNI configuration and the agent's defaults.
    pub network: Network,
    /// Host ports to publish.
    pub port_mappings: Vec<PortMapping>,
    /// Rate limits of its traffic.
    pub bandwidth: Bandwidth,
    /// Requested addresses, MAC address and other parameters.
    pub requested: Requested,
    /// Kubernetes name of the pod; `None` where the runtime gives none.
    pub pod: Option<PodName>,
}

/// A request to adopt an interface that another plugin of a chain has created: with our programs on
/// its host's end, and with hostports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adoption {
    /// Unique key of the attachment.
    pub key: AttachmentKey,
    /// Path of the pod's network namespace.
    pub netns: NetnsPath,
    /// Addresses of the interface, in the order of `prevResult`.
    pub addresses: Vec<Assigned>,
    /// Kubernetes name of the pod; `None` where the runtime gives none.
    pub pod: Option<PodName>,
}

/// An address of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Assigned {
    /// Address with the prefix length of its subnet.
    pub address: InterfaceAddress,
    /// Gateway of the subnet; `None` without one.
    pub gateway: Option<IpAddr>,
}

/// One pod interface as decided: everything needed to create, check and remove it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// Unique key of the attachment.
    pub key: AttachmentKey,
    /// Pod's network namespace.
    pub netns: Netns,
    /// Kubernetes name of the pod; `None` where the runtime gave none.
    pub pod: Option<PodName>,
    /// Interface name of the bridge.
    pub bridge: IfName,
    /// Ethernet address of the pod's end.
    pub mac: Mac,
    /// MTU in bytes.
    pub mtu: u32,
    /// Addresses, IPv4 first.
    pub addresses: Vec<Assigned>,
    /// Routes, each with its gateway.
    pub routes: Vec<Route>,
    /// Published host ports.
    pub port_mappings: Vec<PortMapping>,
    /// Those of them that another interface of the container serves: this one serves them when that
    /// one is removed.
    pub standby: BTreeSet<StandbyPort>,
    /// Rate limits of its traffic.
    pub bandwidth: Bandwidth,
    /// Whether flows to the outside are masqueraded with the uplink's address.
    pub masquerade: bool,
    /// Whether the bridge port is in hairpin mode.
    pub hairpin: bool,
    /// Isolation, VLANs and the other options of the bridge port.
    pub port: PortOptions,
    /// Host's end of an interface that another plugin created; only what this agent added to it is
    /// ever removed. `None` for a veth of ours.
    pub adopted: Option<IfName>,
    /// Row of the datapath's pod table; never 0.
    pub slot: u32,
    /// Distinguishes this owner of the slot, the addresses and the ports from earlier owners.
    pub generation: u32,
}

impl Attachment {
    /// Returns the host's end of the veth.
    pub fn host_link(&self) -> HostLink {
        match &self.adopted {
            None => HostLink::Managed(ManagedLink::of(&self.key)),
            Some(name) => HostLink::Adopted(name.clone()),
        }
    }

    /// Returns whether the container runtime moves the pod's end itself. The pod's end is made in
    /// the node's namespace, and stays down there. The runtime sets its name, addresses and
    /// routes in a namespace that is unknown to the agent.
    pub fn is_moved_by_runtime(&self) -> bool {
        self.netns.path.is_of_node()
    }

    /// Returns the alias that proves the host's end to be ours: `network namespace/pod ifname`,
    /// with the container ID in place of the pod where the runtime gave no pod name. At most 255
    /// bytes (`IFALIASZ`).
    pub fn alias(&self) -> String {
        let owner = match &self.pod {
            Some(pod) => pod.to_string(),
            None => self.key.container_id.to_string(),
        };
        let mut alias = format!("{} {owner} {}", self.key.network, self.key.ifname);
        alias.truncate(
            (0..=255)
                .rev()
                .find(|end| alias.is_char_boundary(*end))
                .unwrap_or(0),
        );
        alias
    }

    /// Returns the families whose flows to the outside are masqueraded.
    pub fn masqueraded(&self) -> Families {
        Families::both(self.masquerade).without(self.port.routed)
    }

    /// Returns whether a port is published at the pod's own address, and not at one of the node.
    pub fn is_direct(&self, mapping: &PortMapping) -> bool {
        let at = mapping.host_address;
        at.is_some_and(|address| self.has_address(address))
    }

    /// Returns whether an address is one of the pod's.
    pub fn has_address(&self, address: IpAddr) -> bool {
        let mut own = self.addresses.iter();
        own.any(|own| own.address.address == address)
    }

    /// Returns the first address of a family.
    pub fn address(&self, ipv4: bool) -> Option<IpAddr> {
        self.addresses
            .iter()
            .map(|assigned| assigned.address.address)
            .find(|address| address.is_ipv4() == ipv4)
    }
}

/// State of an attachment's ADD or DEL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Decided and recorded; the kernel may have none, some or all of its parts.
    Pending,
    /// Created and verified, without the addresses that a delegated IPAM plugin is about to
    /// provide.
    Linked,
    /// Created and verified.
    Attached,
    /// DEL started; the kernel may have some of its parts.
    Removing,
}

/// Stored record of an attachment: the decision, not the observed state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Attachment as decided.
    pub attachment: Attachment,
    /// State of its ADD or DEL.
    pub state: State,
    /// Kernel's boot ID at the time of the decision: no attachment survives a reboot.
    pub boot_id: String,
    /// Time of the decision in seconds since the Unix epoch.
    pub created_at: u64,
}

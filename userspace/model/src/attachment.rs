//! Attachments: what a runtime asks for, what it got, and what is remembered of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use crate::{
    Bandwidth, Cidr, ContainerId, HostLink, IfName, InterfaceAddress, Mac, ManagedLink, NetnsPath,
    Network, NetworkName, PortMapping, PortOptions,
};

/// What makes an attachment unique: one container may be on several networks, or twice on one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttachmentKey {
    /// The network.
    pub network: NetworkName,
    /// The container.
    pub container_id: ContainerId,
    /// The interface's name in the container.
    pub ifname: IfName,
}

impl fmt::Display for AttachmentKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.network, self.container_id, self.ifname)
    }
}

/// A network namespace: where it can be opened, and which one it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Netns {
    /// The path that the runtime gave.
    pub path: NetnsPath,
    /// Device number of the namespace's inode.
    pub device: u64,
    /// Inode number: another one at the same path is another namespace.
    pub inode: u64,
}

/// The pod's name in Kubernetes, from `K8S_POD_NAMESPACE` and `K8S_POD_NAME`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodName {
    /// Kubernetes namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl fmt::Display for PodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A route in a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Route {
    /// Where to.
    pub destination: Cidr,
    /// By which gateway; `None` in a network's configuration means the gateway of the family.
    pub gateway: Option<IpAddr>,
    /// What is particular about it.
    pub options: RouteOptions,
}

/// What is particular about a route; what is `None` is as the kernel has it by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteOptions {
    /// Metric: the lower one wins.
    pub priority: Option<u32>,
    /// Routing table.
    pub table: Option<u32>,
    /// Scope, by the kernel's number. IPv4 only.
    pub scope: Option<u8>,
    /// MTU of the path in bytes.
    pub mtu: Option<u32>,
    /// Maximum segment size that TCP announces.
    pub advmss: Option<u32>,
}

impl RouteOptions {
    /// The main routing table.
    pub const MAIN: u32 = 254;
    /// The scope of what is reached without a router.
    pub const SCOPE_LINK: u8 = 253;

    /// With `None` for what the kernel does by itself, so that what was asked for can be compared with what is there.
    #[must_use]
    pub fn normal(self, is_ipv4: bool, has_gateway: bool) -> Self {
        let (priority, scope) = match (is_ipv4, has_gateway) {
            (true, true) => (0, Some(0)),
            (true, false) => (0, Some(Self::SCOPE_LINK)),
            (false, _) => (1024, self.scope),
        };
        let unset = |value: &u32| *value != 0 && *value != priority;
        Self {
            priority: self.priority.filter(unset),
            table: self
                .table
                .filter(|table| *table != 0 && *table != Self::MAIN),
            scope: self.scope.filter(|own| Some(*own) != scope),
            mtu: self.mtu.filter(|mtu| *mtu != 0),
            advmss: self.advmss.filter(|advmss| *advmss != 0),
        }
    }
}

/// What a runtime may ask for besides the network's defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requested {
    /// Addresses, at most one of each range set.
    pub addresses: Vec<IpAddr>,
    /// Ethernet address of the pod's end.
    pub mac: Option<Mac>,
    /// Addresses of the network that others have, by their word: they are not given.
    pub taken: BTreeMap<IpAddr, AttachmentKey>,
    /// The address that others gave last from each range set, by its index: the search goes on behind it where nothing is
    /// on record.
    pub last_reserved: BTreeMap<usize, IpAddr>,
    /// Gateways of other networks of the pod by which its default routes go: those of their families are not ours.
    pub default_gateways: Vec<IpAddr>,
    /// Whether another plugin gives the addresses, later: the interface is made without.
    pub awaits_addresses: bool,
}

/// An ADD, after everything about it that can be checked without the kernel has been.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intent {
    /// What makes it unique.
    pub key: AttachmentKey,
    /// The pod's network namespace.
    pub netns: NetnsPath,
    /// The network, as the configuration and the agent's defaults say.
    pub network: Network,
    /// Ports to publish.
    pub port_mappings: Vec<PortMapping>,
    /// Limits of its traffic.
    pub bandwidth: Bandwidth,
    /// Particular wishes.
    pub requested: Requested,
    /// The pod's name, when the runtime tells.
    pub pod: Option<PodName>,
}

/// A wish to serve an interface that other plugins of a chain have made: by programs on its host's end, and by ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adoption {
    /// What makes it unique.
    pub key: AttachmentKey,
    /// The pod's network namespace.
    pub netns: NetnsPath,
    /// The interface's addresses, in the order of the chain's result.
    pub addresses: Vec<Assigned>,
    /// Links of the host that the chain's result names: one of them is the other end, one may be its bridge.
    pub links: BTreeSet<IfName>,
    /// The pod's name, when the runtime tells.
    pub pod: Option<PodName>,
}

/// An address given to a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Assigned {
    /// The address with the length of its subnet.
    pub address: InterfaceAddress,
    /// The gateway, where there is one.
    pub gateway: Option<IpAddr>,
}

/// One pod interface, as decided: all that is needed to make it, check it and remove it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// What makes it unique.
    pub key: AttachmentKey,
    /// The pod's network namespace.
    pub netns: Netns,
    /// The pod's name, when the runtime told.
    pub pod: Option<PodName>,
    /// The bridge.
    pub bridge: IfName,
    /// Ethernet address of the pod's end.
    pub mac: Mac,
    /// MTU in bytes.
    pub mtu: u32,
    /// Addresses, IPv4 first.
    pub addresses: Vec<Assigned>,
    /// Routes, each with its gateway.
    pub routes: Vec<Route>,
    /// Published ports.
    pub port_mappings: Vec<PortMapping>,
    /// Limits of its traffic.
    pub bandwidth: Bandwidth,
    /// Whether flows to the outside get the uplink's address.
    pub masquerade: bool,
    /// Whether the bridge port sends frames back where they came from.
    pub hairpin: bool,
    /// What else holds for the bridge port.
    pub port: PortOptions,
    /// The host's end, where another plugin made the interface: we serve it and remove nothing but what we added.
    pub adopted: Option<IfName>,
    /// Row in the datapath's pod table; never 0.
    pub slot: u32,
    /// Distinguishes this owner of the slot, of the addresses and of the ports from those before it.
    pub generation: u32,
}

impl Attachment {
    /// The host's end of the veth.
    pub fn host_link(&self) -> HostLink {
        match &self.adopted {
            None => HostLink::Managed(ManagedLink::of(&self.key)),
            Some(name) => HostLink::Adopted(name.clone()),
        }
    }

    /// The alias that proves the host's end to be ours: `network namespace/pod ifname`, or with the container ID
    /// where the runtime tells no pod. At most 255 bytes (`IFALIASZ`).
    pub fn alias(&self) -> String {
        let who = match &self.pod {
            Some(pod) => pod.to_string(),
            None => self.key.container_id.to_string(),
        };
        let mut alias = format!("{} {who} {}", self.key.network, self.key.ifname);
        alias.truncate(
            (0..=255)
                .rev()
                .find(|end| alias.is_char_boundary(*end))
                .unwrap_or(0),
        );
        alias
    }

    /// The first address of a family.
    pub fn address(&self, ipv4: bool) -> Option<IpAddr> {
        self.addresses
            .iter()
            .map(|assigned| assigned.address.address)
            .find(|address| address.is_ipv4() == ipv4)
    }
}

/// How far an attachment has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Decided and recorded; the kernel may have none, some or all of it.
    Pending,
    /// Made and verified, without the addresses that another plugin is about to give.
    Linked,
    /// Made and verified.
    Attached,
    /// Being removed.
    Removing,
}

/// What is remembered of an attachment: what was decided, not what is true.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The decision.
    pub attachment: Attachment,
    /// How far it has come.
    pub state: State,
    /// The kernel's boot id when it was decided: no attachment survives a reboot.
    pub boot_id: String,
    /// When it was decided, in seconds since 1970 (UTC).
    pub created_at: u64,
}

//! JSON form of records and networks. These types belong to the file, not to the model: the model
//! may change as long as existing files stay readable; otherwise the format number changes.

use std::net::IpAddr;
use std::num::NonZeroU64;

mod change;
mod options;
mod port;
mod standby;
mod text;

pub(crate) use change::{read_change, write_change};
use model::{
    Assigned, Attachment, AttachmentKey, Bandwidth, HairpinMode, InterfaceAddress, Limit, Netns,
    Network, PodName, Range, RangeError, RangeSet, Record, State,
};
use options::{StoredOptions, StoredPeers, StoredPortOptions, StoredRouteOptions};
use port::StoredPorts;
use serde::{Deserialize, Serialize};
use standby::StoredStandby;
use text::Text;

pub(crate) fn write_record(record: &Record) -> Vec<u8> {
    write(&StoredRecord::from(record))
}

pub(crate) fn read_record(bytes: &[u8]) -> Result<Record, String> {
    let stored: StoredRecord = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    Ok(stored.into())
}

pub(crate) fn write_network(network: &Network) -> Vec<u8> {
    write(&StoredNetwork::from(network))
}

pub(crate) fn read_network(bytes: &[u8]) -> Result<Network, String> {
    let stored: StoredNetwork = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    stored.try_into()
}

fn write(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("structs of texts and numbers are JSON")
}

#[derive(Serialize, Deserialize)]
struct StoredRecord {
    state: StoredState,
    boot_id: String,
    created_at: u64,
    attachment: StoredAttachment,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StoredState {
    Pending,
    Linked,
    Attached,
    Removing,
}

#[derive(Serialize, Deserialize)]
struct StoredAttachment {
    network: Text<model::NetworkName>,
    container_id: Text<model::ContainerId>,
    ifname: Text<model::IfName>,
    netns: StoredNetns,
    pod: Option<StoredPod>,
    bridge: Text<model::IfName>,
    mac: Text<model::Mac>,
    mtu: u32,
    addresses: Vec<StoredAddress>,
    routes: Vec<StoredRoute>,
    port_mappings: Vec<StoredPorts>,
    /// Absent in older records, and where no other interface of the container has ports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    standby: Vec<StoredStandby>,
    /// Absent in records of versions without limits.
    #[serde(default, skip_serializing_if = "StoredBandwidth::is_default")]
    bandwidth: StoredBandwidth,
    masquerade: bool,
    hairpin: bool,
    #[serde(default, skip_serializing_if = "StoredPortOptions::is_usual")]
    port: StoredPortOptions,
    /// Absent in older records, and for links that this agent created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    adopted: Option<Text<model::IfName>>,
    slot: u32,
    generation: u32,
}

#[derive(Default, Serialize, Deserialize)]
struct StoredBandwidth {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ingress: Option<StoredLimit>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    egress: Option<StoredLimit>,
    #[serde(default, skip_serializing_if = "StoredPeers::is_all")]
    peers: StoredPeers,
}

impl StoredBandwidth {
    /// The subnets count without a limit as well: a limit may be set later, while the pod runs.
    fn is_default(&self) -> bool {
        self.ingress.is_none() && self.egress.is_none() && StoredPeers::is_all(&self.peers)
    }
}

#[derive(Serialize, Deserialize)]
struct StoredLimit {
    rate: NonZeroU64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    burst: Option<NonZeroU64>,
}

#[derive(Serialize, Deserialize)]
struct StoredNetns {
    path: Text<model::NetnsPath>,
    device: u64,
    inode: u64,
}

#[derive(Serialize, Deserialize)]
struct StoredPod {
    namespace: String,
    name: String,
}

#[derive(Serialize, Deserialize)]
struct StoredAddress {
    address: Text<InterfaceAddress>,
    gateway: Option<IpAddr>,
}

#[derive(Serialize, Deserialize)]
struct StoredRoute {
    destination: Text<model::Cidr>,
    gateway: Option<IpAddr>,
    #[serde(flatten)]
    options: StoredRouteOptions,
}

#[derive(Serialize, Deserialize)]
struct StoredNetwork {
    name: Text<model::NetworkName>,
    bridge: Text<model::IfName>,
    ranges: Vec<Vec<StoredRange>>,
    routes: Vec<StoredRoute>,
    default_route: bool,
    mtu: Option<u32>,
    hairpin: StoredHairpin,
    masquerade: bool,
    #[serde(default)]
    options: StoredOptions,
}

#[derive(Serialize, Deserialize)]
struct StoredRange {
    subnet: Text<model::Cidr>,
    first: IpAddr,
    last: IpAddr,
    gateway: Option<IpAddr>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StoredHairpin {
    HairpinVeth,
    PromiscuousBridge,
    None,
}

impl From<&Record> for StoredRecord {
    fn from(record: &Record) -> Self {
        Self {
            state: match record.state {
                State::Pending => StoredState::Pending,
                State::Linked => StoredState::Linked,
                State::Attached => StoredState::Attached,
                State::Removing => StoredState::Removing,
            },
            boot_id: record.boot_id.clone(),
            created_at: record.created_at,
            attachment: (&record.attachment).into(),
        }
    }
}

impl From<StoredRecord> for Record {
    fn from(stored: StoredRecord) -> Self {
        Self {
            attachment: stored.attachment.into(),
            state: match stored.state {
                StoredState::Pending => State::Pending,
                StoredState::Linked => State::Linked,
                StoredState::Attached => State::Attached,
                StoredState::Removing => State::Removing,
            },
            boot_id: stored.boot_id,
            created_at: stored.created_at,
        }
    }
}

impl From<&Attachment> for StoredAttachment {
    fn from(attachment: &Attachment) -> Self {
        Self {
            network: Text(attachment.key.network.clone()),
            container_id: Text(attachment.key.container_id.clone()),
            ifname: Text(attachment.key.ifname.clone()),
            netns: (&attachment.netns).into(),
            pod: attachment.pod.as_ref().map(StoredPod::from),
            bridge: Text(attachment.bridge.clone()),
            mac: Text(attachment.mac),
            mtu: attachment.mtu,
            addresses: attachment.addresses.iter().map(Into::into).collect(),
            routes: attachment.routes.iter().map(Into::into).collect(),
            port_mappings: port::stored(&attachment.port_mappings),
            standby: standby::stored(&attachment.standby),
            bandwidth: attachment.bandwidth.into(),
            masquerade: attachment.masquerade,
            hairpin: attachment.hairpin,
            port: (&attachment.port).into(),
            adopted: attachment.adopted.clone().map(Text),
            slot: attachment.slot,
            generation: attachment.generation,
        }
    }
}

impl From<StoredAttachment> for Attachment {
    fn from(stored: StoredAttachment) -> Self {
        Self {
            key: AttachmentKey {
                network: stored.network.0,
                container_id: stored.container_id.0,
                ifname: stored.ifname.0,
            },
            netns: stored.netns.into(),
            pod: stored.pod.map(PodName::from),
            bridge: stored.bridge.0,
            mac: stored.mac.0,
            mtu: stored.mtu,
            addresses: stored.addresses.into_iter().map(Into::into).collect(),
            routes: stored.routes.into_iter().map(Into::into).collect(),
            port_mappings: port::mappings(&stored.port_mappings),
            standby: standby::ports(&stored.standby),
            bandwidth: stored.bandwidth.into(),
            masquerade: stored.masquerade,
            hairpin: stored.hairpin,
            port: stored.port.into(),
            adopted: stored.adopted.map(|name| name.0),
            slot: stored.slot,
            generation: stored.generation,
        }
    }
}

impl From<Bandwidth> for StoredBandwidth {
    fn from(bandwidth: Bandwidth) -> Self {
        let limit = |limit: Limit| StoredLimit {
            rate: limit.rate,
            burst: limit.burst,
        };
        Self {
            ingress: bandwidth.ingress.map(limit),
            egress: bandwidth.egress.map(limit),
            peers: bandwidth.shaped_subnets.into(),
        }
    }
}

impl From<StoredBandwidth> for Bandwidth {
    fn from(stored: StoredBandwidth) -> Self {
        let limit = |stored: StoredLimit| Limit {
            rate: stored.rate,
            burst: stored.burst,
        };
        Self {
            ingress: stored.ingress.map(limit),
            egress: stored.egress.map(limit),
            shaped_subnets: stored.peers.into(),
        }
    }
}

impl From<&Netns> for StoredNetns {
    fn from(netns: &Netns) -> Self {
        Self {
            path: Text(netns.path.clone()),
            device: netns.device,
            inode: netns.inode,
        }
    }
}

impl From<StoredNetns> for Netns {
    fn from(stored: StoredNetns) -> Self {
        Self {
            path: stored.path.0,
            device: stored.device,
            inode: stored.inode,
        }
    }
}

impl From<&PodName> for StoredPod {
    fn from(pod: &PodName) -> Self {
        Self {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
        }
    }
}

impl From<StoredPod> for PodName {
    fn from(stored: StoredPod) -> Self {
        Self {
            namespace: stored.namespace,
            name: stored.name,
        }
    }
}

impl From<&Assigned> for StoredAddress {
    fn from(assigned: &Assigned) -> Self {
        Self {
            address: Text(assigned.address),
            gateway: assigned.gateway,
        }
    }
}

impl From<StoredAddress> for Assigned {
    fn from(stored: StoredAddress) -> Self {
        Self {
            address: stored.address.0,
            gateway: stored.gateway,
        }
    }
}

impl From<&model::Route> for StoredRoute {
    fn from(route: &model::Route) -> Self {
        Self {
            destination: Text(route.destination),
            gateway: route.gateway,
            options: (&route.options).into(),
        }
    }
}

impl From<StoredRoute> for model::Route {
    fn from(stored: StoredRoute) -> Self {
        Self {
            destination: stored.destination.0,
            gateway: stored.gateway,
            options: stored.options.into(),
        }
    }
}

impl From<&Network> for StoredNetwork {
    fn from(network: &Network) -> Self {
        let ranges = |set: &RangeSet| set.ranges().iter().map(StoredRange::from).collect();
        Self {
            name: Text(network.name.clone()),
            bridge: Text(network.bridge.clone()),
            ranges: network.ranges.iter().map(ranges).collect(),
            routes: network.routes.iter().map(Into::into).collect(),
            default_route: network.default_route,
            mtu: network.mtu,
            hairpin: match network.hairpin {
                HairpinMode::HairpinVeth => StoredHairpin::HairpinVeth,
                HairpinMode::PromiscuousBridge => StoredHairpin::PromiscuousBridge,
                HairpinMode::None => StoredHairpin::None,
            },
            masquerade: network.masquerade,
            options: (&network.options).into(),
        }
    }
}

impl TryFrom<StoredNetwork> for Network {
    type Error = String;

    fn try_from(stored: StoredNetwork) -> Result<Self, String> {
        let ranges = stored.ranges.into_iter().map(range_set);
        Ok(Self {
            name: stored.name.0,
            bridge: stored.bridge.0,
            ranges: ranges.collect::<Result<_, _>>()?,
            routes: stored.routes.into_iter().map(Into::into).collect(),
            default_route: stored.default_route,
            mtu: stored.mtu,
            hairpin: match stored.hairpin {
                StoredHairpin::HairpinVeth => HairpinMode::HairpinVeth,
                StoredHairpin::PromiscuousBridge => HairpinMode::PromiscuousBridge,
                StoredHairpin::None => HairpinMode::None,
            },
            masquerade: stored.masquerade,
            options: stored.options.into(),
        })
    }
}

fn range_set(stored: Vec<StoredRange>) -> Result<RangeSet, String> {
    let ranges = stored.into_iter().map(range).collect::<Result<Vec<_>, _>>();
    ranges
        .and_then(RangeSet::new)
        .map_err(|error| error.to_string())
}

/// Restores a range. A range of one address may be a [`Range::single`], whose subnet has no room
/// for others.
fn range(stored: StoredRange) -> Result<Range, RangeError> {
    let StoredRange {
        subnet,
        first,
        last,
        gateway,
    } = stored;
    if first == last && gateway != Some(first) {
        let own = InterfaceAddress {
            address: first,
            prefix_len: subnet.0.prefix_len(),
        };
        return Range::single(own, gateway);
    }
    Range::new(subnet.0, Some(first), Some(last), gateway)
}

impl From<&Range> for StoredRange {
    fn from(range: &Range) -> Self {
        Self {
            subnet: Text(range.subnet()),
            first: range.first(),
            last: range.last(),
            gateway: range.gateway(),
        }
    }
}

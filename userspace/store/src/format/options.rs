//! JSON form of the options of routes, bridges, bridge ports and limits. Options that are absent in
//! older files get their defaults.

use std::net::IpAddr;
use std::num::NonZeroU64;

use model::{
    BridgeOptions, Cidr, EgressAddresses, Families, IfName, IngressPolicy, LimitPolicy,
    NetworkAccess, PortOptions, PortVlans, Prefixes, Rates, RouteOptions, ShapedSubnets, VlanId,
};
use serde::{Deserialize, Serialize};

use super::text::Text;

/// Subnets whose traffic is limited: at most one of the lists is present.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct StoredPeers {
    #[serde(skip_serializing_if = "Option::is_none")]
    only: Option<Vec<Text<Cidr>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    except: Option<Vec<Text<Cidr>>>,
}

impl StoredPeers {
    pub(super) fn is_all(&self) -> bool {
        self.only.is_none() && self.except.is_none()
    }
}

impl From<ShapedSubnets> for StoredPeers {
    fn from(subnets: ShapedSubnets) -> Self {
        let list = |prefixes: Prefixes| Some(prefixes.iter().map(Text).collect());
        let (only, except) = match subnets {
            ShapedSubnets::All => (None, None),
            ShapedSubnets::Only(prefixes) => (list(prefixes), None),
            ShapedSubnets::Except(prefixes) => (None, list(prefixes)),
        };
        Self { only, except }
    }
}

impl From<StoredPeers> for ShapedSubnets {
    fn from(stored: StoredPeers) -> Self {
        // Written lists never exceed `Prefixes::MAX`.
        let prefixes = |list: Vec<Text<Cidr>>| {
            let list = list.into_iter().map(|text| text.0);
            Prefixes::new(list.take(Prefixes::MAX)).unwrap_or_default()
        };
        match (stored.only, stored.except) {
            (Some(list), _) => Self::Only(prefixes(list)),
            (None, Some(list)) => Self::Except(prefixes(list)),
            (None, None) => Self::All,
        }
    }
}

#[derive(Serialize, Deserialize)]
pub(super) struct StoredRouteOptions {
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    table: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    scope: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mtu: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    advmss: Option<u32>,
}

#[derive(Serialize, Deserialize)]
#[serde(default)]
pub(super) struct StoredOptions {
    gateway: bool,
    force_address: bool,
    detects_duplicates: bool,
    port: StoredPortOptions,
    #[serde(skip_serializing_if = "StoredLimitPolicy::is_empty")]
    limits: StoredLimitPolicy,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    egress: Vec<IpAddr>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    trusted_links: Vec<Text<IfName>>,
}

/// Rates in bit/s.
#[derive(Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct StoredRates {
    #[serde(skip_serializing_if = "Option::is_none")]
    ingress: Option<NonZeroU64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    egress: Option<NonZeroU64>,
}

#[derive(Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct StoredLimitPolicy {
    default: StoredRates,
    ceiling: StoredRates,
}

impl StoredLimitPolicy {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl From<Rates> for StoredRates {
    fn from(Rates { ingress, egress }: Rates) -> Self {
        Self { ingress, egress }
    }
}

impl From<StoredRates> for Rates {
    fn from(StoredRates { ingress, egress }: StoredRates) -> Self {
        Self { ingress, egress }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum StoredFamily {
    Ipv4,
    Ipv6,
}

#[derive(Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "the file's form: each is a key of its own"
)]
pub(super) struct StoredPortOptions {
    isolated: bool,
    trusted: bool,
    left_down: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    ingress: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    access: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    routed: Vec<StoredFamily>,
    access_vlan: Option<u16>,
    trunk_vlans: Vec<u16>,
    keeps_default_vlan: bool,
}

impl StoredPortOptions {
    /// Returns whether all options are defaults, so that records leave them out.
    pub(super) fn is_usual(&self) -> bool {
        *self == Self::default()
    }
}

impl From<&RouteOptions> for StoredRouteOptions {
    fn from(options: &RouteOptions) -> Self {
        let RouteOptions {
            priority,
            table,
            scope,
            mtu,
            advmss,
        } = *options;
        Self {
            priority,
            table,
            scope,
            mtu,
            advmss,
        }
    }
}

impl From<StoredRouteOptions> for RouteOptions {
    fn from(stored: StoredRouteOptions) -> Self {
        let StoredRouteOptions {
            priority,
            table,
            scope,
            mtu,
            advmss,
        } = stored;
        Self {
            priority,
            table,
            scope,
            mtu,
            advmss,
        }
    }
}

impl Default for StoredOptions {
    fn default() -> Self {
        (&BridgeOptions::default()).into()
    }
}

impl From<&BridgeOptions> for StoredOptions {
    fn from(options: &BridgeOptions) -> Self {
        Self {
            gateway: options.gateway,
            force_address: options.force_address,
            detects_duplicates: options.detects_duplicates,
            port: (&options.port).into(),
            limits: StoredLimitPolicy {
                default: options.limits.default.into(),
                ceiling: options.limits.ceiling.into(),
            },
            egress: options.egress.iter().collect(),
            trusted_links: options.trusted_links.iter().cloned().map(Text).collect(),
        }
    }
}

impl From<StoredOptions> for BridgeOptions {
    fn from(stored: StoredOptions) -> Self {
        Self {
            gateway: stored.gateway,
            force_address: stored.force_address,
            detects_duplicates: stored.detects_duplicates,
            port: stored.port.into(),
            limits: LimitPolicy {
                default: stored.limits.default.into(),
                ceiling: stored.limits.ceiling.into(),
            },
            // A written list has at most one address of each family.
            egress: EgressAddresses::of(stored.egress).unwrap_or_default(),
            trusted_links: stored
                .trusted_links
                .into_iter()
                .map(|text| text.0)
                .collect(),
        }
    }
}

impl From<&PortOptions> for StoredPortOptions {
    fn from(options: &PortOptions) -> Self {
        let vlans = &options.vlans;
        Self {
            isolated: options.isolated,
            trusted: options.trusted,
            left_down: options.left_down,
            ingress: Some(options.ingress)
                .filter(|policy| *policy != IngressPolicy::Open)
                .map(|policy| policy.to_string()),
            access: Some(options.access)
                .filter(|access| *access != NetworkAccess::Direct)
                .map(|access| access.to_string()),
            routed: [StoredFamily::Ipv4, StoredFamily::Ipv6]
                .into_iter()
                .filter(|family| options.routed.contains(*family == StoredFamily::Ipv4))
                .collect(),
            access_vlan: vlans.access.map(VlanId::get),
            trunk_vlans: vlans.trunk.iter().map(|vlan| vlan.get()).collect(),
            keeps_default_vlan: vlans.keeps_default,
        }
    }
}

impl From<StoredPortOptions> for PortOptions {
    fn from(stored: StoredPortOptions) -> Self {
        let trunk = stored.trunk_vlans.into_iter().filter_map(VlanId::new);
        Self {
            isolated: stored.isolated,
            trusted: stored.trusted,
            left_down: stored.left_down,
            // An unknown text, which no version has written, is the default.
            ingress: stored
                .ingress
                .and_then(|text| text.parse().ok())
                .unwrap_or_default(),
            access: stored
                .access
                .and_then(|text| text.parse().ok())
                .unwrap_or_default(),
            routed: Families {
                v4: stored.routed.contains(&StoredFamily::Ipv4),
                v6: stored.routed.contains(&StoredFamily::Ipv6),
            },
            vlans: PortVlans {
                access: stored.access_vlan.and_then(VlanId::new),
                trunk: trunk.collect(),
                keeps_default: stored.keeps_default_vlan,
            },
        }
    }
}
